"""A certificate as it was at an earlier time, as far as that is kept; and what is not, in words."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from holdfast.core.certificate import Certificate, Failing, Version, VersionState


def as_it_was(certificate: Certificate, then: Version | None, at: datetime) -> tuple[Certificate, Version | None]:
    """`then` is the version in use at that time. Plans and holds are of now, and were not made yet."""
    same = then is not None and then.id == certificate.current_version
    was = replace(
        certificate,
        current_version=None if then is None else then.id,
        generation=certificate.generation if then is None else then.generation,
        failing=_failing(certificate.failing, at),
        ari=certificate.ari if same else None,
        next_action_at=None,
        next_cause=None,
    )
    return was, None if then is None else _version(then, at)


def _version(found: Version, at: datetime) -> Version:
    """One that was revoked later was not yet."""
    asked = found.revoke_asked_at if found.revoke_asked_at and found.revoke_asked_at <= at else None
    revoked = found.revoked_at if found.revoked_at and found.revoked_at <= at else None
    state = found.state if revoked or found.state is not VersionState.REVOKED else VersionState.ACTIVE
    return replace(found, revoke_asked_at=asked, revoked_at=revoked, state=state)


def _failing(failing: Failing | None, at: datetime) -> Failing | None:
    """What is kept are the failures in a row up to now: at a time among them nobody can tell how many there were."""
    return failing if failing is not None and failing.last_at <= at else None


def of_today(certificate: Certificate, then: Version | None) -> tuple[str, ...]:
    """What the answer about an earlier time takes from today, as what it was then is not kept."""
    told = [
        "Names, CAs, renewal rule, maintenance windows and state (active, paused) are those of today.",
        f"Failures before the last one are not counted: holdfast events {certificate.name}",
    ]
    if then is not None and then.id != certificate.current_version:
        told.append("The CA's own renewal window (ARI) of that version is not kept.")
    return tuple(told)


UNTIL_THEN = ("This is as if nothing happened and nothing were changed until then.",)
