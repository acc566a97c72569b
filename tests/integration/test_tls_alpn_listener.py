"""The listener of tls-alpn-01: it shows what stands in the store to whoever asks in the right words, and no more."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvloop
from tests.support.challenge_server import NAME, PROOF, TOKEN, a_challenge, a_validator
from tests.support.dns_server import DnsServer
from tests.support.engine import PATIENCE, eventually

from holdfast.core.own_ca.acme import Identifier
from holdfast.listening.bounds import Bounds
from holdfast.operations.issuance import challenge_responses as response_operations
from holdfast.solvers.tls_alpn import ALPN, MOST_ASKED, FindKeyAuthorization, identifier_of, server_name, showing
from holdfast.store import issuances
from holdfast.store.database import Database
from holdfast.validators.verdict import Invalid, Valid, ValidationResult
from holdfast.web.serve import bind
from holdfast.world import SystemClock

pytestmark = pytest.mark.anyio
HOST = "127.0.0.1"
ADDRESS_6 = "2001:db8::a"


@asynccontextmanager
async def a_listener(find: FindKeyAuthorization, bounds: Bounds = Bounds()) -> AsyncIterator[int]:  # noqa: B008
    line = bind(HOST, 0, setting="keeping.tls_alpn_listen")
    async with showing(line, find, SystemClock(), bounds):
        yield line.getsockname()[1]


async def always(_: Identifier) -> str | None:
    return PROOF


async def never(_: Identifier) -> str | None:
    return None


def from_store(db: Database) -> FindKeyAuthorization:
    return lambda identifier: response_operations.tls_alpn01(db, identifier.value)


def a_client(*alpn: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if alpn:
        context.set_alpn_protocols(alpn)
    return context


async def shaken(port: int, name: str = NAME, context: ssl.SSLContext | None = None) -> tuple[str | None, bytes]:
    """A handshake: the protocol that was chosen, and all that is said after it."""
    reader, writer = await asyncio.open_connection(HOST, port, ssl=context or a_client(ALPN), server_hostname=name)
    try:
        return writer.get_extra_info("ssl_object").selected_alpn_protocol(), await reader.read()
    finally:
        writer.close()


async def left_alone(reader: asyncio.StreamReader) -> bytes:
    """What the other side says until it hangs up, however it does that."""
    try:
        async with asyncio.timeout(PATIENCE):
            return await reader.read()
    except ConnectionError:
        return b""


async def put(db: Database, name: str, proof: str = PROOF, token: str = TOKEN) -> None:
    await db.write(
        lambda tx: issuances.put_response(tx, type="tls-alpn-01", token=token, identifier=name, key_authorization=proof)
    )


async def seen_by_a_ca(port: int, name: str) -> ValidationResult:
    async with DnsServer() as dns:
        dns.add(NAME, "A", HOST)
        return await a_validator(dns.address, tls_port=port).check(a_challenge("tls-alpn-01", name))


# ── What it shows ──


@pytest.mark.parametrize("name", [NAME, HOST])
async def test_a_proof_is_shown_from_the_moment_it_is_in_the_store_until_it_is_gone(db: Database, name: str) -> None:
    async with a_listener(from_store(db)) as port:
        assert isinstance(await seen_by_a_ca(port, name), Invalid)
        await put(db, name)
        assert isinstance(await seen_by_a_ca(port, name), Valid)
        await db.write(lambda tx: issuances.delete_response(tx, "tls-alpn-01", TOKEN))
        assert isinstance(await seen_by_a_ca(port, name), Invalid)


async def test_the_newest_of_two_proofs_for_a_name_is_shown_and_never_one_of_another_kind(db: Database) -> None:
    await put(db, NAME, "an-older.proof", token="older")
    await put(db, NAME)
    await db.write(
        lambda tx: issuances.put_response(
            tx, type="http-01", token="t", identifier=NAME, key_authorization="of.another-kind"
        )
    )
    async with a_listener(from_store(db)) as port:
        assert isinstance(await seen_by_a_ca(port, NAME), Valid)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_the_handshake_is_all_there_is(version: ssl.TLSVersion) -> None:
    context = a_client(ALPN)
    context.minimum_version = context.maximum_version = version
    async with a_listener(always) as port:
        assert await shaken(port, context=context) == (ALPN, b"")


async def test_a_client_with_much_to_say_is_heard_out() -> None:
    many = (f"{number:0200}" for number in range(60))  # more than one piece of first words
    async with a_listener(always) as port:
        assert await shaken(port, context=a_client(*many, ALPN)) == (ALPN, b"")


async def test_nothing_is_said_to_whoever_speaks_another_protocol() -> None:
    async with a_listener(always) as port:
        assert await shaken(port, context=a_client("http/1.1")) == (None, b"")


def test_the_loop_of_the_product_shakes_hands_as_well() -> None:
    async def run() -> tuple[str | None, bytes]:
        async with a_listener(always) as port:
            return await shaken(port)

    assert uvloop.run(run()) == (ALPN, b"")


async def test_a_name_is_asked_for_in_any_case_of_its_letters() -> None:
    asked = list[Identifier]()

    async def find(identifier: Identifier) -> str | None:
        asked.append(identifier)
        return PROOF

    async with a_listener(find) as port:
        await shaken(port, NAME.upper())
    assert asked == [Identifier("dns", NAME)]


@pytest.mark.parametrize("address", ["192.0.2.7", ADDRESS_6, "::1"])
def test_an_address_is_known_by_its_name_in_the_reverse_tree(address: str) -> None:
    wanted = Identifier("ip", address)
    assert identifier_of(server_name(wanted)) == wanted


@pytest.mark.parametrize("name", ["in-addr.arpa", "1.2.3.in-addr.arpa", "999.2.0.192.in-addr.arpa", "a.b.ip6.arpa"])
def test_other_names_in_the_reverse_tree_are_names(name: str) -> None:
    assert identifier_of(name) == Identifier("dns", name)


# ── What it refuses ──


async def test_a_name_that_nobody_proves_is_refused_in_the_handshake() -> None:
    async with a_listener(never) as port:
        with pytest.raises(ssl.SSLError, match=r"(?i)unrecognized.name"):
            await shaken(port)


async def test_who_asks_for_no_name_gets_no_certificate() -> None:
    async with a_listener(always) as port:
        with pytest.raises(ssl.SSLError, match=r"(?i)unrecognized.name"):
            await shaken(port, "")


async def test_what_is_no_tls_or_too_long_is_left_alone() -> None:
    record = b"\x16\x03\x01\x40\x00"  # each of 16 KiB
    endless = record + b"\x01\x01\xff\xfc" + bytes(16380) + 2 * (record + bytes(16384))  # of a message of 128 KiB
    assert len(endless) > MOST_ASKED
    async with a_listener(always, Bounds(head_for=2 * PATIENCE)) as port:
        for words in (b"GET / HTTP/1.1\r\n\r\n", endless):
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(words)
            assert len(await left_alone(reader)) < 10  # an alert at most
            writer.close()
        assert await shaken(port) == (ALPN, b"")


async def test_a_line_that_says_nothing_is_cut_in_time() -> None:
    async with a_listener(always, Bounds(head_for=0.1)) as port:
        reader, writer = await asyncio.open_connection(HOST, port)
        assert await left_alone(reader) == b""
        writer.close()


async def test_too_many_lines_push_out_the_oldest_and_a_ca_gets_through() -> None:
    async with a_listener(always, Bounds(head_for=2 * PATIENCE, connections=3)) as port:
        idle = [await asyncio.open_connection(HOST, port) for _ in range(3)]
        assert await shaken(port) == (ALPN, b"")
        assert await left_alone(idle[0][0]) == b""
        for _, writer in idle:
            writer.close()


async def test_nothing_is_left_running_when_it_stops() -> None:
    before = asyncio.all_tasks()
    async with a_listener(always, Bounds(head_for=2 * PATIENCE)) as port:
        reader, writer = await asyncio.open_connection(HOST, port)
        await eventually(lambda: asyncio.all_tasks() > before)
    assert asyncio.all_tasks() == before
    assert await left_alone(reader) == b""
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(HOST, port)
