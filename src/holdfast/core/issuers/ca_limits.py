"""What a CA allows, which of it one order uses up, and which of it a refusal is about."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from typing import Any, Final, Literal

from publicsuffixlist import PublicSuffixList

from holdfast.core.issuers.budget import Limit
from holdfast.core.own_ca.acme import Identifier


@cache
def _list() -> PublicSuffixList:
    """Read when it is first needed; a release of ours brings a newer one."""
    return PublicSuffixList(accept_unknown=True)


@lru_cache(maxsize=65_536)
def registered_domain(name: str) -> str:
    """What CAs count by: "a.b.example.co.uk" gives "example.co.uk". A suffix is its own.

    An IPv4 address is its own too; of IPv6 a whole /64 is one, as the holder of one address there has them all.
    """
    bare = name.lower().removeprefix("*.").rstrip(".")
    if bare.replace(".", "").isdigit():
        return bare
    if ":" in bare:
        return str(ipaddress.ip_network((bare, 64), strict=False))
    return _list().privatesuffix(bare) or bare


Lives = Sequence[tuple[datetime, timedelta]]  # how long its certificates may live at most, from when on

# Of publicly trusted certificates (CA/B ballot SC-081).
PUBLIC_LIVES: Final = (
    (datetime(2026, 3, 15, tzinfo=UTC), timedelta(days=200)),
    (datetime(2027, 3, 15, tzinfo=UTC), timedelta(days=100)),
    (datetime(2029, 3, 15, tzinfo=UTC), timedelta(days=47)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reckoned:
    """How many requests one claim of a job makes at most, by what it is for: so many are paid for beforehand."""

    order: int = 1  # what is read before it, the order, and the first look at it
    look: int = 1  # also a revocation, a cancellation and a test
    lookup: int = 0  # of an order that may be there: on top of the order that may follow
    order_by_name: int = 0  # besides, for each further name
    look_by_name: int = 0

    def for_names(self, names: int) -> Reckoned:
        """For a certificate with so many names."""
        more = names - 1
        return Reckoned(
            order=self.order + more * self.order_by_name, look=self.look + more * self.look_by_name, lookup=self.lookup
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CaLimits:
    """One CA's limits; None where it has none, or none is known."""

    requests: Limit | None = field(default=Limit(burst=20, every=timedelta(milliseconds=100)))  # any, by account
    orders: Limit | None = None  # new ones, by account
    per_domain: Limit | None = None  # certificates, by registered domain
    per_set: Limit | None = None  # certificates for exactly the same names
    failures: Limit | None = None  # validations that failed, by account and name
    renewals_exempt: bool = False  # the same names again: only per_set and failures count
    ari_exempt: bool = False  # in its ARI window: no limit counts
    counted_at: str | None = None  # the host that counts domains and sets for all accounts together; None: by account
    answers: int | None = None  # proofs that it may be told of in one go
    max_names: int = 100  # in one certificate
    fewer_names: Mapping[str, int] = field(default_factory=dict)  # by profile, where it allows fewer
    claim: Reckoned = field(default=Reckoned())  # where nothing is known, a claim pays for one request
    lives: Lives = ()  # empty: nothing bounds them that is known

    def names_in(self, profile: str | None) -> int:
        """How many names a certificate of this profile may have."""
        return min(self.max_names, self.fewer_names.get(profile or "", self.max_names))


UNKNOWN: Final = CaLimits(
    requests=Limit(burst=10, every=timedelta(milliseconds=500)), orders=Limit(burst=50, every=timedelta(seconds=2))
)
# Of a public CA that publishes none, since each customer has a contract.
BY_CONTRACT: Final = CaLimits(requests=Limit(burst=40, every=timedelta(milliseconds=500)), lives=PUBLIC_LIVES)


def as_given(known: CaLimits, settings: Mapping[str, object]) -> CaLimits:
    """The known ones, with what the settings of this CA say otherwise: {"limits": {"orders": [300, 36]}}."""
    own = settings.get("limits")
    if not isinstance(own, Mapping):
        return known
    said: dict[str, Any] = {name: _limit(own[name]) for name in BY_KEY if name in own}
    if "max_names" in own:
        said |= {"max_names": int(own["max_names"]), "fewer_names": {}}
    if own.get("answers") is not None:
        said["answers"] = max(int(own["answers"]), 1)
    return replace(known, **said)


BY_KEY: Final = ("requests", "orders", "per_domain", "per_set", "failures")


def _limit(raw: object) -> object:
    """[burst, seconds]; nothing for no limit. ValueError for anything else."""
    if raw is None:
        return None
    if not isinstance(raw, list | tuple) or len(raw) != 2:
        raise ValueError("a limit is [burst, seconds for each further one]")
    return Limit(burst=int(raw[0]), every=timedelta(seconds=float(raw[1])))


# ── Which budgets an order uses ──


def request_key(issuer: str) -> str:
    return f"ca/{issuer}/requests"


def order_key(issuer: str) -> str:
    return f"ca/{issuer}/orders"


