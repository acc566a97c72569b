"""The inventory in numbers, as far as each may see it; the cluster; jobs that are run now; decided approvals."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.api import Desk, a_desk
from tests.support.engine import eventually
from tests.support.stores import migrated, open_store

from holdfast.core.access import Role
from holdfast.core.inventory import Grid, InventoryFilter, grid_around
from holdfast.core.work.job import JobFailed, Spec
from holdfast.engine.loop import Loop
from holdfast.errors import TryLater
from holdfast.operations.certificates.views import views_of
from holdfast.store import inventory, statistics
from holdfast.store.database import Database
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.tx import Row, Session, Tx
from holdfast.store.work import jobs
from holdfast.world import SystemClock, SystemRandom

pytestmark = pytest.mark.anyio
TTL = timedelta(seconds=30)


# ── Numbers ──


async def _grown(desk: Desk) -> None:
    """Three that are kept and one that fails, of two owners; ends 90 days from now."""
    ask = await desk.as_()
    async with desk.house.working():
        for name, owner, team in (("a", "mine", "web"), ("b", "mine", "WEB"), ("c", "theirs", "web")):
            wish = {"names": [f"{name}.example.com"], "owner": owner, "labels": {"team": team}}
            await ask.post("/certificates", wish, Prefer="wait=30")
        desk.house.cas["ca"].always["place"] = TryLater("away", reason="CA_DOWN")
        wish = {"names": ["d.example.com"], "owner": "theirs", "approval_required": True}
        await ask.post("/certificates", wish)
        await ask("DELETE", "/certificates/b.example.com")


async def test_numbers_are_of_what_the_asker_may_see(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        await _grown(desk)
        admin = await desk.as_()
        mine = await desk.as_(Role.VIEWER, owners=("mine",))
        web = await desk.as_(Role.AGENT, labels={"team": "web"})
        whole = await admin.get("/stats/summary")
        assert whole["certificates"] == {"active": 3, "archived": 1}
        assert (whole["never_issued"], whole["awaiting_approval"], whole["expiring"]["90"]) == (1, 1, 2)
        assert whole["notifications_dead"] == 1  # that of the approval which nobody hears of
        part = await mine.get("/stats/summary")
        assert part["notifications_dead"] is None
        assert part["certificates"] == {"active": 1, "archived": 1}
        assert (part["awaiting_approval"], part["expiring"]["90"], part["jobs"]) == (0, 1, {})
        assert (await web.get("/stats/summary"))["certificates"] == {"active": 2}  # to the letter: not WEB

        assert await _sums(admin) == (2, 3, 3)
        assert await _sums(mine) == (1, 2, 2)
        assert await _sums(web) == (2, 2, 2)


async def _sums(ask: Any) -> tuple[int, int, int]:
    """Certificates that end in the next 91 days, attempts that ended, certificates issued."""
    ends = await ask.get("/stats/expiry", number=91)
    ended = await ask.get("/stats/outcomes", by="hour", number=2)
    issued = await ask.get("/stats/issuance-rate", by="hour", number=2)
    assert len(ends) == 91
    assert all(each["mean_s"] <= each["longest_s"] for each in issued)
    return (
        sum(each["expiring"] for each in ends),
        sum(each["issued"] for each in ended),
        sum(each["issued"] for each in issued),
    )


async def test_outcomes_say_why_attempts_failed(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        alice, bob = await desk.as_(name="alice"), await desk.as_(name="bob")
        made = await alice.post("/certificates", {"names": ["a.example.com"], "approval_required": True})
        [waiting] = (await bob.get("/approvals"))["items"]
        await bob.post(f"/approvals/{waiting['id']}/reject", {"note": "not this one"})
        [_, last] = await bob.get("/stats/outcomes", by="hour", number=2)
        found = last if last["failed"] else _
        assert (found["failed"], found["reasons"]) == (1, {"APPROVAL_REJECTED": 1})
        assert (await bob.get("/approvals"))["items"] == []
        [decided] = (await bob.get("/approvals", state="rejected"))["items"]
        assert (decided["decided_by"], decided["note"]) == ("human:bob", "not this one")
        assert await bob.get(f"/approvals/{waiting['id']}") == decided
        assert decided["certificate"] == made["id"]


def test_a_grid_begins_at_full_days_and_ends_with_the_one_that_is_now() -> None:
    now = datetime(2030, 3, 10, 15, 30, tzinfo=UTC)
    back, ahead = grid_around(now, "day", 3, back=True), grid_around(now, "week", 2, back=False)
    assert (back.start, back.begins(2)) == (datetime(2030, 3, 8, tzinfo=UTC), datetime(2030, 3, 10, tzinfo=UTC))
    assert (ahead.start, ahead.end) == (datetime(2030, 3, 10, tzinfo=UTC), datetime(2030, 3, 24, tzinfo=UTC))
    assert grid_around(now, "hour", 1, back=True).start == datetime(2030, 3, 10, 15, tzinfo=UTC)
    with pytest.raises(ValueError, match="at most 1000"):
        Grid(start=now, step=timedelta(days=1), number=1001)


# ── How much is read for one answer ──


class Noting:
    """A session that remembers what was asked of it."""

    def __init__(self, session: Session) -> None:
        self._session, self.asked, self.epoch = session, list[tuple[str, Mapping[str, Any]]](), session.epoch

    def query(self, sql: str, params: Mapping[str, Any]) -> list[Row]:
        self.asked.append((sql, params))
        return self._session.query(sql, params)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


SOON = datetime(2100, 1, 1, tzinfo=UTC)
PAGES: dict[str, dict[str, Any]] = {
    "first": {"wanted": InventoryFilter()},
    "next": {"wanted": InventoryFilter(), "after": ("m", "certificate_1")},
    "of one owner": {"wanted": InventoryFilter(owners=("web",))},
    "expiring": {"wanted": InventoryFilter(expires_before=SOON), "sort": "expires"},
    "expiring, next": {
        "wanted": InventoryFilter(expires_before=SOON),
        "sort": "expires",
        "after": (1, "certificate_1"),
    },
}


@pytest.mark.parametrize("page", PAGES)
async def test_a_page_costs_what_a_page_costs_however_many_there_are(tmp_path: Path, page: str) -> None:
    """No statement of it walks over a table, or sorts one; and there are five of them, whatever is on the page."""
    db = await migrated(open_store(SqliteEngine(tmp_path / "s.sqlite", SystemClock())))

    def read(tx: Tx) -> list[tuple[str, str]]:
        noting = Noting(tx._session)
        noted = Tx(noting)
        views_of(noted, inventory.find(noted, PAGES[page]["wanted"], limit=50, **_rest(page)))
        return [
            (sql, step["detail"])
            for sql, params in noting.asked
            for step in tx.rows(f"EXPLAIN QUERY PLAN {sql}", **params)
        ]

    await db.write(_some)
    steps = await db.read(read)
    await db.close()
    bad = [step for step in steps if step[1].startswith("SCAN certificate") and "USING INDEX" not in step[1]]
    assert bad == []
    assert [step for step in steps if "TEMP B-TREE FOR ORDER BY" in step[1]] == []


async def test_numbers_of_everything_are_counted_from_indexes(tmp_path: Path) -> None:
    """Over all certificates, and without reading one: chains are long, and there may be a hundred thousand."""
    db = await migrated(open_store(SqliteEngine(tmp_path / "s.sqlite", SystemClock())))

    def read(tx: Tx) -> list[str]:
        noting = Noting(tx._session)
        everything, grid = InventoryFilter(whatever_state=True), grid_around(tx.now(), "day", 9, back=False)
        statistics.summary(Tx(noting), everything)
        statistics.expiry(Tx(noting), everything, grid)
        statistics.outcomes(Tx(noting), everything, grid)
        statistics.rates(Tx(noting), everything, grid)
        return [
            step["detail"] for sql, params in noting.asked for step in tx.rows(f"EXPLAIN QUERY PLAN {sql}", **params)
        ]

    steps = await db.read(read)
    await db.close()
    few = ("certificates_failing", "certificates_never_issued", "issuances_under_way")  # indexes of what is rare
    walks = [step for step in steps if not any(each in step for each in few)]
    walks = [step for step in walks if "certificate" in step or "issuances" in step]
    assert len(walks) >= 12
    assert [step for step in walks if "COVERING INDEX" not in step] == []
    assert [step for step in walks if "versions" in step] == []


def _rest(page: str) -> dict[str, Any]:
    return {name: value for name, value in PAGES[page].items() if name != "wanted"}


def _some(tx: Tx) -> None:
    """Enough for a page to have something on it."""
    tx.run(
        """INSERT INTO certificates (id, name, identifiers, key_kind, issuers, state, owner, changed_by, created_at,
                                     fingerprint, current_version)
           VALUES ('certificate_1', 'a', '[["dns", "a.example.com"]]', 'ec-p256', '["ca"]', 'active', 'web', 'x', 1,
                   'f', NULL)"""
    )


# ── The cluster ──


async def test_the_cluster_shows_replicas_and_how_each_loop_ended_last(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask, watch = await desk.as_(Role.VIEWER), desk.house.watch

        async def well() -> None: ...

        async def ill() -> None:
            raise ValueError("no room")

        async with desk.house.working():
            for name, duty in (("fine", well), ("sick", ill)):
                loop = Loop(
                    name, timedelta(minutes=1), duty, drain=TTL, clock=SystemClock(), random=SystemRandom(),
                    telemetry=watch.telemetry, may_tick=lambda: True,
                )  # fmt: skip
                assert loop.tick()

            async def told() -> bool:
                return len((await ask.get("/cluster"))["loops"]) == 2

            await eventually(told)
            found = await ask.get("/cluster")
            [replica] = found["replicas"]
            fine, sick = found["loops"]
            assert (fine["name"], fine["error"], fine["replica"]) == ("fine", "", replica["name"])
            assert fine["ended_at"] < fine["next_at"]
            assert (sick["name"], sick["error"], sick["ended_at"]) == ("sick", "no room", None)


# ── Jobs ──


async def test_a_job_that_waits_is_run_now_and_a_dead_one_gets_its_attempts_back(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_()
        later = SystemClock().now() + timedelta(hours=5)
        await db.write(lambda tx: jobs.enqueue(tx, Spec(id="job_1", kind="k", subject="s", due_at=later)))
        tried = await ask("POST", "/jobs/job_1/retry", dry_run=True)
        assert datetime.fromisoformat(tried.json()["due_at"]) < later
        assert datetime.fromisoformat((await ask.get("/jobs/job_1"))["due_at"]) == later
        assert datetime.fromisoformat((await ask.post("/jobs/job_1/retry"))["due_at"]) < later
        await _ended(db, JobFailed(error="no", reason="X", wait=timedelta(hours=1)))
        assert (await ask.get("/jobs/job_1"))["state"] == "failed"
        assert (await ask.post("/jobs/job_1/retry"))["state"] == "ready"
        await _ended(db, JobFailed(error="no", reason="X", final=True))
        again = await ask.post("/jobs/job_1/retry")
        assert (again["state"], again["attempt"]) == ("ready", 0)
        actions = [each["action"] for each in (await ask.get("/audit", subject="s", actor="human:admin"))["items"]]
        assert actions == ["job_requeued", "job_hastened", "job_hastened"]


async def _ended(db: Database, how: JobFailed) -> None:
    [claim] = await db.write(lambda tx: jobs.claim(tx, holder="a", free={"k": 1}, ttl=TTL))
    await db.write(lambda tx: jobs.settle(tx, claim, how))


async def test_a_job_that_was_promised_a_turn_keeps_it_and_one_that_runs_is_left_alone(
    db: Database, tmp_path: Path
) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_()
        await db.write(lambda tx: jobs.enqueue(tx, Spec(id="job_1", kind="k", subject="s")))
        await db.write(lambda tx: tx.run("UPDATE jobs SET reason = 'BUDGET', due_at = now_us() + 3600000000"))
        turn = await ask("POST", "/jobs/job_1/retry")
        assert (turn.status_code, turn.json()["code"]) == (409, "job-waits-for-budget")
        await db.write(lambda tx: tx.run("UPDATE jobs SET reason = NULL, due_at = now_us()"))
        await db.write(lambda tx: jobs.claim(tx, holder="a", free={"k": 1}, ttl=TTL))
        assert (await ask("POST", "/jobs/job_1/retry")).json()["code"] == "job-state"
