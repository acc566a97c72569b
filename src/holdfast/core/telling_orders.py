"""The words about orders at CAs: in doubt, of no use, waiting for a person, or not to be withdrawn."""

from __future__ import annotations

from holdfast.core.notice import Severity
from holdfast.core.told import SHOWN, About, Details, Told, clear, said


def order_key(certificate: str) -> str:
    return f"order/{certificate}"


def ca_approval_key(issuance: str) -> str:
    return f"ca-approval/{issuance}"


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