def ari_key(issuer: str) -> str:
    """Of questions for renewal windows: apart from the others, so that thousands of them hold up no order."""
    return f"ca/{issuer}/ari"


def wide_keys(*places: str) -> frozenset[str]:
    """The budgets that say nothing about any certificate: those of the whole CA."""
    return frozenset(key(each) for each in places for key in (request_key, order_key, ari_key))


def place_of(limits: CaLimits, issuer: str) -> str:
    """Under which name domains and sets are counted: one for all rows of such a CA. No row's own name has a dot."""
    return limits.counted_at or issuer


def domain_key(place: str, name: str) -> str:
    return f"ca/{place}/domain/{registered_domain(name)}"


def set_key(place: str, identifiers: Iterable[Identifier]) -> str:
    text = "\n".join(sorted(f"{each.type}:{each.value}" for each in identifiers))
    return f"ca/{place}/names/{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def failure_key(issuer: str, name: str) -> str:
    return f"ca/{issuer}/failures/{name}"


def budgets_of_order(
    limits: CaLimits, issuer: str, identifiers: tuple[Identifier, ...], *, renewal: bool, in_ari_window: bool
) -> dict[str, Limit]:
    """What a new order pays for, with the limit of each; what it pays for all its requests comes first."""
    keys = {} if limits.requests is None else {request_key(issuer): limits.requests}
    place = place_of(limits, issuer)
    if limits.ari_exempt and in_ari_window:
        return keys
    if limits.per_set is not None:
        keys[set_key(place, identifiers)] = limits.per_set
    if limits.renewals_exempt and renewal:
        return keys
    if limits.orders is not None:
        keys[order_key(issuer)] = limits.orders
    if limits.per_domain is not None:
        keys |= {domain_key(place, each.base): limits.per_domain for each in identifiers}
    return keys


Used = Literal["nothing", "requests", "an order perhaps", "an order"]


def unused(paid: Mapping[str, timedelta], issuer: str, used: Used, *, binding: bool) -> dict[str, timedelta]:
    """What a claim took from its budgets and the CA cannot have counted, by how far the claim came.

    Certificates are counted when they are made. An order that was perhaps placed can only become one by a second step,
    unless it is binding.
    """
    if used == "an order" or (used == "an order perhaps" and binding):
        return {}
    spent = {
        "nothing": (),
        "requests": (request_key(issuer),),
        "an order perhaps": (request_key(issuer), order_key(issuer)),
    }[used]
    return {key: taken for key, taken in paid.items() if key not in spent}


def refused_key(
    limits: CaLimits, issuer: str, identifiers: tuple[Identifier, ...], why: str, budgets: Iterable[str]
) -> str:
    """Which budget a rate limit is about, by the CA's own words; all requests only if these name nothing narrower.

    Where the budget that it speaks of is not one that this order pays for, as with a renewal that is exempt, it waits
    alone, by the key of its own set: a refusal for one order must not stop the others.
    """
    text, kept, place = why.lower(), set(budgets), place_of(limits, issuer)
    own = set_key(place, identifiers)
    if is_pause(text) or any(word in text for word in _OF_THE_SET):
        return own
    if "already issued for" in text or "registered domain" in text:
        named = [each for each in identifiers if registered_domain(each.base) in text]
        domain = domain_key(place, (named or list(identifiers))[0].base)
        return domain if domain in kept else own
    if order_key(issuer) in kept and ("order" in text or "issued" in text):
        return order_key(issuer)
    return own if "new orders" in text else request_key(issuer)


_OF_THE_SET: Final = ("exact set", "identical", "duplicate", "failed authorizations", "consecutive")


def is_pause(why: str) -> bool:
    """Whether a CA says that it takes no orders for a name before a person has unpaused it there (Let's Encrypt)."""
    text = why.lower()
    return "temporarily prevented from requesting" in text or "/unpause" in text


_COUNTS: Final = ("max_names", "answers")
_MOST: Final = 10**9


def problem_with(given: object) -> str | None:
    """The error in the setting `limits`, with the name of the limit; None if it is valid."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        return f"limits is {given!r:.40}, and must be a table"
    if unknown := sorted(set(map(str, given)) - {*BY_KEY, *_COUNTS}):
        return f"there is no limit {unknown[0]!r:.40}; there are {', '.join((*BY_KEY, *_COUNTS))}"
    for name in BY_KEY:
        if not _is_limit(given.get(name)):
            return f"{name} is {given[name]!r:.40}, and must be [burst, seconds for each further one], or null"
    for name in _COUNTS:
        if given.get(name) is not None and not _is_count(given[name]):
            return f"{name} is {given[name]!r:.40}, and must be a whole number from 1 on"
    return None


def _is_limit(value: object) -> bool:
    if value is None:
        return True
    if not isinstance(value, list | tuple) or len(value) != 2:
        return False
    burst, every = value
    return _is_count(burst) and isinstance(every, int | float) and not isinstance(every, bool) and 0 < every <= _MOST


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST
