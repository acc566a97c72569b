"""The contract of a CA that we get certificates from.

An order moves by small steps, each one call to the CA and safe to repeat: a replica that resumes it after a crash
looks first. Nothing here waits, tries again, or keeps anything: an issuer returns a value, or raises TryLater (with
the CA's own Retry-After) or Refused. The engine commits every value before it makes the next step.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, TypeAlias, runtime_checkable

from holdfast.core.issuance_steps import OrderFailed, OrderPending, OrderReady, OrderUncertain
from holdfast.core.own_ca.acme import Identifier
from holdfast.pki.keys import PrivateKey

# What an order has come to, in the words of issuers; `core/issuance_decision.py` decides by the same values.
Ready: TypeAlias = OrderReady
Pending: TypeAlias = OrderPending
Failed: TypeAlias = OrderFailed
Uncertain: TypeAlias = OrderUncertain

# All that an issuer needs to find its order again, as JSON. The CA's own number for the order, which people see, is
# under one of the keys `ORDER_NUMBERS` of core/issuance.py.
OrderRef: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderRequest:
    """The content of the certificate to order. Committed, with its key, before an issuer sees it."""

    issuance: str  # our own reference: sent as idempotency key where the CA has such a thing
    identifiers: tuple[Identifier, ...]
    csr: bytes  # DER; its key is stored
    profile: str | None = None
    not_after: datetime | None = None
    replaces: str | None = None  # RFC 9773 certID of the predecessor, only for the same directory and account
    preferred_chain: str | None = None  # common name of the root to prefer
    asked_at: datetime | None = None  # when an order was last begun, kept before the call; for `find` of binding CAs
    previous: OrderRef | None = None  # `ref` of the order that the certificate in use came from, at this CA
    same_names: bool = False  # `previous` was for exactly these names
    # Signs with the key of the CSR (SHA-256), for a CA that wants such a signature; None where the key is not ours.
    sign: Callable[[bytes], Awaitable[bytes]] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChallengeResponse:
    """The response to publish for one name before the CA looks for it."""

    type: str  # http-01, dns-01, tls-alpn-01
    identifier: Identifier  # as ordered: a wildcard keeps its "*."
    token: str
    key_authorization: str
    ref: Mapping[str, Any] = field(default_factory=dict)  # the issuer's own: challenge and authorization URLs


# ── Results of `order_status` ──


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedsProof:
    """Names to be validated, each with the challenges that this CA offers for it."""

    choices: tuple[tuple[ChallengeResponse, ...], ...]  # one tuple for each name that is still open


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    chain_pem: bytes  # leaf first, as the CA sent it; the engine checks it before it counts


Look = NeedsProof | Pending | Ready | Issued | Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The CA took the order; `ref` is all that is needed to find it again, as JSON."""

    ref: OrderRef
    ready: bool = False  # the CA said at once that it waits for the CSR only: no look is needed


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewalWindow:
    start: datetime
    end: datetime
    explanation: str | None = None
    ask_again_after_s: float = 6 * 3600.0


class Issuer(Protocol):
    """One CA, with its account. Made anew for each job from stored settings; cheap to make."""

    # True: `place_order` hands the CSR in, and the order may cost money. The engine keeps that it is about to place,
    # never places again what may be placed already, and does not let go of an order because the CA is away for a while.
    binding: bool

    async def find_order(self, request: OrderRequest) -> Placed | Uncertain | None:
        """The order that an earlier, interrupted try may have placed, by our reference or our public key.

        None: there is surely none (or, where orders cost nothing, none that matters), and a new one may be placed.
        Uncertain: this CA cannot be asked, and ordering again might buy a second certificate. The engine flags the
        issuance, alerts a person, and calls `find_order` again for a day; only then, or when the certificate in use
        is about to expire, it orders once more. TryLater: the CA can be asked, but not now; with the reason UNDER_WAY,
        there is more to look through than one claim pays for, and the next claim goes on (`Search`).
        """

    async def place_order(self, request: OrderRequest) -> Placed:
        """Order it. Refused, reason REPLACES_REJECTED, if only `replaces` was wrong: once more without is right.

        After TryLater the order may be there all the same: `find_order` is called before `place_order` is called
        again. After Refused it is not.
        """

    async def order_status(self, ref: OrderRef, request: OrderRequest) -> Look:
        """Where the order is now. Refused here is about our account or settings: the order itself may be well."""

    async def revoke(self, certificate: bytes, reason: int) -> None: ...

    async def probe(self) -> str:
        """Whether the CA can be reached and accepts our account, in words, without ordering anything."""


# ── Optional powers: the engine calls these only on issuers that have the methods ──


@runtime_checkable
class ProvesNames(Protocol):
    """An issuer that validates names: `order_status` may return NeedsProof."""

    async def answer(self, ref: OrderRef, response: ChallengeResponse) -> None:
        """Tell the CA that a challenge response is published. Repeating it is harmless."""


@runtime_checkable
class Finalizes(Protocol):
    """An issuer that takes the CSR in a step of its own: `order_status` may return Ready."""

    async def finalize(self, ref: OrderRef, request: OrderRequest) -> None:
        """Hand in the CSR. Repeating it is harmless."""


@runtime_checkable
class Cancels(Protocol):
    """An issuer whose orders can be given up, or that can tell that it is too late for that."""

    async def cancel(self, ref: OrderRef) -> None:
        """Give the order up. Refused: the CA does not let us, and a person must know what may still be issued."""


@runtime_checkable
class TellsRenewalWindow(Protocol):
    """An issuer that says when it wants a certificate renewed (RFC 9773)."""

    async def renewal_window(self, certificate: bytes) -> RenewalWindow | None:
        """None if it says nothing about this one."""


@runtime_checkable
class KeepsAlive(Protocol):
    """An issuer with a session or token that expires unless it is used: called daily for each certificate."""

    async def keep_alive(self) -> None:
        """Renew a session or token that is about to expire. Most calls find nothing to do, and send no request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A certificate that a CA lists: its chain in DER, the leaf first, and the CA's own number of it."""

    chain: tuple[bytes, ...]
    number: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPage:
    certificates: tuple[Listed, ...]
    unreadable: int = 0  # that are listed, and that the CA does not hand out: revoked, pending or too old
    next: Mapping[str, Any] | None = None  # where the next page begins; None: this was the last


@runtime_checkable
class ListsCertificates(Protocol):
    """An issuer that lists what it issued to this account. Its kind has the trait LISTS."""

    async def list_certificates(self, after: Mapping[str, Any]) -> ListedPage:
        """One page, small enough for one claim; `after` is `next` of the page before, empty at the beginning."""


@runtime_checkable
class HasAccount(Protocol):
    """An issuer where we have an account of our own making: an order is visible to that account alone."""

    account_url: str


@runtime_checkable
class RevokesByKey(Protocol):
    """An issuer that also accepts a revocation signed by the certificate's key, where another account ordered it."""

    async def revoke_by_key(self, certificate: bytes, reason: int, key: PrivateKey) -> None: ...
