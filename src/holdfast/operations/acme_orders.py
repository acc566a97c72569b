"""Orders: what a client asks for, and the step from proofs to a certificate under way (RFC 8555 §7.4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final, NamedTuple

from holdfast.core import base64url
from holdfast.core.acme import (
    INTERNAL,
    Account,
    AccountState,
    Authz,
    AuthzState,
    Challenge,
    ChallengeState,
    Identifier,
    Order,
    OrderState,
    likeness,
    offered_types,
    state_at,
)
from holdfast.core.ca import Mode, Rate
from holdfast.core.job import Priority, Spec
from holdfast.core.problem import AcmeError, Problem
from holdfast.errors import TxConflict
from holdfast.operations import acme_names, acme_wishes, unfit_keys
from holdfast.operations.authorities import Authority
from holdfast.operations.desk import Desk, Requester, require, within
from holdfast.operations.handover import Owe
from holdfast.pki import csr, keys
from holdfast.pki.intent import Intent, new_serial
from holdfast.pki.profile import plan
from holdfast.pki.refused import IssuerRefused, PkiRefused
from holdfast.ports import Random
from holdfast.store import acme_accounts, acme_authzs, acme_limits, acme_orders, ca_certificates, journal
from holdfast.store.marks import brief
from holdfast.store.tx import Tx

ISSUE: Final = "acme.issue"
STILL_ISSUED_FOR: Final = timedelta(hours=1)  # after the end of an order that was finalized at its last moment
REUSE_MARGIN: Final = timedelta(hours=1)  # a proof that ends sooner is not worth building an order on


class Started(NamedTuple):
    """What the signing of an order has to know."""

    order: Order
    intent: Intent
    stale: tuple[tuple[Identifier, str], ...] = ()  # names whose CAA was looked up too long ago; how they were proved


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a newOrder request asks for, in its one spelling."""

    identifiers: tuple[Identifier, ...]
    profile: str | None = None
    not_before: datetime | None = None
    not_after: datetime | None = None
    replaces: str | None = None


# ── newOrder ──


async def place(desk: Desk, ca: Authority, who: Requester, wish: Wish, *, address: str = "") -> Order:
    """The order for this wish: a new one, or the one that the same account asked for before and can still use."""
    _check_names(ca, wish.identifiers)
    profile = ca.options.profile(wish.profile)
    if profile is None:
        known = ", ".join(each.name for each in ca.options.profiles)
        raise AcmeError.invalid_profile(f"There is no profile {wish.profile!r:.80}; there are: {known}.")
    alike = likeness(wish.identifiers, profile.name, wish.replaces, wish.not_before, wish.not_after)
    ids = _Ids.draw(desk.random, wish.identifiers, ca.options.challenges)

    def write(tx: Tx) -> Order:
        standing = require(tx, who)
        now = tx.now()
        existing = _usable(tx, who.account, alike, now)
        if existing is not None:
            return existing
        acme_wishes.check_dates(ca, profile.name, wish.not_before, wish.not_after, now)
        acme_wishes.check_pauses(tx, who.account, wish.identifiers)
        replaced = _replaced(tx, ca, who.account, wish)
        full = acme_limits.take(tx, _rates(desk, who.account), now)
        failing = _failing(tx, desk, who.account, wish.identifiers, now)
        within(full | failing, "orders" if full else "failed validations of the same name")
        trusted = ca.options.mode is Mode.TRUST
        if trusted:
            acme_names.check_trust(standing.names, wish.identifiers)
        order, fresh = _assemble(tx, desk, ca, who.account, wish, profile.name, ids, now, trusted=trusted)
        if not acme_orders.insert(tx, order, alike):
            raise TxConflict(f"the same order was placed twice at once: {order.id}")  # run again, this finds it
        acme_authzs.insert(tx, fresh, now)
        acme_authzs.link(tx, order.id, order.authzs)
        if replaced is not None:
            ca_certificates.replaced(tx, ca.id, replaced.serial, order.id)
            ca_certificates.deliver(tx, "acknowledged", [(replaced.id, who.account)])  # whoever names it, has it
        journal.audit(
            tx,
            "order_created",
            order.id,
            actor=f"acme:{who.account}",
            names=[each.value for each in order.identifiers],
            profile=order.profile,
            address=address,
        )
        return order

    return await desk.db.write(write)


