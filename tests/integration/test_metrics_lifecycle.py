"""The gauges about certificates and CAs: what the status block says, counted by the database over all of them."""

from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.ca import opened_ca
from tests.support.jobs import update
from tests.support.lifecycle import DAY, House, a_house

from holdfast.errors import Refused
from holdfast.operations.certificates.refs import found_by
from holdfast.operations.certificates.views import views_of
from holdfast.operations.installation import observe
from holdfast.operations.installation.observe import Inventory
from holdfast.operations.issuance import attempts as issuance_attempts
from holdfast.operations.issuers import manage as manage_issuers
from holdfast.store import certificates as rows
from holdfast.store import statistics
from holdfast.store.database import Database
from holdfast.telemetry import Metrics
from holdfast.world import SystemClock

pytestmark = pytest.mark.anyio


class Ticking(SystemClock):
    """A clock whose hand moves only when it is told to."""

    at = 1000.0

    def monotonic(self) -> float:
        return self.at


def looker(house: House, *, series: int = 1000, every: float = 10.0) -> tuple[Inventory, Ticking]:
    clock = Ticking()
    metrics = Metrics()
    made = Inventory(db=house.db, metrics=metrics, clock=clock, every=timedelta(seconds=every), series=series)
    return made, clock


def shown(metrics: Metrics, name: str) -> dict[tuple[str, ...], float]:
    families = {each.name: each for each in text_string_to_metric_families(metrics.render().decode())}
    samples = families[f"holdfast_{name}"].samples  # labels in the order of their names
    return {tuple(each.labels.values()): each.value for each in samples if not each.name.endswith("_created")}


async def an_inventory_of_every_kind(house: House) -> None:
    """A certificate in each phase, by the verbs that anybody would use."""
    ask, db, ca = house.ask, house.db, house.cas["ca"]
    async with house.working():
        names = ["ok", "expired", "paused", "archived", "failing", "renewing", "revoked", "limited", "held", "waiting"]
        names.append("staggered")
        for name in names:
            await ask(f"{name}.example.com")
        for name in names:
            await house.settled(f"{name}.example.com")
        ca.always["place"] = Refused("no", reason="CA_REFUSED")
        await house.renew("failing.example.com", actor="local:test")
        await house.settled("failing.example.com")
        del ca.always["place"]
    due = (await house.view("waiting.example.com")).status.next_attempt_at
    assert due is not None
    closed = [{"days": [(due.weekday() + 3) % 7], "opens": 0, "closes": 1}]
    await house.change("waiting.example.com", windows=closed, actor="local:test")
    await house.set_state("paused.example.com", "paused", actor="local:test")
    await house.set_state("archived.example.com", "archived", actor="local:test")
    await ask("approval.example.com", approval_required=True)
    await ask("pending.example.com")
    for name in ("renewing", "limited"):
        await house.renew(f"{name}.example.com", actor="local:test")
    await house.renew("staggered.example.com", actor="local:test", delay=DAY)
    await house.revoke("revoked.example.com", reason=4, actor="local:test")
    await update(
        db,
        """UPDATE certificate_versions SET not_after = now_us() - 1 WHERE id =
           (SELECT current_version FROM certificates WHERE name = 'expired.example.com')""",
    )
    await update(
        db,
        """UPDATE jobs SET reason = 'NOT_BEFORE' WHERE subject = (SELECT issuances.id FROM issuances
             JOIN certificates ON certificates.id = issuances.certificate
            WHERE certificates.name = 'limited.example.com' AND issuances.ended_at IS NULL)""",
    )
    await update(
        db,
        """UPDATE certificates SET next_cause = 'ISSUER_PAUSED', next_action_at = now_us() + 3600000000,
                  generation = generation + 1 WHERE name = 'held.example.com'""",
    )


