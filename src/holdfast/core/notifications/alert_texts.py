"""The texts of alerts: which events people are told of, and in which words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from holdfast.core import reasons
from holdfast.core.endpoint_watch import URGENT_FOR
from holdfast.core.notifications.agent_alerts import AGENT_ALERTS
from holdfast.core.notifications.alert import (
    SHOWN,
    UNMANAGED_KEY,
    About,
    Alert,
    AlertRule,
    Details,
    account_key,
    approval_key,
    ca_approval_key,
    certificate_key,
    clear,
    endpoint_key,
    find_key,
    in_words,
    issuer_key,
    order_key,
    revocation_key,
    said,
    signing_certificate_key,
    windows_key,
    withdrawal_key,
)
from holdfast.core.notifications.notification import Severity, doubling, severity_of_crossing
from holdfast.core.own_ca.ca import expiry_remedy, expiry_severity

_DOWN: Final = frozenset(
    {"CA_DOWN", "CA_TLS_FAILED", "ANSWER_MALFORMED"}
)  # one alert for the issuer, not one for each certificate


def tell(event: str, details: Details, about: About) -> Alert | None:
    """The alert of an event; None if the event needs none.

    It never raises: it runs in the transaction of the event, which must not fail because of a text.
    """
    try:
        if event in TOLD:
            return TOLD[event](details, about)
        return _other(event, details, about) if details.get("alert") else None
    except (AttributeError, LookupError, TypeError, ValueError):  # details are missing, or of another type
        return _other(event, details, about)


# ── Certificates ──


def _expires(details: Details, about: About) -> Alert:
    left = timedelta(seconds=details["left_s"])
    over = left <= timedelta(0)
    planned = details.get("next") or ""
    text = f"It {'expired' if over else 'expires'} at {details['not_after']}. "
    text += "Its renewal is under way." if details.get("under_way") else _renewal(planned)
    return Alert(
        severity=severity_of_crossing(details["threshold"], late=not details.get("in_hand")),
        title=f"{about.name} has expired" if over else f"{about.name} expires in {in_words(left)}",
        text=text,
        mode="continues",
        key=certificate_key(about.subject),
        next=f"holdfast explain {about.typed}",
        reason="EXPIRED" if over else "",
        facts={"not_after": str(details["not_after"]), "renewal": planned},
    )


def _renewal(planned: str) -> str:
    return f"Its renewal is planned for {planned}." if planned else "No renewal is planned."


def _failed(details: Details, about: About) -> Alert | None:
    """Alert on the first failure, each doubling of the count, each new refusal, and whenever the renewal is late."""
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
    text += (
        " The next attempt is the last one before the certificate expires, or comes too late: act now."
        if unsafe
        else ""
    )
    return Alert(
        severity=Severity.CRITICAL if unsafe else Severity.WARNING,
        title=f"{about.name} could not be issued (attempt {attempts})",
        text=text.strip(),
        mode="continues" if news else "opens",
        key=certificate_key(about.subject),
        gate=f"{certificate_key(about.subject)}/{reason}" if details.get("alert") else "",
        next=f"holdfast explain {about.typed}",
        reason=reason,
        facts={"ca": str(details.get("issuer") or ""), "attempts": str(attempts), "next_attempt": next_at},
    )


def _account_refused(details: Details, about: About) -> Alert:
    """A wrong account key fails every certificate of an issuer: one alert, about the issuer."""
    return Alert(
        severity=Severity.WARNING,
        title=f"Issuer {about.issuer} refuses our account",
        text=f"{said(details)} {about.name} failed first. Further certificates of this issuer are not reported until "
        "they are urgent. Orders that were placed are kept.".strip(),
        mode="opens",
        key=account_key(about.issuer),
        next=f"holdfast issuer test {about.issuer}",
        reason="ACCOUNT_REFUSED",
        facts={"ca": about.issuer, "certificate": about.name},
        of=about.issuer,
    )


def _account_well(details: Details, about: About) -> Alert:
    return clear(
        f"Issuer {about.name} accepts our account again", "Waiting issuances continue.", account_key(about.subject)
    )


def _earlier(at: object, than: datetime) -> bool:
    """Whether a time is earlier; a missing time counts as later."""
    return isinstance(at, str) and datetime.fromisoformat(at) < than


def _well(details: Details, about: About) -> Alert:
    title = f"{about.name} is healthy again"
    return clear(title, "It holds a valid certificate, and its renewal is planned.", str(details["key"]))


def _approval(details: Details, about: About) -> Alert:
    return Alert(
        severity=Severity.WARNING,
        title=f"{about.name} waits for an approval",
        text=f"A second person must approve it before the issuer is asked. {details.get('why', '')}".rstrip(),
        mode="opens",
        key=approval_key(str(details["approval"])),
        next=f"holdfast approvals approve {details['approval']}",
        reason="AWAITING_APPROVAL",
        facts={"approval": str(details["approval"])},
    )


def _approval_settled(details: Details, about: About) -> Alert:
    return clear(f"{about.name} no longer waits for an approval", "The approval was decided.", str(details["key"]))


def _ari_moved(details: Details, about: About) -> Alert:
    """One alert for an issuer: before a mass revocation it moves the windows of thousands of certificates at once."""
    explained = str(details.get("explanation") or "")
    return Alert(
        severity=Severity.WARNING,
        title=f"{f'Issuer {about.issuer}' if about.issuer else 'Its issuer'} wants {about.name} renewed earlier",
        text="Its renewal follows the new window (ARI), which often announces a revocation. Further certificates that "
        "this issuer wants earlier are not reported." + (f" See {explained[:SHOWN]}" if explained else ""),
        mode="opens",
        key=windows_key(about.issuer),
        next=f"holdfast explain {about.typed}",
        reason="DUE_ARI",
        facts={"certificate": about.name, "before": str(details["before"]), "after": str(details["after"])},
        of=about.issuer,
    )


def _windows_calm(details: Details, about: About) -> Alert:
    text = "For a day it has moved no renewal window forward."
    return clear(f"Issuer {about.name} asks for no earlier renewals any more", text, windows_key(about.subject))


def _uncollected(details: Details, about: About) -> Alert:
    names = ", ".join(str(each) for each in list(details["names"])[:3])
    return Alert(
        severity=Severity.WARNING,
        title=f"A certificate for {names} was issued, and no download of it is on record",
        text="Its client may not have fetched it; or a server that was killed within 2 seconds of the download has "
        "lost the record. Look at the client. Further certificates of this account are not reported.",
        mode="opens",
        key=f"uncollected/{details['account']}",
        next="holdfast ca certificates",
        facts={"account": str(details["account"]), "serial": str(details["serial"])},
    )


def _barred(details: Details, about: About) -> Alert:
    if details.get("why") == "ACCOUNT_REFUSED" and about.issuer:
        return _account_refused(details, about)
    return Alert(
        severity=Severity.WARNING,
        title=f"The issuer does not let us read the order of {about.name}",
        text=f"A key was changed, or a permission was withdrawn. The order may be fine, and is kept. {said(details)}",
        mode="opens",
        key=order_key(about.subject),
        next=f"holdfast explain {about.typed}",
        reason=str(details.get("why") or ""),
        facts=_order_fact(details),
    )


def _stranded(details: Details, about: About) -> Alert:
    return Alert(
        severity=Severity.WARNING,
        title=f"{about.name} had lost its next step",
        text="Its renewal was not scheduled any more. It is scheduled again; please report this as a bug.",
        mode="plain",
        next=f"holdfast explain {about.typed}",
    )


def _deploy_failed(details: Details, about: About) -> Alert:
    target = str(details.get("target") or "")
    return Alert(
        severity=Severity.WARNING,
        title=f"{about.name} could not be deployed to {target}",
        text=said(details),
        mode="opens",
        key=f"deployment/{about.subject}/{target}",
        next=f"holdfast deployments ls --certificate {about.typed}",
        reason=str(details.get("reason") or ""),
        facts={"target": target},
    )


def _deploy_served(details: Details, about: About) -> Alert:
    target = str(details.get("target") or "")
    return clear(f"{about.name} is deployed again", f"{target} serves it.", f"deployment/{about.subject}/{target}")


def _rollback_failed(details: Details, about: About) -> Alert:
    """The target may serve neither the new certificate nor the old one: a person must look now."""
    target = str(details.get("target") or "")
    return replace(
        _deploy_failed(details, about),
        severity=Severity.CRITICAL,
        title=f"{about.name} could not be rolled back on {target}",
        gate=f"rollback/{about.subject}/{target}",
    )


# ── Endpoints ──

_AT_ENDPOINT: Final[Mapping[str, tuple[str, Severity]]] = {
    "ENDPOINT_DRIFT": ("shows a certificate that is not expected there", Severity.WARNING),
    "ENDPOINT_MISSING_INTERMEDIATE": ("serves an incomplete chain", Severity.WARNING),
    "ENDPOINT_WRONG_NAME": ("shows a certificate for other names", Severity.CRITICAL),
    "ENDPOINT_TLS_FAILED": ("does not complete a TLS handshake", Severity.CRITICAL),
    "ENDPOINT_UNREACHABLE": ("cannot be reached", Severity.WARNING),
}


def _endpoint(details: Details, about: About) -> Alert:
    reason = str(details["reason"])
    what, severity = _AT_ENDPOINT.get(reason) or _at_end(timedelta(seconds=details["left_s"]))
    return Alert(
        severity=severity,
        title=f"Endpoint {about.name} {what}",
        text=said(details),
        mode="continues",
        key=endpoint_key(about.subject),
        next=f"holdfast endpoint show {about.name}",
        reason=reason,
    )


def _at_end(left: timedelta) -> tuple[str, Severity]:
    if left <= timedelta(0):
        return "shows a certificate that has expired", Severity.CRITICAL
    severity = Severity.CRITICAL if left <= URGENT_FOR else Severity.WARNING
    return f"shows a certificate that expires in {in_words(left)}", severity


def _endpoint_well(details: Details, about: About) -> Alert:
    return clear(f"Endpoint {about.name} is in order again", "It shows what is expected there.", str(details["key"]))


# ── Finds ──


def _find_expires(details: Details, about: About) -> Alert:
    """A certificate that was found, and that nothing here renews."""
    left = timedelta(seconds=details["left_s"])
    over = left <= timedelta(0)
    adopted = details.get("state") == "adopted"
    next_step = "holdfast deployments ls" if adopted else f"holdfast finds show {about.subject}"
    who = {"unknown": "It is not managed here, and it is not known who renews it."}.get(
        str(details.get("manager")), f"It is managed by {details.get('manager')}, which has not renewed it."
    )
    text = "A certificate here takes its place, and is not served there yet." if adopted else who
    return Alert(
        severity=Severity.CRITICAL if left <= URGENT_FOR else Severity.WARNING,
        title=f"{about.name} was found, and {'has expired' if over else f'expires in {in_words(left)}'}",
        text=f"{text} It is seen at {details.get('where') or 'no place'}.",
        mode="continues",
        key=find_key(about.subject),
        next=next_step,
        facts={"issuer": str(details.get("issuer") or ""), "adopt": str(details.get("adopt") or "")},
    )


def _find_settled(details: Details, about: About) -> Alert:
    return clear(
        f"{about.name} is settled", "The find was adopted, ignored or renewed, or is gone.", str(details["key"])
    )


def _discovered(details: Details, about: About) -> Alert | None:
    """One alert for all that a round found, and none if there is nothing for a person to decide."""
    number = int(details.get("unmanaged") or 0)
    if not number:
        return None
    what = "1 certificate is" if number == 1 else f"{number} certificates are"
    return Alert(
        severity=Severity.WARNING,
        title=f"{what} served and not managed here",
        text="A discovery found what this installation does not renew. Adopt each find, or ignore it with a reason.",
        mode="continues",
        key=UNMANAGED_KEY,
        next="holdfast finds ls --unmanaged --served",
    )


def _all_managed(details: Details, about: About) -> Alert:
    return clear(
        "No certificate is served that is not managed here", "Every find is decided about.", str(details["key"])
    )


def _discovery_failed(details: Details, about: About) -> Alert:
    return Alert(
        severity=Severity.WARNING,
        title=f"Discovery {about.subject} failed",
        text=said(details),
        mode="plain",
        next=f"holdfast discover show {about.subject}",
    )


# ── Orders at issuers ──

_STILL_OPEN: Final = "The order is still open at the issuer and may cost money: cancel it there."


def _order_fact(details: Details) -> dict[str, str]:
    """The issuer's own number of the order, by which its people find it."""
    return {"order": str(details["order"])} if details.get("order") else {}


