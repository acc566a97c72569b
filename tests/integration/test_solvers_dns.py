"""dns-01: changes of a zone by each way there is, aliases that lead to another zone, and who has the record already."""

import asyncio
import sys
import tomllib
from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.interop.packages import Pip
from tests.support.bind import FIXED, KEY, KEY_NAME, OURS, Bind
from tests.support.dns_server import DnsServer
from tests.support.issuing import a_dns_proof
from tests.support.packages import tool
from tests.support.ports import free_port

from holdfast.core.reasons import Reason
from holdfast.errors import Refused, TryLater
from holdfast.network import SystemNet
from holdfast.secret import Secret
from holdfast.solvers.dns_client import DnsClient
from holdfast.solvers.dns_hook import Hook
from holdfast.solvers.dns_lexicon import REQUIREMENT, Lexicon, LexiconSettings
from holdfast.solvers.dns_record import DnsSolver, Propagation, Provider, TxtRecord, record_value
from holdfast.solvers.dns_rfc2136 import Rfc2136, UpdateServer
from holdfast.world import LocalFiles, SystemRandom

pytestmark = pytest.mark.anyio


# ── RFC 2136, with BIND ──


@pytest.fixture(scope="module")
def bind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bind]:
    aliases = "\n".join(
        [
            f"_acme-challenge.www IN CNAME www.{OURS}.",
            f"_acme-challenge.far IN CNAME near.{FIXED}.",
            f"near IN CNAME far.{OURS}.",
            f"_acme-challenge.circle IN CNAME round.{FIXED}.",
            f"round IN CNAME _acme-challenge.circle.{FIXED}.",
        ]
    )
    with Bind(tmp_path_factory.mktemp("bind"), free_port(), fixed=aliases) as bind:
        yield bind


def client_of(*servers: str) -> DnsClient:
    return DnsClient(SystemNet(), SystemRandom(), servers)


def updating(bind: Bind, *, key: bytes = KEY, key_name: str = KEY_NAME, zone: str | None = None) -> DnsSolver:
    client = client_of(bind.address)
    told = UpdateServer(address=bind.address, key_name=key_name, key=Secret(key))
    return DnsSolver(Rfc2136(client, told), client, Propagation(client, port=bind.port), zone=zone)


async def test_a_record_is_added_seen_and_removed_by_dynamic_update(bind: Bind) -> None:
    solver, response, name = updating(bind), a_dns_proof(f"a.{OURS}"), f"_acme-challenge.a.{OURS}"
    assert not await solver.visible(response)
    await solver.publish(response)
    await solver.publish(response)  # again, by whoever resumes it
    assert bind.ask(name, "TXT") == [f'"{record_value(response)}"']
    assert await solver.visible(response)
    await solver.clean(response)
    await solver.clean(response)
    assert bind.ask(name, "TXT") == []
    assert not await solver.visible(response)


async def test_a_wildcard_and_its_parent_are_proved_side_by_side(bind: Bind) -> None:
    solver = updating(bind)
    both = a_dns_proof(f"b.{OURS}", 1), a_dns_proof(f"*.b.{OURS}", 2)
    for each in both:
        await solver.publish(each)
    assert [await solver.visible(each) for each in both] == [True, True]
    await solver.clean(both[0])
    assert [await solver.visible(each) for each in both] == [False, True]
    await solver.clean(both[1])


@pytest.mark.parametrize(("name", "target"), [("www", f"www.{OURS}"), ("far", f"far.{OURS}")])
async def test_an_alias_leads_to_the_zone_that_is_changed_instead(bind: Bind, name: str, target: str) -> None:
    solver, response = updating(bind), a_dns_proof(f"{name}.{FIXED}")
    await solver.publish(response)
    assert bind.ask(target, "TXT") == [f'"{record_value(response)}"']
    assert await solver.visible(response)
    await solver.clean(response)
    assert bind.ask(target, "TXT") == []


async def test_aliases_that_go_round_in_a_circle_are_refused(bind: Bind) -> None:
    with pytest.raises(Refused, match="circle") as refused:
        await updating(bind).publish(a_dns_proof(f"circle.{FIXED}"))
    assert refused.value.reason == Reason.SOLVER_FAILED


async def test_a_zone_that_we_may_not_change_says_so(bind: Bind) -> None:
    with pytest.raises(Refused, match="REFUSED"):
        await updating(bind).publish(a_dns_proof(f"plain.{FIXED}"))


@pytest.mark.parametrize("wrong", [{"key": b"another key of the same size 1234"}, {"key_name": "stranger"}])
async def test_a_key_that_the_server_does_not_know_is_refused_and_never_shown(
    bind: Bind, wrong: dict[str, object]
) -> None:
    with pytest.raises(Refused) as refused:
        await updating(bind, **wrong).publish(a_dns_proof(f"c.{OURS}"))  # type: ignore[arg-type]
    assert refused.value.reason == Reason.SOLVER_FAILED
    assert "another key" not in str(refused.value)
    assert bind.ask(f"_acme-challenge.c.{OURS}", "TXT") == []