async def test_the_database_counts_what_the_status_block_of_each_certificate_says(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await an_inventory_of_every_kind(house)
    looking, _ = looker(house)
    await looking.refresh()
    ids = await db.read(lambda tx: [row["id"] for row in tx.rows("SELECT id FROM certificates")])
    views = await db.read(lambda tx: views_of(tx, [found for each in ids if (found := rows.get(tx, each))]))
    expected = Counter((view.status.phase.value, view.status.reason_code.value) for view in views)
    assert shown(looking.metrics, "certificates") == expected
    ending = shown(looking.metrics, "certificates_ending")
    used = [view for view in views if view.current is not None and view.status.phase != "archived"]
    assert ending["0",] + ending["90",] == len(used)
    assert ending["0",] == 1
    phases = {phase for phase, _ in expected}
    assert phases == {
        "ok", "expired", "paused", "archived", "failing", "renewing", "revoked", "waiting", "awaiting_approval",
        "pending",
    }  # fmt: skip


async def test_ends_attempts_and_cas_are_shown(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    looking, _ = looker(house)
    await looking.begin()
    async with house.working():
        await house.ask("a.example.com")
        await house.settled("a.example.com")
        house.cas["ca"].always["place"] = Refused("no", reason="CA_REFUSED")
        await house.renew("a.example.com", actor="local:test")
        await house.settled("a.example.com")
    await house.ask("b.example.com", approval_required=True)
    await house.write(manage_issuers.ISSUERS.pause, "ca", actor="local:test")
    await update(db, "UPDATE issuers SET breaker_until = now_us() + 60000000")
    await looking.refresh()
    seen = looking.metrics
    assert shown(seen, "issuance_attempts") == {("ca", "issued", ""): 1, ("ca", "failed", "CA_REFUSED"): 1}
    assert seen.registry.get_sample_value("holdfast_issuance_duration_seconds_count", {"ca": "ca"}) == 1
    assert shown(seen, "issuances") == {("ca", "awaiting_approval"): 1}
    assert shown(seen, "approvals_pending") == {(): 1}
    assert shown(seen, "ca_paused") == {("ca",): 1}
    assert shown(seen, "ca_circuit_open") == {("ca",): 1}
    assert shown(seen, "certificates_ending") == {("0",): 0, ("1",): 0, ("7",): 0, ("14",): 0, ("30",): 0, ("90",): 1}
    left = shown(seen, "ca_budget_remaining")
    assert {ca for ca, _ in left} == {"ca"}
    assert {limit for _, limit in left} <= {"requests", "orders"}


async def test_the_end_of_our_own_issuer_is_shown(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    opened = await opened_ca(db, tmp_path, name="corp")
    looking, _ = looker(house)
    await looking.refresh()
    ends = opened.ca.issuer.certificate.not_valid_after_utc.timestamp()
    assert shown(looking.metrics, "ca_issuer_not_after_timestamp_seconds") == {("corp",): ends}


async def test_the_failing_and_those_that_end_first_have_series_of_their_own_up_to_a_number(
    db: Database, tmp_path: Path
) -> None:
    house = await a_house(db, tmp_path)
    async with house.working():
        for name in ("a", "b", "c", "d"):
            await house.ask(f"{name}.example.com", owner="web")
            await house.settled(f"{name}.example.com")
    await update(
        db,
        """UPDATE certificate_versions SET not_after = not_after - 86400000000 WHERE certificate =
           (SELECT id FROM certificates WHERE name = 'c.example.com')""",
    )
    await db.write(lambda tx: issuance_attempts.replan(tx, found_by(tx, "c.example.com"), tx.now()))
    await update(db, "UPDATE certificates SET last_failure_at = now_us(), reason = 'CA_REFUSED' WHERE name LIKE 'd%'")
    looking, _ = looker(house, series=2)
    await looking.refresh()
    ends = shown(looking.metrics, "certificate_not_after_timestamp_seconds")
    assert set(ends) == {("ca", "c.example.com", "web"), ("ca", "d.example.com", "web")}
    assert shown(looking.metrics, "certificate_series_left_out") == {(): 2}
    due = shown(looking.metrics, "certificate_renewal_due_timestamp_seconds")
    again = shown(looking.metrics, "certificate_next_attempt_timestamp_seconds")
    assert set(due) == set(again) == set(ends)
    view = await house.view("c.example.com")
    assert view.current is not None
    assert ends["ca", "c.example.com", "web"] == view.current.not_after.timestamp()
    assert due["ca", "c.example.com", "web"] == view.status.next_attempt_at.timestamp()  # type: ignore[union-attr]
    none, _ = looker(house, series=0)
    await none.refresh()
    assert shown(none.metrics, "certificate_not_after_timestamp_seconds") == {}


async def test_the_store_is_asked_once_for_all_scrapes_of_a_few_seconds(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    looking, clock = looker(house)
    await house.ask("a.example.com")
    await looking.refresh()
    await house.ask("b.example.com")
    clock.at += 9
    await looking.refresh()
    assert sum(shown(looking.metrics, "certificates").values()) == 1
    assert shown(looking.metrics, "store_gauges_age_seconds") == {(): 9}
    clock.at += 1
    await looking.refresh()
    assert sum(shown(looking.metrics, "certificates").values()) == 2
    assert shown(looking.metrics, "store_gauges_age_seconds") == {(): 0}


async def test_a_look_that_takes_long_is_taken_more_seldom(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    looking, clock = looker(house, every=1)

    class Slow:
        async def read(self, fn: object) -> object:
            clock.at += 2
            return await db.read(fn)  # type: ignore[arg-type]

    looking.db = Slow()  # type: ignore[assignment]
    await looking.refresh()
    began = clock.at - 2
    clock.at = began + 2 * observe.SHARE - 0.1
    await looking.refresh()
    assert looking.metrics.gauges_age._value.get() > 1  # type: ignore[attr-defined]
    clock.at = began + 2 * observe.SHARE
    await looking.refresh()
    assert looking.metrics.gauges_age._value.get() == 2  # type: ignore[attr-defined]


async def test_one_that_never_was_issued_is_counted_and_has_no_end(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path, life=10 * DAY)
    await house.ask("a.example.com")
    found = await db.read(lambda tx: statistics.phases(tx, statistics.all_states(tx)))
    assert found == {("pending", "UNDER_WAY"): 1}
    assert await db.read(lambda tx: statistics.all_ends(tx, tx.now())) == dict.fromkeys((0, 1, 7, 14, 30, 90), 0)
