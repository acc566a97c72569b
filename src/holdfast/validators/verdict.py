"""The challenge that a validator checks, its result, and the evidence that it saw on the way."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from holdfast.core.own_ca.acme import key_authorization
from holdfast.core.own_ca.problem import STATUS, Problem

_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{0,512}")  # dns-persist-01 has none


@dataclass(frozen=True, slots=True, kw_only=True)
class ChallengeToCheck:
    """One challenge to check. The identifier of a wildcard is written with its `*.`."""

    type: str  # http-01, dns-01, tls-alpn-01, dns-account-01, dns-persist-01
    identifier_type: str  # dns or ip
    identifier: str  # in its one spelling (pki/names.py)
    token: str
    thumbprint: str  # of the account's key when the client answered the challenge: a key change must not matter
    account_url: str = ""

    def __post_init__(self) -> None:
        if not _TOKEN.fullmatch(self.token):  # it becomes a part of a request
            raise ValueError("a token is made of base64url characters")

    @property
    def key_authorization(self) -> str:
        return key_authorization(self.token, self.thumbprint)

    @property
    def wildcard(self) -> bool:
        return self.identifier.startswith("*.")

    @property
    def base(self) -> str:
        """The name that is asked about, which for `*.example.com` is example.com."""
        return self.identifier.removeprefix("*.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationSettings:
    """How we look. The defaults are those of the RFCs; ports and networks differ in laboratories."""

    resolvers: tuple[str, ...]  # address or address:port, asked in this order
    http_port: int = 80
    tls_port: int = 443
    allowed_networks: tuple[str, ...] = ()  # private ones that may be dialled; see dialer.py
    timeout: float = 10.0  # seconds for the whole check
    caa_identities: tuple[str, ...] = ()  # our names in CAA records; with none, CAA is not looked at
    user_agent: str = "Holdfast-CA (ACME validation)"

    def __post_init__(self) -> None:
        if not (self.user_agent.isascii() and self.user_agent.isprintable()):
            raise ValueError("the user agent of validations is one line of ASCII")


@dataclass(frozen=True, slots=True)
class Valid:
    evidence: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Invalid:
    problem: Problem
    evidence: Mapping[str, object]
    retryable: bool  # whether the same check may succeed later although the client changes nothing


@dataclass(frozen=True, slots=True)
class Crowded:
    """Nothing was looked at: as many checks as may be talk to the same address already."""


ValidationResult = Valid | Invalid | Crowded


class ChallengeFailed(Exception):
    """The challenge response is not there; the check ends."""

    def __init__(self, word: str, detail: str, *, retryable: bool = False) -> None:
        super().__init__(detail)
        self.problem: Final = Problem(word, detail, STATUS[word])
        self.retryable: Final = retryable


@dataclass(slots=True)
class Trace:
    """The evidence seen so far: it is kept for every result, so it grows while the check goes on."""

    resolved: dict[str, list[str]] = field(default_factory=dict)  # host: every address it has
    address: str | None = None  # the one that was talked to last
    hops: list[str] = field(default_factory=list)  # URLs
    tries: list[str] = field(default_factory=list)  # connections: where to, and what came of it
    more: dict[str, object] = field(default_factory=dict)  # what one kind of challenge alone knows
    held: list[str] = field(default_factory=list)  # addresses at which this check counts until it ends

    def evidence(self, duration: float) -> Mapping[str, object]:
        return {
            "resolved": {host: list(found) for host, found in self.resolved.items()},
            "address": self.address,
            "hops": list(self.hops),
            "tries": list(self.tries),
            "duration": round(duration, 6),
            **self.more,
        }