def _order_uncertain(details: Details, about: About) -> Alert:
    return Alert(
        severity=Severity.WARNING,
        title=f"It is unknown whether {about.name} was ordered",
        text=f"The issuer's answer was lost and its orders cannot be read: {_in_doubt(details, about)} {said(details)}",
        mode="opens",
        key=order_key(about.subject),
        next=f"holdfast explain {about.typed}",
    )


def _in_doubt(details: Details, about: About) -> str:
    if details.get("for_a_person"):
        return f"no order is placed automatically. Look for it at the issuer, then run: holdfast renew {about.typed}"
    return "it is ordered again after a day."


def _ordered_again(details: Details, about: About) -> Alert:
    return Alert(
        severity=Severity.WARNING,
        title=f"{about.name} may have been ordered twice",
        text=f"Look for a second order at the issuer, and withdraw it there. {said(details)}",
        mode="plain",
        next=f"holdfast explain {about.typed}",
        facts=_order_fact(details),
    )


def _not_as_asked(details: Details, about: About) -> Alert:
    return Alert(
        severity=Severity.WARNING,
        title=f"The issuer issued a different certificate than requested for {about.name}",
        text=f"{said(details)} The order is paid for, so no second one is placed automatically: have the issuer "
        f"correct it, or order again: holdfast renew {about.typed}",
        mode="opens",
        key=order_key(about.subject),
        next=f"holdfast explain {about.typed}",
        reason=str(details.get("why") or ""),
        facts=_order_fact(details),
    )


