"""The periodic duties of notifications: retries, the end of outages, lost replicas, heartbeats, expiry, cleanup.

An outage ends when the state of its subject says so, and not by an event that could be missed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Final, Literal

from holdfast.core.access import ApprovalState
from holdfast.core.certificate import CertificateState
from holdfast.core.discovery.find import FindState
from holdfast.core.notifications.alert import About, Alert, Outage, certificate_key
from holdfast.core.notifications.channel import ChannelRow
from holdfast.core.notifications.notification import Severity, thresholds
from holdfast.core.own_ca.ca import CaState
from holdfast.core.reasons import MEANINGS, Reason
from holdfast.core.reasons import of as reason_of
from holdfast.core.work.cluster import Replica
from holdfast.core.work.job import JobState
from holdfast.engine.issuance import expiry as certificate_expiry
from holdfast.engine.kind import JobKind
from holdfast.engine.notifications import delivery
from holdfast.engine.notifications.delivery import DeliveryServices
from holdfast.engine.replica import PeriodicDuty
from holdfast.engine.sweep import Owed, in_pages
from holdfast.operations.certificates.lifecycle import REVOKE
from holdfast.operations.notifications import routing
from holdfast.operations.own_ca import authorities
from holdfast.store import access, certificates, endpoints, finds, issuances, issuers, journal, versions
from holdfast.store.database import Store
from holdfast.store.notifications import channels, notifications, outages
from holdfast.store.own_ca import cas
from holdfast.store.tx import Tx
from holdfast.store.work import cluster
from holdfast.store.work import jobs as job_rows

PAGE: Final = 100
LOST_AFTER: Final = timedelta(minutes=2)  # a replica without a heartbeat for so long, and without a shutdown, is lost
QUIET_FOR: Final = timedelta(hours=24)  # an outage without a state of its own is over when it was not seen for so long

Level = Literal["on", "over", "forgotten"]  # forgotten: closed without an all-clear


def kinds(services: DeliveryServices) -> list[JobKind]:
    return [delivery.kind(services)]


def families(services: DeliveryServices) -> list[Owed]:
    """For the reconciler: channels that have lost their job."""
    return [delivery.owed(services.random)]


def duties(
    services: DeliveryServices,
    *,
    retry: timedelta = timedelta(minutes=2),
    process: timedelta = timedelta(minutes=1),
    ends: timedelta = timedelta(hours=1),
    cleanup: timedelta = timedelta(hours=1),
    history_for: timedelta = timedelta(days=90),
    lease_ttl: timedelta = timedelta(seconds=30),
) -> list[PeriodicDuty]:
    lost_after = max(LOST_AFTER, 4 * lease_ttl)
    return [
        PeriodicDuty(
            name="notification_retry", period=retry, duty=partial(delivery.retry, services.db, services.random)
        ),
        PeriodicDuty(name="notification_processing", period=process, duty=partial(watch, services.db, lost_after)),
        PeriodicDuty(name="expiry", period=ends, duty=partial(certificate_expiry.sweep, services.db)),
        PeriodicDuty(name="notification_cleanup", period=cleanup, duty=partial(forget, services.db, history_for)),
    ]


async def watch(db: Store, lost_after: timedelta) -> int:
    """The duty of each minute: lost replicas, heartbeats, and outages that are over. Returns how many were handled."""
    lost = await db.write(lambda tx: _lose_replicas(tx, lost_after))
    beats = await db.write(_heartbeats)
    closed, after = 0, ""
    while True:
        number, after = await db.write(lambda tx, after=after: _close_page(tx, after, lost_after))  # type: ignore[misc]
        closed += number
        if not after:
            return lost + beats + closed


async def forget(db: Store, history_for: timedelta) -> int:
    return await in_pages(db, lambda tx: notifications.forget_old(tx, tx.now() - history_for))


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
        journal.event(tx, over, outage.subject, key=outage.key, called=outage.name)  # routing its all-clear closes it
    else:
        outages.close(tx, outage.key)
    return True


def _certificate(tx: Tx, outage: Outage, rest: str) -> Level:
    certificate, _, part = rest.partition("/")
    if part:  # a part of an outage is over with the outage
        return "on" if outages.is_open(tx, certificate_key(certificate)) else "forgotten"
    found = certificates.get(tx, certificate)
    if found is None or found.state is CertificateState.ARCHIVED:
        return "forgotten"
    current = versions.get(tx, found.current_version)
    if found.failing is not None or current is None or current.state == "revoked":
        return "on"
    return "over" if current.not_after - tx.now() > thresholds(current.life)[0] else "on"


def _endpoint(tx: Tx, outage: Outage, rest: str) -> Level:
    found = endpoints.get(tx, rest)
    if found is None:
        return "forgotten"
    last = found.last
    if last is None or not last.settled:  # changed just now, or not sure yet: wait for the next look
        return "on"
    return "on" if last.troubled else "over"


def _find(tx: Tx, outage: Outage, rest: str) -> Level:
    found = finds.get(tx, rest)
    if found is None:
        return "forgotten"
    waits = found.state is FindState.ADOPTED and found.served
    return "on" if found.places and (found.unmanaged or waits) else "over"


def _finds(tx: Tx, outage: Outage, rest: str) -> Level:
    return "on" if finds.count_unmanaged(tx) else "over"


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
    if found is None or found.state is CaState.CLOSED:
        return "forgotten"
    return "on" if authorities.expiry_of(found).near(tx.now()) else "over"


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
    return (
        "over" if found is None or found.state.over else "on"
    )  # or the issuance continues, and clears it by its own event


def _approval(tx: Tx, outage: Outage, rest: str) -> Level:
    found = access.get_approval(tx, rest)
    return "on" if found is not None and found.state is ApprovalState.PENDING else "over"


def _jobs(tx: Tx, outage: Outage, rest: str) -> Level:
    kind, _, job = rest.partition("/")
    if not job:
        return "on" if job_rows.any_dead(tx, kind) else "over"
    found = job_rows.get(tx, job)  # a job with an alert of its own
    return "on" if found is not None and found.state is JobState.DEAD else "over"


def _revocation(tx: Tx, outage: Outage, rest: str) -> Level:
    found = versions.get(tx, rest)
    if found is None or found.revoked_at is not None:
        return "forgotten" if found is None else "over"
    return "on" if job_rows.live(tx, REVOKE, rest) is not None else "forgotten"  # a dead job has an alert of its own


def _withdrawal(tx: Tx, outage: Outage, rest: str) -> Level:
    found = issuances.get(tx, rest)
    return "on" if found is not None and found.withdrawal == "owed" else "over"


def _letters(tx: Tx, outage: Outage, rest: str) -> Level:
    return "on" if notifications.any_dead(tx, rest) else "over"


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
    named = any(each.name == rest for each in cluster.all_replicas(tx))
    return "on" if named else "forgotten"  # its row is deleted after an hour


def _quiet(tx: Tx, outage: Outage, rest: str) -> Level:
    return "forgotten" if outage.seen_at < tx.now() - QUIET_FOR else "on"


def _always_on(tx: Tx, outage: Outage, rest: str) -> Level:
    return "on"  # closed by its own event


FAMILIES: Final[Mapping[str, tuple[Callable[[Tx, Outage, str], Level], str]]] = {
    "certificate": (_certificate, "certificate.well"),
    "endpoint": (_endpoint, "endpoint.well"),
    "find": (_find, "find.settled"),
    "finds": (_finds, "finds.managed"),
    "issuer": (_issuer, "issuer.up"),
    "ca-account": (_account, "issuer.account_well"),
    "ca-issuer": (_own_issuer, "ca.issuer_well"),
    "ca-windows": (_windows, "issuer.windows_calm"),
    "order": (_order, "order.goes_on"),
    "ca-approval": (_at_ca, "issuance.goes_on"),
    "approval": (_approval, "approval.settled"),
    "jobs": (_jobs, "jobs.well"),
    "revocation": (_revocation, "revocation.settled"),
    "withdrawal": (_withdrawal, "withdrawal.settled"),
    "dead-letters": (_letters, "channel.letters_gone"),
    "channel": (_channel, "channel.up"),
    "fallback": (_fallback, "channel.fallback_well"),
    "replica": (_replica, "replica.back"),
    "audit": (_always_on, ""),
    "deployment": (_always_on, ""),
}


# ── Replicas ──


def _alive(tx: Tx, lost_after: timedelta) -> frozenset[str]:
    return _of_late(tx, cluster.all_replicas(tx), lost_after)


def _of_late(tx: Tx, known: Sequence[Replica], lost_after: timedelta) -> frozenset[str]:
    return frozenset(each.name for each in known if each.seen_at > tx.now() - lost_after)


def _lose_replicas(tx: Tx, lost_after: timedelta) -> int:
    """Report replicas that stopped sending heartbeats without a shutdown. The same name alive again is a restart."""
    known = cluster.all_replicas(tx)  # once: a replica that begins between two readings would be in the second alone
    alive = _of_late(tx, known, lost_after)
    lost = {each.name: each for each in known if each.name not in alive and not each.draining}
    new = [each for name, each in sorted(lost.items()) if not outages.is_open(tx, f"replica/{name}")]
    for each in new:
        journal.event(tx, "replica.lost", each.name, seen_at=each.seen_at.isoformat(), version=each.version)
    return len(new)


# ── Heartbeats ──


def _heartbeats(tx: Tx) -> int:
    """Owe the heartbeats that are due, unless one still waits. The receiver raises an alarm when one is missing."""
    now = tx.now()
    due = channels.with_heartbeat(tx, now)
    for each in due:
        if not notifications.waits_for(tx, each.name, HEARTBEAT):
            _beat(tx, each, now)
        channels.mark_heartbeat(tx, each, now)
    return len(due)


HEARTBEAT: Final = "heartbeat"


def _beat(tx: Tx, row: ChannelRow, now: datetime) -> None:
    alert = Alert(
        severity=Severity.INFO,
        title="Holdfast is alive",
        text="A heartbeat. If the next one does not arrive, check Holdfast.",
        mode="plain",
        key=f"heartbeat/{row.name}",
        facts={"dead": str(notifications.count_dead(tx))},
    )
    about = About(subject=row.name, name=row.name)
    first = routing.first(HEARTBEAT, about, alert, now)
    notifications.insert(tx, [routing.to_channel(first, row.name)])
    routing.wake(tx, {row.name})
