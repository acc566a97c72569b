"""What needs a person now, by the time until it hurts: failing certificates, approvals, dead letters, issuers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final, Literal

from pydantic import BaseModel, Field

from holdfast.core import reasons
from holdfast.core.discovery import judgement
from holdfast.core.discovery.find import Find
from holdfast.core.endpoint_watch import TROUBLES
from holdfast.core.inventory import InventoryFilter
from holdfast.core.issuers.issuer import IssuerState
from holdfast.core.personal import key_of
from holdfast.core.status import Status
from holdfast.operations.access import Action, Principal, Verdict, allow
from holdfast.operations.certificates.refs import all_visible, confined
from holdfast.operations.certificates.views import View, views_of
from holdfast.operations.context import Context
from holdfast.operations.inputs import Nothing
from holdfast.operations.operation import operation
from holdfast.operations.scopes import VISIBLE
from holdfast.store import certificates, endpoints, finds, inventory, issuers, personal, standings
from holdfast.store.notifications import notifications
from holdfast.store.tx import Tx

MOST: Final = 100  # certificates that are shown one by one
SOON: Final = timedelta(days=30)  # a paused certificate that expires within this needs a person
_PEOPLE: Final = frozenset({"you", "operator", "approver"})
_FAR: Final = timedelta(days=3650)
What = Literal["certificate", "approvals", "dead-letters", "issuer", "paused", "endpoint", "finds", "find"]


class AttentionItem(BaseModel):
    """One thing that a person should do something about."""

    what: What
    name: str = Field(description="The certificate or issuer; of several, the one that is hurt first.")
    number: int = Field(default=1, description="How many are meant.")
    says: str = Field(description="What is so, to be read after the name.")
    certificate: str = Field(default="", description="Of an endpoint: the certificate that should be seen there.")
    standing: str = Field(description="As in the list of certificates, such as failing.")
    harm: Literal["expiry", "unsafe", "lapse", ""] = ""
    harm_at: datetime | None = Field(default=None, description="When it hurts; the list is sorted by it.")
    reason_code: str = ""
    details: str = Field(default="", description="More of it, in sentences.")
    attempt: int = 0
    next_attempt_at: datetime | None = None
    acts_next: str = ""


class SnoozedItem(BaseModel):
    """One thing that the asker has put off."""

    item: AttentionItem
    why: str
    until: datetime = Field(description="It comes back then, or before, when it gets worse.")


class Attention(BaseModel):
    at: datetime
    event: int = Field(description="The newest event: follow the stream from it, and nothing is missed.")
    certificates: int = Field(description="How many there are that are not archived.")
    standings: dict[str, int] = Field(
        description="How many stand how: by phase; `retrying` and `not-served` apart from `failing`, `due` from `ok`."
    )
    approvals: int = Field(description="Requests that wait for a second person.")
    unmanaged: int = Field(description="Certificates that are served and not managed here; 0 for a confined asker.")
    dead: int = Field(description="Dead letters; 0 for an asker who may not see all notifications.")
    items: list[AttentionItem]
    snoozed: list[SnoozedItem] = Field(default=[], description="What the asker has put off; `items` is without it.")


@operation(
    "attention.list",
    "GET /attention",
    command="attention",
    action=Action.SEE,
    scope=VISIBLE,
    example="holdfast attention",
)
def attention(tx: Tx, ctx: Context, asked: Nothing) -> Attention:
    """Show what needs a person now, the most urgent first, and how many certificates stand how."""
    found = everything(tx, ctx.principal)
    snoozes = personal.snoozes_of(tx, ctx.actor)
    awake, snoozed = list[AttentionItem](), list[SnoozedItem]()
    for item in found.items:
        held = snoozes.get(key_of(item.what, item.name))
        if held is not None and held.holds(item.standing, item.number, found.at):
            snoozed.append(SnoozedItem(item=item, why=held.why, until=held.until))
        else:
            awake.append(item)
    return found.model_copy(update={"items": awake, "snoozed": snoozed})


def everything(tx: Tx, who: Principal) -> Attention:
    """All that needs a person whom this asker stands for, whether they have put it off or not."""
    now = tx.now()
    clauses, values = inventory.clauses_of(all_visible(who))
    counted = standings.counts(tx, clauses, values, now)
    whole = not who.confined
    dead = notifications.count_dead(tx) if whole and _may(who, Action.SEE_NOTIFICATIONS) else 0
    unmanaged = finds.count_unmanaged(tx) if whole and _may(who, Action.SEE_FINDS) else 0
    items = [
        *_troubled(tx, who, now),
        *_to_approve(tx, who, counted.get("awaiting_approval", 0)),
        *(_unheard(tx, dead) if dead else ()),
        *(_paused_issuers(tx) if whole and _may(who, Action.SEE_ISSUERS) else ()),
        *_paused(tx, who, now),
        *(_finds(tx, unmanaged, now) if unmanaged else ()),
        *(_endpoints(tx, who) if _may(who, Action.SEE_ENDPOINTS) else ()),
    ]
    return Attention(
        at=now,
        event=inventory.newest_event(tx),
        certificates=sum(counted.values()),
        standings=counted,
        approvals=counted.get("awaiting_approval", 0),
        unmanaged=unmanaged,
        dead=dead,
        items=sorted(items, key=lambda each: (each.harm_at or now + _FAR, each.name)),
    )


def _may(who: Principal, action: Action) -> bool:
    return allow(who, action, who.scope) is Verdict.ALLOWED


def _found(tx: Tx, who: Principal, limit: int, *wanted: str, before: datetime | None = None) -> list[View]:
    """Certificates that stand so, those first that expire first."""
    mine = confined(InventoryFilter(standings=wanted, at=tx.now(), expires_before=before), who)
    return [] if mine is None else views_of(tx, inventory.find(tx, mine, sort="expires", limit=limit))


# ── Certificates ──


def _troubled(tx: Tx, who: Principal, now: datetime) -> Iterator[AttentionItem]:
    for view in _found(tx, who, MOST, "expired", "failing", "revoked", "not-served"):
        yield _about(view, now)
    for view in _found(tx, who, MOST, "retrying"):
        if view.status.acts_next in _PEOPLE:  # the others come right by themselves, and are counted
            yield _about(view, now)


def _about(view: View, now: datetime) -> AttentionItem:
    status = view.status
    standing = view.standing
    safe = status.safe_until is not None and status.safe_until > now
    unsafe = standing == "retrying" and safe
    return AttentionItem(
        what="certificate",
        name=view.certificate.name,
        says=_says(standing, status),
        standing=standing,
        harm="unsafe" if unsafe else "expiry" if status.expires_at else "",
        harm_at=status.safe_until if unsafe else status.expires_at,
        reason_code=status.reason_code.value,
        details=_details(status, view.certificate.wanted.owner),
        attempt=status.attempt,
        next_attempt_at=status.next_attempt_at,
        acts_next=_actor(status.acts_next, view.certificate.wanted.owner),
    )


_VERBS: Final = {
    "expired": "has expired", "failing": "fails", "retrying": "retries", "revoked": "is revoked",
    "not-served": "is not served",
}  # fmt: skip


# A row is one line: the sentences of these are longer. The whole one is a click on the code away.
_BRIEF: Final = {
    reasons.Reason.REVOKED: "it is being replaced",
    reasons.Reason.REVOCATION_ASKED: "the CA has not confirmed it yet",
    reasons.Reason.CA_DOWN: "the CA does not answer",
    reasons.Reason.CA_TLS_FAILED: "TLS with the CA fails",
    reasons.Reason.CA_QUOTA_USED_UP: "the quota at the CA is used up",
    reasons.Reason.CA_RATE_LIMITED: "the CA's rate limit is reached",
    reasons.Reason.NAME_PAUSED_AT_CA: "the CA paused a name",
    reasons.Reason.DNS_TXT_NOT_VISIBLE: "TXT record not on all servers",
    reasons.Reason.PROOF_NOT_VISIBLE: "its proof is not visible",
    reasons.Reason.SOLVER_FAILED: "the solver failed",
    reasons.Reason.NO_SOLVER: "no solver fits",
    reasons.Reason.VALIDATION_FAILED: "the CA refused its proof",
    reasons.Reason.CAA_FORBIDS: "its CAA record forbids this CA",
    reasons.Reason.NAME_REFUSED: "the CA refuses a name",
    reasons.Reason.DEPLOY_FAILED: "the deployment failed",
    reasons.Reason.ROLLBACK_FAILED: "the rollback failed",
    reasons.Reason.DEPLOY_NOT_SERVED: "it is in place, but not served",
    reasons.Reason.TARGET_UNREACHABLE: "the target cannot be reached",
    reasons.Reason.CONFIG_TEST_FAILED: "the daemon refuses the configuration",
    reasons.Reason.ENDPOINT_OLD: "shows an earlier version",
    reasons.Reason.ENDPOINT_LAGS: "shows an earlier version in part",
    reasons.Reason.ENDPOINT_DRIFT: "shows another certificate",
    reasons.Reason.ENDPOINT_MISSING_INTERMEDIATE: "serves an incomplete chain",
    reasons.Reason.ENDPOINT_EXPIRING: "shows a certificate that expires soon",
    reasons.Reason.ENDPOINT_WRONG_NAME: "shows a certificate for other names",
    reasons.Reason.ENDPOINT_TLS_FAILED: "does not speak TLS",
    reasons.Reason.ENDPOINT_UNREACHABLE: "cannot be reached",
    reasons.Reason.ENDPOINT_PARTLY_UNREACHABLE: "cannot be reached in part",
}


def _cause(code: reasons.Reason) -> str:
    sentence = reasons.MEANINGS[code].sentence.removesuffix(".")
    return _BRIEF.get(code) or f"{sentence[:1].lower()}{sentence[1:]}"


def _says(standing: str, status: Status) -> str:
    return f"{_VERBS[standing]}: {_cause(status.reason_code)}"


def _details(status: Status, owner: str) -> str:
    """What was tried, and who acts; the time of the next attempt is a field, which every face counts down by itself."""
    failed = "" if not status.attempt else f"{_failed(status.attempt)}{_since(status)}."
    return f"{failed} {_actor(status.acts_next, owner)} acts next.".strip()


def _failed(number: int) -> str:
    return "1 attempt failed" if number == 1 else f"{number} attempts failed"


def _since(status: Status) -> str:
    return "" if status.since is None else f" since {status.since.day} {status.since:%b}"


def _actor(acts: str, owner: str) -> str:
    """Who must act, by name where it is the owner."""
    return {"you": f"Owner {owner}" if owner else "Its owner", "operator": "An operator", "approver": "An approver",
            "ca": "The CA", "holdfast": "Holdfast"}.get(acts, "No person")  # fmt: skip


def _paused(tx: Tx, who: Principal, now: datetime) -> Iterator[AttentionItem]:
    found = _found(tx, who, MOST, "paused", before=now + SOON)
    if not found:
        return
    first = found[0]
    several = f"and {len(found) - 1} more are paused" if len(found) > 1 else "is paused"
    yield AttentionItem(
        what="paused",
        name=first.certificate.name,
        number=len(found),
        says=f"{several}, and will expire",
        standing="paused",
        harm="expiry",
        harm_at=first.status.expires_at,
        reason_code=reasons.Reason.PAUSED.value,
        details="Nothing is renewed until they are resumed." if len(found) > 1 else "It is not renewed until resumed.",
    )


# ── Endpoints ──


def _endpoints(tx: Tx, who: Principal) -> Iterator[AttentionItem]:
    for row in endpoints.page(tx, limit=MOST, owners=who.owners, labels=who.labels, reasons=TROUBLES):
        if row.last is None:
            continue
        meaning = reasons.MEANINGS[row.last.reason]
        wanted = None if row.certificate is None else certificates.get(tx, row.certificate)
        yield AttentionItem(
            what="endpoint",
            name=row.name,
            certificate="" if wanted is None else wanted.name,
            says=_cause(row.last.reason),
            standing="failing" if wanted is None else "not-served",
            harm="expiry" if row.last.ends else "",
            harm_at=row.last.ends,
            reason_code=row.last.reason.value,
            details=row.last.sentence,
            acts_next=_actor(meaning.acts_next, row.owner),
        )


# ── Finds ──


def _finds(tx: Tx, number: int, now: datetime) -> Iterator[AttentionItem]:
    """One item for all that is served and not managed here, and one for each of them that expires soon."""
    rows = finds.unmanaged(tx, MOST)
    yield AttentionItem(
        what="finds",
        name=rows[0].name,
        number=number,
        says="is served and not managed here" if number == 1 else f"and {number - 1} more are served, not managed here",
        standing="not-served",
        harm="expiry",
        harm_at=rows[0].facts.not_after,
        details="Adopt each find, or ignore it with a reason: holdfast finds ls --unmanaged --served",
        acts_next="An operator",
    )
    for row in rows:
        if row.facts.not_after - now < judgement.SOON:
            yield _expiring(row, now)


def _expiring(row: Find, now: datetime) -> AttentionItem:
    remedy = judgement.remedy_of(row)
    return AttentionItem(
        what="find",
        name=row.name,
        says=judgement.sentence_of(row, now),
        standing="expired" if row.facts.not_after <= now else "failing",
        harm="expiry",
        harm_at=row.facts.not_after,
        details=f"{remedy.why_not or f'Adopt it: {remedy.adopt}'} See: holdfast finds show {row.id}",
        acts_next="An operator",
    )


# ── Approvals, dead letters, issuers ──


def _to_approve(tx: Tx, who: Principal, number: int) -> Iterator[AttentionItem]:
    waiting = inventory.approval_page(tx, all_visible(who), state="pending", limit=1) if number else []
    for first in waiting:
        about = certificates.get(tx, first.certificate)
        ends = None if about is None else views_of(tx, [about])[0].status.expires_at
        yield AttentionItem(
            what="approvals",
            name="" if about is None else about.name,
            number=number,
            says="waits for a second person" if number == 1 else f"and {number - 1} more wait for a second person",
            standing="awaiting_approval",
            harm="expiry" if ends else "lapse",
            harm_at=ends or first.expires_at,
            reason_code=reasons.Reason.AWAITING_APPROVAL.value,
            details=f"Asked by {first.requested_by}.",
            next_attempt_at=first.expires_at,
        )


def _unheard(tx: Tx, number: int) -> Iterator[AttentionItem]:
    groups, first = notifications.dead_groups(tx), notifications.first_to_end_unheard(tx)
    where = groups[0].channel if groups else ""
    yield AttentionItem(
        what="dead-letters",
        name="" if first is None else first[0],
        number=number,
        says="1 notification was not delivered" if number == 1 else f"{number} notifications were not delivered",
        standing="dead-letter",
        harm="expiry" if first else "",
        harm_at=None if first is None else first[1],
        reason_code=groups[0].why if groups else "",
        details=f"{len(groups)} causes; the most are owed to {where}." if len(groups) > 1 else f"Channel {where}.",
    )


def _paused_issuers(tx: Tx) -> Iterator[AttentionItem]:
    for row in issuers.all_issuers(tx):
        if row.state is not IssuerState.PAUSED:
            continue
        number, first, ends = issuers.waiting_for(tx, row.name)
        if number:
            yield AttentionItem(
                what="issuer",
                name=row.name,
                number=number,
                says=f"is paused; {number} certificates wait for it" if number > 1 else "is paused; 1 waits for it",
                standing="paused",
                harm="unsafe",
                harm_at=ends,
                reason_code=reasons.Reason.ISSUER_PAUSED.value,
                details=f"The first to expire is {first}.",
            )
