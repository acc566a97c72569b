"""The certificate of our own listener: ordered from our own CA, loaded while we serve, renewed and replaced in time."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from starlette.responses import PlainTextResponse
from tests.support.ca import Opened, change_ca, opened_ca, revoked, with_ended_issuer
from tests.support.engine import Watch, eventually, working

from holdfast.core.own_ca.acme import OrderState
from holdfast.core.own_ca.ca import IssuedCertificate
from holdfast.core.own_ca.problem import Problem
from holdfast.core.work.job import Done, Outcome
from holdfast.engine.kind import JobKind, Work
from holdfast.engine.own_ca import signing
from holdfast.operations.acme import orders as acme_orders
from holdfast.operations.acme.certificates import Deliveries
from holdfast.operations.acme.context import AcmeContext, Changes
from holdfast.operations.acme.handover import Handover
from holdfast.operations.own_ca import manage as cas
from holdfast.operations.own_ca.listener import PATIENCE, Listener, names_of, usable, wanting
from holdfast.operations.own_ca.manage import CaOptions
from holdfast.pki.ceremony import CeremonyPlan
from holdfast.secret import Secret
from holdfast.store.database import Database
from holdfast.store.own_ca import certificates as ca_certificates
from holdfast.store.own_ca.certificates import ListenerCertificate
from holdfast.web.serve import AddressTaken, ListenerTls, bind, serving
from holdfast.world import SystemRandom

T0 = datetime(2030, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


# ── When to order, and for which names ──


def ordered(**changes: object) -> ListenerCertificate:
    whole = ListenerCertificate(
        order="o1",
        host="ca.example",
        key_secret="secret_1",
        created_at=T0,
        state=OrderState.VALID,
        ca="ca1",
        account="acct",
        certificate="cert_1",
        der=b"",
        not_before=T0,
        not_after=T0 + 90 * DAY,
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


NEW = {"certificate": None, "not_before": None, "not_after": None}


@pytest.mark.parametrize(
    ("recent", "after", "wanted"),
    [
        ([], 0, True),
        ([ordered()], 59, False),
        ([ordered()], 61, True),
        ([ordered()], 91, True),
        ([ordered(revoked=True)], 1, True),
        ([ordered(order="o2", created_at=T0 + 60 * DAY, **NEW), ordered()], 60.001, False),  # one is under way
        ([ordered(order="o2", created_at=T0 + 60 * DAY, **NEW), ordered()], 61, True),  # it came to nothing
        ([ordered(state=OrderState.INVALID, **NEW)], 0.001, False),  # it failed a moment ago
        ([ordered(state=OrderState.INVALID, **NEW)], 1, True),
    ],
)
def test_another_is_ordered_when_there_is_none_or_two_thirds_are_over(
    recent: list[ListenerCertificate], after: float, wanted: bool
) -> None:
    assert (wanting(recent, T0 + after * DAY) is not None) is wanted


def test_a_certificate_is_used_from_its_beginning_to_its_end() -> None:
    assert [usable(ordered(), T0 + n * DAY) for n in (-1, 0, 89, 90)] == [False, True, True, False]
    assert not usable(ordered(**NEW), T0)


@pytest.mark.parametrize(
    ("url", "host", "names"),
    [
        ("https://localhost:8631", "localhost", {"localhost", "127.0.0.1", "::1"}),
        ("https://ca.example.internal", "ca.example.internal", {"ca.example.internal"}),
        ("https://192.0.2.7:443", "192.0.2.7", {"192.0.2.7"}),
        ("https://[2001:db8::1]", "2001:db8::1", {"2001:db8::1"}),
    ],
)
def test_the_names_are_those_of_the_address_that_clients_are_told(url: str, host: str, names: set[str]) -> None:
    found, identifiers = names_of(url)
    assert (found, {each.value for each in identifiers}) == (host, names)


# ── With a CA, a worker and a real handshake ──


@dataclass
class Held:
    """A replica's listener, and what it loads."""

    listener: Listener
    tls: ListenerTls
    acme_context: AcmeContext
    opened: Opened
    watch: Watch


