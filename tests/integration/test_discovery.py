"""Discovery from the server: real servers on loopback are found, told of, adopted and ignored, on both stores."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support import served
from tests.support.api import Asker, Desk, a_desk
from tests.support.ports import free_port

from holdfast.core.access import Role
from holdfast.core.discovery.find import FindSource
from holdfast.core.discovery.network import AT_ONCE, NETWORKS_SETTING, ScanRules
from holdfast.endpoints import probe
from holdfast.engine.discovery import duties, network, rounds
from holdfast.engine.notifications import duties as notification_duties
from holdfast.network import SystemNet
from holdfast.operations.discovery.discoveries import DISCOVER
from holdfast.operations.installation import observe
from holdfast.store.database import Database
from holdfast.telemetry import Metrics
from holdfast.world import SystemRandom

pytestmark = pytest.mark.anyio
LOOPBACK = ("127.0.0.0/24",)
NAME = "served.example.org"


@dataclass
class Ground:
    desk: Desk
    admin: Asker

    @property
    def db(self) -> Database:
        return self.desk.house.db

    def kinds(self, networks: tuple[str, ...] = LOOPBACK) -> list[Any]:
        eye = probe.make(SystemNet(), SystemRandom(), resolvers=[], networks=networks, each=5, only=NETWORKS_SETTING)
        return [rounds.kind(self.db, SystemRandom(), {FindSource.NETWORK: network.scan(eye)})]

    async def scanned(self, *where: str, ports: list[int], **more: Any) -> Any:
        """A scan, worked to its end."""
        begun = await self.admin.post("/discovery/network", {"where": list(where), "ports": [*map(str, ports)], **more})
        return await self.finished(begun["id"])

    async def found(self, *names: str, days: float = 60) -> None:
        """A server with a certificate for these names is scanned."""
        with served.open_folder() as folder, served.nginx(folder, served.Issuing(folder).pair(*names, days=days)) as at:
            await self.scanned("127.0.0.1", ports=[at])

    async def finished(self, discovery: str, *states: str) -> Any:
        async def over() -> bool:
            return await self.state(discovery) in (states or ("done", "resting", "failed"))

        async with self.desk.house.working(kinds=self.kinds(), only=True):
            await self.desk.house.until(over)
        return await self.admin.get(f"/discovery/runs/{discovery}")

    async def state(self, discovery: str) -> str:
        return str((await self.admin.get(f"/discovery/runs/{discovery}"))["state"])

    async def finds(self, **query: Any) -> list[Any]:
        return list((await self.admin.get("/finds", **query))["items"])

    async def told(self) -> list[str]:
        rows = await self.db.read(lambda tx: tx.rows("SELECT title, event FROM notifications ORDER BY id"))
        return [row["title"] for row in rows if row["event"].startswith(("find", "discovery"))]


@pytest.fixture
async def ground(db: Database, tmp_path: Path) -> AsyncIterator[Ground]:
    async with a_desk(db, tmp_path, offers={"scanning": ScanRules(networks=LOOPBACK, rate=1000)}) as desk:
        yield Ground(desk, await desk.as_())


async def test_a_served_certificate_is_found_counted_told_of_and_ignored_until_the_number_is_0(ground: Ground) -> None:
    with served.open_folder() as folder:
        pair = served.Issuing(folder).pair(NAME, days=10)
        with served.nginx(folder, pair) as port:
            done = await ground.scanned("127.0.0.0/29", ports=[port])
    assert (done["state"], done["done"], done["total"]) == ("done", 6, 6)
    assert (done["counts"]["tried"], done["counts"]["certificates"], done["counts"]["refused"]) == (6, 1, 5)
    [found] = await ground.finds()
    assert (found["fingerprint"], found["names"], found["chain"]) == (pair.leaf, [NAME], list(pair.chain))
    assert (found["where"], found["served"], found["manager"]) == (f"tls://127.0.0.1:{port}", True, "unknown")
    assert found["days_left"] == 9
    assert found["adopt"] == f"holdfast finds adopt {found['id']}"
    assert (await ground.admin.get("/discovery"))["unmanaged"] == 1
    assert await ground.told() == ["1 certificate is served and not managed here"]
    attention = await ground.admin.get("/attention")
    assert attention["unmanaged"] == 1
    assert [each["what"] for each in attention["items"] if each["what"] != "dead-letters"] == ["finds", "find"]
    assert await _metric(ground) == 1
    ignored = await ground.admin.post(f"/finds/{found['id']}/ignore", {"reason": "A printer."})
    assert (ignored["state"], ignored["why"], ignored["decided_by"]) == ("ignored", "A printer.", "human:admin")
    assert (await ground.admin.get("/discovery"))["unmanaged"] == 0
    assert await _metric(ground) == 0
    assert {each["what"] for each in (await ground.admin.get("/attention"))["items"]} == {"dead-letters"}
    again = await ground.admin("POST", f"/finds/{found['id']}/ignore", {"reason": "x"})
    assert (again.status_code, again.json()["code"]) == (409, "find-settled")
    back = await ground.admin.post(f"/finds/{pair.leaf[:12]}/reconsider")
    assert (back["state"], back["why"], back["decided_by"]) == ("new", "", "")


async def _metric(ground: Ground) -> float:
    seen = await ground.db.read(lambda tx: observe.look(tx, series=10, last_event=None))
    metrics = Metrics()
    observe.show(seen, metrics)
    return metrics.registry.get_sample_value("holdfast_certificates_unmanaged") or 0.0


async def test_what_is_not_seen_any_more_is_gone_and_what_comes_back_is_as_it_was_decided(ground: Ground) -> None:
    with served.open_folder() as folder:
        pair, port = served.Issuing(folder).pair(NAME), free_port()
        with served.nginx(folder, pair, port=port):
            begun = await ground.scanned("127.0.0.1", ports=[port], every_s=3600)
            assert begun["state"] == "resting"
        [found] = await ground.finds()
        await ground.admin.post(f"/finds/{found['id']}/ignore", {"reason": "A printer."})
        await ground.admin.post(f"/discovery/runs/{begun['id']}/again")
        await ground.finished(begun["id"])
        [gone] = await ground.finds()
        assert (gone["state"], gone["served"], gone["places"]) == ("gone", False, 0)
        [place] = (await ground.admin.get(f"/finds/{gone['id']}"))["seen"]
        assert place["gone_at"] is not None
        with served.nginx(folder, pair, port=port):
            await ground.admin.post(f"/discovery/runs/{begun['id']}/again")
            await ground.finished(begun["id"])
        [back] = await ground.finds()
        assert (back["state"], back["why"], back["id"]) == ("ignored", "A printer.", found["id"])


async def test_an_adopted_find_becomes_a_certificate_by_the_rules_of_every_other(ground: Ground) -> None:
    with served.open_folder() as folder:
        pair = served.Issuing(folder).pair(NAME, "other.example.org")
        with served.nginx(folder, pair) as port:
            await ground.scanned("127.0.0.1", ports=[port])
    [found] = await ground.finds()
    adopted = await ground.admin.post(f"/finds/{found['id']}/adopt", {"owner": "web", "issuers": ["ca"]})
    assert (adopted["state"], adopted["certificate"]) == ("adopted", NAME)
    wanted = await ground.admin.get(f"/certificates/{NAME}")
    assert (wanted["names"], wanted["owner"]) == ([NAME, "other.example.org"], "web")
    assert (await ground.admin.get("/discovery"))["unmanaged"] == 0
    twice = await ground.admin("POST", f"/finds/{found['id']}/adopt", {})
    assert twice.json()["code"] == "find-settled"


async def test_a_find_is_not_adopted_if_a_policy_does_not_let_its_names_through(ground: Ground) -> None:
    await ground.admin.post("/policies", {"policy": "theirs", "owners": ["them"], "names": ["*.theirs.example"]})
    operator = await ground.desk.as_(Role.OPERATOR)
    await ground.found("www.theirs.example")
    [found] = await ground.finds()
    refused = await operator("POST", f"/finds/{found['id']}/adopt", {"issuers": ["ca"], "owner": "web"})
    assert (refused.status_code, refused.json()["code"]) == (403, "name-not-allowed"), refused.text
    assert "www.theirs.example" in refused.text
    [still] = await ground.finds()
    assert (still["state"], still["version"]) == ("new", found["version"]), "nothing was changed"
    assert (await ground.admin.get("/certificates"))["items"] == []


async def test_a_version_of_ours_that_is_served_is_managed_here_and_not_once_it_is_archived(ground: Ground) -> None:
    house = ground.desk.house
    async with house.working():
        await ground.admin.post("/certificates", {"names": [NAME]}, Prefer="wait=30")
    view = await house.view(NAME)
    assert view.current is not None
    with served.open_folder() as folder:
        chain, key = folder / "chain.pem", folder / "key.pem"
        chain.write_text(view.current.chain_pem)
        key.write_bytes((await house.key_of(view)).reveal())
        async with _shown(chain, key) as port:
            await ground.scanned("127.0.0.1", ports=[port])
    [found] = await ground.finds()
    assert (found["manager"], found["certificate"], found["adopt"], found["ignore"]) == ("holdfast", NAME, "", "")
    assert (await ground.admin.get("/discovery"))["unmanaged"] == 0
    assert await ground.told() == []
    refused = await ground.admin("POST", f"/finds/{found['id']}/adopt", {})
    assert "is a version of a certificate here" in refused.text
    assert (await ground.admin("DELETE", f"/certificates/{NAME}")).status_code < 300
    assert await duties.review_finds(ground.db) == 1
    [after] = await ground.finds()
    assert (after["manager"], after["certificate"]) == ("unknown", None)
    assert (await ground.admin.get("/discovery"))["unmanaged"] == 1


@asynccontextmanager
async def _shown(chain: Path, key: Path) -> AsyncIterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, key)
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


# ── Alerts ──


async def test_people_are_told_of_an_expiring_find_once_and_of_its_end(ground: Ground) -> None:
    await ground.found(NAME, days=2)
    assert await duties.tell_ends(ground.db) == 1
    assert await duties.tell_ends(ground.db) == 0
    assert await ground.told() == [
        "1 certificate is served and not managed here", f"{NAME} was found, and expires in 48 hours",
    ]  # fmt: skip
    [found] = await ground.finds()
    await ground.admin.post(f"/finds/{found['id']}/ignore", {"reason": "It is replaced in May."})
    open_keys = await _open(ground)
    assert open_keys == [f"find/{found['id']}", "finds/unmanaged"]
    await notification_duties.watch(ground.db, timedelta(minutes=5))
    assert await _open(ground) == []


async def _open(ground: Ground) -> list[str]:
    rows = await ground.db.read(lambda tx: tx.rows("SELECT key FROM outages ORDER BY key"))
    return [row["key"] for row in rows]


# ── Scans: how far, stopped, killed, refused ──


async def test_a_scan_goes_on_after_a_kill_from_the_step_that_was_under_way(ground: Ground) -> None:
    begun = await ground.admin.post("/discovery/network", {"where": ["127.0.0.0/25"], "ports": [str(free_port())]})
    at, dials = begun["id"], list[str]()
    eye = probe.make(_Hanging(dials), SystemRandom(), resolvers=[], networks=LOOPBACK, each=5)
    kind = rounds.kind(ground.db, SystemRandom(), {FindSource.NETWORK: network.scan(eye)})
    async with ground.desk.house.working(kinds=[kind], only=True):
        await ground.desk.house.until(lambda: len(dials) > AT_ONCE)
    half = await ground.admin.get(f"/discovery/runs/{at}")
    assert (half["state"], half["done"], half["total"]) == ("running", AT_ONCE, 126)
    await ground.db.write(lambda tx: tx.run("UPDATE jobs SET state = 'ready', holder = NULL, lease_until = NULL"))
    done = await ground.finished(at)
    assert (done["done"], done["counts"]["tried"], done["counts"]["refused"]) == (126, 126, 126)


class _Hanging(SystemNet):
    """A network whose connections hang after the first step, as those of a process that is about to be killed."""

    def __init__(self, dials: list[str]) -> None:
        super().__init__()
        self._dials = dials

    async def connect(self, host: str, *arguments: Any, **more: Any) -> Any:
        self._dials.append(host)
        if len(self._dials) > AT_ONCE:
            await asyncio.Event().wait()
        return await super().connect(host, *arguments, **more)


async def test_a_stopped_scan_makes_no_further_step_and_can_begin_again(ground: Ground) -> None:
    begun = await ground.admin.post("/discovery/network", {"where": ["127.0.0.0/25"], "ports": [str(free_port())]})
    stopped = await ground.admin.post(f"/discovery/runs/{begun['id']}/stop")
    assert (stopped["state"], stopped["done"], stopped["next_at"]) == ("stopped", 0, None)
    refused = await ground.admin("POST", f"/discovery/runs/{begun['id']}/stop")
    assert refused.json()["code"] == "discovery-busy"
    await ground.admin.post(f"/discovery/runs/{begun['id']}/again")
    assert (await ground.finished(begun["id"]))["done"] == 126
    assert (await ground.admin("DELETE", f"/discovery/runs/{begun['id']}")).status_code < 300
    assert (await ground.admin("GET", f"/discovery/runs/{begun['id']}")).json()["code"] == "no-such-discovery"


async def test_a_step_under_way_writes_nothing_once_the_scan_is_stopped(ground: Ground) -> None:
    with served.open_folder() as folder, served.nginx(folder, served.Issuing(folder).pair(NAME)) as port:
        begun = await ground.admin.post("/discovery/network", {"where": ["127.0.0.1"], "ports": [str(port)]})
        gate, reached = asyncio.Event(), asyncio.Event()
        eye = probe.make(SystemNet(), SystemRandom(), resolvers=[], networks=LOOPBACK, each=5)

        async def held(row: Any) -> Any:
            done = await network.scan(eye)(row)
            reached.set()
            await gate.wait()
            return done

        kind = rounds.kind(ground.db, SystemRandom(), {FindSource.NETWORK: held})
        async with ground.desk.house.working(kinds=[kind], only=True):
            await reached.wait()
            await ground.admin.post(f"/discovery/runs/{begun['id']}/stop")
            gate.set()
            await ground.desk.house.until_no_job(DISCOVER)
    assert await ground.finds() == []
    assert await ground.state(begun["id"]) == "stopped"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"where": ["10.0.0.0/24"]}, "10.0.0.0/24 may not be scanned: discovery.networks lists 127.0.0.0/24"),
        ({"where": ["127.0.0.0/8"]}, "may not be scanned"),
        ({"where": ["169.254.169.254"]}, "may not be scanned"),
        ({"where": ["127.0.0.0/33"]}, "is no network"),
        ({"where": ["127.0.0.1"], "ports": ["gopher:70"]}, "is not a protocol"),
        ({"where": ["127.0.0.1"], "ports": ["0"]}, "is no port"),
        ({"where": []}, "where"),
        ({"where": ["127.0.0.1"] * 257}, "where"),
        ({"where": ["127.0.0.1"], "every_s": 1}, "every_s"),
    ],
)
async def test_a_scan_that_may_not_be_is_refused_and_says_which_setting_or_field(
    ground: Ground, body: dict[str, Any], said: str
) -> None:
    answer = await ground.admin("POST", "/discovery/network", body)
    assert 400 <= answer.status_code < 500, answer.text
    assert said in answer.text
    assert (await ground.admin.get("/discovery/runs"))["items"] == []


async def test_a_name_that_leads_outside_of_the_listed_networks_is_not_dialled(ground: Ground) -> None:
    """localhost is 127.0.0.1 and ::1, and only the first is listed."""
    done = await ground.scanned("localhost", ports=[free_port()])
    assert (done["counts"]["not permitted"], done["counts"]["refused"]) == (1, 1)


async def test_there_are_at_most_a_hundred_discoveries(ground: Ground) -> None:
    for _ in range(100):
        await ground.admin.post("/discovery/network", {"where": ["127.0.0.1"]})
    refused = await ground.admin("POST", "/discovery/network", {"where": ["127.0.0.1"]})
    assert refused.json()["code"] == "discovery-refused"
    assert "There are 100 discoveries already." in refused.text


# ── Hostile servers ──


def _garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x16\x03\x03" + b"\xff" * 100_000)


def _silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Nothing is said."""


def _goodbye(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


@pytest.mark.parametrize("talk", [_garbage, _goodbye])
async def test_a_hostile_server_is_counted_and_the_scan_goes_on(ground: Ground, talk: Callable[..., None]) -> None:
    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        done = await ground.scanned("127.0.0.0/30", ports=[server.sockets[0].getsockname()[1]])
    assert (done["state"], done["counts"]["tried"], done["counts"]["certificates"]) == ("done", 2, 0)
    assert await ground.finds() == []