async def test_a_server_that_is_away_is_tried_later() -> None:
    nobody = f"127.0.0.1:{free_port()}"
    told = UpdateServer(address=nobody, key_name=KEY_NAME, key=Secret(KEY))
    with pytest.raises(TryLater) as later:
        await Rfc2136(client_of(nobody), told).add(TxtRecord(f"d.{OURS}", "value", OURS))
    assert later.value.reason == Reason.SOLVER_FAILED
    with pytest.raises(TryLater):
        await client_of(nobody).target("name.test")


async def test_a_name_outside_of_the_zone_that_was_named_is_refused(bind: Bind) -> None:
    with pytest.raises(Refused, match="not in the zone"):
        await updating(bind, zone=OURS).publish(a_dns_proof(f"plain.{FIXED}"))


async def test_an_address_has_no_record(bind: Bind) -> None:
    with pytest.raises(Refused, match="address"):
        await updating(bind).publish(a_dns_proof("192.0.2.1"))


# ── who has it already ──


class Nothing:
    """A provider for tests that do not publish."""

    side_by_side = True

    async def add(self, record: TxtRecord) -> None: ...

    async def remove(self, record: TxtRecord) -> None: ...


class Zone:
    """A zone on three servers of the same port; the first of them answers for everything."""

    def __init__(self, servers: list[DnsServer]) -> None:
        self.servers, self.response, self.name = servers, a_dns_proof("a.zone.test"), "_acme-challenge.a.zone.test"
        first = servers[0]
        first.add("zone.test", "SOA", "ns1.zone.test. host.zone.test. 1 60 60 60 1")
        for number, server in enumerate(servers, start=1):
            first.add("zone.test", "NS", f"ns{number}.zone.test.")
            first.add(f"ns{number}.zone.test", "A", server.host)
        client = client_of(first.address)
        provider: Provider = Nothing()
        self.solver = DnsSolver(provider, client, Propagation(client, port=first.port))

    def publish_on(self, *numbers: int) -> None:
        for number in numbers:
            self.servers[number - 1].add(self.name, "TXT", f'"{record_value(self.response)}"')


@pytest.fixture
async def zone() -> AsyncIterator[Zone]:
    servers = [DnsServer(f"127.0.0.{number}") for number in (1, 2, 3)]
    async with servers[0]:
        for server in servers[1:]:
            await _opened_at(server, servers[0].port)
        yield Zone(servers)
        for server in servers[1:]:
            await server.__aexit__(None, None, None)


async def _opened_at(server: DnsServer, port: int) -> None:
    """As __aenter__ does, at a given port."""
    from tests.support.dns_server import _Datagrams

    loop = asyncio.get_running_loop()
    server._udp, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(server), (server.host, port))
    server._tcp = await asyncio.start_server(server._serve, server.host, port)
    server.port = port


async def test_a_record_is_seen_once_every_server_of_the_zone_has_it(zone: Zone) -> None:
    assert not await zone.solver.visible(zone.response)
    zone.publish_on(1, 2)
    assert not await zone.solver.visible(zone.response)
    spread = await zone.solver.spread(zone.response)
    assert spread is not None
    assert (spread.lacking, str(spread)) == (("ns3.zone.test",), "1 of 3 name servers lack it")
    zone.publish_on(3)
    assert await zone.solver.visible(zone.response)


async def test_a_server_that_is_away_says_nothing_either_way(zone: Zone) -> None:
    zone.publish_on(1, 2)
    zone.servers[0].remove("ns3.zone.test", "A")
    zone.servers[0].add("ns3.zone.test", "A", "127.0.0.4")  # nobody is there
    assert await zone.solver.visible(zone.response)
    spread = await zone.solver.spread(zone.response)
    assert spread is not None
    assert spread.silent == ("ns3.zone.test",)


async def test_a_record_that_no_server_could_be_asked_for_is_not_seen(zone: Zone) -> None:
    zone.publish_on(1, 2, 3)
    for number in (1, 2, 3):
        zone.servers[0].remove(f"ns{number}.zone.test", "A")
    assert not await zone.solver.visible(zone.response)


async def test_a_record_in_a_zone_that_nobody_finds_is_an_error(zone: Zone) -> None:
    with pytest.raises(Refused, match="No zone"):
        await zone.solver.visible(a_dns_proof("a.other.test"))


# ── a program of the operator's ──


