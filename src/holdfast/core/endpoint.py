"""Endpoints: where a certificate is seen served, what was seen there, and the one function that judges it."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Literal

from holdfast.core.reasons import Reason

KeyFamily = Literal["rsa", "ecdsa"]
MAX_SAMPLES: Final = 50
MAX_ADDRESSES: Final = 32
MOST_NAMES: Final = 10  # of a certificate, that are kept as evidence
_PLAIN: Final = re.compile(r"[A-Za-z0-9._:-]{1,253}")
EXPIRING_FOR: Final = timedelta(days=14)  # before its end, a served certificate that was not replaced is worth an alert


# ── Where to look ──


class EndpointProtocol(StrEnum):
    """How TLS begins there: at once, or after an upgrade (STARTTLS) in the words of the protocol."""

    TLS = "tls"
    SMTP = "smtp"
    IMAP = "imap"
    POP3 = "pop3"
    LDAP = "ldap"
    POSTGRES = "postgres"
    MYSQL = "mysql"
    FTP = "ftp"
    XMPP = "xmpp"

    @property
    def port(self) -> int:
        """The port that IANA gave the protocol."""
        return _PORTS[self]


_PORTS: Final[Mapping[EndpointProtocol, int]] = {
    EndpointProtocol.TLS: 443,
    EndpointProtocol.SMTP: 25,
    EndpointProtocol.IMAP: 143,
    EndpointProtocol.POP3: 110,
    EndpointProtocol.LDAP: 389,
    EndpointProtocol.POSTGRES: 5432,
    EndpointProtocol.MYSQL: 3306,
    EndpointProtocol.FTP: 21,
    EndpointProtocol.XMPP: 5222,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One place to look at. It knows nothing of what should be seen there."""

    host: str  # a DNS name, or an address
    port: int
    protocol: EndpointProtocol = EndpointProtocol.TLS
    server_name: str | None = None  # SNI; None: the host. An address is never sent as SNI (RFC 6066 §3)
    addresses: tuple[str, ...] = ()  # empty: every A and AAAA address of the host
    samples: int = 1  # connections to each address: behind a load balancer, each may meet another machine
    keys: tuple[KeyFamily, ...] = ()  # of a server with an RSA and an ECDSA certificate: those to ask for, each in turn

    def __post_init__(self) -> None:
        if not (_PLAIN.fullmatch(self.host) and _PLAIN.fullmatch(self.name)):  # they become parts of requests
            raise ValueError("a host is a DNS name or an address")
        if not 0 < self.port < 1 << 16:
            raise ValueError("a port is between 1 and 65535")
        if not 0 < self.samples <= MAX_SAMPLES:
            raise ValueError(f"an endpoint is sampled 1 to {MAX_SAMPLES} times")
        if len(self.addresses) > MAX_ADDRESSES:
            raise ValueError(f"an endpoint has at most {MAX_ADDRESSES} addresses")

    @property
    def sni(self) -> str | None:
        """The server name to send, or None."""
        return None if is_address(self.name) else self.name

    @property
    def name(self) -> str:
        """The name that the certificate there must have."""
        return self.host if self.server_name is None else self.server_name

    @property
    def shown(self) -> str:
        """As people write it: smtp://mail.example.org:25."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.protocol}://{host}:{self.port}"


_PLACE: Final = re.compile(
    r"(?:(?P<protocol>[a-z0-9]+)://)?(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:/\[\]]+))(?::(?P<port>\d{1,5}))?/?"
)


def endpoint_of(text: str) -> Endpoint:
    """What people mean by www.example.org, mail.example.org:465, smtp://mx.example.org or [2001:db8::1]:443.

    ValueError says what is wrong with it.
    """
    found = _PLACE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r:.80} is not written as HOST, HOST:PORT or PROTOCOL://HOST:PORT")
    word = found["protocol"] or "tls"
    if word not in _WORDS:
        raise ValueError(f"{word!r:.20} is not a protocol that can be looked at: {', '.join(EndpointProtocol)}")
    protocol = EndpointProtocol(_WORDS[word])
    port = int(found["port"]) if found["port"] else protocol.port
    return Endpoint(host=(found["v6"] or found["host"]).lower().rstrip("."), port=port, protocol=protocol)


_WORDS: Final = {"https": "tls", "postgresql": "postgres", **{each.value: each.value for each in EndpointProtocol}}


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


# ── What was seen ──


class SightingProblem(StrEnum):
    """Why no certificate was seen."""

    UNREACHABLE = "unreachable"  # no address, no route, no answer in time
    REFUSED = "refused"  # nothing listens there, or the connection was broken off
    TLS = "tls problem"  # the handshake failed: the key may not fit the certificate
    PROTOCOL = "no upgrade"  # the server offers no STARTTLS, or speaks another protocol
    DENIED = "not permitted"  # our own rule about addresses, before anything was sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """One handshake at one address, or why there was none."""

    address: str  # empty if the host has none
    key: KeyFamily | None = None  # the kind of key that was asked for
    problem: SightingProblem | None = None
    why: str = ""  # a sentence about the problem, without its full stop
    leaf: str = ""  # SHA-256 of the certificate, in hexadecimal
    chain: tuple[str, ...] = ()  # of all that were served, the leaf among them, in their order
    names: tuple[str, ...] = ()  # DNS names in lower case, and addresses
    issuer: str = ""
    not_after: datetime | None = None
    gap: str = ""  # where the served chain breaks, as a clause; empty if each certificate is issued by the next
    tls: str = ""  # TLSv1.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The version that should be seen. Of twins there are two, one for each kind of key."""

    label: str  # for people: "version 7"
    leaf: str
    chain: tuple[str, ...] = ()  # SHA-256 of the certificates that must follow the leaf; without the root
    key: KeyFamily | None = None
    not_after: datetime | None = None


