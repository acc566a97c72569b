"""A replica that is taken out of work: it ends what it has, takes nothing more, says so, and goes on when it may."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest
from tests.integration.test_leader import Race
from tests.support.api import Desk, a_desk
from tests.support.engine import Blocked, eventually, kind, row, working
from tests.support.jobs import enqueue
from tests.support.lifecycle import a_house

from holdfast.operations.acme.handover import Handover
from holdfast.operations.installation import cluster
from holdfast.operations.installation.cluster import AmbiguousReplica, LastReplica, NoSuchReplica
from holdfast.store import journal
from holdfast.store.database import Database
from holdfast.store.work import cluster as cluster_rows
from holdfast.telemetry import Health

pytestmark = pytest.mark.anyio
BRISK = timedelta(seconds=3)  # a heartbeat each second


def told(db: Database, name: str) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return name in [each.name for each in await db.read(lambda tx: journal.events_after(tx, 0))]

    return look


async def test_a_drained_replica_ends_what_it_has_takes_nothing_more_and_says_so(db: Database, tmp_path: Path) -> None:
    write, blocked, handover = (await a_house(db, tmp_path)).write, Blocked(), Handover()
    await enqueue(db, "first")
    async with working(db, [kind("k", blocked)], ttl=BRISK, handover=handover) as running:
        await eventually(lambda: blocked.began)
        asked = await write(cluster.drain, "worker-a", answering="", actor="human:ann", why="kernel", even_last=True)
        assert (asked.replica.draining, asked.running, asked.drained) == (True, 1, False)
        await eventually(lambda: running.worker.rests and not running.worker._claiming)  # none is on its way
        assert handover.taker is not None
        assert handover.taker.room_for("k") == 0
        late = await enqueue(db, "late")
        [seen] = await db.read(cluster_rows.all_replicas)
        assert not await told(db, "replica.drained")(), "it still has a job"
        assert seen.draining
        blocked.go.set()
        await eventually(told(db, "replica.drained"))
        assert (await row(db, late))["attempts"] == 0
        assert "no more work" in running.watch.telemetry.health.readiness()
        again = await write(cluster.drain, "worker-a", answering="", actor="human:ann")
        assert again.drained, "and to ask again is no mistake"
        await write(cluster.resume, "self", answering="worker-a", actor="human:ann")
        await eventually(lambda: len(blocked.began) == 2)
        assert not running.worker.rests
        await running.drained()
    audits = [(each.actor, each.action) for each in await db.read(lambda tx: journal.audit_page(tx, 0))]
    of_replicas = [each for each in audits if each[1].startswith("replica_")]
    assert of_replicas == [
        ("human:ann", "replica_drain_asked"), ("system", "replica_drained"), ("human:ann", "replica_resumed"),
    ]  # fmt: skip


async def test_the_last_replica_at_work_is_drained_only_by_whoever_says_so(db: Database, tmp_path: Path) -> None:
    write = (await a_house(db, tmp_path)).write
    for name in ("alpha", "beta"):
        await db.write(
            lambda tx, name=name: cluster_rows.replica_seen(tx, f"replica_{name}", name, "1", draining=False)
        )  # type: ignore[misc]
    await write(cluster.drain, "replica_alp", answering="", actor="human:ann")
    with pytest.raises(LastReplica, match="beta is the last"):
        await write(cluster.drain, "beta", answering="", actor="human:ann")
    assert (await write(cluster.drain, "beta", answering="", actor="human:ann", even_last=True)).replica.draining
    for unknown in ("gamma", "replica_", "rep"):
        with pytest.raises(NoSuchReplica):
            await write(cluster.drain, unknown, answering="", actor="human:ann")


async def test_what_was_asked_of_a_replica_outlives_its_heartbeats_and_not_its_process(db: Database) -> None:
    await db.write(lambda tx: cluster_rows.replica_seen(tx, "h1", "pod", "1", draining=False))
    assert await db.write(lambda tx: cluster_rows.ask_to_drain(tx, "h1", draining=True))
    assert not await db.write(lambda tx: cluster_rows.ask_to_drain(tx, "h1", draining=True))
    assert (await db.write(lambda tx: cluster_rows.replica_seen(tx, "h1", "pod", "1", draining=False))).draining
    assert not (await db.write(lambda tx: cluster_rows.replica_seen(tx, "h2", "pod", "1", draining=False))).draining
    assert await db.write(lambda tx: cluster_rows.ask_to_drain(tx, "h1", draining=False))
    assert not (await db.write(lambda tx: cluster_rows.replica_seen(tx, "h1", "pod", "1", draining=False))).draining


async def test_a_replica_that_rests_leaves_the_lead_to_another(db: Database) -> None:
    race, rests = Race(db, "a", BRISK), asyncio.Event()
    race.leader._may_lead = lambda: not rests.is_set()
    async with race.running():
        await eventually(race.leader.leads)
        rests.set()
        await eventually(lambda: not race.leader.leads())

        async def free() -> bool:
            return await db.read(cluster_rows.held_leases) == []

        await eventually(free)
        rests.clear()
        await eventually(race.leader.leads)


def test_a_replica_that_was_asked_to_rest_is_not_ready() -> None:
    health = Health(store_problem="")
    for phase in ("settings", "store", "schema", "keys", "engine", "serving"):
        health.enter(phase)  # type: ignore[arg-type]
    assert health.readiness() == ""
    health.rests = True
    assert health.readiness() == "draining: this replica was asked to take no more work"


# ── by the API and at a terminal ──


async def heartbeat(db: Database, holder: str, name: str, *, rests: bool) -> None:
    loops = json.dumps({cluster_rows.HEARTBEAT: {"tried": 0, "period": 10, "rests": rests, "ahead": 1.25}})
    await db.write(lambda tx: cluster_rows.replica_seen(tx, holder, name, "1", draining=False, loops=loops))


async def test_by_the_api_a_replica_is_drained_by_name_prefix_or_as_the_one_that_answers(
    db: Database, tmp_path: Path
) -> None:
    async with a_desk(db, tmp_path) as desk:
        await heartbeat(db, "replica_1", "alpha", rests=False)
        admin = await desk.as_()
        refused = await admin("POST", "/cluster/replicas/alpha/drain")
        assert (refused.status_code, refused.json()["code"]) == (409, "last-replica")
        nobody = await admin("POST", "/cluster/replicas/self/drain")
        assert (nobody.status_code, nobody.json()["code"]) == (404, "no-such-replica")
        asked = await admin.post("/cluster/replicas/alpha/drain", {"even_last": True, "why": "kernel"})
        assert (asked["name"], asked["draining"], asked["drained"], asked["clock_ahead_s"]) == (
            "alpha",
            True,
            False,
            1.25,
        )
        await heartbeat(db, "replica_1", "alpha", rests=True)
        [seen] = (await admin.get("/cluster"))["replicas"]
        assert (seen["draining"], seen["drained"], seen["running"]) == (True, True, 0)
        tried = await admin("POST", "/cluster/replicas/alpha/resume", dry_run=True)
        assert (tried.json()["draining"], await _draining(desk)) == (False, True)
        assert not (await admin.post("/cluster/replicas/replica_1/resume"))["draining"]
        [audited] = (await admin.get("/audit", action="replica_drain_asked"))["items"]
        assert (audited["actor"], audited["details"]["why"]) == ("human:admin", "kernel")
        assert audited["before"] != audited["after"]


async def _draining(desk: Desk) -> bool:
    [found] = await desk.house.db.read(cluster_rows.all_replicas)
    return found.draining


async def test_a_name_that_two_replicas_have_drains_neither(db: Database, tmp_path: Path) -> None:
    write = (await a_house(db, tmp_path)).write
    for holder in ("replica_one", "replica_two"):
        await db.write(
            lambda tx, holder=holder: cluster_rows.replica_seen(tx, holder, "vm", "1", draining=False)  # type: ignore[misc]
        )
    with pytest.raises(AmbiguousReplica, match="replica_one, replica_two") as refused:
        await write(cluster.drain, "vm", answering="", actor="human:ann")
    assert "HOLDFAST_REPLICA_NAME" in refused.value.hint
    assert (await write(cluster.drain, "replica_two", answering="", actor="human:ann")).replica.draining
