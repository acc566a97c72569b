"""Which events people are told of, and in which words: the journal's own names in, a message out."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from holdfast.core import reasons, telling_cas, telling_channels, telling_orders
from holdfast.core.notice import Severity, doubling, severity_of_crossing
from holdfast.core.telling_orders import ca_approval_key as ca_approval_key
from holdfast.core.telling_orders import order_key as order_key
from holdfast.core.told import SHOWN, Details, Tell, clear, said
from holdfast.core.told import About as About
from holdfast.core.told import Told as Told
from holdfast.core.told import in_words as in_words

_DOWN: Final = frozenset({"CA_DOWN", "CA_TLS_FAILED", "ANSWER_MALFORMED"})  # told once for the CA, not for each


def tell(event: str, details: Details, about: About) -> Told | None:
    """What people hear of an event; None if this one is not worth a word. It never fails: its cause must not either."""
    try:
        if event in TOLD:
            return TOLD[event](details, about)
        return _other(event, details, about) if details.get("alert") else None
    except (AttributeError, LookupError, TypeError, ValueError):  # facts that are missing, or not what we expect
        return _other(event, details, about)


def certificate_key(certificate: str) -> str:
    return f"certificate/{certificate}"


def issuer_key(issuer: str) -> str:
    return f"issuer/{issuer}"


def account_key(issuer: str) -> str:
    return f"ca-account/{issuer}"


def approval_key(approval: str) -> str:
    return f"approval/{approval}"


def windows_key(issuer: str) -> str:
    return f"ca-windows/{issuer}"


# ── Certificates ──


def _expires(details: Details, about: About) -> Told:
    left = timedelta(seconds=details["left_s"])
    over = left <= timedelta(0)
    planned = details.get("next") or ""
    text = f"It {'ended' if over else 'ends'} at {details['not_after']}. "
    text += "Its renewal is under way." if details.get("under_way") else _renewal(planned)
    return Told(
        severity=severity_of_crossing(details["threshold"], late=not details.get("in_hand")),
        title=f"{about.name} has expired" if over else f"{about.name} expires in {in_words(left)}",
        text=text,
        mode="continues",
        key=certificate_key(about.subject),
        next=f"holdfast explain {about.name}",
        reason="EXPIRED" if over else "",
        facts={"not_after": str(details["not_after"]), "renewal": planned},
    )


def _renewal(planned: str) -> str:
    return f"Its renewal is planned for {planned}." if planned else "No renewal is planned."


def _failed(details: Details, about: About) -> Told | None:
    """The first failure, every doubling of their number, each new refusal, and each that is not safe any more."""
    attempts, reason = int(details.get("attempts") or 0), str(details.get("reason") or "")
    if attempts < 1:
        return None
    unsafe = about.safe_until is not None and not _earlier(details.get("next"), about.safe_until)
    if reason == "ACCOUNT_REFUSED" and about.issuer and not unsafe:
        return _account_refused(details, about)
    excused = reason in _DOWN and about.ca_down
    news = unsafe or (doubling(attempts) and not excused)
    if not news and not details.get("alert"):
        return None
    meaning = reasons.MEANINGS[reasons.of(reason)]
    next_at = str(details.get("next") or "")
    text = f"{meaning.sentence} {said(details)}"
    text += " The next attempt is the last that can be in time, or comes too late: act now." if unsafe else ""
    return Told(
        severity=Severity.CRITICAL if unsafe else Severity.WARNING,
        title=f"{about.name} could not be issued (attempt {attempts})",
        text=text.strip(),
        mode="continues" if news else "opens",
        key=certificate_key(about.subject),
        gate=f"{certificate_key(about.subject)}/{reason}" if details.get("alert") else "",
        next=f"holdfast explain {about.name}",
        reason=reason,
        facts={"ca": str(details.get("issuer") or ""), "attempts": str(attempts), "next_attempt": next_at},
    )


def _account_refused(details: Details, about: About) -> Told:
    """One key is wrong, and every certificate of that CA suffers: told once, and of the CA."""
    return Told(
        severity=Severity.WARNING,
        title=f"CA {about.issuer} does not let us in",
        text=f"{said(details)} {about.name} is the first to notice; if others follow, they are not told until it is "
        "urgent for them. Orders that are placed are kept.".strip(),
        mode="opens",
        key=account_key(about.issuer),
        next=f"holdfast issuer test {about.issuer}",
        reason="ACCOUNT_REFUSED",
        facts={"ca": about.issuer, "certificate": about.name},
        of=about.issuer,
    )


def _account_well(details: Details, about: About) -> Told:
    return clear(f"CA {about.name} lets us in again", "What waited for it goes on.", account_key(about.subject))


def _earlier(at: object, than: datetime) -> bool:
    """No time at all is later than any."""
    return isinstance(at, str) and datetime.fromisoformat(at) < than


def _well(details: Details, about: About) -> Told:
    title = f"{about.name} is well again"
    return clear(title, "It holds a valid certificate, and its renewal is planned.", str(details["key"]))


def _approval(details: Details, about: About) -> Told:
    return Told(
        severity=Severity.WARNING,
        title=f"{about.name} waits for an approval",
        text=f"A second person must approve it before anything is asked of a CA. {details.get('why', '')}".rstrip(),
        mode="opens",
        key=approval_key(str(details["approval"])),
        next=f"holdfast approvals approve {details['approval']}",
        reason="AWAITING_APPROVAL",
        facts={"approval": str(details["approval"])},
    )


def _approval_settled(details: Details, about: About) -> Told:
    return clear(f"{about.name} waits for no approval any more", "It was decided.", str(details["key"]))


def _ari_moved(details: Details, about: About) -> Told:
    """A CA that revokes asks for thousands at once."""
    explained = str(details.get("explanation") or "")
    return Told(
        severity=Severity.WARNING,
        title=f"CA {about.issuer or 'of it'} wants {about.name} renewed earlier",
        text="Its renewal follows the CA's new window, which often means a revocation to come. If the CA asks for more "
        "of its certificates, they are not told." + (f" See {explained[:SHOWN]}" if explained else ""),
        mode="opens",
        key=windows_key(about.issuer),
        next=f"holdfast explain {about.name}",
        reason="DUE_ARI",
        facts={"certificate": about.name, "before": str(details["before"]), "after": str(details["after"])},
        of=about.issuer,
    )


def _windows_calm(details: Details, about: About) -> Told:
    text = "For a day it has asked for no certificate earlier than planned."
    return clear(f"CA {about.name} hurries nobody any more", text, windows_key(about.subject))


def _uncollected(details: Details, about: About) -> Told:
    names = ", ".join(str(each) for each in list(details["names"])[:3])
    return Told(
        severity=Severity.WARNING,
        title=f"A certificate for {names} was issued and never collected",
        text="The client that ordered it has not fetched it. If more follow from this account, they are not told.",
        mode="opens",
        key=f"uncollected/{details['account']}",
        next="holdfast ca certificates",
        facts={"account": str(details["account"]), "serial": str(details["serial"])},
    )


def _barred(details: Details, about: About) -> Told:
    if details.get("why") == "ACCOUNT_REFUSED" and about.issuer:
        return _account_refused(details, about)
    return Told(
        severity=Severity.WARNING,
        title=f"The CA does not let us look at the order of {about.name}",
        text=f"A key was changed, or a right taken; the order may be well, and is kept. {said(details)}",
        mode="opens",
        key=order_key(about.subject),
        next=f"holdfast explain {about.name}",
        reason=str(details.get("why") or ""),
    )


def _stranded(details: Details, about: About) -> Told:
    return Told(
        severity=Severity.WARNING,
        title=f"{about.name} had lost its next step",
        text="Nobody would have come back to it. It was given its time again; please report how this came about.",
        mode="plain",
        next=f"holdfast explain {about.name}",
    )


def _deploy_failed(details: Details, about: About) -> Told:
    target = str(details.get("target") or "")
    return Told(
        severity=Severity.WARNING,
        title=f"{about.name} could not be deployed to {target}",
        text=said(details),
        mode="opens",
        key=f"deployment/{details['deployment']}",
        next=f"holdfast explain {about.name}",
        reason=str(details.get("reason") or ""),
        facts={"target": target},
    )


def _deploy_served(details: Details, about: About) -> Told:
    return clear(f"{about.name} is deployed again", "The target serves it.", f"deployment/{details['deployment']}")


# ── What certificates depend on ──


def _issuer_down(details: Details, about: About) -> Told:
    return Told(
        severity=Severity.WARNING,
        title=f"CA {about.name} is down",
        text=f"{said(details)} One probes it now and then; all that want to go there wait, or go to their next CA.",
        mode="opens",
        key=issuer_key(about.subject),
        next=f"holdfast issuer test {about.name}",
        reason="CA_DOWN",
        facts={"ca": about.name},
    )


def _issuer_up(details: Details, about: About) -> Told:
    return clear(f"CA {about.name} answers again", "What waited for it goes on.", issuer_key(about.subject))


def _job_dead(details: Details, about: About) -> Told:
    kind = str(details["kind"])
    if kind in telling_orders.UNHEARD:
        return telling_orders.unheard(details, about)
    return Told(
        severity=Severity.WARNING,
        title=f"A job of kind {kind} was given up",
        text="It is kept and can be requeued. If more of its kind follow, they are not told.",
        mode="opens",
        key=f"jobs/{kind}",
        next="holdfast jobs ls --state dead",
        reason=str(details.get("reason") or ""),
        facts={"kind": kind, "subject": about.name},
    )


def _jobs_well(details: Details, about: About) -> Told:
    key = str(details["key"])
    kind, _, job = key.partition("/")[2].partition("/")
    if job:
        return clear(f"{about.name}: what was given up is settled", "It was taken up again, or cancelled.", key)
    title = f"No dead jobs of kind {kind} are left"
    return clear(title, "They were requeued or cancelled.", key)


def _chain_broken(details: Details, about: About) -> Told:
    return Told(
        severity=Severity.CRITICAL,
        title="The audit log does not verify",
        text=f"{str(details.get('problem') or '')[:SHOWN]} A row was changed, removed or damaged.",
        mode="opens",
        key="audit",
        next="holdfast audit verify",
    )


def _chain_whole(details: Details, about: About) -> Told:
    return clear("The audit log verifies again", "Its chain is whole.", "audit")


def _failover(details: Details, about: About) -> Told:
    return Told(
        severity=Severity.WARNING,
        title="The database failed over",
        text="Leases were dropped; work that was under way is compared with the CAs before it goes on.",
        mode="plain",
        next="holdfast cluster",
    )


def _replica_lost(details: Details, about: About) -> Told:
    return Told(
        severity=Severity.WARNING,
        title=f"Replica {about.name} is lost",
        text=f"It was last heard of at {details['seen_at']}, and did not say that it would stop. Others do its work.",
        mode="opens",
        key=f"replica/{about.subject}",
        next="holdfast cluster",
    )


def _replica_back(details: Details, about: About) -> Told:
    return clear(f"Replica {about.name} is back", "It works again.", f"replica/{about.subject}")


TOLD: Final[Mapping[str, Tell]] = {
    "certificate.expires": _expires,
    "certificate.well": _well,
    "certificate.uncollected": _uncollected,
    "certificate.stranded": _stranded,
    "issuance.failed": _failed,
    "issuance.uncertain": telling_orders.uncertain,
    "issuance.ordered_again": telling_orders.ordered_again,
    "issuance.barred": _barred,
    "issuance.not_as_asked": telling_orders.not_as_asked,
    "issuance.needs_approval": telling_orders.needs_approval,
    "issuance.goes_on": telling_orders.goes_on,
    "order.goes_on": telling_orders.order_goes_on,
    "order.withdrawn": telling_orders.withdrawn,
    "revocation.waits": telling_orders.revocation_waits,
    "revocation.settled": telling_orders.revocation_settled,
    "approval.asked": _approval,
    "approval.settled": _approval_settled,
    "ari.moved": _ari_moved,
    "issuer.windows_calm": _windows_calm,
    "deployment.failed": _deploy_failed,
    "deployment.served": _deploy_served,
    "issuer.down": _issuer_down,
    "issuer.up": _issuer_up,
    "issuer.account_well": _account_well,
    "ca.issuer_ends": telling_cas.issuer_ends,
    "ca.issuer_well": telling_cas.issuer_well,
    "job.dead": _job_dead,
    "job.quarantined": _job_dead,
    "jobs.well": _jobs_well,
    "selfcheck.failed": _chain_broken,
    "selfcheck.passed": _chain_whole,
    "store.failover": _failover,
    "replica.lost": _replica_lost,
    "replica.back": _replica_back,
    "channel.down": telling_channels.down,
    "channel.up": telling_channels.up,
    "channel.recipients_missed": telling_channels.recipients_missed,
    "channel.fallback_gone": telling_channels.fallback_gone,
    "channel.fallback_well": telling_channels.fallback_well,
    "channel.dead_letters": telling_channels.dead_letters,
    "channel.letters_gone": telling_channels.letters_gone,
}
# Events whose subject is the id of a certificate that we keep.
OF_CERTIFICATE: Final = frozenset(
    {
        "certificate.expires", "certificate.well", "certificate.stranded", "issuance.failed", "approval.asked",
        "ari.moved", "deployment.failed", "deployment.served", "issuance.uncertain", "issuance.ordered_again",
        "issuance.barred", "issuance.not_as_asked", "issuance.needs_approval", "issuance.goes_on", "order.withdrawn",
        "order.goes_on", "approval.settled", "revocation.waits", "revocation.settled",
    }
)  # fmt: skip

OF_JOB: Final = frozenset({"job.dead", "job.quarantined"})  # their subject is whatever the job works on


def _other(event: str, details: Details, about: About) -> Told:
    """Somebody marked an event as one that people must hear of, and wrote no words for it: better these than none."""
    return Told(
        severity=Severity.WARNING,
        title=f"{about.name}: {event.replace('.', ' ').replace('_', ' ')}",
        text=said(details) or "See the events of it.",
        mode="plain",
        next="holdfast events",
        reason=str(details.get("reason") or ""),
    )
