"""Client certificates: what a CA is shown, new files without a restart, and which setting is wrong if one is."""

import shutil
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from tests.support.fake_cas.bench import IssuerBench, bench_of
from tests.support.fake_cas.clients import a_pair, as_pkcs12, sealed_key
from tests.support.fake_cas.entrust import FakeEntrust
from tests.support.secrets_planted import CLIENT_KEY_PASSWORD as PASSWORD

from holdfast.core.reasons import Reason
from holdfast.errors import Refused, TryLater
from holdfast.issuers.client_certificate import HALF_REPLACED_FOR

pytestmark = pytest.mark.anyio


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[IssuerBench[FakeEntrust]]:
    async with bench_of(FakeEntrust, tmp_path) as bench:
        yield bench


def named(pair: tuple[Path, Path]) -> dict[str, Any]:
    return {"client_certificate_file": str(pair[0]), "client_key_file": str(pair[1])}


async def refused(bench: IssuerBench[FakeEntrust], credentials: dict[str, str] | None = None, **settings: Any) -> str:
    with pytest.raises(Refused) as why:
        await bench.issuer(credentials=credentials, **settings).probe()
    assert why.value.reason == Reason.ACCOUNT_REFUSED
    assert bench.ca.requests == []
    assert "PRIVATE KEY" not in str(why.value)
    assert PASSWORD not in str(why.value)
    return str(why.value)


def seen(bench: IssuerBench[FakeEntrust]) -> bytes | None:
    return bench.ca.requests[-1].client


def der(path: Path) -> bytes:
    return x509.load_pem_x509_certificate(path.read_bytes()).public_bytes(Encoding.DER)


# ── In whatever form it comes ──


async def test_a_certificate_and_its_key_in_two_files(bench: IssuerBench[FakeEntrust]) -> None:
    said = await bench.issuer().probe()
    assert seen(bench) == der(bench.folder / "client.pem")
    ends = x509.load_der_x509_certificate(seen(bench) or b"").not_valid_after_utc
    assert f"our client certificate ends at {ends:%F %T}Z" in said


async def test_both_in_one_file(bench: IssuerBench[FakeEntrust]) -> None:
    both = bench.folder / "both.pem"
    both.write_bytes((bench.folder / "client.key").read_bytes() + (bench.folder / "client.pem").read_bytes())
    await bench.issuer(client_certificate_file=str(both), client_key_file=None).probe()
    assert seen(bench) == der(bench.folder / "client.pem")


async def test_a_key_with_a_password(bench: IssuerBench[FakeEntrust]) -> None:
    pair = a_pair(bench.folder, "secured")
    settings = {**named(pair), "client_key_file": str(sealed_key(pair, PASSWORD))}
    await bench.issuer(credentials={"client_key_password": PASSWORD}, **settings).probe()
    assert seen(bench) == der(pair[0])


async def test_a_pkcs12_file(bench: IssuerBench[FakeEntrust]) -> None:
    pair = a_pair(bench.folder, "packed")
    path = str(as_pkcs12(pair, PASSWORD))
    issuer = bench.issuer(
        credentials={"client_key_password": PASSWORD}, client_certificate_file=path, client_key_file=None
    )
    await issuer.probe()
    assert seen(bench) == der(pair[0])


async def test_a_pair_that_is_kept_in_the_store(bench: IssuerBench[FakeEntrust]) -> None:
    pair = a_pair(bench.folder, "kept")
    issuer = bench.issuer(
        credentials={"client_key": pair[1].read_text()},
        client_certificate=pair[0].read_text(),
        client_certificate_file=None,
        client_key_file=None,
    )
    await issuer.probe()
    assert seen(bench) == der(pair[0])


async def test_a_key_does_not_belong_into_the_settings(bench: IssuerBench[FakeEntrust]) -> None:
    both = "".join((bench.folder / name).read_text() for name in ("client.pem", "client.key"))
    with pytest.raises(ValueError, match="credential client_key") as why:
        bench.issuer(client_certificate=both, client_certificate_file=None, client_key_file=None)
    assert "BEGIN" not in str(why.value)


# ── Renewed ──


async def test_new_files_are_used_at_the_next_request_without_a_restart(bench: IssuerBench[FakeEntrust]) -> None:
    issuer = bench.issuer()
    await issuer.probe()
    before = seen(bench)
    a_pair(bench.folder, "client")
    await issuer.probe()  # the same object, as within one job
    assert seen(bench) not in (None, before)
    assert seen(bench) == der(bench.folder / "client.pem")


async def test_a_pair_that_is_half_replaced_is_used_as_it_was_for_a_while(bench: IssuerBench[FakeEntrust]) -> None:
    await bench.issuer().probe()
    before = seen(bench)
    new = a_pair(bench.folder, "new")
    shutil.copy(new[0], bench.folder / "client.pem")
    await bench.issuer().probe()
    assert seen(bench) == before
    bench.clock.ahead += timedelta(seconds=HALF_REPLACED_FOR + 1)
    bench.ca.requests.clear()
    assert "client_key_file" in await refused(bench)
    shutil.copy(new[1], bench.folder / "client.key")
    await bench.issuer().probe()
    assert seen(bench) == der(new[0])