def _needs_approval_at_ca(details: Details, about: About) -> Alert:
    return Alert(
        severity=Severity.WARNING,
        title=f"The order of {about.name} must be approved at the issuer",
        text=f"{said(details)} The issuance waits until then.",
        mode="opens",
        key=ca_approval_key(str(details["issuance"])),
        next=f"holdfast explain {about.typed}",
        reason="AWAITING_APPROVAL_AT_CA",
        facts={"ca": str(details.get("issuer") or ""), "word": str(details.get("word") or ""), **_order_fact(details)},
    )


def _approved_at_ca(details: Details, about: About) -> Alert:
    key = str(details.get("key") or ca_approval_key(str(details.get("issuance"))))
    return clear(
        f"The order of {about.name} no longer waits for an approval", "The issuance continues, or is over.", key
    )


def _order_clear(details: Details, about: About) -> Alert:
    return clear(
        f"The order of {about.name} is resolved", "The issuance continues, or is over.", order_key(about.subject)
    )


def _withdrawal_failed(details: Details, about: About) -> Alert | None:
    if not details.get("alert"):
        return None
    return Alert(
        severity=Severity.WARNING,
        title=f"An order of {about.name} could not be withdrawn",
        text=f"{_STILL_OPEN} {str(details.get('why') or '')[:SHOWN]}",
        mode="plain",
        next=f"holdfast explain {about.typed}",
        facts={"ca": str(details.get("issuer") or ""), **_order_fact(details)},
    )


