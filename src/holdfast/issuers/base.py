"""The contract of a CA that we get certificates from.

An order moves by small steps, each one call to the CA and safe to repeat: whoever resumes it after a crash looks first.
Nothing here waits, tries again, or keeps anything: an issuer returns a value, or raises TryLater (with the CA's own
Retry-After) or Refused. The engine commits every value before it makes the next step.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from holdfast.core.acme import Identifier
from holdfast.pki.keys import PrivateKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to be in the certificate. Committed, key and all, before an issuer sees it."""

    issuance: str  # our own reference: sent as idempotency key where the CA has such a thing
    identifiers: tuple[Identifier, ...]
    csr: bytes  # DER; its key is stored
    profile: str | None = None
    not_after: datetime | None = None
    replaces: str | None = None  # RFC 9773 certID of the predecessor, only for the same directory and account
    preferred_chain: str | None = None  # common name of the root to prefer
    asked_at: datetime | None = None  # when an order was last begun, kept before the call; for `find` of binding CAs
    previous: Mapping[str, Any] | None = None  # `ref` of the order that the certificate in use came from, at this CA
    same_names: bool = False  # `previous` was for exactly these names
    # Signs with the key of the CSR (SHA-256), for a CA that wants a proof of its own; None where nobody has the key.
    sign: Callable[[bytes], Awaitable[bytes]] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What must be published for one name before the CA looks for it."""

    type: str  # http-01, dns-01, tls-alpn-01
    identifier: Identifier  # as ordered: a wildcard keeps its "*."
    token: str
    key_authorization: str
    ref: Mapping[str, Any] = field(default_factory=dict)  # the issuer's own: challenge and authorization URLs


# ── What a look at an order can show ──


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedsProof:
    """Names to be proved, each with the kinds of proof that this CA accepts for it."""

    choices: tuple[tuple[Proof, ...], ...]  # one tuple for each name that is still open


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """The CA is at work, or waits for a person on its side."""

    why: str
    after_s: float | None = None  # Retry-After
    word: str = ""  # the CA's own word for this state
    unknown: bool = False  # a word that nobody here knows: a warning is due, once for each word
    person: bool = False  # somebody must say yes at the CA: if it lasts, people are told


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """All is proved: the CSR can be handed in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    chain_pem: bytes  # leaf first, as the CA sent it; the engine checks it before it counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The order is over without a certificate."""

    why: str
    reason: str  # a reason code of core/reasons.py
    retryable: bool = True  # a new order may do better


Look = NeedsProof | Pending | Ready | Issued | Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The CA took the order; `ref` is all that is needed to find it again, as JSON."""

    ref: Mapping[str, Any]
    ready: bool = False  # it said at once that it waits for the CSR only: nobody has to look


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncertain:
    """An order may have been placed, and the CA cannot tell. Ordering again might buy a second certificate.

    The engine flags the issuance, tells a person, and asks `find` again for a day. Only then, or when the certificate
    in use is about to end, it orders once more, and says so.
    """

    why: str  # what was looked for, where, and what a person can do
    for_a_person: bool = False  # it may wait for approval for weeks, unseen: only a person may order again


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewalWindow:
    start: datetime
    end: datetime
    explanation: str | None = None
    ask_again_after_s: float = 6 * 3600.0


class Issuer(Protocol):
    """One CA, with its account. Made anew for each job from stored settings; cheap to make."""

    kind: str
    # True: `place` hands the CSR in, and what is placed may be paid for. The engine keeps that it is about to place,
    # never places again what may be placed already, and does not let go of an order because the CA is away for a while.
    binding: bool

    async def find(self, wish: Wish) -> Placed | Uncertain | None:
        """The order that an earlier, interrupted try may have placed, by our reference or our public key.

        None: there is surely none (or, where orders cost nothing, none that matters), and a new one may be placed.
        Uncertain: this CA cannot be asked. TryLater: it can, but not now; with the reason UNDER_WAY, there is more to
        look through than one claim pays for, and the next one goes on (`Search`).
        """

    async def place(self, wish: Wish) -> Placed:
        """Order it. Refused, reason REPLACES_REJECTED, if only `replaces` was wrong: once more without is right.

        After TryLater the order may be there all the same: `find` before `place` is called again. After Refused it
        is not.
        """

    async def look(self, ref: Mapping[str, Any], wish: Wish) -> Look:
        """Where the order is now. Refused here is about our account or settings: the order itself may be well."""

    async def answer(self, ref: Mapping[str, Any], proof: Proof) -> None:
        """Tell the CA that a proof is published. Saying so again is harmless."""

    async def finalize(self, ref: Mapping[str, Any], wish: Wish) -> None:
        """Hand in the CSR. Saying so again is harmless."""

    async def cancel(self, ref: Mapping[str, Any]) -> None:
        """Give the order up, if the CA lets us."""

    async def revoke(self, certificate: bytes, reason: int) -> None: ...

    async def renewal_window(self, certificate: bytes) -> RenewalWindow | None:
        """When the CA wants it renewed (RFC 9773); None if it does not say."""

    async def probe(self) -> str:
        """Whether it can be reached and knows us, in words, without ordering anything."""


@runtime_checkable
class RevokesByKey(Protocol):
    """A CA that also believes the key of a certificate, for what another account ordered."""

    async def revoke_by_key(self, certificate: bytes, reason: int, key: PrivateKey) -> None: ...
