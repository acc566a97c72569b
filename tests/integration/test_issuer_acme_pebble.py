"""The ACME issuer against Pebble, which refuses half of all good nonces and sleeps at random before it looks."""

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from tests.support.issuing import Rows, a_wish, complete, leaf_of, obtain, patiently
from tests.support.pebble import Pebble
from tests.support.secrets_planted import LONG_EAB_KEY

from holdfast.core.reasons import Reason
from holdfast.errors import Refused
from holdfast.issuers import chains
from holdfast.issuers.acme import account as acme_account
from holdfast.issuers.acme.issuer import AcmeIssuer
from holdfast.issuers.acme.wire import CaAccount, Eab, Memory, Wire
from holdfast.issuers.base import Failed, Issued
from holdfast.network import SystemNet
from holdfast.pki import chain, keys
from holdfast.secret import Secret
from holdfast.solvers.dns_client import DnsClient
from holdfast.solvers.dns_hook import Hook
from holdfast.solvers.dns_record import DnsSolver
from holdfast.solvers.http01 import HttpStore
from holdfast.solvers.tls_alpn import TlsAlpn, showing
from holdfast.web.serve import bind
from holdfast.world import HttpTransport, LocalFiles, SystemClock, SystemRandom

pytestmark = pytest.mark.anyio

EAB_KEY = LONG_EAB_KEY


@pytest.fixture(scope="module")
def pebble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pebble]:
    with Pebble(tmp_path_factory.mktemp("pebble"), roots=2) as pebble:
        yield pebble


@dataclass
class PebbleClient:
    pebble: Pebble
    wire: Wire
    rows: Rows

    async def issuer(self) -> AcmeIssuer:
        return AcmeIssuer(self.wire, await self.account())

    async def account(self) -> CaAccount:
        key = keys.from_pem(await acme_account.new_key())
        return await self.ensured(key)

    async def ensured(self, key: keys.PrivateKey) -> CaAccount:
        wishes = {"contacts": ["ops@holdfast.test"], "terms_agreed": True}
        found: CaAccount = await patiently(acme_account.ensure_account, self.wire, key, **wishes)
        return found

    @property
    def http(self) -> HttpStore:
        return HttpStore(self.rows.put, self.rows.delete)


@asynccontextmanager
async def bench_at(pebble: Pebble) -> AsyncIterator[PebbleClient]:
    transport, rows = HttpTransport(), Rows()
    async with rows.served(pebble.http_port):
        yield PebbleClient(pebble, Wire(transport, SystemClock(), Memory(), pebble.place), rows)
    await transport.close()


@pytest.fixture
async def bench(pebble: Pebble) -> AsyncIterator[PebbleClient]:
    async with bench_at(pebble) as found:
        yield found


async def test_a_certificate_is_obtained_by_http_01_and_revoked(bench: PebbleClient) -> None:
    issuer, key = await bench.issuer(), ec.generate_private_key(ec.SECP256R1())
    request = a_wish("a.holdfast.test", "b.holdfast.test", key=key)
    issued = await obtain(issuer, request, bench.http)
    certificate = leaf_of(issued)
    assert certificate.public_key() == key.public_key()
    assert chain.subject_names(certificate)[0] == ["a.holdfast.test", "b.holdfast.test"]
    assert bench.rows.proofs == {}  # cleaned away
    assert isinstance(issued, Issued)
    await patiently(issuer.revoke, issued.chain_pem, 4)
    assert bench.pebble.status_of(certificate) == "Revoked"
    await patiently(issuer.revoke, issued.chain_pem, 4)  # revoked already: no matter


async def test_a_wildcard_is_proved_by_dns_01_through_a_hook(bench: PebbleClient, tmp_path: Path) -> None:
    hook = tmp_path / "hook.py"
    hook.write_text(
        "import json, sys, urllib.request\n"
        "base, action, name, value = sys.argv[1:]\n"
        "assert json.load(sys.stdin)['value'] == value\n"
        "told = {'host': name + '.', 'value': value}\n"
        "url = base + ('/set-txt' if action == 'add' else '/clear-txt')\n"
        "urllib.request.urlopen(url, data=json.dumps(told).encode())\n"
    )
    base = f"http://127.0.0.1:{bench.pebble.dns_management}"
    client = DnsClient(SystemNet(), SystemRandom(), [bench.pebble.dns])
    provider = Hook(LocalFiles(), [sys.executable, str(hook), base])
    solver = DnsSolver(provider, client, None, zone="holdfast.test")
    issued = await obtain(await bench.issuer(), a_wish("*.holdfast.test"), solver)
    assert chain.subject_names(leaf_of(issued))[0] == ["*.holdfast.test"]


async def test_a_name_is_proved_by_tls_alpn_01(bench: PebbleClient) -> None:
    line = bind("127.0.0.1", bench.pebble.tls_port)
    async with showing(line, bench.rows.by_identifier, SystemClock()):
        solver = TlsAlpn(bench.rows.put, bench.rows.delete)
        issued = await obtain(await bench.issuer(), a_wish("alpn.holdfast.test"), solver)
    assert isinstance(issued, Issued), issued


async def test_an_address_is_proved_by_http_01(bench: PebbleClient) -> None:
    issued = await obtain(await bench.issuer(), a_wish("127.0.0.1"), bench.http)
    assert chain.subject_names(leaf_of(issued)) == ([], ["127.0.0.1"])