# ── Revocations and withdrawals ──

# Kinds of jobs that tell an issuer something; each dead one has an alert with the name of its certificate.
CA_JOBS: Final = frozenset({"revoke", "withdraw"})


def _revocation_waits(details: Details, about: About) -> Alert:
    return Alert(
        severity=Severity.WARNING,
        title=f"{about.name} is not revoked yet at its issuer",
        text=f"{_not_told(details)} The revocation is retried until the issuer confirms it. {said(details)}",
        mode="opens",
        key=revocation_key(str(details["version"])),
        next=f"holdfast explain {about.typed}",
        reason=str(details.get("reason") or ""),
        facts={"ca": str(details.get("issuer") or ""), "serial": str(details.get("serial") or "")},
    )


def _not_told(details: Details) -> str:
    if reasons.of(str(details.get("reason"))) in reasons.FOR_A_PERSON:
        return "The issuer does not listen to us: mend its credentials or settings, and it is told at once."
    return "The issuer has not confirmed it for an hour or more."


def _withdrawal_waits(details: Details, about: About) -> Alert:
    return Alert(
        severity=Severity.WARNING,
        title=f"An order of {about.name} is not withdrawn yet at its issuer",
        text=f"{_not_told(details)} Until then the order may be issued, and cost money. {said(details)}",
        mode="opens",
        key=withdrawal_key(str(details["issuance"])),
        next=f"holdfast explain {about.typed}",
        reason=str(details.get("reason") or ""),
        facts={"ca": str(details.get("issuer") or "")},
    )