def a_listener(
    db: Database,
    opened: Opened,
    base_url: str = "https://localhost:8631",
    first: str = "ca1",
    backdate: timedelta = timedelta(minutes=5),
) -> Held:
    acme_context = AcmeContext(
        db=db,
        random=SystemRandom(),
        policy=replace(opened.policy, base_url=base_url),
        authorities=opened.authorities,
        changes=Changes(),
        delivered=Deliveries(db),
        handover=Handover(),
    )
    tls, watch = ListenerTls(), Watch()
    listener = Listener(
        acme_context=acme_context, telemetry=watch.telemetry, load=tls.load, first_ca=first, backdate=backdate
    )
    return Held(listener, tls, acme_context, opened, watch)


@asynccontextmanager
async def issuing(db: Database, held: Held) -> AsyncIterator[None]:
    async def caa(*_: object) -> Problem | None:
        return None

    async with working(db, [signing.kind(held.acme_context, caa=caa, use_pkilint=True)]):
        yield


async def shown(held: Held, port: int) -> x509.Certificate:
    """What a client that trusts our root sees: the certificate of a handshake that it accepts."""
    trust = ssl.create_default_context(cadata=held.opened.ca.root_pem.decode())
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust, server_hostname="localhost")
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.write(b"GET / HTTP/1.0\r\n\r\n")
    assert b"200 OK" in await reader.read()
    writer.close()
    return x509.load_der_x509_certificate(der)


async def orders(db: Database, host: str = "localhost") -> list[ListenerCertificate]:
    return await db.read(lambda tx: ca_certificates.newest_for_listener(tx, host))


@pytest.mark.anyio
async def test_the_first_look_orders_a_certificate_and_the_next_handshake_shows_it(
    db: Database, tmp_path: Path
) -> None:
    held = a_listener(db, await opened_ca(db, tmp_path))
    line = bind("127.0.0.1", 0)
    async with issuing(db, held):
        await held.listener.tend()
    assert held.listener.loaded.is_set()
    async with serving(PlainTextResponse("hello"), line, held.tls):
        leaf = await shown(held, line.getsockname()[1])
    assert leaf.serial_number == int((await certificates(db))[0].serial, 16)
    assert len(await orders(db)) == 1
    boxes = await db.read(lambda tx: tx.rows("SELECT box FROM secrets"))
    assert not any(b"PRIVATE KEY" in bytes(each["box"]) for each in boxes)


@pytest.mark.anyio
async def test_its_certificate_begins_as_long_ago_as_the_settings_say(db: Database, tmp_path: Path) -> None:
    opened = await opened_ca(db, tmp_path)
    for backdate in (timedelta(minutes=50), timedelta(0)):
        await db.write(lambda tx: tx.run("DELETE FROM listener_certificates"))
        held = a_listener(db, opened, backdate=backdate)
        async with issuing(db, held):
            before = datetime.now(UTC).replace(microsecond=0)
            await held.listener.tend()
        [made] = await orders(db)
        assert made.not_before is not None
        earliest = opened.ca.issuer.certificate.not_valid_before_utc
        assert made.not_before - max(before - backdate, earliest) < timedelta(seconds=20), backdate
        assert made.not_before >= max(before - backdate, earliest)


async def certificates(db: Database) -> list[IssuedCertificate]:
    return await db.read(lambda tx: ca_certificates.page(tx, ca="ca1"))


@pytest.mark.anyio
async def test_a_second_replica_uses_the_same_certificate_and_orders_none(db: Database, tmp_path: Path) -> None:
    opened = await opened_ca(db, tmp_path)
    first, second = a_listener(db, opened), a_listener(db, opened)
    async with issuing(db, first):
        await first.listener.tend()
    await second.listener.tend()
    assert second.listener.loaded.is_set()
    assert len(await orders(db)) == 1


