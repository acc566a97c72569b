"""Orders of ACME clients: place, look at, finalize, and the policy that they must meet (RFC 8555 §7.4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from hashlib import sha256
from typing import Any, Final, NamedTuple

from holdfast.core import base64url
from holdfast.core.client import counted_as
from holdfast.core.own_ca.acme import (
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
from holdfast.core.own_ca.ca import CaMode, CaPolicy, DeliveryLevel, IssuedCertificate, RateLimit
from holdfast.core.own_ca.problem import AcmeError, Problem, SubProblem
from holdfast.core.work.job import Priority, Spec
from holdfast.errors import Duplicate, TxConflict
from holdfast.operations.acme import names
from holdfast.operations.acme.accounts import check_certificate_key, names_of_key
from holdfast.operations.acme.context import AcmeContext, Requester, admitted, by_current, require_current, within
from holdfast.operations.acme.handover import Owe
from holdfast.operations.own_ca.authorities import Authority
from holdfast.pki import csr, keys
from holdfast.pki.ari import parse_cert_id
from holdfast.pki.profile import Intent, new_serial, plan, validity
from holdfast.pki.refused import MustNotSign, PkiRefused
from holdfast.ports import Random
from holdfast.store import journal
from holdfast.store.acme import accounts, authorizations, orders
from holdfast.store.acme import limits as acme_limits
from holdfast.store.marks import inline
from holdfast.store.own_ca import certificates
from holdfast.store.tx import Change, Row, Tx

ISSUE: Final = "acme.issue"
STILL_ISSUED_FOR: Final = timedelta(hours=1)  # after the end of an order that was finalized at its last moment
PENDING_FOR: Final = 600  # seconds after which a client with too many unproved names may ask again
REUSE_MARGIN: Final = timedelta(hours=1)  # an authorization that expires sooner is not used for a new order


class StartedOrder(NamedTuple):
    """What the signing of an order has to know."""

    order: Order
    intent: Intent
    stale: tuple[tuple[Identifier, str], ...] = ()  # names whose CAA was looked up too long ago; how they were proved


@dataclass(frozen=True, slots=True, kw_only=True)
class NewOrder:
    """What a newOrder request asks for, in its one spelling."""

    identifiers: tuple[Identifier, ...]
    profile: str | None = None
    not_before: datetime | None = None
    not_after: datetime | None = None
    replaces: str | None = None


# ── newOrder ──


async def place(
    acme_context: AcmeContext, ca: Authority, who: Requester, new_order: NewOrder, *, address: str = ""
) -> Order:
    """Make an order, or return the one that the same account asked for before and can still use."""
    return await by_current(acme_context, ca, lambda ca: _place(acme_context, ca, who, new_order, address))


async def _place(acme_context: AcmeContext, ca: Authority, who: Requester, new_order: NewOrder, address: str) -> Order:
    _check_names(ca, new_order.identifiers)
    profile = ca.options.profile(new_order.profile)
    if profile is None:
        known = ", ".join(each.name for each in ca.options.profiles)
        raise AcmeError.invalid_profile(f"There is no profile {new_order.profile!r:.80}; there are: {known}.")
    alike = likeness(new_order.identifiers, profile.name, new_order.replaces, new_order.not_before, new_order.not_after)
    ids = _Ids.draw(acme_context.random, new_order.identifiers, ca.options.challenges)

    def write(tx: Tx) -> Order:
        found, existing = orders.alike(tx, who.account, alike)
        standing, now = admitted(found, who, ca), tx.now()
        if existing is not None and _usable(tx, existing, now):
            return existing
        check_dates(ca, profile.name, new_order.not_before, new_order.not_after, now)
        trusted = ca.options.mode is CaMode.TRUST
        wanted = [each.base for each in new_order.identifiers]
        on_record = acme_limits.record(
            tx, who.account, counted_as(address), wanted, until=now + REUSE_MARGIN, trusted=trusted
        )
        check_pauses(on_record.paused, new_order.identifiers)
        lifetime = timedelta(seconds=profile.lifetime_s) if new_order.not_after is None else new_order.not_after - now
        names.check_policies(tx, standing, ca, new_order.identifiers, actor=f"acme:{who.account}", lifetime=lifetime)
        replaced = _replaced(tx, ca, who.account, new_order)
        within(_failing(on_record, acme_context.policy, now), "failed validations of the same name")
        if trusted:
            names.check_trust(standing.names, new_order.identifiers)
        reused = authorizations.reusable(on_record.valid, new_order.identifiers)
        order, fresh = _assemble(
            acme_context, ca, who.account, new_order, profile.name, ids, now, reused, trusted=trusted
        )
        _check_pending(on_record, acme_context.policy, fresh)
        limits = _limits(acme_context.policy, who.account, counted_as(address), len(new_order.identifiers))
        added = _together(
            tx,
            limits,
            now,
            orders.insertion(order, alike),
            *authorizations.insertion(fresh, now, address=counted_as(address)),
            authorizations.links(order.id, order.authzs),
        )
        if not added:
            raise TxConflict(f"the same order was placed twice at once: {order.id}")  # run again, this finds it
        if replaced is not None:
            certificates.replaced(tx, ca.id, replaced.serial, order.id)
            certificates.deliver(
                tx, DeliveryLevel.ACKNOWLEDGED, [(replaced.id, who.account)]
            )  # a client that names the certificate has it
        journal.audit(
            tx,
            "order_created",
            order.id,
            actor=f"acme:{who.account}",
            profile=order.profile,
            address=address,
            **_names_told(order.identifiers),
        )
        return order

    return await acme_context.db.write(write)


def _replaced(tx: Tx, ca: Authority, account: str, new_order: NewOrder) -> IssuedCertificate | None:
    if new_order.replaces is None:
        return None
    return replaceable(tx, ca, account, new_order.replaces, new_order.identifiers)


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


def _usable(tx: Tx, existing: Order, now: datetime) -> bool:
    if state_at(existing, now) is OrderState.INVALID:
        orders.refuse(tx, existing.id, expired_problem(), event="expired")  # it makes room for the next
        return False
    return True


def expired_problem() -> Problem:
    return AcmeError.malformed("The order expired before it was finalized.", status=403).problem


def _assemble(
    acme_context: AcmeContext,
    ca: Authority,
    account: str,
    new_order: NewOrder,
    profile: str,
    ids: _Ids,
    now: datetime,
    reused: Mapping[Identifier, Row],
    *,
    trusted: bool,
) -> tuple[Order, list[Authz]]:
    """The order, and those of its authorizations that are new."""
    expires_at = now + acme_context.policy.order_for
    fresh = [
        _authz(ca, account, each, ids, now + acme_context.policy.authz_for if trusted else expires_at, trusted=trusted)
        for each in new_order.identifiers
        if each not in reused
    ]
    order = Order(
        id=ids.order,
        ca=ca.id,
        account=account,
        state=OrderState.READY if trusted or not fresh else OrderState.PENDING,
        profile=profile,
        identifiers=new_order.identifiers,
        authzs=tuple(reused[each]["id"] if each in reused else ids.authzs[each] for each in new_order.identifiers),
        not_before=new_order.not_before,
        not_after=new_order.not_after,
        replaces=new_order.replaces,
        expires_at=min([expires_at, *(authorizations.end_of(row) for row in reused.values())]),
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
    refused = names.not_allowed(ca.options, ca.issuer, identifiers)
    unprovable = [
        each
        for each in identifiers
        if ca.options.mode is CaMode.VALIDATE and not offered_types(each, ca.options.challenges) and each not in refused
    ]
    names.refuse(refused + unprovable, names.NOT_OURS)


NAMES_TOLD: Final = 500  # characters of names that an audit entry holds; a stranger chooses how many there are


def _names_told(identifiers: Sequence[Identifier]) -> dict[str, object]:
    """Many names are told by their number and digest: what a stranger asks for and never proves is kept for ever."""
    values = sorted(each.value for each in identifiers)
    told: dict[str, Any] = {"count": len(values), "digest": sha256("\n".join(values).encode()).hexdigest()}
    return {**told, "names": values} if sum(map(len, values)) <= NAMES_TOLD else told


class _Limit(NamedTuple):
    rate: RateLimit
    cost: int
    what: str  # there are too many of


def _limits(policy: CaPolicy, account: str, address: str, number: int) -> dict[str, _Limit]:
    """So many names, however few orders they come in: what they take up on the disk is counted in names."""
    limits = {
        f"names/{account}": _Limit(policy.names_per_account, number, "names in the orders of this account"),
        f"order/{account}": _Limit(policy.orders_per_account, 1, "orders"),
    }
    if address:
        what = "names in orders from this address"
        limits[f"names-from/{address}"] = _Limit(policy.names_per_address, number, what)
    return limits


def _together(tx: Tx, limits: Mapping[str, _Limit], now: datetime, *changes: Change) -> int:
    """Count against limits and make changes, in one statement; how many rows the first of the changes changed."""
    rates, costs = ({key: each.rate for key, each in limits.items()}, {key: each.cost for key, each in limits.items()})
    counting = acme_limits.taking(rates, now, costs=costs)
    counts = tx.together(*counting, *changes)
    if counting and counts[0] < acme_limits.counted(rates):
        for key, wait in acme_limits.take(tx, rates, now, costs=costs).items():
            within({key: wait}, limits[key].what)
    return counts[len(counting)]


def _check_pending(found: acme_limits.Record, policy: CaPolicy, fresh: Sequence[Authz]) -> None:
    unproved = [each for each in fresh if each.state is AuthzState.PENDING]
    if not unproved:
        return
    for most, whose, count in (
        (policy.pending_per_account, "of this account", found.pending_of_account),
        (policy.pending_per_address, "from this address", found.pending_from_address),
    ):
        if most and count + len(unproved) > most:
            detail = f"At most {most} names {whose} may wait to be proved; {count} do."
            raise AcmeError.rate_limited(f"{detail} Prove, or deactivate, some of them first.", retry_after=PENDING_FOR)


def _name_limits(policy: CaPolicy, order: Order) -> dict[str, _Limit]:
    """Counted once the names are proved: else a stranger could use up what their owner may have."""
    limit = _Limit(policy.orders_per_identifier, 1, "certificates for the same name")
    return {f"name/{order.ca}/{each.value}": limit for each in order.identifiers}


def _failing(found: acme_limits.Record, policy: CaPolicy, now: datetime) -> dict[str, timedelta]:
    rate = policy.failures_per_identifier
    waits = {name: acme_limits.left(until, rate, now) for name, until in found.failed.items()}
    return {name: wait for name, wait in waits.items() if wait is not None}


# ── Looking ──


async def get(acme_context: AcmeContext, who: Requester, order_id: str) -> Order:
    def look(tx: Tx) -> Order:
        standing, found = orders.asked_by(tx, who.account, order_id)
        admitted(standing, who)
        return _shown(_own(found, who), tx.now())

    return await acme_context.db.read(inline(look))


def _own(order: Order | None, who: Requester) -> Order:
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


async def finalize(acme_context: AcmeContext, ca: Authority, who: Requester, order_id: str, content: bytes) -> Order:
    """ready → processing: the intent is committed here, together with the job that signs it."""
    try:
        request = _request(content)
    except AcmeError:
        await _must_be_ready(acme_context, who, order_id)
        raise
    finalized = partial(_finalize, acme_context, who, order_id, content, request)
    started = await by_current(acme_context, ca, finalized)
    if started.state is OrderState.INVALID and started.error is not None:
        raise AcmeError(started.error)
    return started


async def _finalize(
    acme_context: AcmeContext,
    who: Requester,
    order_id: str,
    content: bytes,
    request: csr.CertificateRequest,
    ca: Authority,
) -> Order:
    serial, job = new_serial(acme_context.random), acme_context.random.new_id("job")

    def write(tx: Tx, owe: Owe) -> Order:
        account, asked = orders.asked_by(tx, who.account, order_id)
        standing, now = admitted(account, who, ca), tx.now()
        order = _shown(_own(asked, who), now)
        if order.state is not OrderState.READY:
            if acme_context.policy.repeat_finalize and order.state in (OrderState.PROCESSING, OrderState.VALID):
                return order
            raise AcmeError.order_not_ready(f"The order is {order.state}, not ready.")
        try:
            any_trusted, key_use = authorizations.last_look(tx, order.authzs, *names_of_key(request))
            names.check_still(ca, standing.names, order, any_trusted=any_trusted)
        except AcmeError as refused:
            return _over(tx, order, refused.problem)
        _check_request(order, request)
        check_certificate_key(key_use)
        intent = _intent(ca, order, request, serial, now)
        kind, lifetime = keys.kind_of(request.public_key), intent.not_after - now
        actor = f"acme:{who.account}"
        names.check_policies(tx, standing, ca, order.identifiers, actor=actor, lifetime=lifetime, key_kind=kind or "")
        limits = _name_limits(acme_context.policy, order)
        return _start(tx, owe, order, intent, content, job, now, limits, actor=f"acme:{who.account}")

    return await acme_context.handover.write(acme_context.db, ISSUE, write)


def _over(tx: Tx, order: Order, problem: Problem) -> Order:
    """ready → invalid, which stays when the request is answered with the problem."""
    orders.refuse(tx, order.id, problem)
    journal.audit(tx, "order_invalid", order.id, problem=problem.brief())
    return replace(order, state=OrderState.INVALID, error=problem)


async def _must_be_ready(acme_context: AcmeContext, who: Requester, order_id: str) -> None:
    """The order's owner and its state are checked before the CSR (§7.4)."""
    order = await get(acme_context, who, order_id)
    if order.state is not OrderState.READY:
        raise AcmeError.order_not_ready(f"The order is {order.state}, not ready.")


