"""The words about orders at CAs (in doubt, of no use, waiting for a person) and what CAs could not be told."""

from __future__ import annotations

from holdfast.core.notice import Severity
from holdfast.core.told import SHOWN, About, Details, Told, clear, said


def order_key(certificate: str) -> str:
    return f"order/{certificate}"


def ca_approval_key(issuance: str) -> str:
    return f"ca-approval/{issuance}"


def revocation_key(version: str) -> str:
    return f"revocation/{version}"


def uncertain(details: Details, about: About) -> Told:
    return Told(
        severity=Severity.WARNING,
        title=f"Nobody can tell whether {about.name} was ordered",
        text=f"The CA's answer was lost, and it cannot be asked: {_in_doubt(details, about)} {said(details)}",
        mode="opens",
        key=order_key(about.subject),
        next=f"holdfast explain {about.name}",
    )


def _in_doubt(details: Details, about: About) -> str:
    if details.get("for_a_person"):
        return f"it is not ordered again by itself. Look at the CA first; then: holdfast renew {about.name}"
    return "it is ordered again after a day."


def ordered_again(details: Details, about: About) -> Told:
    return Told(
        severity=Severity.WARNING,
        title=f"{about.name} may have been ordered twice",
        text=f"See at the CA whether there is an order too many, and withdraw it there. {said(details)}",
        mode="plain",
        next=f"holdfast explain {about.name}",
    )


def not_as_asked(details: Details, about: About) -> Told:
    return Told(
        severity=Severity.WARNING,
        title=f"The CA issued something else than was asked for {about.name}",
        text=f"{said(details)} The order is paid for, so no other is placed by itself: have the CA correct it, or "
        f"order anew with: holdfast renew {about.name}",
        mode="opens",
        key=order_key(about.subject),
        next=f"holdfast explain {about.name}",
        reason=str(details.get("why") or ""),
    )


def needs_approval(details: Details, about: About) -> Told:
    return Told(
        severity=Severity.WARNING,
        title=f"The order of {about.name} waits for somebody to approve it at the CA",
        text=f"{said(details)} Nothing goes on before that.",
        mode="opens",
        key=ca_approval_key(str(details["issuance"])),
        next=f"holdfast explain {about.name}",
        reason="CA_STILL_PENDING",
        facts={"ca": str(details.get("issuer") or ""), "word": str(details.get("word") or "")},
    )


def goes_on(details: Details, about: About) -> Told:
    key = str(details.get("key") or ca_approval_key(str(details.get("issuance"))))
    return clear(f"The order of {about.name} waits for no approval any more", "It goes on, or has ended.", key)


def order_goes_on(details: Details, about: About) -> Told:
    return clear(f"The order of {about.name} is clear again", "It goes on, or has ended.", order_key(about.subject))


def withdrawn(details: Details, about: About) -> Told | None:
    if not details.get("alert"):
        return None
    return Told(
        severity=Severity.WARNING,
        title=f"An order of {about.name} could not be withdrawn",
        text=f"It goes on at the CA, and may cost money: end it there. {str(details.get('why') or '')[:SHOWN]}",
        mode="plain",
        next=f"holdfast explain {about.name}",
        facts={"ca": str(details.get("issuer") or "")},
    )


# ── What a CA was to hear of ──

UNHEARD = frozenset({"revoke", "withdraw"})  # kinds of jobs; each that dies is told, with the name of its certificate


def revocation_waits(details: Details, about: About) -> Told:
    return Told(
        severity=Severity.WARNING,
        title=f"{about.name} is not revoked yet at its CA",
        text=f"The CA has not done it for an hour or more, and is asked until it has. {said(details)}",
        mode="opens",
        key=revocation_key(str(details["version"])),
        next=f"holdfast explain {about.name}",
        reason=str(details.get("reason") or ""),
        facts={"ca": str(details.get("issuer") or ""), "serial": str(details.get("serial") or "")},
    )


def revocation_settled(details: Details, about: About) -> Told:
    return clear(f"{about.name} is revoked at its CA", "It took a while.", str(details["key"]))


def unheard(details: Details, about: About) -> Told:
    """A job that was to tell a CA something is dead."""
    job, revokes = str(details["job"]), details["kind"] == "revoke"
    what = "It is good at the CA as before." if revokes else "It goes on at the CA, and may cost money: end it there."
    return Told(
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