@pytest.mark.anyio
async def test_a_replica_that_finds_an_order_under_way_waits_for_it(db: Database, tmp_path: Path) -> None:
    opened = await opened_ca(db, tmp_path)
    first, second = a_listener(db, opened), a_listener(db, opened)
    placing = asyncio.create_task(first.listener.tend())
    await eventually(lambda: orders(db))  # nobody signs yet
    waiting = asyncio.create_task(second.listener.tend())
    async with issuing(db, first):
        await asyncio.gather(placing, waiting)
    assert first.listener.loaded.is_set()
    assert second.listener.loaded.is_set()
    assert len(await orders(db)) == 1


@pytest.mark.anyio
async def test_it_is_counted_as_deployed_so_that_nobody_is_told_it_was_never_collected(
    db: Database, tmp_path: Path
) -> None:
    held = a_listener(db, await opened_ca(db, tmp_path))
    async with issuing(db, held):
        await held.listener.tend()
    assert isinstance(held.acme_context.delivered, Deliveries)
    await held.acme_context.delivered.flush()
    assert [each.delivery for each in await certificates(db)] == ["deployed"]


@pytest.mark.anyio
@pytest.mark.parametrize("why", ["old", "revoked"])
async def test_it_is_replaced_while_we_serve_when_it_is_old_or_revoked(db: Database, tmp_path: Path, why: str) -> None:
    held = a_listener(db, await opened_ca(db, tmp_path))
    line = bind("127.0.0.1", 0)
    async with issuing(db, held):
        await held.listener.tend()
        async with serving(PlainTextResponse("hello"), line, held.tls):
            before = await shown(held, line.getsockname()[1])
            if why == "revoked":
                await revoked(db, (await certificates(db))[0])
            else:
                old = "UPDATE ca_certificates SET not_before = not_before - :back, not_after = not_after - :back"
                await db.write(lambda tx: tx.run(old, back=61 * DAY))
            await held.listener.tend()
            after = await shown(held, line.getsockname()[1])
    assert before.serial_number != after.serial_number
    assert before.public_key() != after.public_key()
    await held.listener.tend()
    assert len(await orders(db)) == 2


@pytest.mark.anyio
async def test_a_ca_that_may_not_sign_for_our_name_is_passed_over(db: Database, tmp_path: Path) -> None:
    opened = await opened_ca(db, tmp_path, plan=CeremonyPlan(name="Confined", permit=("example.internal",)))
    held = a_listener(db, opened)
    async with issuing(db, held):
        await held.listener.tend()
        assert await orders(db) == []
        await cas.create(
            opened.secret_store, ca="ca2", plan=CeremonyPlan(name="Free"), options=CaOptions(), actor="system"
        )
        await opened.authorities.refresh()
        await held.listener.tend()
    assert [each.ca for each in await orders(db)] == ["ca2"]


@pytest.mark.anyio
async def test_the_first_ca_signs_for_us_even_while_it_is_closed_to_others(db: Database, tmp_path: Path) -> None:
    opened = await opened_ca(db, tmp_path)
    await cas.create(
        opened.secret_store, ca="ca2", plan=CeremonyPlan(name="Other"), options=CaOptions(), actor="system"
    )
    await db.write(lambda tx: cas.set_state(tx, "ca1", "closed", actor="local:test"))
    await opened.authorities.refresh()
    held = a_listener(db, opened)
    async with issuing(db, held):
        await held.listener.tend()
    assert held.listener.loaded.is_set()
    assert [each.ca for each in await orders(db)] == ["ca1"]


async def permit(db: Database, opened: Opened, *patterns: str) -> None:
    await change_ca(db, "ca1", lambda was: replace(was, permitted=patterns), actor="local:test")
    await opened.authorities.refresh()


@pytest.mark.anyio
async def test_names_that_the_first_ca_may_not_issue_come_from_another_until_it_may_again(
    db: Database, tmp_path: Path
) -> None:
    opened = await opened_ca(db, tmp_path)
    await cas.create(
        opened.secret_store, ca="ca2", plan=CeremonyPlan(name="Other"), options=CaOptions(), actor="system"
    )
    await permit(db, opened, "*.example.internal")
    held = a_listener(db, opened)
    async with issuing(db, held):
        await held.listener.tend()
        await held.listener.tend()
        assert [each.ca for each in await orders(db)] == ["ca2"]
        await permit(db, opened)
        await held.listener.tend()
        await held.listener.tend()
    assert [each.ca for each in await orders(db)] == ["ca1", "ca2"]
    [warned] = held.watch.log.told("listener.root_changes")
    assert (warned["before"], warned["ca"]) == ("ca2", "ca1")