def _start(
    tx: Tx,
    owe: Owe,
    order: Order,
    intent: Intent,
    content: bytes,
    job: str,
    now: datetime,
    limits: Mapping[str, _Limit],
    *,
    actor: str,
) -> Order:
    written = intent.to_json()
    try:
        begun = _together(
            tx,
            limits,
            now,
            orders.finalization(order.id, content),
            certificates.intention(order.id, order.ca, f"{intent.serial:x}", written),
        )
    except Duplicate:
        begun = 0  # an order has one intention
    if not begun:
        raise AcmeError.order_not_ready("The order was finalized at the same moment.")
    started = replace(order, state=OrderState.PROCESSING)
    latest = order.expires_at + STILL_ISSUED_FOR  # who waited for it has given up by then
    spec = Spec(id=job, kind=ISSUE, subject=order.id, priority=Priority.NORMAL, expires_at=latest)
    owe(tx, spec, StartedOrder(started, intent))
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


def _request(content: bytes) -> csr.CertificateRequest:
    """The CSR, read before the transaction; what the profile allows is for plan() to say."""
    if content[:1] != b"\x30":
        raise AcmeError.bad_csr("The CSR is not in DER: it must not be PEM, nor anything else.")
    try:
        return csr.parse(content, ed25519_allowed=True, must_staple_allowed=True)
    except PkiRefused as refused:
        raise AcmeError.bad_csr(str(refused)) from None


