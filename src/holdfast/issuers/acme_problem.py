"""What a CA's refusal means to us (RFC 8555 §6.7): whether to come back, and under which reason it is shown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from holdfast.core import ca_limits
from holdfast.core.problem import PREFIX
from holdfast.core.reasons import Reason
from holdfast.errors import Refused, TryLater
from holdfast.issuers.reading import words

_LATER: Final = {
    "badNonce": Reason.NONCES_REFUSED,  # as often in a row as is tried; it answers, so it is not down
    "orderNotReady": Reason.CA_STILL_PENDING,
    "rateLimited": Reason.CA_RATE_LIMITED,
    "serverInternal": Reason.CA_DOWN,
}
_NEVER: Final = {
    "accountDoesNotExist": Reason.ACCOUNT_GONE,
    "alreadyReplaced": Reason.REPLACES_REJECTED,
    "caa": Reason.CAA_FORBIDS,
    "externalAccountRequired": Reason.EAB_REQUIRED,
    "invalidProfile": Reason.PROFILE_UNKNOWN,
    "rejectedIdentifier": Reason.NAME_REFUSED,
    "unauthorized": Reason.ACCOUNT_REFUSED,
    "unsupportedIdentifier": Reason.NAME_REFUSED,
    "userActionRequired": Reason.ACCOUNT_REFUSED,  # new terms, mostly (§7.3.3)
}
# The same words mean something else when they are about a name: there, "unauthorized" is a proof that was not right.
_ABOUT_A_NAME: Final = {
    "caa": Reason.CAA_FORBIDS,
    "rateLimited": Reason.CA_RATE_LIMITED,
    "rejectedIdentifier": Reason.NAME_REFUSED,
    "unsupportedIdentifier": Reason.NAME_REFUSED,
    "serverInternal": Reason.CA_DOWN,
    **dict.fromkeys(("connection", "dns", "incorrectResponse", "tls", "unauthorized"), Reason.VALIDATION_FAILED),
}
_WITH_A_LINK: Final = 1500  # characters: one that is cut leads nowhere
_MOST_SUBPROBLEMS: Final = 3  # that are quoted


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem document, made fit to be shown."""

    word: str  # such as rateLimited; empty if it is none of ACME's
    detail: str
    subwords: tuple[str, ...] = ()

    def about_a_name(self) -> Reason:
        """Why an order or an authorization failed. Several problems at once are told by the first known one."""
        known = (_ABOUT_A_NAME.get(word) for word in (self.word, *self.subwords))
        return next((reason for reason in known if reason is not None), Reason.CA_REFUSED)

    def __str__(self) -> str:
        return f"{self.detail} ({self.word})" if self.word else self.detail


def read(body: bytes) -> Problem | None:
    """The problem in a body; None for any other body, as from a proxy."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return parse(value)


def parse(value: object) -> Problem | None:
    if not isinstance(value, dict) or not isinstance(value.get("type", value.get("detail")), str):
        return None
    listed = value.get("subproblems")
    below = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    quoted = "; ".join(f"{_name(each)}{words(each.get('detail', ''), 200)}" for each in below[:_MOST_SUBPROBLEMS])
    said = value.get("detail", "") or value.get("title", "") or "no more is said"
    detail = words(said, _WITH_A_LINK) if ca_limits.is_pause(str(said)[:_WITH_A_LINK]) else words(said)
    more = (
        f" See {words(value['instance'], 200)}." if _word(value) == "userActionRequired" and "instance" in value else ""
    )
    return Problem(
        word=_word(value),
        detail=f"{detail}: {quoted}" if quoted else f"{detail}{more}",
        subwords=tuple(_word(each) for each in below[:_MOST_SUBPROBLEMS]),
    )


def _word(value: Mapping[str, Any]) -> str:
    found = value.get("type")
    return words(found.removeprefix(PREFIX), 40) if isinstance(found, str) and found.startswith(PREFIX) else ""


def _name(value: Mapping[str, Any]) -> str:
    found = value.get("identifier")
    return f"{words(found.get('value', ''), 80)}: " if isinstance(found, dict) else ""


def failure(ca: str, status: int, problem: Problem | None, *, after: timedelta | None, what: str) -> TryLater | Refused:
    """What to raise for an answer that is none of the good ones."""
    said = str(problem) if problem else f"HTTP {status}"
    why = f"{ca}, {what}: {said}"
    word = problem.word if problem else ""
    if problem is not None and ca_limits.is_pause(problem.detail):  # no time ends it: a person must, at the CA
        return Refused(why, reason=Reason.NAME_PAUSED_AT_CA)
    if status == 429 or word in _LATER:
        return TryLater(why, after=after, reason=_LATER.get(word, Reason.CA_RATE_LIMITED))
    if status >= 500:
        return TryLater(why, after=after, reason=Reason.CA_DOWN)
    if word in _NEVER:
        return Refused(why, reason=_NEVER[word])
    if 300 <= status < 400:
        return TryLater(f"{why} (a redirect; it is not followed)", after=after, reason=Reason.ANSWER_MALFORMED)
    if problem is None:  # what is between us and the CA speaks no ACME
        return TryLater(why, after=after, reason=Reason.ANSWER_MALFORMED)
    named = next((_NEVER[each] for each in problem.subwords if each in _NEVER), None)
    return Refused(why, reason=named or Reason.CA_REFUSED)
