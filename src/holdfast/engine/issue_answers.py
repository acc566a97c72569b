"""Turns what an issuer or a solver returns or raises into the answers that `core/attempt.py` decides about."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from holdfast.core.attempt_facts import At, Failed, Later, OurFault, Pending, Ready, Refusal, Uncertain
from holdfast.core.reasons import Reason
from holdfast.errors import KeyMissing, KeyUnusable, Refused, TryLater
from holdfast.issuers import base
from holdfast.issuers.base import Issuer
from holdfast.pki.refused import PkiRefused

T = TypeVar("T")
Trouble = Later | Refusal | OurFault


async def heard(at: At, asked: Awaitable[T]) -> T | Trouble:
    """What was returned; or what was raised, as a value. A bug of ours, or a lost lease, is still raised."""
    try:
        return await asked
    except (TryLater, Refused) as why:
        return trouble(at, why)
    except KeyMissing as why:
        return Later(at=at, reason=Reason.KEY_MISSING, why=str(why))  # another replica may hold it
    except KeyUnusable as why:
        return OurFault(reason=Reason.KEY_MISSING, why=str(why))
    except PkiRefused as why:
        return OurFault(reason=Reason.INTERNAL, why=str(why))


def trouble(at: At, why: TryLater | Refused) -> Later | Refusal:
    if isinstance(why, Refused):
        return Refusal(at=at, reason=why.reason, why=str(why))
    return Later(at=at, reason=why.reason, why=str(why), after=why.after, sent=why.sent)


def doubt(found: base.Uncertain) -> Uncertain:
    return Uncertain(why=found.why, for_a_person=found.for_a_person)


def looked(look: base.Ready | base.Pending | base.Failed) -> Ready | Pending | Failed:
    match look:
        case base.Ready():
            return Ready()
        case base.Pending():
            words = {"why": look.why, "word": look.word}
            return Pending(**words, after_s=look.after_s, unknown=look.unknown, person=look.person)
        case base.Failed():
            return Failed(why=look.why, reason=look.reason, retryable=look.retryable)


def account_of(issuer: Issuer) -> str | None:
    """URL of our account there, where issuers have such."""
    url: str | None = getattr(issuer, "account_url", None)
    return url