def _withdrawal_settled(details: Details, about: About) -> Alert:
    return clear(f"The order of {about.name} is settled", "The issuer was told, or is not told.", str(details["key"]))


def _revocation_settled(details: Details, about: About) -> Alert:
    return clear(f"{about.name} is revoked at its issuer", "The issuer confirmed the revocation.", str(details["key"]))


def _ca_job_dead(details: Details, about: About) -> Alert:
    """A job that was to revoke a certificate, or to withdraw an order, is dead."""
    job, revokes = str(details["job"]), details["kind"] == "revoke"
    still_valid = "The issuer still considers it valid."
    what = still_valid if revokes else _STILL_OPEN
    return Alert(
        severity=Severity.WARNING,
        title=f"The revocation of {about.name} was given up"
        if revokes
        else f"An order of {about.name} could not be withdrawn",
        text=f"{what} {said(details)}".rstrip(),
        mode="opens",
        key=f"jobs/{details['kind']}/{job}",
        next=f"holdfast retry {job}",
        reason=str(details.get("reason") or ""),
        facts={"kind": str(details["kind"]), "job": job, "ca": about.issuer},
    )


# ── Our own CAs ──


def _signing_certificate_expires(details: Details, about: About) -> Alert:
    left = timedelta(seconds=details["left_s"])
    over = left <= timedelta(0)
    text = (
        f"It {'expired' if over else 'expires'} at {details['not_after']}; certificates that it signs expire no later. "
    )
    text += f"Renew it: {expiry_remedy(about.name, root_here=bool(details.get('root_here')))}"
    expiry = "has expired" if over else f"expires in {in_words(left)}"
    return Alert(
        severity=expiry_severity(int(details["threshold"])),
        title=f"The signing certificate of our CA {about.name} {expiry}",
        text=text,
        mode="continues",
        key=signing_certificate_key(about.subject),
        next=f"holdfast ca show {about.typed}",
        facts={"ca": about.name, "not_after": str(details["not_after"])},
    )


def _signing_certificate_renewed(details: Details, about: About) -> Alert:
    title = f"The signing certificate of our CA {about.name} is renewed"
    return clear(
        title, "The certificates that it signs have their full lifetime again.", signing_certificate_key(about.subject)
    )


# ── What certificates depend on ──


def _issuer_down(details: Details, about: About) -> Alert:
    return Alert(
        severity=Severity.WARNING,
        title=f"Issuer {about.name} is down",
        text=f"{said(details)} One issuance probes it now and then; the others wait, or use their next issuer.",
        mode="opens",
        key=issuer_key(about.subject),
        next=f"holdfast issuer test {about.typed}",
        reason="CA_DOWN",
        facts={"ca": about.name},
    )


def _issuer_up(details: Details, about: About) -> Alert:
    return clear(f"Issuer {about.name} answers again", "Waiting issuances continue.", issuer_key(about.subject))


def _job_dead(details: Details, about: About) -> Alert:
    kind = str(details["kind"])
    if kind in CA_JOBS:
        return _ca_job_dead(details, about)
    return Alert(
        severity=Severity.WARNING,
        title=f"A job of kind {kind} is dead",
        text="It is kept and can be requeued. Further dead jobs of this kind are not reported.",
        mode="opens",
        key=f"jobs/{kind}",
        next="holdfast jobs ls --state dead",
        reason=str(details.get("reason") or ""),
        facts={"kind": kind, "subject": about.name},
    )


def _jobs_well(details: Details, about: About) -> Alert:
    key = str(details["key"])
    kind, _, job = key.partition("/")[2].partition("/")
    if job:
        return clear(f"{about.name}: its dead job is settled", "The job was requeued, or cancelled.", key)
    title = f"No dead jobs of kind {kind} are left"
    return clear(title, "They were requeued or cancelled.", key)


def _chain_broken(details: Details, about: About) -> Alert:
    return Alert(
        severity=Severity.CRITICAL,
        title="The audit log does not verify",
        text=f"{str(details.get('problem') or '')[:SHOWN]} A row was changed, removed or damaged.",
        mode="opens",
        key="audit",
        next="holdfast audit verify",
    )


def _chain_whole(details: Details, about: About) -> Alert:
    return clear("The audit log verifies again", "Its chain is whole.", "audit")


def _failover(details: Details, about: About) -> Alert:
    return Alert(
        severity=Severity.WARNING,
        title="The database failed over",
        text="Leases were dropped. Issuances that were under way are compared with their issuers before they continue.",
        mode="plain",
        next="holdfast cluster",
    )


