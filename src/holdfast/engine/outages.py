"""Ends what is over: outages by their level, not by an event that somebody may have missed; and signs of life."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Final, Literal

from holdfast.core import telling
from holdfast.core.job import State as JobState
from holdfast.core.notice import Severity, thresholds
from holdfast.core.reasons import MEANINGS, Reason
from holdfast.core.reasons import of as reason_of
from holdfast.core.telling import About, Told
from holdfast.engine.sweep import in_pages
from holdfast.operations import ca_ends
from holdfast.operations.certificates import REVOKE
from holdfast.store import (
    alerts,
    approvals,
    cas,
    certificates,
    channels,
    issuances,
    issuers,
    journal,
    notice_lists,
    notices,
    outages,
    replicas,
    versions,
)
from holdfast.store import jobs as job_rows
from holdfast.store.channels import ChannelRow
from holdfast.store.database import Store
from holdfast.store.outages import Outage
from holdfast.store.tx import Tx

PAGE: Final = 100
QUIET_FOR: Final = timedelta(hours=24)  # what has no end of its own is over when it was not seen for so long

Level = Literal["on", "over", "forgotten"]  # forgotten: closed without a word


async def watch(db: Store, lost_after: timedelta) -> int:
    """Everything that wants a look each minute; how much was done. Replicas that are silent so long are lost."""
    lost = await db.write(lambda tx: _lose_replicas(tx, lost_after))
    beats = await db.write(_heartbeats)
    closed, after = 0, ""
    while True:
        number, after = await db.write(lambda tx, after=after: _close_page(tx, after, lost_after))  # type: ignore[misc]
        closed += number
        if not after:
            return lost + beats + closed


async def forget(db: Store, history_for: timedelta) -> int:
    return await in_pages(db, lambda tx: notice_lists.forget_old(tx, tx.now() - history_for))


# ── Ending outages ──


def _close_page(tx: Tx, after: str, lost_after: timedelta) -> tuple[int, str]:
    found = outages.after(tx, after, PAGE)
    alive = _alive(tx, lost_after) if any(each.key.startswith("replica/") for each in found) else frozenset()
    closed = sum(_close(tx, each, alive) for each in found)
    return closed, found[-1].key if len(found) == PAGE else ""


def _close(tx: Tx, outage: Outage, alive: frozenset[str]) -> bool:
    family, _, rest = outage.key.partition("/")
    look, over = FAMILIES.get(family, (_quiet, ""))
    level: Level = "over" if family == "replica" and rest in alive else look(tx, outage, rest)
    if level == "on":
        return False
    if level == "over" and over:
        journal.event(tx, over, outage.subject, key=outage.key, called=outage.name)  # the alert's other half closes it
    else:
        outages.close(tx, outage.key)
    return True


def _certificate(tx: Tx, outage: Outage, rest: str) -> Level:
    certificate, _, part = rest.partition("/")
    if part:  # it ends with the whole
        return "on" if outages.is_open(tx, telling.certificate_key(certificate)) else "forgotten"
    found = certificates.get(tx, certificate)
    if found is None or found.state == "archived":
        return "forgotten"
    current = versions.get(tx, found.current_version)
    if found.failing is not None or current is None or current.state == "revoked":
        return "on"
    return "over" if current.not_after - tx.now() > thresholds(current.life)[0] else "on"


def _issuer(tx: Tx, outage: Outage, rest: str) -> Level:
    found = issuers.get(tx, rest)
    if found is None:
        return "forgotten"
    return "over" if found.breaker.until is None else "on"


def _account(tx: Tx, outage: Outage, rest: str) -> Level:
    found = issuers.get(tx, rest)
    if found is None:
        return "forgotten"
    return "on" if found.breaker.barred or issuances.any_barred(tx, rest, Reason.ACCOUNT_REFUSED.value) else "over"


def _own_issuer(tx: Tx, outage: Outage, rest: str) -> Level:
    found = cas.get(tx, rest)
    if found is None or found.state == "closed":
        return "forgotten"
    return "on" if ca_ends.end_of(found).near(tx.now()) else "over"


def _windows(tx: Tx, outage: Outage, rest: str) -> Level:
    return "over" if _quiet(tx, outage, rest) == "forgotten" else "on"


def _order(tx: Tx, outage: Outage, rest: str) -> Level:
    found = issuances.under_way(tx, rest)
    if found is None:
        return "over"
    for_a_person = found.reason is not None and MEANINGS[reason_of(found.reason)].acts_next in ("operator", "you")
    return "on" if for_a_person or found.uncertain_since is not None else "over"


def _at_ca(tx: Tx, outage: Outage, rest: str) -> Level:
    found = issuances.get(tx, rest)
    return "over" if found is None or found.state.over else "on"  # or it goes on, and says so itself


def _approval(tx: Tx, outage: Outage, rest: str) -> Level:
    found = approvals.get(tx, rest)
    return "on" if found is not None and found.state == "pending" else "over"


def _jobs(tx: Tx, outage: Outage, rest: str) -> Level:
    kind, _, job = rest.partition("/")
    if not job:
        return "on" if job_rows.any_dead(tx, kind) else "over"
    found = job_rows.get(tx, job)  # one that has a word of its own
    return "on" if found is not None and found.state is JobState.DEAD else "over"


def _revocation(tx: Tx, outage: Outage, rest: str) -> Level:
    found = versions.get(tx, rest)
    if found is None or found.revoked_at is not None:
        return "forgotten" if found is None else "over"
    return "on" if job_rows.live(tx, REVOKE, rest) is not None else "forgotten"  # that it was given up is told apart


def _letters(tx: Tx, outage: Outage, rest: str) -> Level:
    return "on" if notice_lists.any_dead(tx, rest) else "over"


def _channel(tx: Tx, outage: Outage, rest: str) -> Level:
    found = channels.get(tx, rest)
    if found is None:
        return "forgotten"
    return "over" if found.down_since is None else "on"


def _fallback(tx: Tx, outage: Outage, rest: str) -> Level:
    found = channels.get(tx, rest)
    if found is None:
        return "forgotten"
    return "over" if found.fallback is None or channels.get(tx, found.fallback) is not None else "on"


def _replica(tx: Tx, outage: Outage, rest: str) -> Level:
    named = any(each.name == rest for each in replicas.everyone(tx))
    return "on" if named else "forgotten"  # its row is dropped after an hour: it will not come back


def _quiet(tx: Tx, outage: Outage, rest: str) -> Level:
    return "forgotten" if outage.seen_at < tx.now() - QUIET_FOR else "on"


def _always_on(tx: Tx, outage: Outage, rest: str) -> Level:
    return "on"  # ended by its own event


FAMILIES: Final[Mapping[str, tuple[Callable[[Tx, Outage, str], Level], str]]] = {
    "certificate": (_certificate, "certificate.well"),
    "issuer": (_issuer, "issuer.up"),
    "ca-account": (_account, "issuer.account_well"),
    "ca-issuer": (_own_issuer, "ca.issuer_well"),
    "ca-windows": (_windows, "issuer.windows_calm"),
    "order": (_order, "order.goes_on"),
    "ca-approval": (_at_ca, "issuance.goes_on"),
    "approval": (_approval, "approval.settled"),
    "jobs": (_jobs, "jobs.well"),
    "revocation": (_revocation, "revocation.settled"),
    "dead-letters": (_letters, "channel.letters_gone"),
    "channel": (_channel, "channel.up"),
    "fallback": (_fallback, "channel.fallback_well"),
    "replica": (_replica, "replica.back"),
    "audit": (_always_on, ""),
    "deployment": (_always_on, ""),
}


# ── Replicas ──


def _alive(tx: Tx, lost_after: timedelta) -> frozenset[str]:
    return frozenset(each.name for each in replicas.everyone(tx) if each.seen_at > tx.now() - lost_after)


def _lose_replicas(tx: Tx, lost_after: timedelta) -> int:
    """Those that fell silent without a word. One that runs again under the same name only restarted."""
    alive = _alive(tx, lost_after)
    lost = {each.name: each for each in replicas.everyone(tx) if each.name not in alive and not each.draining}
    new = [each for name, each in sorted(lost.items()) if not outages.is_open(tx, f"replica/{name}")]
    for each in new:
        journal.event(tx, "replica.lost", each.name, seen_at=each.seen_at.isoformat(), version=each.version)
    return len(new)


# ── Signs of life ──


def _heartbeats(tx: Tx) -> int:
    """A dead man's switch listens for these: what it hears of is their absence. One that waits is not repeated."""
    now = tx.now()
    due = channels.with_heartbeat(tx, now)
    for each in due:
        if not notice_lists.waits_for(tx, each.name, HEARTBEAT):
            _beat(tx, each, now)
        channels.beaten(tx, each, now)
    return len(due)


HEARTBEAT: Final = "heartbeat"


def _beat(tx: Tx, row: ChannelRow, now: datetime) -> None:
    told = Told(
        severity=Severity.INFO,
        title="Holdfast is alive",
        text="A sign of life. If the next one does not come, look after Holdfast.",
        mode="plain",
        key=f"heartbeat/{row.name}",
        facts={"dead": str(notice_lists.dead(tx))},
    )
    about = About(subject=row.name, name=row.name)
    first = alerts.first(HEARTBEAT, about, told, now)
    notices.insert(tx, [alerts.to_channel(first, row.name)])
    alerts.wake(tx, {row.name})
