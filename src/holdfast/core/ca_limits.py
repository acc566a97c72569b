"""What public CAs are known to allow (as of 2026-08), which of it one order uses up, and which a refusal is about."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from holdfast.core.acme import Identifier
from holdfast.core.budget import Limit
from holdfast.core.registered_domain import registered_domain

_MINUTE: Final = timedelta(minutes=1)


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

    def names_in(self, profile: str | None) -> int:
        """How many names a certificate of this profile may have."""
        return min(self.max_names, self.fewer_names.get(profile or "", self.max_names))


_SHORT_PROFILES: Final = {"tlsserver": 25, "shortlived": 25}
LETS_ENCRYPT: Final = CaLimits(
    requests=Limit(burst=20, every=timedelta(milliseconds=50)),
    orders=Limit(burst=300, every=timedelta(seconds=36)),
    per_domain=Limit(burst=50, every=202 * _MINUTE),
    per_set=Limit(burst=5, every=timedelta(hours=34)),
    failures=Limit(burst=5, every=12 * _MINUTE),
    renewals_exempt=True,
    ari_exempt=True,
    counted_at="acme-v02.api.letsencrypt.org",
    fewer_names=_SHORT_PROFILES,
)
LETS_ENCRYPT_STAGING: Final = CaLimits(
    requests=Limit(burst=20, every=timedelta(milliseconds=50)),
    orders=Limit(burst=1500, every=timedelta(seconds=7.2)),
    per_domain=Limit(burst=30000, every=timedelta(seconds=20)),
    per_set=Limit(burst=30000, every=timedelta(seconds=20)),
    failures=Limit(burst=200, every=timedelta(seconds=18)),
    renewals_exempt=True,
    ari_exempt=True,
    counted_at="acme-staging-v02.api.letsencrypt.org",
    fewer_names=_SHORT_PROFILES,
)
GOOGLE: Final = CaLimits(
    requests=Limit(burst=10, every=timedelta(seconds=1)),
    orders=Limit(burst=30, every=timedelta(seconds=2)),
    answers=20,  # of 30 challenge calls in a minute
)
ZEROSSL: Final = CaLimits(
    requests=Limit(burst=10, every=timedelta(milliseconds=500)), orders=Limit(burst=30, every=timedelta(seconds=10))
)
DIGICERT: Final = CaLimits(requests=Limit(burst=100, every=timedelta(milliseconds=180)))
# By key 1000 requests in 3 minutes and 100 in 5 seconds, rolling: 60 + 180 / 0.2 < 1000, and 60 + 5 / 0.2 < 100.
CERTCENTRAL: Final = CaLimits(requests=Limit(burst=60, every=timedelta(milliseconds=200)))
BY_CONTRACT: Final = CaLimits(requests=Limit(burst=40, every=timedelta(milliseconds=500)))  # none is published
UNKNOWN: Final = CaLimits(
    requests=Limit(burst=10, every=timedelta(milliseconds=500)), orders=Limit(burst=50, every=timedelta(seconds=2))
)
OWN: Final = CaLimits(requests=None)  # it limits itself

_BY_KIND: Final[Mapping[str, CaLimits]] = {
    "local": OWN,
    "digicert": CERTCENTRAL,
    "sectigo": BY_CONTRACT,
    "entrust": BY_CONTRACT,
    "globalsign": BY_CONTRACT,
    "vault": CaLimits(),
}

_BY_HOST: Final[Mapping[str, CaLimits]] = {
    "acme-v02.api.letsencrypt.org": LETS_ENCRYPT,
    "acme-staging-v02.api.letsencrypt.org": LETS_ENCRYPT_STAGING,
    "dv.acme-v02.api.pki.goog": GOOGLE,
    "dv.acme-v02.test-api.pki.goog": GOOGLE,
    "acme.zerossl.com": ZEROSSL,
    "acme.digicert.com": DIGICERT,
    "one.digicert.com": DIGICERT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reckoned:
    """How many requests one claim of a job makes at most, by what it is for: so many are paid for beforehand."""

    order: int = 1  # what is read before it, the order, and the first look at it
    look: int = 1  # also a revocation, a cancellation and a test
    lookup: int = 0  # of an order that may be there: on top of the order that may follow


_REISSUES: Final = Reckoned(order=6, look=3, lookup=9)
_RECKONED: Final[Mapping[str, Reckoned]] = {
    "digicert": Reckoned(order=3, look=2, lookup=7),
    "sectigo": Reckoned(order=4, look=2, lookup=9),
    "entrust": Reckoned(order=4, look=4, lookup=8),
    "globalsign": Reckoned(order=6, look=3, lookup=12),
}


def reckoned(kind: str, settings: Mapping[str, object], names: int = 1) -> Reckoned:
    """Where nothing is known, a claim pays for one request, whatever it makes.

    At ACME the few of every claim count as one; each further name is an authorization to read, and a proof to tell of.
    """
    if kind == "acme":
        return Reckoned(order=1 + 2 * (names - 1), look=1 + (names - 1))
    if kind == "digicert" and settings.get("renewals") == "reissue":
        return _REISSUES
    return _RECKONED.get(kind, Reckoned())


def known_limits(kind: str, directory: str | None) -> CaLimits:
    """What holds for a CA where its operator's settings say nothing."""
    return _BY_KIND.get(kind) or _BY_HOST.get(urlsplit(directory or "").hostname or "", UNKNOWN)


def limits_of(kind: str, settings: Mapping[str, object]) -> CaLimits:
    """The known ones, with what the settings of this CA say otherwise: {"limits": {"orders": [300, 36]}}."""
    known = known_limits(kind, str(settings.get("directory") or ""))
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


def _limit(raw: object) -> Any:
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
    alone, by the key of its own set: what is refused to one must not stop the others.
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