def _recovering(details: Details, about: About) -> Alert:
    return Alert(
        severity=Severity.CRITICAL,
        title="The database may have lost commits",
        text=f"{_sentence(details['why'])} Up to {details['missing_s']} s may be missing. Our CAs wait until replicas "
        "have put back what they know.",
        mode="plain",
        next="holdfast restore show",
    )


def _recovered(details: Details, about: About) -> Alert:
    return Alert(
        severity=Severity.WARNING,
        title="Lost commits were found again",
        text=f"Up to {details['missing_s']} s were missing. Found again: {_found_again(details)}.",
        mode="plain",
        next="holdfast restore show",
    )


def _quarantined(details: Details, about: About) -> Alert:
    return Alert(
        severity=Severity.CRITICAL,
        title="This installation is in quarantine",
        text=f"{_sentence(details['why'])} Nothing is issued, renewed, deployed or revoked until a person releases it.",
        mode="plain",
        next="holdfast restore show",
    )


def _released(details: Details, about: About) -> Alert:
    return Alert(
        severity=Severity.INFO,
        title="This installation was released from quarantine",
        text=f"By {details['by']}. Found again: {_found_again(details)}.",
        mode="plain",
        next="holdfast status",
    )


def _replayed_late(details: Details, about: About) -> Alert:
    return Alert(
        severity=Severity.WARNING,
        title=f"Replica {details['replica']} knew more",
        text=f"It came back after commits were lost. Found again: {_found_again(details)}.",
        mode="plain",
        next="holdfast restore show",
    )


