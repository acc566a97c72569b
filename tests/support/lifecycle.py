"""Certificates kept in tests: a CA with a truth of its own, a keeper, and a worker that does what is owed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from holdfast.core.certificate import CertificateSpec
from holdfast.core.inventory import InventoryFilter
from holdfast.core.issuers.issuer import IssuerRow
from holdfast.core.own_ca.acme import Identifier
from holdfast.core.revocation_reason import RevocationReason
from holdfast.engine.issuance import duties as issuance_duties
from holdfast.engine.issuance import renewals
from holdfast.engine.issuance.challenges import SolverRule, by_rules
from holdfast.engine.issuance.issue import IssuanceServices
from holdfast.engine.kind import JobKind
from holdfast.issuers.base import (
    ChallengeResponse,
    Failed,
    Issued,
    Look,
    NeedsProof,
    OrderRequest,
    Pending,
    Placed,
    Ready,
    RenewalWindow,
)
from holdfast.operations.certificates import lifecycle
from holdfast.operations.certificates.checks import identifiers_of
from holdfast.operations.certificates.refs import found_by
from holdfast.operations.certificates.views import View, view_of
from holdfast.operations.context import Services
from holdfast.operations.installation.events import EventView
from holdfast.operations.installation.secret_store import certificate_key
from holdfast.operations.issuance import approvals
from holdfast.operations.issuance.attempts import CertificateContext
from holdfast.operations.issuers import manage as manage_issuers
from holdfast.ports import Points, no_points
from holdfast.secret import Secret
from holdfast.store import inventory
from holdfast.store.access import Approval
from holdfast.store.database import Database
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.tx import Tx
from holdfast.world import SystemClock, SystemRandom
from tests.simulation.asking import NoChannels
from tests.support.ca import a_vault
from tests.support.engine import Running, Watch, eventually, working
from tests.support.running import add_issuer, run
from tests.support.stores import migrated, open_store

DAY = timedelta(days=1)


class MovedClock(SystemClock):
    """The real clock, with a hand that can be moved."""

    def __init__(self) -> None:
        self.ahead = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.ahead


@dataclass
class Order:
    """An order as the CA remembers it."""

    request: OrderRequest
    proofs: list[ChallengeResponse]
    answered: set[str] = field(default_factory=set)
    handed_in: bool = False
    polls_to_go: int = 0
    chain: bytes = b""
    cancelled: bool = False


class TruthfulCa:
    """A CA in memory that keeps its own truth: what was ordered, proved, issued and revoked there."""

    binding = False

    def __init__(self, *, life: timedelta = 90 * DAY, proofs: bool = False, polls: int = 0) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Truthful CA")])
        self.certificate = self._own()
        self.life, self.asks_proofs, self.polls = life, proofs, polls
        self.orders: dict[str, Order] = {}
        self.issued: list[x509.Certificate] = []
        self.revoked: list[tuple[bytes, int]] = []
        self.calls: list[str] = []
        self.troubles: dict[str, list[Exception | Look]] = {}  # what the next calls of a kind end in
        self.always: dict[str, Exception] = {}
        self.other_names: list[str] | None = None  # what it puts into certificates instead of what was asked for
        self.other_key: ec.EllipticCurvePrivateKey | None = None
        self.window: RenewalWindow | None = None
        self.now = lambda: datetime.now(UTC)
        self._number = 0

    def _own(self) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder().subject_name(self.name).issuer_name(self.name)
        builder = builder.public_key(self.key.public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - 3650 * DAY).not_valid_after(now + 36500 * DAY)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        return builder.sign(self.key, hashes.SHA256())

    def _call(self, name: str) -> Look | None:
        self.calls.append(name)
        if name in self.always:
            raise self.always[name]
        waiting = self.troubles.get(name)
        if not waiting:
            return None
        trouble = waiting.pop(0)
        if isinstance(trouble, Exception):
            raise trouble
        return trouble

    # ── the contract ──

    async def find_order(self, request: OrderRequest) -> Placed | None:
        self._call("find")
        found = next((ref for ref, order in self.orders.items() if order.request.issuance == request.issuance), None)
        return None if found is None else Placed(ref={"order": found})

    async def place_order(self, request: OrderRequest) -> Placed:
        self._call("place")
        self._number += 1
        ref = f"order-{self._number}"
        proofs = [self._proof(ref, each) for each in request.identifiers] if self.asks_proofs else []
        self.orders[ref] = Order(request=request, proofs=proofs, polls_to_go=self.polls)
        return Placed(ref={"order": ref})

    def _proof(self, ref: str, identifier: Identifier) -> ChallengeResponse:
        token = f"token-{ref}-{identifier.value}"
        return ChallengeResponse(
            type="http-01", identifier=identifier, token=token, key_authorization=f"{token}.thumb", ref={"o": ref}
        )

    async def order_status(self, ref: Mapping[str, Any], request: OrderRequest) -> Look:
        trouble = self._call("look")
        if trouble is not None:
            return trouble
        order = self.orders.get(ref["order"])
        if order is None:
            return Failed(why="There is no such order.", reason="ORDER_EXPIRED")
        open_proofs = [each for each in order.proofs if each.token not in order.answered]
        if open_proofs:
            return NeedsProof(choices=tuple((each,) for each in open_proofs))
        if not order.handed_in:
            return Ready()
        if order.polls_to_go > 0:
            order.polls_to_go -= 1
            return Pending(why="a person looks at it", after_s=0.05)
        if not order.chain:
            order.chain = self._sign(order.request)
        return Issued(chain_pem=order.chain)

    async def answer(self, ref: Mapping[str, Any], response: ChallengeResponse) -> None:
        self._call("answer")
        self.orders[ref["order"]].answered.add(response.token)

    async def finalize(self, ref: Mapping[str, Any], request: OrderRequest) -> None:
        self._call("finalize")
        self.orders[ref["order"]].handed_in = True

    async def cancel(self, ref: Mapping[str, Any]) -> None:
        self.orders[ref["order"]].cancelled = True

    async def revoke(self, certificate: bytes, reason: int) -> None:
        self._call("revoke")
        self.revoked.append((certificate, reason))

    async def renewal_window(self, certificate: bytes) -> RenewalWindow | None:
        self._call("renewal_window")
        return self.window

    async def probe(self) -> str:
        self._call("probe")
        return "fine"

    def _sign(self, wish: OrderRequest) -> bytes:
        request = x509.load_der_x509_csr(wish.csr)
        names = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        if self.other_names is not None:
            names = x509.SubjectAlternativeName([x509.DNSName(name) for name in self.other_names])
        now = self.now().replace(microsecond=0)
        public = self.other_key.public_key() if self.other_key else request.public_key()
        builder = x509.CertificateBuilder().subject_name(x509.Name([])).issuer_name(self.name)
        builder = builder.public_key(public).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now).not_valid_after(wish.not_after or now + self.life)
        builder = builder.add_extension(names, critical=True)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        leaf = builder.add_extension(authority, critical=False).sign(self.key, hashes.SHA256())
        self.issued.append(leaf)
        return leaf.public_bytes(Encoding.PEM) + self.certificate.public_bytes(Encoding.PEM)


class Board:
    """A solver that remembers what hangs on it."""

    type = "http-01"
    side_by_side = True

    def __init__(self) -> None:
        self.shown: dict[str, str] = {}
        self.seen = True
        self.cleaned: list[str] = []

    async def publish(self, response: ChallengeResponse) -> None:
        self.shown[response.token] = response.key_authorization

    async def visible(self, response: ChallengeResponse) -> bool:
        return self.seen and response.token in self.shown

    async def clean(self, response: ChallengeResponse) -> None:
        self.shown.pop(response.token, None)
        self.cleaned.append(response.token)


T = TypeVar("T")

_SETS_STATE = {"paused": lifecycle.pause, "resumed": lifecycle.resume, "archived": lifecycle.archive}


@dataclass
class House:
    """Everything that keeps certificates, but the faces."""

    db: Database
    certificate_context: CertificateContext
    cas: dict[str, Any]
    board: Board
    watch: Watch
    clock: Any = None

    @property
    def tools(self) -> IssuanceServices:
        return IssuanceServices(
            certificate_context=self.certificate_context,
            make_issuer=self.make_issuer,
            solver_for=by_rules([SolverRule(names=("*",), solver=self.board)]),
            telemetry=self.watch.telemetry,
        )

    async def read(self, fn: Callable[..., T], *args: Any, **more: Any) -> T:
        return await self.db.read(lambda tx: fn(tx, *args, **more))

    async def write(self, fn: Callable[..., T], *args: Any, **more: Any) -> T:
        return await self.db.write(lambda tx: fn(tx, *args, **more))

    async def change_issuer(self, name: str, settings: Mapping[str, Any], *, actor: str) -> Any:
        return await self.do(manage_issuers.change, actor=actor, name=name, settings=settings)

    @property
    def services(self) -> Services:
        return Services(
            certificate_context=self.certificate_context,
            issuer_kinds=frozenset({"test", "local"}),
            probe=self.probe,
            post=NoChannels(),
        )

    async def probe(self, row: IssuerRow) -> str:
        return str(await self.cas[row.name].probe())

    async def make_issuer(self, row: IssuerRow) -> Any:
        return self.cas[row.name]

    @property
    def kinds(self) -> Sequence[JobKind]:
        return issuance_duties.kinds(self.tools)

    async def attempt(self, ref: str) -> View:
        """What the sweep begins now, worked through to its end; the clock may have been moved before."""
        await renewals.sweep_due(self.certificate_context)
        return await self.worked(ref)

    async def worked(self, ref: str) -> View:
        """With a worker of its own: one that runs while the clock is moved pauses, and rightly."""
        async with self.working():
            return await self.settled(ref)

    @asynccontextmanager
    async def working(
        self,
        *,
        points: Points = no_points,
        kinds: Sequence[JobKind] = (),
        only: bool = False,
        slots: int = 16,
        **wishes: Any,
    ) -> AsyncIterator[Running]:
        """`only`: with these kinds, and none of the usual ones."""
        wishes.setdefault("clock", self.clock)
        chosen = [replace(each, slots=slots) for each in [*kinds, *([] if only else self.kinds)]]
        async with working(self.db, chosen, points=points, watch=self.watch, **wishes) as running:
            yield running

    async def until(self, condition: Callable[[], object]) -> None:
        await eventually(condition)

    async def hurry(self) -> None:
        """Let jobs that sleep be due now."""
        await self.db.write(_hurry)

    async def hurried_past(self, condition: Callable[[], bool]) -> bool:
        """Whether it holds by now; breakers and sleeping jobs do not hold it up."""
        await self.db.write(lambda tx: tx.run("UPDATE issuers SET breaker_until = NULL"))
        await self.hurry()
        return condition()

    async def until_no_job(self, kind: str) -> None:
        async def none() -> bool:
            return not await self.db.read(lambda tx: tx.rows("SELECT id FROM jobs WHERE kind = :kind", kind=kind))

        await eventually(none)

    async def settled_soon(self, ref: str) -> View:
        """Likewise, without waiting for the times between polls."""

        async def over() -> bool:
            await self.hurry()
            return (await self.view(ref)).issuance is None

        await eventually(over)
        return await self.view(ref)

    def keeper_now(self) -> datetime:
        return (self.clock or SystemClock()).now()

    async def add(self, name: str, ca: Any, *, kind: str = "test", **settings: Any) -> None:
        self.cas[name] = ca
        await add_issuer(
            self.certificate_context, name, kind=kind, kinds=frozenset({kind}), settings=settings, actor="local:test"
        )

    async def ask(self, *names: str, issuers: Sequence[str] = ("ca",), **wishes: Any) -> View:
        spec = CertificateSpec(
            name=wishes.pop("name", names[0]), identifiers=identifiers_of(names), issuers=tuple(issuers), **wishes
        )
        return await self.want(spec)

    async def want(self, spec: CertificateSpec) -> View:
        """A new certificate, asked for by alice."""
        new_id, ids = self.certificate_context.random.new_id("certificate"), self.certificate_context.ids()
        made = await self.db.write(lambda tx: lifecycle.create(tx, new_id, spec, ids, actor="local:alice"))
        return await self.view(made.id)

    async def view(self, ref: str) -> View:
        return await self.db.read(lambda tx: view_of(tx, found_by(tx, ref)))

    # ── what people ask for ──

    async def do(self, verb: Callable[..., Any], *, actor: str = "local:alice", **asked: Any) -> Any:
        return await run(self.services, verb, actor=actor, **asked)

    async def change(self, ref: str, *, actor: str = "local:alice", **changes: Any) -> Any:
        """`changes` by the names that the API has for them."""
        return await self.do(lifecycle.change, actor=actor, ref=ref, **changes)

    async def set_state(self, ref: str, event: str, *, actor: str = "local:alice") -> Any:
        """ "paused", "resumed" or "archived"."""
        return await self.do(_SETS_STATE[event], actor=actor, ref=ref)

    async def renew(self, ref: str, *, actor: str = "local:alice", delay: timedelta = timedelta(0)) -> Any:
        return await self.do(lifecycle.renew, actor=actor, ref=ref, delay_s=delay.total_seconds())

    async def cancel(self, ref: str, *, actor: str = "local:alice", why: str) -> Any:
        return await self.do(lifecycle.cancel, actor=actor, ref=ref, why=why)

    async def revoke(self, ref: str, *, reason: int, actor: str = "local:alice", version: str | None = None) -> Any:
        """`reason` by its number in CRLs."""
        name = RevocationReason.of(reason).value
        return await self.do(lifecycle.revoke, actor=actor, ref=ref, reason=name, version=version)

    async def timeline(self, ref: str, *, after: int = 0, limit: int = 200) -> list[EventView]:
        page = await self.do(lifecycle.list_events, ref=ref, after=after, limit=limit)
        found: list[EventView] = page.items
        return found

    async def key_of(self, view: View) -> Secret[bytes]:
        """The private key of the version in use, in PEM."""
        assert view.current is not None
        owner = certificate_key(view.certificate.id)
        return await self.certificate_context.secret_store.reveal(view.current.key_secret, owner)

    async def pending(self) -> list[Approval]:
        """Approvals that wait for a second person."""
        return await self.db.read(lambda tx: inventory.approval_page(tx, InventoryFilter(), state="pending", limit=100))

    async def approve(self, approval: str, *, actor: str, note: str = "") -> None:
        await self.do(approvals.approve, actor=actor, approval=approval, note=note)

    async def reject(self, approval: str, *, actor: str, note: str) -> None:
        await self.do(approvals.reject, actor=actor, approval=approval, note=note)

    async def settled(self, ref: str) -> View:
        """The certificate, once nothing is under way for it."""

        async def over() -> bool:
            return (await self.view(ref)).issuance is None

        await eventually(over)
        return await self.view(ref)


def _hurry(tx: Tx) -> None:
    tx.run("UPDATE jobs SET due_at = now_us() WHERE state = 'ready'")
    tx.wakes = True


async def a_house(db: Database, folder: Path, *, clock: Any = None, **ca: Any) -> House:
    """One test CA named "ca"."""
    context = CertificateContext(db=db, random=SystemRandom(), secret_store=await a_vault(db, folder))
    house = House(db=db, certificate_context=context, cas={}, board=Board(), watch=Watch(), clock=clock)
    await house.add("ca", TruthfulCa(**ca))
    if clock is not None:
        house.cas["ca"].now = clock.now
    return house


@asynccontextmanager
async def a_moving_house(folder: Path, **ca: Any) -> AsyncIterator[tuple[House, MovedClock]]:
    """On SQLite, whose clock can be moved."""
    clock = MovedClock()
    engine = SqliteEngine(folder / "holdfast.sqlite", clock)
    store = open_store(engine, clock=clock)
    await migrated(store)
    try:
        yield await a_house(store, folder, clock=clock, **ca), clock
    finally:
        await store.close()
