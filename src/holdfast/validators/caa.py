"""CAA records (RFC 8659): which CAs may issue for a name, and the syntax that they share with dns-persist-01."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.ports import Clock
from holdfast.validators import wire
from holdfast.validators.resolver import DnsProblem, Resolver
from holdfast.validators.verdict import ChallengeFailed, ChallengeToCheck, Trace
from holdfast.validators.wire import Property, RecordKind

# ── The syntax of an issue value ──
# The syntax that CAA records and dns-persist-01 share: `ca.example; accounturi=…; policy=…` (RFC 8659 §4.2).


_LABEL: Final = r"[A-Za-z0-9](?:-*[A-Za-z0-9])*"
_DOMAIN: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_PARAMETER: Final = re.compile(rf"({_LABEL})[ \t]*=[ \t]*([\x21-\x3a\x3c-\x7e]*)")


@dataclass(frozen=True, slots=True)
class IssueValue:
    issuer: str  # in lower case; empty means that no CA may issue
    parameters: tuple[tuple[str, str], ...] = ()  # tags in lower case; one may come twice

    def all(self, tag: str) -> list[str]:
        return [value for name, value in self.parameters if name == tag]


def parse_issue_value(text: str) -> IssueValue | None:
    """None if it does not follow the grammar."""
    domain, _, rest = text.partition(";")
    domain, rest = domain.strip(" \t"), rest.strip(" \t")
    if domain and not _DOMAIN.fullmatch(domain):
        return None
    found = []
    for part in rest.split(";") if rest else ():
        parameter = _PARAMETER.fullmatch(part.strip(" \t"))
        if parameter is None:
            return None
        found.append((parameter[1].lower(), parameter[2]))
    return IssueValue(domain.lower(), tuple(found))


# ── CAA records ──
# CAA (RFC 8659, with the account and the method of RFC 8657): whether the owner of a name lets us issue for it.


MAX_LABELS: Final = 32  # of a name; each is a question
MAX_REMEMBERED: Final = 1024  # parents
REMEMBER_FOR: Final = 300.0  # seconds at most, for any TTL
UNDERSTOOD: Final = frozenset({"issue", "issuewild", "iodef", "issuemail", "issuevmc", "contactemail", "contactphone"})


@dataclass(frozen=True, slots=True)
class _Remembered:
    properties: tuple[Property, ...]
    until: float


class Caa:
    """Climbs from a name to the root. Parents are remembered for their TTL: all the names of a zone have the same."""

    def __init__(self, resolver: Resolver, clock: Clock, identities: Sequence[str]) -> None:
        self._resolver = resolver
        self._clock = clock
        self._identities = frozenset(name.lower() for name in identities)
        self._parents: dict[str, _Remembered] = {}

    async def check(self, challenge: ChallengeToCheck, trace: Trace) -> None:
        """Return if we may issue; ChallengeFailed if we may not, or if DNS gives no answer (RFC 8659 §3)."""
        if not self._identities or challenge.identifier_type != "dns":
            return
        name, properties = await self._relevant(challenge.base)
        trace.more["caa"] = {"at": name, "records": len(properties)}
        if reason := forbidden(properties, challenge, self._identities):
            raise ChallengeFailed("caa", f"CAA at {name} does not let us issue: {reason}.")

    async def _relevant(self, name: str) -> tuple[str | None, tuple[Property, ...]]:
        """The first records on the way up (§3)."""
        labels = name.split(".")
        if len(labels) > MAX_LABELS:
            raise ChallengeFailed("caa", f"{name} has more than {MAX_LABELS} labels, too many to look for CAA.")
        for start in range(len(labels)):
            place = ".".join(labels[start:])
            found = await self._at_parent(place) if start else (await self._at(place))[0]
            if found:
                return place, found
        return None, ()

    async def _at_parent(self, name: str) -> tuple[Property, ...]:
        now = self._clock.monotonic()
        known = self._parents.get(name)
        if known is not None and known.until > now:
            return known.properties
        properties, ttl = await self._at(name)
        self._parents.pop(name, None)
        if ttl:
            if len(self._parents) >= MAX_REMEMBERED:
                del self._parents[next(iter(self._parents))]  # the oldest
            self._parents[name] = _Remembered(properties, now + min(ttl, REMEMBER_FOR))
        return properties

    async def _at(self, name: str) -> tuple[tuple[Property, ...], int]:
        try:
            answer = await self._resolver.ask(name, RecordKind.CAA)
            return tuple(wire.caa(data) for data in answer.data), answer.ttl
        except wire.Malformed as why:
            raise DnsProblem("malformed", name, RecordKind.CAA, str(why)) from None
        except DnsProblem as why:
            if why.kind != "nxdomain":
                raise
            return (), 0


def forbidden(properties: Sequence[Property], challenge: ChallengeToCheck, identities: Collection[str]) -> str | None:
    """Why these records forbid it; None if they do not."""
    unknown = [each.tag for each in properties if each.critical and each.tag not in UNDERSTOOD]
    if unknown:
        return f"we do not understand {unknown[0]!r}, which is marked critical"
    values = _values(properties, "issuewild") if challenge.wildcard else []
    values = values or _values(properties, "issue")  # §4.3: issuewild replaces issue for wildcards, if there is one
    if not values or any(permits(value, challenge, identities) for value in values):
        return None
    return "no record names this CA for this account and this method"


def _values(properties: Sequence[Property], tag: str) -> list[IssueValue | None]:
    return [parse_issue_value(each.value) for each in properties if each.tag == tag]


def permits(value: IssueValue | None, challenge: ChallengeToCheck, identities: Collection[str]) -> bool:
    """A value that breaks the grammar names no CA (§4.2). Unknown parameters are other CAs' business."""
    if value is None or value.issuer not in identities:
        return False
    accounts, methods = value.all("accounturi"), value.all("validationmethods")
    this_account = not accounts or accounts == [challenge.account_url]
    return this_account and (not methods or (len(methods) == 1 and challenge.type in methods[0].split(",")))