def _found_again(details: Details) -> str:
    return (
        f"{details['certificates']} certificates, {details['revocations']} revocations, "
        f"{details['serials']} serials of which nothing else is known"
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _replica_lost(details: Details, about: About) -> Alert:
    return Alert(
        severity=Severity.WARNING,
        title=f"Replica {about.name} is lost",
        text=f"Its last heartbeat was at {details['seen_at']}, and it did not shut down. Other replicas do its work.",
        mode="opens",
        key=f"replica/{about.subject}",
        next="holdfast cluster",
    )


def _replica_back(details: Details, about: About) -> Alert:
    return clear(f"Replica {about.name} is back", "It sends heartbeats again.", f"replica/{about.subject}")


# ── Channels ──


def _channel_down(details: Details, about: About) -> Alert:
    return Alert(
        severity=Severity.WARNING,
        title=f"Channel {about.name} is down",
        text=f"{said(details)} Its notifications wait for it, for 72 hours at most.",
        mode="opens",
        key=f"channel/{about.name}",
        next=f"holdfast notify test {about.typed}",
        reason="CHANNEL_DOWN",
        not_to=about.name,
    )


def _channel_up(details: Details, about: About) -> Alert:
    title = f"Channel {about.name} works again"
    return clear(title, "The notifications that waited are sent.", f"channel/{about.name}", not_to=about.name)


def _recipients_missed(details: Details, about: About) -> Alert:
    return Alert(
        severity=Severity.WARNING,
        title=f"Channel {about.name} does not reach all its recipients",
        text=f"{said(details)} Its other recipients have the message.",
        mode="opens",
        key=f"recipients/{about.name}",
        next=f"holdfast notify channel show {about.typed}",
    )


def _fallback_gone(details: Details, about: About) -> Alert:
    return Alert(
        severity=Severity.WARNING,
        title=f"Channel {about.name} has lost its fallback",
        text=f"Its fallback is {str(details['to'])[:SHOWN]}, and there is no such channel any more.",
        mode="opens",
        key=f"fallback/{about.name}",
        next=f"holdfast notify channel set {about.typed} --fallback none",
    )


def _fallback_well(details: Details, about: About) -> Alert:
    return clear(
        f"The fallback of channel {about.name} is in order again",
        "The fallback exists, or none is set.",
        f"fallback/{about.name}",
    )


def _dead_letters(details: Details, about: About) -> Alert:
    return Alert(
        severity=Severity.WARNING,
        title=f"There are dead letters of channel {about.name}",
        text=f"Notifications could not be delivered, and are not tried again automatically. {said(details)}",
        mode="opens",
        key=f"dead-letters/{about.name}",
        next="holdfast notify ls --state dead",
        reason=str(details.get("reason") or ""),
        not_to=about.name,
    )


def _dead_letters_gone(details: Details, about: About) -> Alert:
    title = f"No dead letters of channel {about.name} are left"
    return clear(title, "They were requeued or resolved.", str(details["key"]), not_to=about.name)


# ── The table ──

TOLD: Final[Mapping[str, AlertRule]] = {
    "certificate.expires": _expires,
    "certificate.well": _well,
    "certificate.uncollected": _uncollected,
    "certificate.stranded": _stranded,
    "issuance.failed": _failed,
    "issuance.uncertain": _order_uncertain,
    "issuance.ordered_again": _ordered_again,
    "issuance.barred": _barred,
    "issuance.not_as_asked": _not_as_asked,
    "issuance.needs_approval": _needs_approval_at_ca,
    "issuance.goes_on": _approved_at_ca,
    "order.goes_on": _order_clear,
    "order.withdrawn": _withdrawal_failed,
    "revocation.waits": _revocation_waits,
    "revocation.settled": _revocation_settled,
    "withdrawal.waits": _withdrawal_waits,
    "withdrawal.settled": _withdrawal_settled,
    "approval.asked": _approval,
    "approval.settled": _approval_settled,
    "ari.moved": _ari_moved,
    "issuer.windows_calm": _windows_calm,
    "endpoint.drift": _endpoint,
    "endpoint.missing_intermediate": _endpoint,
    "endpoint.expiring": _endpoint,
    "endpoint.wrong_name": _endpoint,
    "endpoint.tls_failed": _endpoint,
    "endpoint.unreachable": _endpoint,
    "endpoint.well": _endpoint_well,
    "find.expiring": _find_expires,
    "find.settled": _find_settled,
    "discovery.finished": _discovered,
    "discovery.failed": _discovery_failed,
    "finds.managed": _all_managed,
    "deployment.failed": _deploy_failed,
    "deployment.served": _deploy_served,
    "deployment.rollback_failed": _rollback_failed,
    "issuer.down": _issuer_down,
    "issuer.up": _issuer_up,
    "issuer.account_well": _account_well,
    "ca.issuer_ends": _signing_certificate_expires,
    "ca.issuer_well": _signing_certificate_renewed,
    "job.dead": _job_dead,
    "job.quarantined": _job_dead,
    "jobs.well": _jobs_well,
    "selfcheck.failed": _chain_broken,
    "selfcheck.passed": _chain_whole,
    "store.failover": _failover,
    "installation.recovering": _recovering,
    "installation.recovered": _recovered,
    "installation.quarantine": _quarantined,
    "installation.released": _released,
    "witness.replayed": _replayed_late,
    "replica.lost": _replica_lost,
    "replica.back": _replica_back,
    "channel.down": _channel_down,
    "channel.up": _channel_up,
    "channel.recipients_missed": _recipients_missed,
    "channel.fallback_gone": _fallback_gone,
    "channel.fallback_well": _fallback_well,
    "channel.dead_letters": _dead_letters,
    "channel.letters_gone": _dead_letters_gone,
    **AGENT_ALERTS,
}
# Events whose subject is the id of a certificate.
OF_CERTIFICATE: Final = frozenset(
    {
        "certificate.expires", "certificate.well", "certificate.stranded", "issuance.failed", "approval.asked",
        "ari.moved", "deployment.failed", "deployment.served", "deployment.rollback_failed", "issuance.uncertain",
        "issuance.ordered_again",
        "issuance.barred", "issuance.not_as_asked", "issuance.needs_approval", "issuance.goes_on", "order.withdrawn",
        "order.goes_on", "approval.settled", "revocation.waits", "revocation.settled",
        "withdrawal.waits", "withdrawal.settled",
    }
)  # fmt: skip

OF_ENDPOINT: Final = frozenset(each for each in TOLD if each.startswith("endpoint."))  # their subject is an endpoint
OF_JOB: Final = frozenset({"job.dead", "job.quarantined"})  # their subject is that of the job


def _other(event: str, details: Details, about: About) -> Alert:
    """The alert of an event that is marked as one and has no text of its own."""
    return Alert(
        severity=Severity.WARNING,
        title=f"{about.name}: {event.replace('.', ' ').replace('_', ' ')}",
        text=said(details) or "See its events.",
        mode="plain",
        next="holdfast events",
        reason=str(details.get("reason") or ""),
    )
