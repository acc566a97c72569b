"""A CA that is away, full, or does not let us in: nothing is used up by waiting, and another CA of the list helps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from tests.integration.test_lifecycle_renewal import quiet
from tests.support.lifecycle import DAY, House, MovedClock, TruthfulCa, a_house, a_moving_house
from tests.support.running import set_credentials

from holdfast.compose_certificates import solvers_digest
from holdfast.core.certificate import Ari
from holdfast.core.issuers import ca_limits
from holdfast.core.issuers.breaker import Breaker
from holdfast.core.issuers.issuer import AccountRow
from holdfast.engine.issuance import issuer_fallback, renewals
from holdfast.errors import Refused, TryLater
from holdfast.issuers.base import Failed, Pending
from holdfast.operations import kinds
from holdfast.operations.certificates.views import View
from holdfast.operations.installation.secret_store import account_key
from holdfast.operations.issuance import input_changed, order_budgets
from holdfast.operations.issuers import manage as manage_issuers
from holdfast.secret import Secret
from holdfast.store import certificates, issuances
from holdfast.store import issuers as issuer_rows
from holdfast.store.database import Database
from holdfast.store.tx import Tx
from holdfast.world import LocalFiles

pytestmark = pytest.mark.anyio

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
NAME = "www.example.org"
AWAY = TryLater("connection refused", reason="CA_DOWN", sent=False)
LIMITS = {"requests": [20, 0.05], "orders": [300, 7200], "per_domain": [50, 12120], "per_set": [5, 122400]}


@asynccontextmanager
async def two_cas(folder: Path, *, life: timedelta = 90 * DAY) -> AsyncIterator[tuple[House, MovedClock]]:
    """One named "ca", and one to fall back to, "cb"."""
    async with a_moving_house(folder, life=life) as (house, clock):
        other = TruthfulCa(life=life)
        other.now = clock.now
        await house.add("cb", other)
        yield house, clock


async def passing(house: House, clock: MovedClock, steps: int, step: timedelta) -> None:
    for _ in range(steps):
        clock.ahead += step
        await renewals.sweep_due(house.certificate_context)
        async with house.working():
            await quiet(house)


async def attempts(house: House, view: View) -> list[str]:
    """The CAs of all attempts, in the order in which they began."""
    made = await house.db.read(lambda tx: issuances.of(tx, view.certificate.id))
    return [each.issuer for each in reversed(made)]


def shut(tx: Tx, name: str = "ca", *, for_: timedelta = 10 * MINUTE, limits: int = 0) -> None:
    row = issuer_rows.get(tx, name)
    assert row is not None
    until = tx.now() + for_
    changed = Breaker(failures=0 if limits else 12, limits=limits, until=until, error="no route")
    issuer_rows.save_breaker(tx, name, changed)


def shut_both(tx: Tx) -> None:
    shut(tx)
    shut(tx, "cb")


# ── Waiting uses nothing up ──


@pytest.mark.parametrize("trouble", ["unreachable", "unanswered", "refused by a breaker", "limited"])
async def test_what_a_ca_cannot_have_counted_is_not_paid_for(tmp_path: Path, trouble: str) -> None:
    async with a_moving_house(tmp_path) as (house, clock):
        await house.change_issuer("ca", {"limits": LIMITS}, actor="local:test")
        ca = house.cas["ca"]
        match trouble:
            case "unreachable":
                ca.always["place"] = AWAY
            case "unanswered":  # an order perhaps, and no certificate
                ca.always["place"] = TryLater("no answer", reason="CA_DOWN")
            case "limited":
                ca.always["place"] = TryLater("too many", after=MINUTE, reason="CA_RATE_LIMITED")
            case _:
                await house.db.write(lambda tx: shut(tx, for_=20 * MINUTE))
        await house.ask(NAME)
        await passing(house, clock, 6, MINUTE)
        waits = await house.view(NAME)
        assert waits.status.reason_code != "BUDGET"
        left = {each.key: each for each in await house.read(manage_issuers.left, "ca")}
        owed = {key: each.tat - clock.now() for key, each in left.items()}
        certificates_only = {key: wait for key, wait in owed.items() if "/names/" in key or "/domain/" in key}
        assert len(certificates_only) == 2
        assert all(wait < MINUTE for wait in certificates_only.values())
        assert (owed["ca/ca/orders"] > HOUR) == (trouble == "unanswered")
        ca.always.clear()
        await house.db.write(lambda tx: tx.run("UPDATE issuers SET breaker_until = NULL"))
        await passing(house, clock, 1, HOUR)
        assert (await house.view(NAME)).current is not None
        spent = {each.key: each.tat - clock.now() for each in await house.read(manage_issuers.left, "ca")}
        assert sum(wait > 33 * HOUR for wait in spent.values()) == 1  # one certificate of this set


async def test_an_order_that_failed_before_its_csr_was_handed_in_made_no_certificate_to_pay_for(tmp_path: Path) -> None:
    async with a_moving_house(tmp_path, proofs=True) as (house, clock):
        await house.change_issuer("ca", {"limits": LIMITS}, actor="local:test")
        found = "The proof was not found."
        await house.ask(NAME)
        for n in range(7):  # more often than there are certificates of one set
            house.cas["ca"].troubles["look"] = [Pending(why="soon"), Failed(why=found, reason="VALIDATION_FAILED")]
            if n:
                await house.renew(NAME, actor="local:test")
            await passing(house, clock, 2, MINUTE)
            failing = (await house.view(NAME)).certificate.failing
            assert failing is not None
            assert failing.attempts == n + 1
        await house.renew(NAME, actor="local:test")
        await passing(house, clock, 2, MINUTE)
        assert (await house.view(NAME)).current is not None
        owed = {each.key: each.tat - clock.now() for each in await house.read(manage_issuers.left, "ca")}
        assert sum(wait > 33 * HOUR for wait in owed.values()) == 1  # the one that was made


def test_what_is_given_back_is_never_more_than_a_claim_that_went_by_unused() -> None:
    paid = {"ca/le/requests": MINUTE, "ca/le/orders": MINUTE, "ca/le/names/x": MINUTE}
    assert ca_limits.unused(paid, "le", "nothing", binding=True) == paid
    assert {*ca_limits.unused(paid, "le", "requests", binding=True)} == {"ca/le/orders", "ca/le/names/x"}
    assert {*ca_limits.unused(paid, "le", "an order perhaps", binding=False)} == {"ca/le/names/x"}
    assert ca_limits.unused(paid, "le", "an order perhaps", binding=True) == {}
    assert ca_limits.unused(paid, "le", "an order", binding=False) == {}


# ── Falling back ──


async def test_a_renewal_goes_to_the_next_ca_while_the_first_is_down_and_later_back(tmp_path: Path) -> None:
    async with two_cas(tmp_path, life=160 * HOUR) as (house, clock):
        first, second = house.cas["ca"], house.cas["cb"]
        view = await house.ask(NAME, issuers=("ca", "cb"))
        await house.worked(NAME)
        first.always["place"] = first.always["find"] = AWAY
        await house.db.write(lambda tx: shut(tx, for_=10 * HOUR))
        clock.ahead += 90 * HOUR
        await house.db.write(lambda tx: shut(tx, for_=10 * MINUTE))
        renewed = await house.attempt(NAME)
        assert (len(second.issued), renewed.certificate.failing) == (1, None)
        first.always.clear()
        clock.ahead += 90 * HOUR
        await house.attempt(NAME)
        assert await attempts(house, view) == ["ca", "cb", "ca"]
        assert len(first.issued) == 2


async def test_an_attempt_that_waits_at_a_ca_which_is_away_goes_on_elsewhere_and_counts_nothing(tmp_path: Path) -> None:
    async with two_cas(tmp_path) as (house, clock):
        house.cas["ca"].always["place"] = AWAY
        view = await house.ask(NAME, issuers=("ca", "cb"))
        await renewals.sweep_due(house.certificate_context)
        await house.db.write(lambda tx: shut(tx, for_=5 * MINUTE))  # while its job waits for a worker
        await passing(house, clock, 1, timedelta(seconds=1))
        made = await house.view(NAME)
        assert made.current is not None
        assert made.current.issuer == "cb"
        assert made.certificate.failing is None
        assert await attempts(house, view) == ["ca", "cb"]
        told = await house.db.read(lambda tx: tx.rows("SELECT details FROM events WHERE name = 'issuance.moved_on'"))
        assert len(told) == 1
        assert '"to":"cb"' in told[0]["details"]
        assert '"reason":"CA_DOWN"' in told[0]["details"]


async def test_tries_that_got_nowhere_count_against_the_ca_and_not_the_certificate(tmp_path: Path) -> None:
    async with two_cas(tmp_path) as (house, clock):
        house.cas["ca"].always["place"] = AWAY
        view = await house.ask(NAME, issuers=("ca", "cb"))
        await passing(house, clock, 9, 2 * MINUTE)
        made = await house.view(NAME)
        assert made.current is not None
        assert (made.current.issuer, made.certificate.failing) == ("cb", None)
        assert await attempts(house, view) == ["ca", "cb"]
        row = await house.read(manage_issuers.found, "ca")
        assert row.breaker.failures == house.cas["ca"].calls.count("place") == 5


async def test_a_ca_that_names_a_late_time_is_left_at_once(tmp_path: Path) -> None:
    async with two_cas(tmp_path) as (house, clock):
        house.cas["ca"].always["place"] = TryLater("too many", after=3 * HOUR, reason="CA_RATE_LIMITED")
        await house.ask(NAME, issuers=("ca", "cb"))
        await passing(house, clock, 1, timedelta(seconds=1))
        made = await house.view(NAME)
        assert made.current is not None
        assert (made.current.issuer, made.certificate.failing) == ("cb", None)
        row = await house.read(manage_issuers.found, "ca")
        assert row.breaker.limited
        [request] = [each for each in await house.read(manage_issuers.left, "ca") if each.key == "ca/ca/requests"]
        assert request.not_before is not None


@pytest.mark.parametrize("approval", [False, True])
async def test_one_that_waits_for_its_turn_beyond_what_is_safe_goes_on_elsewhere(
    tmp_path: Path, *, approval: bool
) -> None:
    async with two_cas(tmp_path) as (house, clock):
        view = await house.ask(NAME, issuers=("ca", "cb"), approval_required=approval)
        await renewals.sweep_due(house.certificate_context)
        if approval:
            [asked] = await house.pending()
            await house.approve(asked.id, actor="local:bob", note="")
        await house.db.write(
            lambda tx: tx.run("UPDATE jobs SET due_at = now_us() + 7200000000, reason = 'BUDGET' WHERE kind = 'issue'")
        )
        assert await issuer_fallback.leave(house.certificate_context) == 0  # it has only just come
        clock.ahead += 10 * MINUTE
        assert await issuer_fallback.leave(house.certificate_context) == 1
        assert await issuer_fallback.leave(house.certificate_context) == 0
        assert await attempts(house, view) == ["ca", "cb"]
        made = await house.worked(NAME)
        assert made.current is not None
        assert made.current.issuer == "cb"


async def test_one_in_line_becomes_urgent_when_its_certificate_is_about_to_end(tmp_path: Path) -> None:
    async with a_moving_house(tmp_path, life=100 * HOUR) as (house, clock):
        await house.change_issuer("ca", {"limits": {"per_set": [5, 360000]}}, actor="local:test")
        await house.ask(NAME)
        await house.worked(NAME)
        for _ in range(4):
            await house.renew(NAME, actor="local:test")
            async with house.working():
                await quiet(house)
        assert (await house.view(NAME)).status.reason_code == "BUDGET"  # one is left, for those in need
        clock.ahead += 90 * HOUR
        await issuer_fallback.deal(house.certificate_context)
        assert (await house.view(NAME)).status.reason_code == "BUDGET"
        clock.ahead += 6 * HOUR
        await issuer_fallback.deal(house.certificate_context)
        made = await house.worked(NAME)
        assert made.current is not None
        assert made.current.not_after - clock.now() > 90 * HOUR


async def test_an_order_is_given_its_time_even_in_an_emergency(tmp_path: Path) -> None:
    async with two_cas(tmp_path, life=100 * HOUR) as (house, clock):
        view = await house.ask(NAME, issuers=("ca", "cb"))
        await house.worked(NAME)
        house.cas["ca"].polls = 3  # it issues after a moment
        clock.ahead += 97 * HOUR
        made = await house.attempt(NAME)
        assert made.certificate.failing is None
        assert await attempts(house, view) == ["ca", "ca"]
        house.cas["ca"].polls = 10**6
        clock.ahead += 97 * HOUR
        await passing(house, clock, 7, 5 * MINUTE)  # a tenth of what is left, and then the other is asked
        assert await attempts(house, view) == ["ca", "ca", "ca", "cb"]


async def test_nobody_leaves_for_a_ca_that_is_no_better(tmp_path: Path) -> None:
    async with two_cas(tmp_path) as (house, clock):
        house.cas["ca"].always["place"] = AWAY
        view = await house.ask(NAME, issuers=("ca", "cb"))
        await renewals.sweep_due(house.certificate_context)
        await house.db.write(shut_both)
        await passing(house, clock, 2, 6 * MINUTE)
        clock.ahead += 2 * HOUR
        await house.db.write(shut_both)
        await issuer_fallback.leave(house.certificate_context)
        assert await attempts(house, view) == ["ca"]


# ── What a CA counts as a renewal ──


async def test_a_certificate_of_another_ca_is_none_that_this_one_would_call_a_renewal(tmp_path: Path) -> None:
    async with two_cas(tmp_path) as (house, _):
        await house.ask(NAME, issuers=("ca",))
        view = await house.worked(NAME)

        def paid(tx: Tx, name: str, *, replaces: str | None) -> set[str]:
            row, found = issuer_rows.get(tx, name), view.certificate
            assert row is not None
            le = replace(row, kind="acme", settings=LETS_ENCRYPT)
            now = tx.now()
            found = replace(found, ari=Ari(start=now - HOUR, end=now + HOUR, pick=now))
            last = issuances.of(tx, found.id)[0]
            made = replace(last, replaces=replaces, issuer=name)
            keys = order_budgets.for_order(tx, made, le, found, view.current)
            return {key.split("/")[2] for key in keys}

        def all_of(tx: Tx) -> list[set[str]]:
            return [paid(tx, *each[:1], replaces=each[1]) for each in (("ca", "x"), ("ca", None), ("cb", None))]

        mine, without, others = await house.db.write(all_of)
        assert mine == {"requests"}  # in its window, and told which one is replaced
        assert without == {"requests", "names"}
        assert others == {"requests", "names", "orders", "domain"}


LETS_ENCRYPT = {"directory": "https://acme-v02.api.letsencrypt.org/directory"}


async def test_an_order_pays_for_the_requests_of_all_its_names_and_proofs_are_told_in_portions(tmp_path: Path) -> None:
    async with a_moving_house(tmp_path, proofs=True) as (house, clock):
        ca = house.cas["ca"]
        limits = {"requests": [10, 1.0], "orders": None, "answers": 2}
        await house.change_issuer("ca", {"limits": limits}, actor="local:test")
        await house.db.write(lambda tx: tx.run("UPDATE issuers SET kind = 'acme'"))
        row = await house.read(manage_issuers.found, "ca")
        assert kinds.requests_of(row, 5) == ca_limits.Reckoned(order=9, look=5)
        await house.ask(*(f"n{n}.example.org" for n in range(5)), name=NAME)
        told, began = list[tuple[int, timedelta]](), clock.now()
        while (await house.view(NAME)).current is None and clock.now() - began < 2 * MINUTE:
            await passing(house, clock, 1, timedelta(seconds=1))
            if not told or told[-1][0] != ca.calls.count("answer"):
                told.append((ca.calls.count("answer"), clock.now() - began))
        assert [number for number, _ in told] == [2, 4, 5]
        assert told[2][1] - told[1][1] >= timedelta(seconds=4)  # until what the look before has used is there again
        made = await house.view(NAME)
        assert made.current is not None


# ── An account that is not let in ──


async def test_an_account_that_is_refused_stops_once_and_not_for_each_certificate(tmp_path: Path) -> None:
    async with a_moving_house(tmp_path) as (house, clock):
        ca = house.cas["ca"]
        ca.always["place"] = Refused("401 bad key", reason="ACCOUNT_REFUSED")
        names = [f"n{n}.example" for n in range(6)]
        await house.ask(names[0])
        first = await house.attempt(names[0])
        for name in names[1:]:
            await house.ask(name)
        await passing(house, clock, 4, 3 * MINUTE)
        views = [await house.view(name) for name in names[1:]]
        assert [each.certificate.failing for each in views] == [None] * 5
        assert {each.status.reason_code for each in views} == {"ACCOUNT_REFUSED"}
        assert first.certificate.failing is not None
        assert ca.calls.count("place") == 2  # the first, and one that tried for all
        ca.always.clear()
        await set_credentials(house.certificate_context, "ca", {"key": Secret(b"better")}, actor="local:test")
        await passing(house, clock, 3, MINUTE)
        assert [(await house.view(name)).current is not None for name in names] == [True] * 6


async def test_a_refused_account_sends_certificates_to_the_next_ca(tmp_path: Path) -> None:
    async with two_cas(tmp_path) as (house, clock):
        house.cas["ca"].always["place"] = Refused("our account is closed", reason="ACCOUNT_REFUSED")
        await house.ask(NAME, issuers=("ca", "cb"))
        await passing(house, clock, 1, timedelta(seconds=1))
        made = await house.view(NAME)
        assert made.current is not None
        assert (made.current.issuer, made.certificate.failing) == ("cb", None)
        assert (await house.read(manage_issuers.found, "ca")).breaker.barred
        told = await house.db.read(lambda tx: tx.rows("SELECT name FROM outages WHERE key = 'ca-account/ca'"))
        assert len(told) == 1


async def test_only_the_account_that_was_used_is_gone(tmp_path: Path) -> None:
    async with a_moving_house(tmp_path) as (house, clock):
        ca = house.cas["ca"]
        ca.account_url = "https://ca.example/acct/1"

        def write(tx: Tx, key: str, n: int) -> None:
            url, made = f"https://ca.example/acct/{n}", tx.now() + n * MINUTE
            row = AccountRow(id=f"account_{n}", issuer="ca", directory=f"d{n}", key_secret=key, created_at=made)
            issuer_rows.insert_account(tx, row)
            issuer_rows.account_confirmed(tx, row.id, url)

        for n in (1, 2):
            owner = account_key(f"account_{n}")
            await house.certificate_context.secret_store.keep(Secret(b"key"), owner, partial(write, n=n))
        ca.troubles["place"] = [Refused("no such account", reason="ACCOUNT_GONE")]
        await house.ask(NAME)
        await passing(house, clock, 1, timedelta(seconds=1))
        states = {each.id: each.state for each in await house.db.read(lambda tx: issuer_rows.accounts_of(tx, "ca"))}
        assert states == {"account_1": "gone", "account_2": "valid"}


# ── New epochs ──


@pytest.mark.parametrize("what", ["settings", "credentials", "another ca", "solvers"])
async def test_a_changed_input_forgets_the_failures_that_were_due_to_it(tmp_path: Path, what: str) -> None:
    async with two_cas(tmp_path) as (house, clock):
        ca = house.cas["ca"]
        refusal = "VALIDATION_FAILED" if what == "solvers" else "CA_REFUSED"
        ca.troubles["place"] = [Refused("no", reason=refusal)] * 3
        await house.ask(NAME, issuers=("ca", "cb"))
        await house.attempt(NAME)
        for _ in range(2):
            clock.ahead += 5 * HOUR
            failing = await house.attempt(NAME)
        assert failing.certificate.failing is not None
        assert failing.certificate.failing.attempts == 3
        await input_changed.of_solvers(house.certificate_context, "one")
        match what:
            case "settings":
                await house.change_issuer("ca", {"poll_max_wait_seconds": 30}, actor="local:test")
            case "credentials":
                await set_credentials(house.certificate_context, "ca", {"key": Secret(b"x")}, actor="local:test")
            case "another ca":
                await house.change_issuer("cb", {"poll_max_wait_seconds": 30}, actor="local:test")
            case _:
                assert await input_changed.of_solvers(house.certificate_context, "one") == 0
                assert await input_changed.of_solvers(house.certificate_context, "two") == 1
        after = await house.view(NAME)
        if what == "another ca":
            assert after.certificate.failing == failing.certificate.failing
            return
        assert after.certificate.failing is None
        assert after.status.next_attempt_at is not None
        assert after.status.next_attempt_at - clock.now() <= timedelta(seconds=1)
        clock.ahead += timedelta(seconds=2)
        made = await house.attempt(NAME)
        assert made.current is not None
        assert made.current.issuer == "ca"  # and the list is begun anew


def test_other_rules_or_secrets_of_solvers_have_another_digest(tmp_path: Path) -> None:
    rules, key, files = tmp_path / "solvers.toml", tmp_path / "key", LocalFiles()
    text = f'[[solver]]\nkind = "webroot"\nnames = ["a.example"]\nsecret_files = {{ key = "{key}" }}\n'
    rules.write_text(text)
    key.write_text("one")
    first = solvers_digest(rules, files)
    assert solvers_digest(rules, files) == first
    key.write_text("two")
    second = solvers_digest(rules, files)
    rules.write_text(text.replace("a.example", "b.example"))
    assert len({first, second, solvers_digest(rules, files), solvers_digest(None, files)}) == 4


async def test_thousands_that_begin_anew_do_not_begin_together(tmp_path: Path) -> None:
    async with a_moving_house(tmp_path) as (house, _):
        house.cas["ca"].troubles["place"] = [Refused("no", reason="CA_REFUSED")]
        await house.ask(NAME)
        found = (await house.attempt(NAME)).certificate

        def many(tx: Tx) -> None:
            for n in range(300):
                one = replace(found, id=f"certificate_{n}", wanted=replace(found.wanted, name=f"n{n}.example"))
                certificates.insert(tx, one)

        await house.db.write(many)
        await house.change_issuer("ca", {"poll_max_wait_seconds": 30}, actor="local:test")
        rows = await house.db.read(lambda tx: tx.rows("SELECT next_action_at, last_failure_at FROM certificates"))
        assert {row["last_failure_at"] for row in rows} == {None}
        times = sorted(row["next_action_at"] for row in rows)
        assert len({*times}) > 290
        assert 200 <= (times[-1] - times[0]) / 1e6 <= 301


# ── On every database ──


async def test_each_store_gives_back_moves_on_hurries_and_begins_anew(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await house.add("cb", TruthfulCa(), limits=LIMITS)
    await house.change_issuer("ca", {"limits": LIMITS}, actor="local:test")
    house.cas["ca"].troubles["place"] = [AWAY, Refused("no", reason="CA_REFUSED")]
    await house.ask(NAME, issuers=("ca", "cb"))
    async with house.working():
        failed = await house.settled_soon(NAME)
    assert failed.certificate.failing is not None
    owed = {each.key: each.tat for each in await house.read(manage_issuers.left, "ca")}
    now = await db.read(lambda tx: tx.now())
    assert all(tat - now < MINUTE for key, tat in owed.items() if "requests" not in key)
    await house.change_issuer("ca", {"limits": None}, actor="local:test")
    anew = (await house.view(NAME)).certificate
    assert (anew.failing, anew.next_cause) == (None, "STAGGERED")
    await db.write(lambda tx: tx.run("UPDATE certificates SET next_action_at = now_us()"))
    await renewals.sweep_due(house.certificate_context)
    await db.write(_waits_in_line)
    assert await issuer_fallback.leave(house.certificate_context) == 1
    moved = await house.worked(NAME)
    assert moved.current is not None
    assert moved.current.issuer == "cb"
    await house.renew(NAME, actor="local:test")
    await db.write(_waits_in_line)
    ends = "UPDATE certificate_versions SET not_before = not_before - 864000000000, not_after = now_us() + 60000000"
    await db.write(lambda tx: tx.run(ends))
    await issuer_fallback.deal(house.certificate_context)
    [job] = await db.read(lambda tx: tx.rows("SELECT priority, due_at <= now_us() AS due FROM jobs"))
    assert (job["priority"], bool(job["due"])) == (0, True)
    await db.write(lambda tx: shut(tx, "ca", for_=HOUR, limits=-1))
    await db.write(lambda tx: tx.run("UPDATE jobs SET due_at = now_us() + 3600000000, reason = 'ACCOUNT_REFUSED'"))
    await db.write(lambda tx: tx.run("UPDATE issuances SET issuer = 'ca' WHERE ended_at IS NULL"))
    await house.change_issuer("ca", {"limits": LIMITS}, actor="local:test")
    [job] = await db.read(lambda tx: tx.rows("SELECT due_at <= now_us() + 1000000 AS soon FROM jobs"))
    assert job["soon"]


def _waits_in_line(tx: Tx) -> None:
    tx.run("UPDATE jobs SET due_at = now_us() + 36000000000, reason = 'BUDGET' WHERE kind = 'issue'")
    tx.run("UPDATE issuances SET started_at = started_at - 3600000000")
