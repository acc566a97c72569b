"""Addresses, links, tokens and problems (RFC 8555 §6.7) that an ACME server sends, checked before use."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from urllib.parse import urlsplit

from holdfast.core.issuers import ca_limits
from holdfast.core.own_ca.problem import PREFIX
from holdfast.core.reasons import Reason
from holdfast.errors import Refused, TryLater
from holdfast.issuers.reading import origin, words

_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{1,512}")
_LINK: Final = re.compile(r'<([^<>"\s]{1,2000})>\s*;\s*rel="?([a-z-]{1,40})"?')


def unacceptable(what: str) -> Refused:
    """The exception for an answer that is well-formed, but must not be acted upon."""
    return Refused(what, reason=Reason.ANSWER_MALFORMED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseContext:
    """One CA as configured: where its directory is, which hosts it may send us to, and its trusted roots."""

    directory: str
    hosts: tuple[str, ...] = ()  # "ca.example" or "ca.example:8443", besides the directory's own
    roots: bytes = b""  # PEM; empty: the system's
    deadline_for: float = 30.0  # seconds for one answer

    @property
    def name(self) -> str:
        """The name of the CA in sentences."""
        return urlsplit(self.directory).hostname or "the CA"

    def allows(self, url: str) -> bool:
        found = origin(url)
        return found is not None and found in {origin(self.directory), *map(_configured, self.hosts)}

    def checked(self, url: object, what: str) -> str:
        """An address to go to, if it is one of this CA's; asked at each use, because a stored address may be old."""
        if not isinstance(url, str) or not self.allows(url):
            raise Refused(
                f"{self.name} names an address for {what} that is not https, or not on its own host: {words(url)}.",
                reason=Reason.DIRECTORY_UNSAFE,
            )
        return url


def _configured(host: str) -> str | None:
    return origin(f"https://{host.lower()}/")


def links(header: str, rel: str) -> list[str]:
    """The targets of a Link header (RFC 8288) with this relation."""
    return [target for target, found in _LINK.findall(header[:8192]) if found == rel]


def token(value: object) -> str:
    """The token of a challenge: it becomes part of paths and names, so nothing but base64url is let in (§8.1)."""
    if not isinstance(value, str) or not is_token(value):
        raise unacceptable("The CA sent a token that is not base64url; it is not published.")
    return value


def is_token(value: str) -> bool:
    """Whether it is base64url of a decent length, as tokens and nonces are."""
    return _TOKEN.fullmatch(value) is not None


# ── Problems ──
# What a CA's refusal means to us (RFC 8555 §6.7): whether to come back, and under which reason it is shown.


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
# The same words mean something else when they are about a name: there, "unauthorized" is a wrong challenge response.
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
class AcmeProblem:
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


def read_problem(body: bytes) -> AcmeProblem | None:
    """The problem in a body; None for any other body, as from a proxy."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return parse_problem(value)


def parse_problem(value: object) -> AcmeProblem | None:
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
    return AcmeProblem(
        word=_word(value),
        detail=f"{detail}: {quoted}" if quoted else f"{detail}{more}",
        subwords=tuple(_word(each) for each in below[:_MOST_SUBPROBLEMS]),
    )


def _word(value: Mapping[str, object]) -> str:
    found = value.get("type")
    return words(found.removeprefix(PREFIX), 40) if isinstance(found, str) and found.startswith(PREFIX) else ""


def _name(value: Mapping[str, object]) -> str:
    found = value.get("identifier")
    return f"{words(found.get('value', ''), 80)}: " if isinstance(found, dict) else ""


def failure(
    ca: str, status: int, problem: AcmeProblem | None, *, after: timedelta | None, what: str
) -> TryLater | Refused:
    """The exception for an answer with a bad status."""
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
    if problem is None:  # a proxy between us and the CA answered
        return TryLater(why, after=after, reason=Reason.ANSWER_MALFORMED)
    named = next((_NEVER[each] for each in problem.subwords if each in _NEVER), None)
    return Refused(why, reason=named or Reason.CA_REFUSED)