def _replaced(tx: Tx, ca: Authority, account: str, wish: Wish) -> ca_certificates.Issued | None:
    if wish.replaces is None:
        return None
    return acme_wishes.replaceable(tx, ca, account, wish.replaces, wish.identifiers)


@dataclass(frozen=True, slots=True)
class _Ids:
    """Drawn before the transaction, which may run more than once."""

    order: str
    authzs: Mapping[Identifier, str]
    tokens: Mapping[tuple[Identifier, str], str]  # one for each kind of challenge: it must tell them apart (§8.3)
    challenges: Mapping[Identifier, str]

    @classmethod
    def draw(cls, random: Random, identifiers: Sequence[Identifier], kinds: Sequence[str]) -> _Ids:
        return cls(
            order=random.new_id("order"),
            authzs={each: random.new_id("authz") for each in identifiers},
            tokens={(each, kind): _token(random) for each in identifiers for kind in offered_types(each, kinds)},
            challenges={each: random.new_id("chall") for each in identifiers},
        )


def _token(random: Random) -> str:
    return base64url.encode(random.token(32))


def _usable(tx: Tx, account: str, alike: str, now: datetime) -> Order | None:
    existing = acme_orders.alike(tx, account, alike)
    if existing is not None and state_at(existing, now) is OrderState.INVALID:
        acme_orders.refuse(tx, existing.id, expired_problem(), event="expired")  # it makes room for the next
        return None
    return existing


def expired_problem() -> Problem:
    return AcmeError.malformed("The order expired before it was finalized.", status=403).problem


def _assemble(
    tx: Tx,
    desk: Desk,
    ca: Authority,
    account: str,
    wish: Wish,
    profile: str,
    ids: _Ids,
    now: datetime,
    *,
    trusted: bool,
) -> tuple[Order, list[Authz]]:
    """The order, and those of its authorizations that are new."""
    reused = acme_authzs.reusable(tx, account, wish.identifiers, now + REUSE_MARGIN, trusted=trusted)
    expires_at = now + desk.policy.order_for
    fresh = [
        _authz(ca, account, each, ids, now + desk.policy.authz_for if trusted else expires_at, trusted=trusted)
        for each in wish.identifiers
        if each not in reused
    ]
    order = Order(
        id=ids.order,
        ca=ca.id,
        account=account,
        state=OrderState.READY if trusted or not fresh else OrderState.PENDING,
        profile=profile,
        identifiers=wish.identifiers,
        authzs=tuple(reused[each]["id"] if each in reused else ids.authzs[each] for each in wish.identifiers),
        not_before=wish.not_before,
        not_after=wish.not_after,
        replaces=wish.replaces,
        expires_at=min([expires_at, *(acme_authzs.end_of(row) for row in reused.values())]),
        created_at=now,
    )
    return order, fresh


def _authz(ca: Authority, account: str, identifier: Identifier, ids: _Ids, until: datetime, *, trusted: bool) -> Authz:
    authz = ids.authzs[identifier]
    kinds = () if trusted else offered_types(identifier, ca.options.challenges)
    challenges = tuple(
        Challenge(
            id=f"{ids.challenges[identifier]}-{n}",
            authz=authz,
            type=kind,
            state=ChallengeState.PENDING,
            token=ids.tokens[identifier, kind],
        )
        for n, kind in enumerate(kinds)
    )
    return Authz(
        id=authz,
        account=account,
        identifier=Identifier(identifier.type, identifier.base),
        wildcard=identifier.wildcard,
        state=AuthzState.VALID if trusted else AuthzState.PENDING,
        expires_at=until,
        challenges=challenges,
    )


# ── What may not be ordered ──


def _check_names(ca: Authority, identifiers: Sequence[Identifier]) -> None:
    if ca.closed:
        raise AcmeError.unauthorized("This CA is closed: it takes no new orders.")
    refused = acme_names.not_allowed(ca, identifiers)
    unprovable = [
        each
        for each in identifiers
        if ca.options.mode is Mode.VALIDATE and not offered_types(each, ca.options.challenges) and each not in refused
    ]
    acme_names.refuse(refused + unprovable, acme_names.NOT_OURS)


