"""`doctor` and `challenge test`: what each look finds, the one fix it names, and the exit code."""

import os
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.channels import a_webhook
from tests.support.dns_server import SOA, DnsServer
from tests.support.engine import Moody
from tests.support.inboxes import Inbox
from tests.support.jobs import MovableClock, opened
from tests.support.messages import a_notification, owe
from tests.support.reaper import PATIENCE
from tests.support.stores import migrated
from tests.support.terminal import Terminal, a_terminal

from holdfast.cli.installation import doctor
from holdfast.config import ServerSettings
from holdfast.core.finding import Finding, Level
from holdfast.core.own_ca.acme import Identifier
from holdfast.errors import Refused, StoreUnavailable, StoreUnfit
from holdfast.from_settings import compose
from holdfast.network import SystemNet
from holdfast.operations.installation import diagnosis, observe
from holdfast.ports import no_points
from holdfast.solvers.preflight import Preflight
from holdfast.solvers.tls_alpn import showing
from holdfast.store.database import Database, Engine
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.work import cluster
from holdfast.validators.verdict import ValidationSettings
from holdfast.web.serve import bind
from holdfast.world import LocalFiles, SystemClock, SystemRandom, room_on_disk

pytestmark = pytest.mark.anyio
GIB = 1024**3


@pytest.fixture
def make_engine(tmp_path: Path) -> Callable[[], Engine]:
    """One store is enough here: no look asks it anything but the time and the schema."""
    return lambda: SqliteEngine(tmp_path / "holdfast.sqlite", SystemClock())


def is_bad(finding: Finding, *words: str) -> bool:
    return finding.level is Level.BAD and bool(finding.fix) and all(word in finding.saw for word in words)


# ── the looks of this machine ──


async def test_a_store_that_answers_is_well_and_one_that_does_not_is_named(db: Database) -> None:
    assert (await diagnosis.store(db)).level is Level.OK
    moody = Moody(db)
    moody.reading = StoreUnavailable("connection refused")
    found = await diagnosis.store(moody)
    assert is_bad(found, "connection refused")
    assert "store.url" in found.fix
    assert is_bad(await diagnosis.clock(moody, SystemClock()), "cannot be read")


async def test_a_clock_that_is_off_is_found(db: Database) -> None:
    assert (await diagnosis.clock(db, SystemClock())).level is Level.OK
    off = MovableClock(datetime.now(UTC) - timedelta(minutes=5))
    assert is_bad(await diagnosis.clock(db, off), "away from the database's")  # type: ignore[arg-type]


async def spoil(path: Path, table: str) -> None:
    """Overwrite the pages of one table, as a bad disk would; every other page stays as it was."""
    connection = sqlite3.connect(path)
    [page] = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    [size] = connection.execute("PRAGMA page_size").fetchone()
    connection.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xa5" * size)


@pytest.mark.parametrize("table", ["certificates", "leases"])
async def test_damaged_pages_show_in_readiness_in_the_log_and_in_doctor(tmp_path: Path, table: str) -> None:
    path, told = tmp_path / "holdfast.sqlite", list[str]()
    async with opened(SqliteEngine(path, SystemClock())) as db:
        await migrated(db)
    assert diagnosis.sqlite_pages(path, SystemClock()).level is Level.OK
    await spoil(path, table)
    found = diagnosis.sqlite_pages(path, SystemClock())
    assert is_bad(found, "is damaged")
    assert "restore a backup" in found.fix
    engine = SqliteEngine(path, SystemClock())
    db = compose(
        engine, clock=SystemClock(), points=no_points, deadline=timedelta(seconds=PATIENCE),
        damaged=lambda error: told.append(str(error)),
    )  # fmt: skip
    try:
        assert await observe.store_problem(db) == ""
        for _ in range(2):
            with pytest.raises(StoreUnfit, match="damaged"):
                await db.read(lambda tx: tx.rows(f"SELECT * FROM {table}"))
        assert len(told) == 1
        assert "damaged" in await observe.store_problem(db)
        assert is_bad(await diagnosis.store(db), "damaged")
    finally:
        await db.close()