async def test_one_that_ends_while_it_is_in_use_is_refused_with_its_time(bench: IssuerBench[FakeEntrust]) -> None:
    await bench.issuer(**named(a_pair(bench.folder, "short", days=1))).probe()
    bench.ca.requests.clear()
    bench.clock.ahead = timedelta(days=2)
    said = await refused(bench, **named((bench.folder / "short.pem", bench.folder / "short.key")))
    assert "client_certificate_file expired at" in said


# ── Wrong ──


async def test_one_that_has_expired(bench: IssuerBench[FakeEntrust]) -> None:
    said = await refused(bench, **named(a_pair(bench.folder, "old", days=-1)))
    assert "client_certificate_file expired at" in said


async def test_one_that_begins_later(bench: IssuerBench[FakeEntrust]) -> None:
    bench.clock.ahead = -timedelta(days=20)
    assert "not valid before" in await refused(bench)


async def test_a_key_that_belongs_to_another(bench: IssuerBench[FakeEntrust]) -> None:
    other = a_pair(bench.folder, "other")
    said = await refused(bench, client_key_file=str(other[1]))
    assert "client_key_file" in said
    assert "client_certificate_file" in said


async def test_files_that_are_not_there(bench: IssuerBench[FakeEntrust]) -> None:
    missing = str(bench.folder / "missing.pem")
    assert f"{missing}, as the setting client_certificate_file" in await refused(bench, client_certificate_file=missing)
    assert f"{missing}, as the setting client_key_file" in await refused(bench, client_key_file=missing)
    assert "client_key_file cannot be read" in await refused(bench, client_key_file=str(bench.folder))


async def test_files_that_are_something_else(bench: IssuerBench[FakeEntrust]) -> None:
    other = bench.folder / "other.txt"
    other.write_bytes(b"what is this?")
    assert "client_key_file" in await refused(bench, client_key_file=str(other))
    assert "client_certificate_file" in await refused(bench, client_certificate_file=str(other))
    assert "PKCS#12" in await refused(bench, client_certificate_file=str(other), client_key_file=None)
    assert "no private key" in await refused(bench, client_key_file=None)


@pytest.mark.parametrize("password", [None, "wrong"])
async def test_a_password_that_is_wrong_or_missing(bench: IssuerBench[FakeEntrust], password: str | None) -> None:
    pair = a_pair(bench.folder, "secured")
    given = {} if password is None else {"client_key_password": password}
    settings = {**named(pair), "client_key_file": str(sealed_key(pair, PASSWORD))}
    assert "client_key_password" in await refused(bench, given, **settings)
    packed = {"client_certificate_file": str(as_pkcs12(pair, PASSWORD)), "client_key_file": None}
    assert "client_key_password" in await refused(bench, given, **packed)


async def test_a_ca_that_hangs_up_on_strangers_is_a_matter_of_the_setting(bench: IssuerBench[FakeEntrust]) -> None:
    with pytest.raises(TryLater, match="client_certificate_file") as why:
        await bench.issuer(**named(a_pair(bench.folder, "stranger", stranger=True))).place_order(bench.wish())
    assert not why.value.sent
    assert bench.ca.requests == []


@pytest.mark.parametrize("pair", ["stranger", "old"])
async def test_an_alert_in_the_handshake_is_told_in_its_words_and_names_the_setting(
    bench: IssuerBench[FakeEntrust], pair: str
) -> None:
    shown = named(a_pair(bench.folder, pair, stranger=pair == "stranger", days=-1 if pair == "old" else 1))
    bench.clock.ahead = -timedelta(days=2) if pair == "old" else timedelta(0)  # our clock is slow: we think it is good
    with alerting(bench.folder) as port, pytest.raises(TryLater, match=r"TLS.*client_certificate_file") as why:
        await bench.issuer(base_url=f"https://localhost:{port}/cagw", **shown).place_order(bench.wish())
    assert ("alert certificate expired" if pair == "old" else "alert decrypt error") in str(why.value)
    assert not why.value.sent


@contextmanager
def alerting(folder: Path) -> Iterator[int]:
    """A server that says why it does not like somebody's certificate, as most do; asyncio's hangs up without a word."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.pem", folder / "tls.key")
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(folder / "clients.pem")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = threading.Thread(target=_refuse_one, args=(listening, context))
        server.start()
        yield listening.getsockname()[1]
        server.join()


def _refuse_one(listening: socket.socket, context: ssl.SSLContext) -> None:
    line, _ = listening.accept()
    with line.dup() as raw:  # closed only after the other side: with something unread the alert would be lost
        with suppress(ssl.SSLError):
            context.wrap_socket(line, server_side=True)
        while raw.recv(4096):
            pass


async def test_a_ca_that_nobody_vouches_for_is_told_apart(bench: IssuerBench[FakeEntrust]) -> None:
    with pytest.raises(TryLater) as why:
        await bench.issuer(roots="").probe()
    assert "roots" in str(why.value)
    assert "client_certificate_file" not in str(why.value)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_proxy_that_says_no_in_place_of_the_handshake_is_a_matter_of_the_setting(
    bench: IssuerBench[FakeEntrust], status: int
) -> None:
    bench.ca.fail(status=status)
    with pytest.raises(Refused, match="client_certificate_file") as why:
        await bench.issuer().probe()
    assert why.value.reason == Reason.ACCOUNT_REFUSED
    assert len(bench.ca.requests) == 1