def _check_request(order: Order, request: csr.CertificateRequest) -> None:
    """Exactly the names of the order, no more and no less (§7.4)."""
    dns, ips = names.split(order.identifiers)
    uris = {each.value for each in order.identifiers if each.type == "uri"}
    if set(request.names) != set(dns) or set(request.ips) != set(ips) or set(request.uris) != uris:
        raise AcmeError.bad_csr("The CSR does not ask for exactly the names of the order.")


def _intent(ca: Authority, order: Order, request: csr.CertificateRequest, serial: int, now: datetime) -> Intent:
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
    except MustNotSign as refused:
        raise AcmeError.server_internal(str(refused)) from None
    except PkiRefused as refused:
        raise AcmeError.bad_csr(str(refused)) from None


# ── Orders of our own ──


async def place_internal(
    acme_context: AcmeContext,
    ca: Authority,
    *,
    account: str,
    identifiers: tuple[Identifier, ...],
    content: bytes,
    profile: str | None = None,
    not_after: datetime | None = None,
    backdate: timedelta | None = None,  # None: the profile's
    order_id: str | None = None,
    request: csr.CertificateRequest | None = None,  # None: what the CSR says
    also: Callable[[Tx, Order], None] | None = None,
) -> Order:
    """An order of this installation itself: no challenge, then the pipeline of all. The same id is the same order.

    `also` writes in the same transaction whatever must not be without its order.
    """
    serial, job = new_serial(acme_context.random), acme_context.random.new_id("job")
    new_id = order_id or acme_context.random.new_id("order")
    request = request or csr.parse(content, ed25519_allowed=True)
    chosen = ca.profile(profile)
    if chosen is None:
        raise AcmeError.invalid_profile(f"There is no profile {profile!r:.80}.")

    def write(tx: Tx, owe: Owe) -> Order:
        require_current(tx, ca)
        now = tx.now()
        _insert_internal(tx, ca, account, now)
        order = Order(
            id=new_id,
            ca=ca.id,
            account=account,
            state=OrderState.READY,
            profile=chosen.name,
            identifiers=identifiers,
            not_before=None if backdate is None else max(now - backdate, ca.issuer.certificate.not_valid_before_utc),
            not_after=not_after,
            expires_at=now + acme_context.policy.order_for,
            created_at=now,
        )
        _check_request(order, request)
        if tx.together(orders.insertion(order, new_id)) == [0]:  # like no other: each of these is wanted
            existing = orders.get(tx, new_id)
            if existing is None:
                raise TxConflict(f"order {new_id} comes and goes")
            return existing
        check_certificate_key(accounts.use_of_key(tx, *names_of_key(request)))
        if also is not None:
            also(tx, order)
        intent = _intent(ca, order, request, serial, now)
        return _start(tx, owe, order, intent, content, job, now, {}, actor=journal.SYSTEM)

    return await acme_context.handover.write(acme_context.db, ISSUE, write)