def test_a_disk_that_is_nearly_full_is_found(tmp_path: Path) -> None:
    assert diagnosis.disk(tmp_path, lambda path: (500 * GIB, 1000 * GIB)).level is Level.OK
    assert is_bad(diagnosis.disk(tmp_path, lambda path: (GIB // 2, 1000 * GIB)), "0.5 GiB free")
    assert diagnosis.disk(tmp_path, lambda path: (GIB // 2, GIB)).level is Level.OK  # a small disk, half empty
    assert diagnosis.disk(tmp_path / "not made yet", room_on_disk).saw.endswith(f"free at {tmp_path}")
    (tmp_path / "file").touch()
    assert is_bad(diagnosis.disk(tmp_path / "file" / "within", room_on_disk), "cannot be looked at")
    free, total = room_on_disk(tmp_path)
    assert 0 <= free <= total


def test_a_key_file_that_others_may_read_is_found_with_the_command_that_closes_it(tmp_path: Path) -> None:
    path, files = tmp_path / "holdfast.key", LocalFiles()
    assert is_bad(diagnosis.private_file(files, "key file", path, needed=True), "there is no")
    assert diagnosis.private_file(files, "key file", path, needed=False).level is Level.OK
    path.write_text("key")
    path.chmod(0o640)
    found = diagnosis.private_file(files, "key file", path, needed=True)
    assert is_bad(found, "mode 0640")
    assert found.fix.startswith(f"chmod 600 {path}")
    path.chmod(0o600)
    assert diagnosis.private_file(files, "key file", path, needed=True).level is Level.OK


def test_an_old_library_is_a_note_and_not_used_is_well() -> None:
    assert diagnosis.sqlite((3, 40, 1), used=True).level is Level.NOTE
    assert diagnosis.sqlite((3, 51, 3), used=True).level is Level.OK
    assert diagnosis.sqlite((3, 40, 1), used=False).level is Level.OK


def test_a_ca_that_does_not_answer_and_a_channel_that_is_down_are_found() -> None:
    row = {"name": "le", "state": "active"}
    [down] = diagnosis.issuers([row], {"le": {"ok": False, "detail": "le did not answer in 30 s"}})
    assert is_bad(down, "did not answer")
    assert down.fix.endswith("holdfast issuer test le")
    closed = {"ok": False, "detail": "own refused: Our CA default is closed"}
    own = {"name": "own", "state": "active", "kind": "local", "settings": {"ca": "default"}}
    assert "holdfast ca open default" in diagnosis.issuers([own], {"own": closed})[0].fix
    [paused] = diagnosis.issuers([{**row, "state": "paused"}], {})
    assert paused.level is Level.NOTE
    assert [each.level for each in diagnosis.issuers([], {})] == [Level.NOTE]
    channel = {"name": "ops", "state": "active", "breaker_open": True, "breaker_error": "refused"}
    assert is_bad(diagnosis.channels([channel], 0)[0], "refused")
    assert is_bad(diagnosis.channels([{**channel, "breaker_open": False}], 2)[1], "2 messages were given up")
    assert diagnosis.channels(None, None) == []


@pytest.mark.parametrize(
    ("days", "root_here", "fix"),
    [
        (10, True, "holdfast ca renew corp"),
        (10, False, "pki recertify"),
        (-1, False, "ca renew corp --chain"),
        (91, True, ""),
    ],
)
def test_an_issuer_of_ours_that_ends_before_what_it_signs_is_found(days: int, root_here: bool, fix: str) -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    row = {"name": "corp", "not_after": (now + timedelta(days=days)).isoformat(), "needs_s": 90 * 86400.0}
    [found] = diagnosis.own_cas({"at": now.isoformat(), "own_cas": [{**row, "root_here": root_here}]})
    assert is_bad(found, "its signing certificate expires on") is bool(fix)
    assert fix in found.fix
    assert diagnosis.own_cas(None) == diagnosis.own_cas({"at": now.isoformat()}) == []


def test_another_version_is_a_note_and_a_loop_that_fails_is_found() -> None:
    seen = {"replicas": [{"version": "1.0"}], "loops": [{"name": "renewal", "error": "it broke"}]}
    assert diagnosis.replicas(seen, "1.1")[0].level is Level.NOTE
    assert is_bad(diagnosis.replicas(seen, "1.0")[0], "renewal: it broke")
    assert diagnosis.replicas({**seen, "loops": []}, "1.0")[0].level is Level.OK


@pytest.mark.parametrize(
    ("listen", "proxies", "clear"),
    [
        ("127.0.0.1:8630", "", False), ("[::1]:8630", "", False), ("localhost:8630", "", False),
        ("0.0.0.0:8630", "", True), ("[::]:8630", "", True), ("10.0.0.7:80", "", True), ("ca.example.com:80", "", True),
        ("0.0.0.0:8630", "10.0.0.0/8", False),
    ],
)  # fmt: skip
def test_plain_http_for_others_is_worth_a_word_unless_a_proxy_is_named(listen: str, proxies: str, clear: bool) -> None:
    server = ServerSettings(listen=listen, trusted_proxies=(proxies,) if proxies else ())
    found = diagnosis.listening(server.listen, in_the_clear=server.in_the_clear)
    assert (found.level is Level.NOTE) is clear
    assert ("server.trusted_proxies" in found.fix) is clear


async def test_the_listener_of_tls_alpn_is_found_by_what_it_refuses() -> None:
    async def nobody(_: Identifier) -> None:
        return None

    async def somebody(_: Identifier) -> str:
        return "a.proof"

    line = bind("127.0.0.1", 0)
    port = line.getsockname()[1]
    async with showing(line, nobody, SystemClock()):
        found = await diagnosis.tls_alpn(SystemNet(), f"0.0.0.0:{port}", "0.0.0.0", port)
        assert found.level is Level.OK, found
    assert is_bad(await diagnosis.tls_alpn(SystemNet(), "here", "127.0.0.1", port), "refused the connection")
    other = bind("127.0.0.1", 0)
    async with showing(other, somebody, SystemClock()):
        found = await diagnosis.tls_alpn(SystemNet(), "here", "127.0.0.1", other.getsockname()[1])
        assert is_bad(found, "something else answers")


# ── doctor ──


@asynccontextmanager
async def a_machine(db: Database, folder: Path) -> AsyncIterator[tuple[Terminal, dict[str, str]]]:
    """A server that runs, with DNS that works, and a clean data folder."""
    os.chmod(folder, 0o700)
    async with DnsServer() as names, a_terminal(db, folder, works=False) as typed:
        names.add("known.example", "A", "192.0.2.1")
        yield typed, {"HOLDFAST_ACME_RESOLVERS": names.address}


async def test_doctor_finds_nothing_where_nothing_is_wrong(db: Database, tmp_path: Path) -> None:
    async with a_machine(db, tmp_path) as (typed, env):
        said = await typed.ok("doctor", "--name", "known.example", "-o", "json", env=env)
        found = {row["check"]: row for row in said.json}
        assert {"disk", "sqlite", "data folder", "key file", "DNS", "server", "clock", "CA ca"} <= found.keys()
        assert not [row for row in said.json if row["level"] == "bad"]
        assert all(row["fix"] for row in said.json if row["level"] != "ok")
        assert said.err == "Nothing is wrong.\n"


def test_probes_that_take_long_do_not_make_the_clock_wrong() -> None:
    clock = MovableClock()

    class SlowProbes:
        """A server of this very machine, whose issuers take eight seconds to answer."""

        def maybe(self, path: str) -> Any:
            return {"at": clock.now().isoformat(), "replicas": [], "loops": []} if path == "/cluster" else None

        def get(self, path: str) -> Any:
            return {"actor": "local:root", "role": "admin"}

        def pages(self, path: str, **_: Any) -> list[Any]:
            return [{"name": "slow", "state": "active"}]

        def post(self, path: str) -> Any:
            clock.at += timedelta(seconds=8)
            return {"ok": True, "detail": "it answers"}

    found = {each.check: each for each in doctor.of_server(SlowProbes(), clock)}  # type: ignore[arg-type]
    assert found["clock"].level is Level.OK, found["clock"]


async def test_doctor_names_each_thing_that_is_wrong_with_its_fix_and_exits_with_10(
    db: Database, tmp_path: Path
) -> None:
    async with a_machine(db, tmp_path) as (typed, env), Inbox() as web:
        (tmp_path / "holdfast.key").chmod(0o644)
        typed.desk.house.cas["ca"].always["probe"] = Refused("it does not know us")
        await db.write(lambda tx: cluster.replica_seen(tx, "r", "alpha", "0.0.1", draining=False))
        admin = await typed.desk.as_()
        typed.desk.api.state.local = False
        await admin.post("/channels", a_webhook(web))
        typed.desk.api.state.local = True
        await owe(db, a_notification(channel="ops"))
        said = await typed("doctor", "--name", "known.example", "-o", "json", env=env)
        assert said.code == 10
        wrong = {row["check"]: row for row in said.json if row["level"] == "bad"}
        assert {"key file", "CA ca", "dead letters"} <= wrong.keys()
        assert all(row["fix"] for row in wrong.values())
        table = await typed("doctor", "--name", "known.example", env=env)
        assert f"fix: chmod 600 {tmp_path / 'holdfast.key'}" in table.out


async def test_doctor_without_a_server_says_how_to_start_it(db: Database, tmp_path: Path) -> None:
    async with a_machine(db, tmp_path) as (typed, env):
        os.rename(tmp_path / "holdfast.sock", tmp_path / "gone.sock")
        said = await typed("doctor", "--name", "known.example", "-o", "json", env=env)
        os.rename(tmp_path / "gone.sock", tmp_path / "holdfast.sock")
        assert said.code == 10
        [row] = [row for row in said.json if row["check"] == "server"]
        assert "holdfast serve" in row["fix"]


async def test_doctor_finds_that_dns_does_not_answer(db: Database, tmp_path: Path) -> None:
    async with a_machine(db, tmp_path) as (typed, _):
        said = await typed("doctor", "-o", "json", env={"HOLDFAST_ACME_RESOLVERS": "127.0.0.1:1"})
        [row] = [row for row in said.json if row["check"] == "DNS"]
        assert (said.code, row["level"], "acme.resolvers" in row["fix"]) == (10, "bad", True)


# ── challenge test ──


@asynccontextmanager
async def a_zone() -> AsyncIterator[DnsServer]:
    async with DnsServer() as names:
        names.add("example.com", "SOA", f"{SOA} 60")
        names.add("example.com", "NS", "ns.example.com.")
        names.add("ns.example.com", "A", "127.0.0.1")
        names.add("www.example.com", "A", "127.0.0.1")
        yield names


def a_preflight(names: DnsServer, *, http_port: int = 1, **more: Any) -> Preflight:
    looks = ValidationSettings(
        resolvers=(names.address,), http_port=http_port, allowed_networks=("127.0.0.0/8",), timeout=PATIENCE, **more
    )
    return Preflight(net=SystemNet(), clock=SystemClock(), random=SystemRandom(), looks=looks, dns_port=names.port)


async def looked(preflight: Preflight, name: str) -> dict[str, Finding]:
    return {each.check: each for each in await preflight.look(name)}


async def test_a_name_is_looked_at_as_a_ca_would(db: Database) -> None:
    async with a_zone() as names, Inbox() as web:
        names.add("_acme-challenge.www.example.com", "TXT", '"left over"')
        port = int(web.url("/").split(":")[2].split("/")[0])
        found = await looked(a_preflight(names, http_port=port), "www.example.com")
        assert [each.level for each in found.values()] == [Level.OK] * 4
        assert found["address"].saw == "127.0.0.1"
        assert "/.well-known/acme-challenge/TOKEN" in found["http-01"].saw
        assert found["dns-01"].saw == "1 name servers, 1 TXT record there now"
        assert found["caa"].saw == "no CAA record: every CA may issue"


async def test_what_is_in_the_way_is_named_with_its_fix(db: Database) -> None:
    async with a_zone() as names:
        names.add("example.com", "CAA", '0 issue ";"')
        names.add("other.example.com", "SOA", f"{SOA} 60")
        found = await looked(a_preflight(names), "nowhere.example.com")
        assert is_bad(found["address"], "no A and no AAAA")
        assert is_bad(found["http-01"])
        assert is_bad(found["caa"], "names no CA")
        wild = await looked(a_preflight(names), "*.example.com")
        assert set(wild) == {"dns-01", "caa"}  # a wildcard is proved by DNS alone
        names.remove("example.com", "CAA")
        names.add("example.com", "CAA", '0 issue "letsencrypt.org"')
        assert "letsencrypt.org" in (await looked(a_preflight(names), "www.example.com"))["caa"].saw
        names.alias("_acme-challenge.www.example.com", "proofs.example.com")
        assert "alias of proofs.example.com" in (await looked(a_preflight(names), "www.example.com"))["dns-01"].saw


async def test_only_what_the_solver_of_a_name_needs_is_looked_at() -> None:
    """Here no web server answers, and no zone but example.com is there."""
    solvers = [
        {"kind": "dns-hook", "names": ["*.dark.test"], "zone": "dark.test.", "propagation": False},
        {"kind": "dns-hook", "names": ["*.elsewhere.test"], "zone": "example.com"},
        {"kind": "dns-rfc2136", "names": ["*.example.com"], "zone": "example.com"},
        {"kind": "tls-alpn", "names": ["www.example.com"]},
        {"kind": "webroot", "names": "none"},
    ]
    async with a_zone() as names:
        names.add("_acme-challenge.a.dark.test", "A", "127.0.0.1")
        names.add("_acme-challenge.a.elsewhere.test", "A", "127.0.0.1")
        preflight = replace(a_preflight(names), solvers=solvers)
        zone = await looked(preflight, "www.example.com")
        assert [each.level for each in zone.values()] == [Level.OK] * 3
        assert zone["solver"].saw == "dns-rfc2136: it is proved by dns-01"
        assert zone["dns-01"].saw.startswith("1 name servers")
        dark = await looked(preflight, "a.dark.test")
        assert (set(dark), dark["dns-01"].level) == ({"solver", "dns-01", "caa"}, Level.NOTE)
        assert (
            dark["dns-01"].saw == "the record goes to the zone dark.test, and is not looked for (propagation = false)"
        )
        elsewhere = await looked(preflight, "a.elsewhere.test")
        assert is_bad(elsewhere["dns-01"], "_acme-challenge.a.elsewhere.test is not in the zone example.com")
        alpn = await looked(replace(preflight, solvers=solvers[3:]), "www.example.com")
        assert (set(alpn), alpn["solver"].saw) == (
            {"solver", "address", "caa"},
            "tls-alpn: it is proved by tls-alpn-01",
        )
        bare = replace(preflight, solvers=[])
        web = await looked(bare, "www.example.com")
        assert (set(web), web["solver"].saw) == (
            {"solver", "address", "http-01", "caa"},
            "http: it is proved by http-01",
        )
        assert is_bad((await looked(bare, "*.example.com"))["solver"], "a wildcard is proved by dns-01 alone")


async def test_the_command_looks_at_every_name_of_a_certificate(db: Database, tmp_path: Path) -> None:
    async with a_zone() as names, a_terminal(db, tmp_path, works=False) as typed:
        await typed.ok("issue", "www.example.com", "api.example.com")
        env = {"HOLDFAST_ACME_RESOLVERS": names.address, "HOLDFAST_ACME_HTTP_PORT": "1"}
        said = await typed("challenge", "test", "www.example.com", "-o", "json", env=env)
        assert said.code == 10
        assert {row["about"] for row in said.json} == {"www.example.com", "api.example.com"}
        unknown = await typed("challenge", "test", "nobody.example.com", "-o", "json", env=env)
        assert {row["about"] for row in unknown.json} == {"nobody.example.com"}