async def test_a_hook_gets_its_words_without_a_shell_and_without_our_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SECRET_OF_OURS", "never")
    script = tmp_path / "hook.py"
    script.write_text(
        "import json, os, sys, pathlib\n"
        f"pathlib.Path({str(tmp_path / 'seen')!r}).write_text(\n"
        "    json.dumps([sys.argv[1:], json.load(sys.stdin), sorted(os.environ)]))\n"
    )
    hook = Hook(LocalFiles(), [sys.executable, "-I", str(script), "$(id); `id`"])
    await hook.add(TxtRecord("a.zone.test", "-value", "zone.test"))
    seen = (tmp_path / "seen").read_text()
    assert '[["$(id); `id`", "add", "a.zone.test", "-value"]' in seen
    assert '"value": "-value"' in seen
    assert "HOLDFAST" not in seen


async def test_a_hook_that_fails_or_hangs_is_tried_later_and_not_quoted(tmp_path: Path) -> None:
    record = TxtRecord("a.zone.test", "value", "zone.test")
    failing = Hook(LocalFiles(), [sys.executable, "-c", "print('my password'); raise SystemExit(3)"])
    with pytest.raises(TryLater, match="ended with 3") as later:
        await failing.remove(record)
    assert "password" not in str(later.value)
    assert later.value.reason == Reason.SOLVER_FAILED
    with pytest.raises(TryLater, match=r"did not end in 0\.2 s") as later:
        await Hook(LocalFiles(), [sys.executable, "-c", "import time; time.sleep(60)"], run_for=0.2).add(record)
    assert later.value.reason == Reason.SOLVER_FAILED
    with pytest.raises(TryLater, match="cannot be run"):
        await Hook(LocalFiles(), [str(tmp_path / "missing")]).add(record)


# ── dns-lexicon ──


@pytest.fixture(scope="module")
def lexicon_python() -> str:
    """An interpreter that has dns-lexicon, with its provider for zone files."""
    return tool(Pip("dns-lexicon[localzone]==3.25.2"), "dns-lexicon").program("python")


def through_lexicon(python: str, provider: str, **options: str) -> Lexicon:
    secret = {name: Secret(value) for name, value in options.items()}
    return Lexicon(LocalFiles(), python, LexiconSettings(provider=provider, options=secret))


async def test_lexicon_changes_a_zone_without_asking_the_network_what_a_zone_is(
    lexicon_python: str, tmp_path: Path
) -> None:
    file = tmp_path / "sub.zone"
    file.write_text("$ORIGIN sub.zone.test.\n$TTL 60\n@ IN SOA ns host 1 60 60 60 60\n@ IN NS ns\nns IN A 127.0.0.1\n")
    provider = through_lexicon(lexicon_python, "localzone", filename=str(file))
    record = TxtRecord("_acme-challenge.a.sub.zone.test", "the-value", "sub.zone.test")
    await provider.add(record)
    await provider.add(record)
    assert file.read_text().count("the-value") == 1
    await provider.remove(record)
    await provider.remove(record)
    assert "the-value" not in file.read_text()


async def test_lexicon_s_failures_never_quote_a_credential(lexicon_python: str) -> None:
    record = TxtRecord("_acme-challenge.a.zone.test", "value", "zone.test")
    with pytest.raises(Refused, match="no provider"):
        await through_lexicon(lexicon_python, "telepathy").add(record)
    with pytest.raises(TryLater) as later:
        await through_lexicon(lexicon_python, "localzone", filename="/nowhere/my-password").add(record)
    assert "my-password" not in str(later.value)
    assert later.value.reason == Reason.SOLVER_FAILED


async def test_a_lexicon_that_hangs_is_tried_later(tmp_path: Path) -> None:
    hangs = tmp_path / "python"
    hangs.write_text("#!/bin/sh\nexec sleep 60\n")
    hangs.chmod(0o755)
    settings = LexiconSettings(provider="cloudflare", options={}, run_for=0.2)
    with pytest.raises(TryLater, match=r"cloudflare, by dns-lexicon, did not end in 0\.2 s") as later:
        await Lexicon(LocalFiles(), str(hangs), settings).add(TxtRecord("a.zone.test", "value", "zone.test"))
    assert later.value.reason == Reason.SOLVER_FAILED


@pytest.mark.skipif(find_spec("lexicon") is not None, reason="dns-lexicon is installed here")
async def test_without_lexicon_it_is_said_what_to_install_and_where() -> None:
    with pytest.raises(Refused, match=rf"{sys.executable} -m pip install 'dns-lexicon>=.*holdfast\[dns\]"):
        await through_lexicon(sys.executable, "localzone").add(TxtRecord("a.zone.test", "value", "zone.test"))


def test_what_is_to_be_installed_is_what_the_extra_names() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["optional-dependencies"]["dns"] == [REQUIREMENT]