def _insert_internal(tx: Tx, ca: Authority, account: str, now: datetime) -> None:
    """The account that orders of our own belong to; a second one like it is the first."""
    accounts.insert(
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


AFTER_FAILURES: Final = "paused after many failures in a row; ask the operator of this CA to unpause it"
BY_OPERATOR: Final = "paused by the operator of this CA; ask there"


def check_dates(
    ca: Authority, profile: str, not_before: datetime | None, not_after: datetime | None, now: datetime
) -> None:
    """By the rule of finalize: an order that is accepted can be fulfilled as it was asked for (§7.4).

    Also if no date was asked for: an issuer that has ended signs nothing.
    """
    chosen = ca.profile(profile)
    if chosen is None:
        return
    try:
        validity(chosen, ca.issuer, now, not_before, not_after)
    except MustNotSign as refused:
        raise AcmeError.server_internal(str(refused)) from None
    except PkiRefused as refused:
        raise AcmeError.malformed(str(refused)) from None


def check_pauses(paused: Mapping[str, int], identifiers: Sequence[Identifier]) -> None:
    kinds = {each.base: each.type for each in identifiers}
    if paused:
        whys = {name: AFTER_FAILURES if failures else BY_OPERATOR for name, failures in paused.items()}
        subproblems = tuple(SubProblem("rateLimited", why, (kinds[name], name)) for name, why in whys.items())
        told = "; ".join(f"{name}: {why}" for name, why in list(whys.items())[:3])
        raise AcmeError.rate_limited(f"{told}.", subproblems=subproblems, retry_after=86400)


def replaceable(
    tx: Tx, ca: Authority, account: str, named: str, identifiers: Sequence[Identifier]
) -> IssuedCertificate:
    """The certificate that an order says it replaces (RFC 9773 §5)."""
    try:
        key_identifier, serial = parse_cert_id(named)
    except ValueError:
        raise AcmeError.malformed("replaces is not a certificate identifier (RFC 9773 §4.1).") from None
    found = certificates.by_serial(tx, ca.id, serial) if key_identifier == ca.issuer.key_identifier else None
    if found is None:
        raise AcmeError.malformed("replaces names a certificate that this CA did not issue.")
    if found.account != account:
        raise AcmeError.unauthorized("replaces names a certificate of another account.")
    if not set(found.identifiers) & set(identifiers):
        raise AcmeError.malformed("replaces names a certificate that shares no name with this order.")
    if found.replaced_by is not None:
        other = orders.get(tx, found.replaced_by)
        if other is not None and state_at(other, tx.now()) is not OrderState.INVALID:
            raise AcmeError.already_replaced("Another order replaces this certificate already.")
    return found