def _rates(desk: Desk, account: str) -> dict[str, Rate]:
    return {f"order/{account}": desk.policy.orders_per_account}


def _name_rates(desk: Desk, order: Order) -> dict[str, Rate]:
    """Counted once the names are proved: else a stranger could use up what their owner may have."""
    return {f"name/{order.ca}/{each.value}": desk.policy.orders_per_identifier for each in order.identifiers}


def _failing(tx: Tx, desk: Desk, account: str, names: Sequence[Identifier], now: datetime) -> dict[str, timedelta]:
    rate = desk.policy.failures_per_identifier
    waits = {each.base: acme_limits.left(tx, failure_key(account, each.base), rate, now) for each in names}
    return {name: wait for name, wait in waits.items() if wait is not None}


def failure_key(account: str, name: str) -> str:
    return f"failed/{account}/{name}"


# ── Looking ──


async def get(desk: Desk, who: Requester, order_id: str) -> Order:
    def look(tx: Tx) -> Order:
        require(tx, who)
        return _shown(_own(tx, who, order_id), tx.now())

    return await desk.db.read(brief(look))


def _own(tx: Tx, who: Requester, order_id: str) -> Order:
    order = acme_orders.get(tx, order_id)
    if order is None:
        raise AcmeError.malformed("There is no such order.", status=404)
    if order.account != who.account:
        raise AcmeError.unauthorized("The order belongs to another account.")
    return order


def _shown(order: Order, now: datetime) -> Order:
    """As a client sees it: expired ones are invalid, whether or not the sweep has come by."""
    state = state_at(order, now)
    return order if state is order.state else replace(order, state=state, error=expired_problem())


# ── Finalize ──


async def finalize(desk: Desk, ca: Authority, who: Requester, order_id: str, content: bytes) -> Order:
    """ready → processing: the intent is committed here, together with the job that signs it."""
    try:
        request = _request(content)
    except AcmeError:
        await _must_be_ready(desk, who, order_id)
        raise
    serial, job = new_serial(desk.random), desk.random.new_id("job")

    def write(tx: Tx, owe: Owe) -> Order:
        standing = require(tx, who)
        now = tx.now()
        order = _shown(_own(tx, who, order_id), now)
        if order.state is not OrderState.READY:
            if desk.policy.repeat_finalize and order.state in (OrderState.PROCESSING, OrderState.VALID):
                return order
            raise AcmeError.order_not_ready(f"The order is {order.state}, not ready.")
        try:
            acme_names.check_still(tx, ca, standing.names, order)
        except AcmeError as refused:
            return _over(tx, order, refused.problem)
        _check_request(order, request)
        unfit_keys.check_certificate_key(tx, request)
        intent = _intent(ca, order, request, serial, now)
        within(acme_limits.take(tx, _name_rates(desk, order), now), "certificates for the same name")
        return _start(tx, owe, order, intent, content, job, actor=f"acme:{who.account}")

    started = await desk.handover.write(desk.db, ISSUE, write)
    if started.state is OrderState.INVALID and started.error is not None:
        raise AcmeError(started.error)
    return started


def _over(tx: Tx, order: Order, problem: Problem) -> Order:
    """ready → invalid, which stays when the request is answered with the problem."""
    acme_orders.refuse(tx, order.id, problem)
    journal.audit(tx, "order_invalid", order.id, problem=problem.to_json())
    return replace(order, state=OrderState.INVALID, error=problem)


async def _must_be_ready(desk: Desk, who: Requester, order_id: str) -> None:
    """Whose order it is, and whether it is ready, comes before what is wrong with the CSR (§7.4)."""
    order = await get(desk, who, order_id)
    if order.state is not OrderState.READY:
        raise AcmeError.order_not_ready(f"The order is {order.state}, not ready.")