@pytest.mark.anyio
async def test_an_order_that_is_refused_is_told_and_not_repeated_at_once(db: Database, tmp_path: Path) -> None:
    opened = await opened_ca(db, tmp_path)
    held = a_listener(db, opened)

    async def refuse(work: Work) -> Outcome:
        problem = Problem("serverInternal", "No.", 500)
        return Done(write=lambda tx: signing.refuse(tx, work.claim.subject, problem, "it is a test"))

    async with working(db, [JobKind(name=acme_orders.ISSUE, handler=refuse)]):
        for _ in range(3):
            await held.listener.tend()
        assert len(await orders(db)) == 1
        assert [facts["problem"] for facts in held.watch.log.told("listener.not_issued")] == ["No."]
        past = "UPDATE listener_certificates SET created_at = created_at - :back"
        await db.write(lambda tx: tx.run(past, back=PATIENCE))
        await held.listener.tend()
    assert len(await orders(db)) == 2


@pytest.mark.anyio
async def test_without_a_ca_nothing_is_ordered_and_nothing_fails(db: Database, tmp_path: Path) -> None:
    opened = await opened_ca(db, tmp_path)
    await db.write(lambda tx: cas.set_state(tx, "ca1", "closed", actor="local:test"))
    await opened.authorities.refresh()
    held = a_listener(db, opened, first="another")
    for _ in range(2):
        await held.listener.tend()
    assert len(held.watch.log.told("listener.no_ca")) == 1
    assert not held.listener.loaded.is_set()
    assert await orders(db) == []


@pytest.mark.anyio
async def test_an_issuer_that_has_ended_is_told_once_and_not_asked(db: Database, tmp_path: Path) -> None:
    opened = await opened_ca(db, tmp_path)
    opened.authorities._opened["ca1"] = await with_ended_issuer(opened.ca)
    held = a_listener(db, opened)
    for _ in range(2):
        await held.listener.tend()
    [told] = held.watch.log.told("listener.no_ca")
    assert "ca renew" in str(told)
    assert await orders(db) == []


@pytest.mark.anyio
async def test_only_the_last_few_keys_are_kept(db: Database, tmp_path: Path) -> None:
    opened = await opened_ca(db, tmp_path)
    held = a_listener(db, opened)
    async with issuing(db, held):
        for _ in range(ca_certificates.LISTENER_CERTIFICATES_KEPT + 2):
            await held.listener.tend()
            await db.write(lambda tx: tx.run("UPDATE ca_certificates SET revoked_at = now_us(), reason = 4"))
    assert len(await orders(db)) == ca_certificates.LISTENER_CERTIFICATES_KEPT
    kept = await db.read(lambda tx: tx.rows("SELECT id FROM secrets"))
    assert len(kept) == ca_certificates.LISTENER_CERTIFICATES_KEPT + 2  # and the two of the CA


@pytest.mark.anyio
async def test_an_old_version_of_tls_is_refused(tmp_path: Path) -> None:
    assert ListenerTls().context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert ListenerTls().context.options & ssl.OP_NO_RENEGOTIATION


def test_a_key_that_does_not_belong_to_the_chain_is_not_loaded() -> None:
    with pytest.raises(ssl.SSLError):
        ListenerTls().load(b"", Secret(b"nothing"))


def test_loading_leaves_no_open_file_behind() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        with pytest.raises(ssl.SSLError):
            ListenerTls().load(b"", Secret(b"nothing"))
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_an_address_that_is_taken_is_told_with_its_setting() -> None:
    with bind("127.0.0.1", 0) as line:
        line.listen()
        port = line.getsockname()[1]
        with pytest.raises(AddressTaken, match=r"acme\.listen: cannot listen") as refusal:
            bind("127.0.0.1", port, setting="acme.listen")
    assert "HOLDFAST_ACME_LISTEN" in refusal.value.hint