class Outcome(StrEnum):
    """What one sighting means beside what is expected."""

    NEW = "new"  # the expected one; without an expectation, any
    OLD = "old"  # an earlier version of ours
    OTHER = "other"
    UNREACHABLE = "unreachable"
    REFUSED = "refused"
    TLS = "tls problem"
    PROTOCOL = "no upgrade"
    DENIED = "not permitted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Sightings of one address that mean the same, counted."""

    outcome: Outcome
    count: int
    sighting: Sighting  # the first of them

    def to_json(self) -> dict[str, object]:
        kept = {each.name: getattr(self.sighting, each.name) for each in fields(Sighting)}
        ends = self.sighting.not_after
        kept |= {"not_after": None if ends is None else ends.isoformat(), "names": self.sighting.names[:MOST_NAMES]}
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in kept.items() if value}
        return {"outcome": self.outcome.value, "count": self.count, **plain}

    @classmethod
    def from_json(cls, found: Mapping[str, object]) -> Seen:
        rest: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in found.items()
        }
        outcome, count, ends = Outcome(rest.pop("outcome")), rest.pop("count"), rest.pop("not_after", None)
        problem = rest.pop("problem", None)
        sighting = Sighting(
            not_after=None if ends is None else datetime.fromisoformat(ends),
            problem=None if problem is None else SightingProblem(problem),
            address=rest.pop("address", ""),
            **rest,
        )
        return cls(outcome=outcome, count=count, sighting=sighting)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the sightings of an endpoint mean together."""

    reason: Reason  # OK: everything that was seen is as expected
    sentence: str
    seen: tuple[Seen, ...] = ()

    @property
    def served(self) -> bool:
        return self.reason is Reason.OK

    @property
    def wrong(self) -> bool:
        """Neither the expected nor an earlier version is seen anywhere, and something else is: a rollback may help.

        A rollback mends nothing that lags, is incomplete or cannot be reached.
        """
        ours = any(each.outcome in (Outcome.NEW, Outcome.OLD) for each in self.seen)
        return not ours and self.reason in (Reason.ENDPOINT_DRIFT, Reason.ENDPOINT_TLS_FAILED)


# ── The judgement ──


def judge(
    expected: Sequence[Expected],
    previous: Collection[str],
    sightings: Sequence[Sighting],
    *,
    now: datetime,
    name: str | None = None,
    expiring_for: timedelta = EXPIRING_FOR,
) -> Verdict:
    """Say what the sightings of an endpoint mean.

    `previous` are SHA-256 of earlier versions. Without `expected`, any certificate will do that is valid, complete and
    for `name`. The worst finding decides.
    """
    outcomes = [_outcome(each, expected, previous) for each in sightings]
    judged = _Judged(tuple(zip(outcomes, sightings, strict=True)), tuple(expected), now, name, expiring_for)
    found = next(filter(None, (check(judged) for check in _CHECKS)), None)
    reason, sentence = found or (Reason.OK, judged.show(judged.pairs, judged.label))
    return Verdict(reason=reason, sentence=f"{sentence}.", seen=_counted(judged.pairs))


def _outcome(sighting: Sighting, expected: Sequence[Expected], previous: Collection[str]) -> Outcome:
    if sighting.problem is not None:
        return Outcome(sighting.problem.value)
    if not expected:
        return Outcome.NEW
    if _meant(sighting, expected):
        return Outcome.NEW
    return Outcome.OLD if sighting.leaf in previous else Outcome.OTHER


def _meant(sighting: Sighting, expected: Sequence[Expected]) -> Expected | None:
    """The expected version that this sighting shows. For one kind of key, the twin with the other kind is wrong."""
    ours = [each for each in expected if each.leaf == sighting.leaf]
    return next((each for each in ours if None in (each.key, sighting.key) or each.key == sighting.key), None)


_Pair = tuple[Outcome, Sighting]
_Finding = tuple[Reason, str] | None


@dataclass(frozen=True, slots=True)
class _Judged:
    """All that the checks look at, and the words that they share."""

    pairs: tuple[_Pair, ...]
    expected: tuple[Expected, ...]
    now: datetime
    name: str | None
    expiring_for: timedelta

    def of(self, *outcomes: Outcome) -> list[_Pair]:
        return [pair for pair in self.pairs if pair[0] in outcomes]

    @property
    def shown(self) -> list[_Pair]:
        return [pair for pair in self.pairs if pair[1].problem is None]

    @property
    def label(self) -> str:
        """What should be seen, in words."""
        if self.expected:
            return " and ".join(each.label for each in self.expected)
        ends = min(each.not_after for _, each in self.shown if each.not_after)
        return f"a certificate that expires at {ends:%F %H:%M}Z"

    def show(self, some: Sequence[_Pair], what: str) -> str:
        """As "10 of 10 samples at 2 addresses show version 7"."""
        return f"{self.samples(some)} {'shows' if len(some) == 1 else 'show'} {what}"

    def samples(self, some: Sequence[_Pair]) -> str:
        where = sorted({each.address for _, each in some})
        at = where[0] if len(where) == 1 else f"{len(where)} addresses"
        return f"{len(some)} of {len(self.pairs)} sample{'' if len(self.pairs) == 1 else 's'} at {at}"


def _nothing_seen(judged: _Judged) -> _Finding:
    if judged.shown:
        return None
    reached = judged.of(Outcome.TLS, Outcome.PROTOCOL)
    if reached:
        return Reason.ENDPOINT_TLS_FAILED, f"No certificate was seen: {reached[0][1].why}"
    first = judged.pairs[0][1].why if judged.pairs else "the endpoint has no address"
    return Reason.ENDPOINT_UNREACHABLE, f"Nothing could be reached: {first}"


def _drift(judged: _Judged) -> _Finding:
    found = judged.of(Outcome.OTHER)
    if not found:
        return None
    one = found[0][1]
    until = f", expires at {one.not_after:%F %H:%M}Z" if one.not_after else ""
    which = f"issued by {one.issuer or 'an unnamed issuer'}{until}, SHA-256 {one.leaf[:16]}…"
    return Reason.ENDPOINT_DRIFT, judged.show(found, f"a certificate that is not expected there ({which})")


def _tls_failed(judged: _Judged) -> _Finding:
    found = judged.of(Outcome.TLS, Outcome.PROTOCOL)
    return (Reason.ENDPOINT_TLS_FAILED, judged.show(found, f"none: {found[0][1].why}")) if found else None


def _expiring(judged: _Judged) -> _Finding:
    """Of what we expect, the renewal is decided elsewhere: only what is seen in its place can be too old."""
    soon = judged.now + judged.expiring_for
    shown = judged.of(Outcome.OLD) if judged.expected else judged.shown
    found = [pair for pair in shown if pair[1].not_after is not None and pair[1].not_after <= soon]
    if not found:
        return None
    ends = min(each.not_after for _, each in found if each.not_after)
    verb = "expired" if ends <= judged.now else "expires"
    though = f", though there is {judged.label}" if judged.expected else ""
    return Reason.ENDPOINT_EXPIRING, judged.show(found, f"a certificate that {verb} at {ends:%F %H:%M}Z{though}")


def _old(judged: _Judged) -> _Finding:
    found, new = judged.of(Outcome.OLD), judged.of(Outcome.NEW)
    if not found:
        return None
    said = judged.show(found, "an earlier version")
    return (Reason.ENDPOINT_LAGS, f"{said}, and {len(new)} {judged.label}") if new else (Reason.ENDPOINT_OLD, said)


def _wrong_name(judged: _Judged) -> _Finding:
    name = judged.name
    if judged.expected or name is None:
        return None
    found = [pair for pair in judged.shown if not covers(pair[1].names, name)]
    if not found:
        return None
    has = ", ".join(found[0][1].names[:3]) or "no name"
    return Reason.ENDPOINT_WRONG_NAME, judged.show(found, f"a certificate that is not for {name}: it has {has}")


def _missing_intermediate(judged: _Judged) -> _Finding:
    found = [pair for pair in judged.shown if _gap(pair[1], judged.expected)]
    if not found:
        return None
    what = _gap(found[0][1], judged.expected)
    return Reason.ENDPOINT_MISSING_INTERMEDIATE, judged.show(found, f"an incomplete chain: {what}")


def _gap(sighting: Sighting, expected: Sequence[Expected]) -> str:
    """Another path to a root is as good as ours, as long as it is as long and leads on from the leaf."""
    meant = _meant(sighting, expected)
    if meant is None:
        return sighting.gap
    missing = [each for each in meant.chain if each not in sighting.chain]
    if not missing or (len(sighting.chain) > len(meant.chain) and not sighting.gap):
        return ""
    return sighting.gap or f"{len(missing)} of {len(meant.chain)} intermediate certificates are missing"


def _partly(judged: _Judged) -> _Finding:
    found = judged.of(Outcome.UNREACHABLE, Outcome.REFUSED, Outcome.DENIED)
    if not found:
        return None
    rest = [pair for pair in judged.pairs if pair not in found]
    why = f"{judged.samples(found)} could not be taken: {found[0][1].why}"
    return Reason.ENDPOINT_PARTLY_UNREACHABLE, f"{judged.show(rest, judged.label)}; {why}"


# From what is wrong, over what is late, to what could not be seen.
_CHECKS: Final[Sequence[Callable[[_Judged], _Finding]]] = (
    _nothing_seen,
    _drift,
    _tls_failed,
    _expiring,
    _old,
    _wrong_name,
    _missing_intermediate,
    _partly,
)


def _counted(pairs: Sequence[_Pair]) -> tuple[Seen, ...]:
    """One line for each address and meaning, in the order in which they were first seen."""

    def alike(pair: _Pair) -> tuple[str, str, str, str]:
        outcome, each = pair
        return each.address, outcome, each.leaf, each.key or ""

    counts, first = Counter(map(alike, pairs)), {alike(pair): pair for pair in reversed(pairs)}
    return tuple(Seen(outcome=first[what][0], count=count, sighting=first[what][1]) for what, count in counts.items())


def covers(names: Collection[str], name: str) -> bool:
    """Whether one of a certificate's names is this one. A wildcard stands for one label (RFC 9525 §6.3)."""
    asked = name.lower().rstrip(".")
    return asked in names or (not is_address(asked) and f"*.{asked.partition('.')[2]}" in names)