def _start(tx: Tx, owe: Owe, order: Order, intent: Intent, content: bytes, job: str, *, actor: str) -> Order:
    if not acme_orders.finalize(tx, order.id, content):
        raise AcmeError.order_not_ready("The order was finalized at the same moment.")
    written = intent.to_json()
    ca_certificates.intend(tx, order.id, order.ca, f"{intent.serial:x}", written)
    started = replace(order, state=OrderState.PROCESSING)
    latest = order.expires_at + STILL_ISSUED_FOR  # who waited for it has given up by then
    spec = Spec(id=job, kind=ISSUE, subject=order.id, priority=Priority.NORMAL, expires_at=latest)
    owe(tx, spec, Started(started, intent))
    journal.audit(
        tx,
        "order_finalized",
        order.id,
        actor=actor,
        serial=f"{intent.serial:x}",
        intent=sha256(written).hexdigest(),
        key=keys.spki_sha256(intent.spki).hex(),
    )
    return started


def _request(content: bytes) -> csr.Request:
    """The CSR, read before the transaction; what the profile allows is for plan() to say."""
    if content[:1] != b"\x30":
        raise AcmeError.bad_csr("The CSR is not in DER: it must not be PEM, nor anything else.")
    try:
        return csr.parse(content, ed25519_allowed=True, must_staple_allowed=True)
    except PkiRefused as refused:
        raise AcmeError.bad_csr(str(refused)) from None


def _check_request(order: Order, request: csr.Request) -> None:
    """Exactly the names of the order, no more and no less (§7.4)."""
    dns, ips = acme_names.split(order.identifiers)
    if set(request.names) != set(dns) or set(request.ips) != set(ips):
        raise AcmeError.bad_csr("The CSR does not ask for exactly the names of the order.")


def _intent(ca: Authority, order: Order, request: csr.Request, serial: int, now: datetime) -> Intent:
    profile = ca.profile(order.profile)
    if profile is None:
        raise AcmeError.invalid_profile("The profile of this order is no longer offered.", status=403)
    try:
        return plan(
            profile,
            request,
            ca.issuer,
            serial=serial,
            now=now,
            asked_at=order.created_at,
            not_before=order.not_before,
            not_after=order.not_after,
        )
    except IssuerRefused as refused:
        raise AcmeError.server_internal(str(refused)) from None
    except PkiRefused as refused:
        raise AcmeError.bad_csr(str(refused)) from None


# ── Orders of our own ──


async def place_internal(
    desk: Desk,
    ca: Authority,
    *,
    account: str,
    identifiers: tuple[Identifier, ...],
    content: bytes,
    profile: str | None = None,
    not_after: datetime | None = None,
    order_id: str | None = None,
    also: Callable[[Tx, Order], None] | None = None,
) -> Order:
    """An order of this installation itself: no challenge, then the pipeline of all. The same id is the same order.

    `also` writes in the same transaction whatever must not be without its order.
    """
    serial, job = new_serial(desk.random), desk.random.new_id("job")
    new_id = order_id or desk.random.new_id("order")
    request = csr.parse(content, ed25519_allowed=True)
    chosen = ca.options.profile(profile)
    if chosen is None:
        raise AcmeError.invalid_profile(f"There is no profile {profile!r:.80}.")

    def write(tx: Tx, owe: Owe) -> Order:
        now = tx.now()
        _insert_internal(tx, ca, account, now)
        order = Order(
            id=new_id,
            ca=ca.id,
            account=account,
            state=OrderState.READY,
            profile=chosen.name,
            identifiers=identifiers,
            not_after=not_after,
            expires_at=now + desk.policy.order_for,
            created_at=now,
        )
        _check_request(order, request)
        if not acme_orders.insert(tx, order, new_id):  # like no other: each of these is wanted
            existing = acme_orders.get(tx, new_id)
            if existing is None:
                raise TxConflict(f"order {new_id} comes and goes")
            return existing
        unfit_keys.check_certificate_key(tx, request)
        if also is not None:
            also(tx, order)
        intent = _intent(ca, order, request, serial, now)
        return _start(tx, owe, order, intent, content, job, actor=journal.SYSTEM)

    return await desk.handover.write(desk.db, ISSUE, write)


def _insert_internal(tx: Tx, ca: Authority, account: str, now: datetime) -> None:
    """The account that orders of our own belong to; a second one like it is the first."""
    acme_accounts.insert(
        tx,
        Account(
            id=account,
            ca=ca.id,
            thumbprint=f"{INTERNAL}{account}",
            jwk="{}",
            state=AccountState.VALID,
            created_at=now,
        ),
    )