async def test_another_chain_of_the_same_certificate_is_preferred_by_its_root(bench: PebbleClient) -> None:
    issuer, request = await bench.issuer(), a_wish("chain.holdfast.test")
    placed = await patiently(issuer.place_order, request)
    default = await complete(issuer, placed.ref, request, bench.http)
    other = bench.pebble.root(1).subject.rfc4514_string().removeprefix("CN=")
    preferring = a_wish("chain.holdfast.test", preferred_chain=other)
    preferred = await patiently(issuer.order_status, placed.ref, preferring)
    assert leaf_of(preferred) == leaf_of(default)
    assert preferred != default
    unknown = await patiently(issuer.order_status, placed.ref, a_wish("chain.holdfast.test", preferred_chain="Nobody"))
    assert unknown == default


async def test_a_proof_that_is_not_there_ends_the_order_with_the_ca_s_own_words(bench: PebbleClient) -> None:
    nowhere = Rows()
    failed = await obtain(await bench.issuer(), a_wish("missing.holdfast.test"), HttpStore(nowhere.put, nowhere.delete))
    assert isinstance(failed, Failed)
    assert failed.reason == Reason.VALIDATION_FAILED
    assert "http-01 for missing.holdfast.test" in failed.why


async def test_an_order_that_nobody_remembers_is_found_in_the_account_s_list(bench: PebbleClient) -> None:
    issuer, request = await bench.issuer(), a_wish("lost.holdfast.test")
    assert await patiently(issuer.find_order, request) is None
    placed = await patiently(issuer.place_order, request)
    assert await patiently(issuer.find_order, request) == placed
    assert await patiently(issuer.find_order, a_wish("other.holdfast.test")) is None
    assert isinstance(await complete(issuer, placed.ref, request, bench.http), Issued)
    assert await patiently(issuer.find_order, request) is None  # it is finished, and no longer to be resumed


async def test_whoever_repeats_a_step_after_a_crash_does_no_harm(bench: PebbleClient) -> None:
    issuer, request = await bench.issuer(), a_wish("again.holdfast.test")
    placed = await patiently(issuer.place_order, request)
    first = await complete(issuer, placed.ref, request, bench.http)
    await patiently(issuer.finalize, placed.ref, request)
    assert await patiently(issuer.order_status, placed.ref, request) == first


async def test_an_account_is_found_again_gets_a_new_key_and_is_closed(bench: PebbleClient) -> None:
    key = rsa.generate_private_key(65537, 2048)
    account = await bench.ensured(key)
    assert await bench.ensured(key) == account
    new = ec.generate_private_key(ec.SECP384R1())
    changed = await patiently(acme_account.change_key, bench.wire, account, new)
    assert changed == CaAccount(account.url, new)
    assert await patiently(acme_account.change_key, bench.wire, account, new) == changed  # the answer had been lost
    assert "knows our account" in await patiently(AcmeIssuer(bench.wire, changed).probe)
    await patiently(acme_account.deactivate, bench.wire, changed)
    await patiently(acme_account.deactivate, bench.wire, changed)
    with pytest.raises(Refused) as refused:
        await patiently(AcmeIssuer(bench.wire, changed).place_order, a_wish("closed.holdfast.test"))
    assert refused.value.reason == Reason.ACCOUNT_REFUSED


async def test_a_ca_may_want_an_account_that_exists_elsewhere(tmp_path: Path) -> None:
    with Pebble(tmp_path, nonces=0, eab={"kid-1": EAB_KEY}) as pebble:
        async with bench_at(pebble) as bench:
            key = keys.from_pem(await acme_account.new_key())
            with pytest.raises(Refused) as refused:
                await acme_account.ensure_account(bench.wire, key, terms_agreed=True)
            assert refused.value.reason == Reason.EAB_REQUIRED
            wrong = Eab.from_text("kid-1", Secret("A" * 64))
            with pytest.raises(Refused):
                await acme_account.ensure_account(bench.wire, key, terms_agreed=True, eab=wrong)
            right = Eab.from_text("kid-1", Secret(EAB_KEY))
            account = await acme_account.ensure_account(bench.wire, key, terms_agreed=True, eab=right)
            assert "knows our account" in await AcmeIssuer(bench.wire, account).probe()


async def test_a_renewal_is_told_to_replace_its_predecessor_once(tmp_path: Path) -> None:
    with Pebble(tmp_path, sleep=1, suite="trixie") as pebble:
        async with bench_at(pebble) as bench:
            issuer = await bench.issuer()
            first = leaf_of(await obtain(issuer, a_wish("ari.holdfast.test"), bench.http))
            window = await issuer.renewal_window(first.public_bytes(Encoding.DER))
            assert window is not None
            assert first.not_valid_before_utc < window.start < window.end < first.not_valid_after_utc
            request = a_wish("ari.holdfast.test", replaces=chains.renewal_name(first))
            assert isinstance(await obtain(issuer, request, bench.http), Issued)
            with pytest.raises(Refused) as refused:
                await patiently(issuer.place_order, request)
            assert refused.value.reason == Reason.REPLACES_REJECTED


async def test_terms_that_nobody_agreed_to_are_not_agreed_to(bench: PebbleClient) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    with pytest.raises(Refused, match="terms of service"):
        await patiently(acme_account.ensure_account, bench.wire, key, terms_agreed=False)
