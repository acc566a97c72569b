"""A fake CA that keeps its own truth: who ordered what and when, what it issued, what it was told to revoke."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509

from holdfast.core.backoff import spread
from holdfast.core.issuers.budget import Limit
from holdfast.core.reasons import Reason
from holdfast.errors import Refused, TryLater
from holdfast.issuers.base import (
    ChallengeResponse,
    Failed,
    Issued,
    Look,
    NeedsProof,
    OrderRequest,
    Pending,
    Ready,
    RenewalWindow,
)
from tests.simulation.clockwork import START
from tests.simulation.signing import Certifier

AWAY: Final = float("-inf")
ASK_AGAIN: Final = timedelta(hours=6)
ORDER_FOR: Final = timedelta(days=7)


@dataclass(slots=True)
class Order:
    """An order as the CA remembers it."""

    ref: str
    issuance: str
    at: float  # when it was placed
    paid_at: float  # when the product claimed the job that placed it, or found it again
    names: tuple[str, ...]
    profile: str | None = None
    proofs: dict[str, ChallengeResponse] = field(default_factory=dict)  # those that are still to be answered
    csr: bytes = b""
    ready_at: float = 0.0
    chain: bytes = b""
    serial: int = 0
    wrong: bool = False  # what was issued is for another key
    erred: bool = False  # it was so once
    cancelled: bool = False


@dataclass(slots=True, kw_only=True)
class Authority:
    """One CA, with one account of ours. Moods last until a time; the truth lasts for ever."""

    name: str
    life: timedelta
    lives: Mapping[str, timedelta] = field(default_factory=dict)  # by profile, where it is another
    orders_limit: Limit | None = None
    set_limit: Limit | None = None  # certificates for exactly the same names
    domain_limit: Limit | None = None  # certificates, by registered domain
    asks_proofs: bool = False
    binding: bool = False  # whoever orders hands the CSR in, and has bought
    ari: bool = False
    issue_after: float = 0.0  # seconds between the CSR and the certificate
    down_until: float = AWAY  # answers 503
    storm_until: float = AWAY  # answers 429
    storm_says: float | None = None  # its Retry-After; None: it gives none
    late_until: float = AWAY  # takes orders, and issues much later
    late_for: float = 900.0  # from so many seconds later on to three times that
    refuses_until: float = AWAY
    errs_until: float = AWAY  # puts another key into certificates
    moody_until: float = AWAY  # when the last outage or storm ends
    hurried: dict[str, float] = field(default_factory=dict)  # serial → when its window was moved there
    # what it knows
    orders: dict[str, Order] = field(default_factory=dict)
    by_issuance: dict[str, Order] = field(default_factory=dict)
    by_serial: dict[str, Order] = field(default_factory=dict)
    ordered: Counter[str] = field(default_factory=Counter)  # issuance → how many orders
    revoked: dict[str, float] = field(default_factory=dict)  # serial → when
    told: dict[str, float] = field(default_factory=dict)  # serial → when we first heard that it is hurried
    requests: int = 0
    turned_away: int = 0  # requests that were answered by 429 or 503
    asked: Counter[str] = field(default_factory=Counter)  # by kind of request
    _certifier: Certifier | None = None

    # ── moods ──

    def hear(self, what: str, now: float) -> None:
        """Every request comes through here: it is counted, whatever the answer."""
        self.requests += 1
        self.asked[what] += 1
        if now < self.down_until:
            self.turned_away += 1
            raise TryLater(f"{self.name} answered 503", reason=Reason.CA_DOWN)
        if now < self.storm_until:
            self.turned_away += 1
            after = None if self.storm_says is None else timedelta(seconds=self.storm_says)
            raise TryLater(f"{self.name}: too many requests", after=after, reason=Reason.CA_RATE_LIMITED)
        if what == "place" and now < self.refuses_until:
            raise Refused(f"{self.name} does not want these names today", reason=Reason.CA_REFUSED)

    def calm(self) -> None:
        """Well again; and since somebody has complained, what it issued wrongly is issued once more."""
        self.down_until = self.storm_until = self.late_until = self.refuses_until = self.errs_until = AWAY
        for order in self.orders.values():
            if order.wrong:
                order.wrong, order.chain = False, b""

    # ── orders ──

    def find_order(self, request: OrderRequest) -> Order | None:
        found = self.by_issuance.get(request.issuance)
        return None if found is None or found.cancelled else found

    def place_order(self, request: OrderRequest, now: float, paid_at: float) -> Order:
        ref = f"{self.name}-{len(self.orders) + 1}"
        names = tuple(each.value for each in request.identifiers)
        order = Order(ref=ref, issuance=request.issuance, at=now, paid_at=paid_at, names=names, profile=request.profile)
        if self.asks_proofs:
            order.proofs = {f"{ref}-{n}": _proof(ref, n, request) for n in range(len(names))}
        self.orders[ref] = self.by_issuance[request.issuance] = order
        self.ordered[request.issuance] += 1
        return order

    def order_status(self, ref: str, now: float) -> Look:
        order = self.orders.get(ref)
        if order is None or order.cancelled or (not order.csr and now > order.at + ORDER_FOR.total_seconds()):
            return Failed(why="There is no such order any more.", reason=Reason.ORDER_EXPIRED)
        if order.proofs:
            return NeedsProof(choices=tuple((each,) for each in order.proofs.values()))
        if not order.csr:
            return Ready()
        if now < order.ready_at:
            return Pending(why="It is being looked at.")
        if not order.chain:
            self.issue(order, now)
        return Issued(chain_pem=order.chain)

    def finalize(self, ref: str, content: bytes, now: float) -> None:
        order = self.orders.get(ref)
        if order is None or order.cancelled:
            raise Refused("There is no such order any more.", reason=Reason.ORDER_EXPIRED)
        if order.csr:
            return
        order.csr = content
        late = self.late_for * (1 + 2 * spread(ref)) if now < self.late_until else 0.0
        order.ready_at = now + self.issue_after + late

    def issue(self, order: Order, now: float) -> None:
        begins = self._enter(order, now)
        ends, order.wrong = begins + self.life_of(order.profile), now < self.errs_until
        order.erred = order.erred or order.wrong
        order.chain = self.certifier.sign(
            order.csr, serial=order.serial, begins=begins, ends=ends, other_key=order.wrong
        )

    def grant(self, order: Order, key: object) -> tuple[datetime, datetime]:
        """As if it had been issued when it was ordered, for this key; its dates."""
        begins = self._enter(order, order.at)
        ends = begins + self.life_of(order.profile)
        order.chain = self.certifier.grant(order.names[0], key, serial=order.serial, begins=begins, ends=ends)
        return begins, ends

    def _enter(self, order: Order, now: float) -> datetime:
        order.serial = len(self.by_serial) + 1
        self.by_serial[f"{order.serial:x}"] = order
        return at(now).replace(microsecond=0)

    def life_of(self, profile: str | None) -> timedelta:
        return self.lives.get(profile or "", self.life)

    @property
    def certifier(self) -> Certifier:
        if self._certifier is None:
            self._certifier = Certifier(self.name)
        return self._certifier

    # ── what becomes of certificates ──

    def revoke(self, certificate: bytes, now: float) -> None:
        serial = f"{x509.load_der_x509_certificate(certificate).serial_number:x}"
        if serial not in self.by_serial:
            raise Refused(f"{self.name} knows no certificate {serial}", reason=Reason.CA_REFUSED)
        self.revoked.setdefault(serial, now)

    def window(self, certificate: bytes, now: float) -> RenewalWindow | None:
        if not self.ari:
            return None
        leaf = x509.load_der_x509_certificate(certificate)
        begins, ends = leaf.not_valid_before_utc, leaf.not_valid_after_utc
        serial = f"{leaf.serial_number:x}"
        if (moved := self.hurried.get(serial)) is not None:
            self.told.setdefault(serial, now)
            start, end = at(moved - 3600), at(moved - 1800)  # wholly in the past: at once
        else:
            start, end = begins + (ends - begins) * 0.6, begins + (ends - begins) * 0.66
        ask = min(ASK_AGAIN.total_seconds(), self.life.total_seconds() / 12)
        return RenewalWindow(start=start, end=end, ask_again_after_s=ask)


def at(seconds: float) -> datetime:
    """The calendar at a time of the virtual loop."""
    return START + timedelta(seconds=seconds)


def _proof(ref: str, number: int, request: OrderRequest) -> ChallengeResponse:
    token = f"{ref}-{number}"
    return ChallengeResponse(
        type="http-01",
        identifier=request.identifiers[number],
        token=token,
        key_authorization=f"{token}.thumb",
        ref={"token": token},
    )
