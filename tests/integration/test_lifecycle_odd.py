"""What CAs say that is neither yes nor no: names they paused, lives they do not let us choose, accounts they forgot."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.lifecycle import House, a_house
from tests.support.upstream import Site, ask, our_site

from holdfast.core.work.job import Priority
from holdfast.errors import Refused, TryLater
from holdfast.operations.certificates.views import View
from holdfast.operations.issuance import attempts as issuance_attempts
from holdfast.operations.issuers import account_keys
from holdfast.operations.issuers.manage import IssuerRefused, NoSuchIssuer
from holdfast.store import issuances, versions
from holdfast.store import issuers as rows
from holdfast.store.database import Database
from holdfast.store.tx import Tx
from holdfast.store.work import jobs

pytestmark = pytest.mark.anyio
NAME, OTHER, LOCAL = "www.example.com", "other.example.com", "127.0.0.1"
LINK = "https://portal.example/sfe/v1/unpause?jwt=a.b.c"
HOUR = timedelta(hours=1)


async def events(house: House, name: str, ref: str = NAME) -> list[dict[str, Any]]:
    return [dict(each.details) for each in await house.timeline(ref) if each.name == name]


# ── A name that the CA paused ──


async def test_a_name_that_the_ca_paused_stops_its_certificate_and_no_other(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    house.cas["ca"].troubles["place"] = [Refused(f"Please visit: {LINK}", reason="NAME_PAUSED_AT_CA")]
    async with house.working():
        await house.ask(NAME)
        paused = await house.settled(NAME)
        await house.ask(OTHER)
        other = await house.settled(OTHER)
    assert other.current is not None
    assert (paused.status.reason_code, paused.status.acts_next) == ("NAME_PAUSED_AT_CA", "operator")
    assert LINK in (paused.status.last_error or "")
    failing = paused.certificate.failing
    assert failing is not None
    assert paused.status.next_attempt_at == failing.last_at + 32 * HOUR
    row = await db.read(lambda tx: rows.get(tx, "ca"))
    assert row is not None
    assert row.breaker.until is None
    [told] = await db.read(lambda tx: tx.rows("SELECT body FROM notifications"))
    assert LINK in told["body"]


async def test_a_limit_on_a_domain_holds_up_no_renewal_but_its_own(db: Database, tmp_path: Path) -> None:
    """One that is exempt does not pay for its domain: nothing wider may be held for it."""
    house = await a_house(db, tmp_path)
    limits = {"requests": [100, 0.01], "orders": None, "per_domain": None}
    await house.change_issuer("ca", {"limits": limits}, actor="local:op")
    said = 'ca, a new order: too many certificates (50) already issued for "example.com" in the last 168h0m0s'
    house.cas["ca"].troubles["place"] = [TryLater(said, after=3 * HOUR, reason="CA_RATE_LIMITED")]
    async with house.working():
        await house.ask(NAME)

        async def waits() -> bool:
            return (await house.view(NAME)).status.reason_code == "CA_RATE_LIMITED"

        await house.until(waits)
        await house.ask(OTHER)
        assert (await house.settled(OTHER)).current is not None


# ── Lives ──


async def test_a_life_begins_with_the_order_and_not_with_the_wish(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await house.ask(NAME, lifetime=48 * HOUR, approval_required=True)
    [asked] = await house.pending()
    long_ago = datetime.now(UTC) - timedelta(days=1)
    await db.write(lambda tx: tx.run("UPDATE issuances SET started_at = :at", at=long_ago))
    await house.approve(asked.id, actor="local:bob")
    begun = datetime.now(UTC)
    view = await house.worked(NAME)
    assert view.current is not None, view.status
    [order] = house.cas["ca"].orders.values()
    assert order.request.not_after >= begun + 48 * HOUR - timedelta(minutes=1)


async def test_a_ca_that_lets_nobody_choose_a_lifetime_is_asked_once_more_without_and_then_not_again(
    db: Database, tmp_path: Path
) -> None:
    house = await a_house(db, tmp_path)
    ca = house.cas["ca"]
    ca.troubles["place"] = [Refused("NotBefore and NotAfter are not supported", reason="LIFETIME_REJECTED")]
    async with house.working():
        await house.ask(NAME, lifetime=48 * HOUR)
        first = await house.settled(NAME)
        assert (first.certificate.failing, ca.calls.count("place")) == (None, 2)
        assert "not supported" in (await events(house, "issuance.any_lifetime"))[0]["error"]
        await house.renew(NAME, actor="local:alice")
        await house.settled(NAME)
    assert ca.calls.count("place") == 3
    assert [each.request.not_after for each in ca.orders.values()] == [None, None]
    assert len(await events(house, "issuance.any_lifetime")) == 2


# ── Revoked while an attempt is under way ──


async def test_an_attempt_under_way_becomes_urgent_when_what_it_replaces_is_revoked(
    db: Database, tmp_path: Path
) -> None:
    house = await a_house(db, tmp_path)
    async with house.working():
        await house.ask(NAME)
        await house.settled(NAME)
    begun = (await house.renew(NAME, actor="local:alice")).operation
    await house.revoke(NAME, reason=1, actor="local:alice")
    view = await house.view(NAME)
    assert view.issuance is not None
    assert view.issuance.id == begun.id
    job = await db.read(lambda tx: jobs.live(tx, "issue", begun.id))
    assert job is not None
    assert job.priority is Priority.URGENT
    await db.write(_lost_and_found)
    job = await db.read(lambda tx: jobs.live(tx, "issue", begun.id))
    assert job is not None
    assert (job.id, job.priority) == ("job_found", Priority.URGENT)
    assert view.status.safe_until is not None
    assert view.status.safe_until <= view.now
    assert view.status.reason.startswith("REVOCATION_ASKED: ")
    async with house.working():
        await house.settled(NAME)
        await house.until_no_job("revoke")
    assert (await house.view(NAME)).status.phase == "ok"


def _lost_and_found(tx: Tx) -> None:
    tx.run("DELETE FROM jobs WHERE kind = 'issue'")
    for spec in issuance_attempts.owed(tx, ["job_found"]):
        jobs.enqueue(tx, spec)


# ── Accounts ──


async def test_an_account_that_is_gone_while_an_order_is_placed_is_no_failure_unless_it_goes_on_so(
    db: Database, tmp_path: Path
) -> None:
    house = await a_house(db, tmp_path)
    gone = Refused("no such account", reason="ACCOUNT_GONE")
    house.cas["ca"].troubles["look"] = [gone]
    async with house.working():
        await house.ask(NAME)
        view = await house.settled(NAME)
    assert (view.certificate.failing, len(house.cas["ca"].issued)) == (None, 1)
    attempts = await db.read(lambda tx: issuances.of(tx, view.certificate.id))
    assert [each.reason for each in attempts] == [None, "ACCOUNT_GONE"]
    house.cas["ca"].troubles["look"] = [gone, gone]
    async with house.working():
        await house.renew(NAME, actor="local:alice")
        view = await house.settled(NAME)
    assert view.status.attempt == 1


@pytest.fixture
async def ours(db: Database, tmp_path: Path) -> AsyncIterator[Site]:
    async with our_site(db, tmp_path) as site:
        yield site


async def _states(site: Site) -> list[str]:
    return [each.state for each in await site.house.db.read(lambda tx: rows.accounts_of(tx, "acme"))]


async def test_an_account_that_was_deactivated_is_replaced_and_one_that_was_revoked_is_not(ours: Site) -> None:
    async def renewed() -> View:
        await ours.house.renew("site", actor="local:alice")
        return await ours.obtained("site")

    async def ended(word: str) -> None:
        text = "UPDATE acme_accounts SET state = :word WHERE state = 'valid'"
        await ours.house.db.write(lambda tx: tx.run(text, word=word))

    async with ours.working():
        await ask(ours, "site", LOCAL)
        await ours.obtained("site")
        await ended("deactivated")
        view = await renewed()
        assert view.certificate.failing is None, view.status
        assert await _states(ours) == ["gone", "valid"]
        rows = await ours.house.db.read(
            lambda tx: tx.rows("SELECT name FROM events WHERE name = 'issuer.account_gone'")
        )
        assert len(rows) == 1
        await ended("revoked")
        view = await renewed()
    assert view.status.reason_code == "ACCOUNT_REFUSED"
    assert await _states(ours) == ["gone", "valid"]


async def test_a_new_account_can_be_asked_for_and_what_is_under_way_is_begun_anew(ours: Site) -> None:
    with pytest.raises(IssuerRefused, match="no account"):
        await ours.house.write(account_keys.begin_anew, "acme", actor="local:op")
    async with ours.working():
        await ask(ours, "site", LOCAL)
        first = await ours.obtained("site")
    await ours.house.renew("site")
    issuer = await ours.upstream.make(await _row(ours))
    await issuer.probe()
    ref = {"order": "https://gone", "finalize": "https://gone", "account": first.current and first.current.account}
    text = "UPDATE issuances SET state = 'ordered', ref = :ref WHERE state = 'requested'"
    await ours.house.db.write(lambda tx: tx.run(text, ref=str(ref).replace("'", '"')))
    await ours.house.write(account_keys.begin_anew, "acme", actor="local:op")
    async with ours.working():
        view = await ours.obtained("site")
    assert view.certificate.failing is None, view.status
    assert await _states(ours) == ["deactivated", "valid"]
    assert first.current is not None
    assert view.current is not None
    assert view.current.account != first.current.account
    with pytest.raises(NoSuchIssuer):
        await ours.house.write(account_keys.begin_anew, "nobody", actor="local:op")
    with pytest.raises(IssuerRefused, match="no account of our own"):
        await ours.house.write(account_keys.begin_anew, "ca", actor="local:op")


async def _row(site: Site) -> Any:
    found = await site.house.db.read(lambda tx: rows.get(tx, "acme"))
    assert found is not None
    return found


async def test_what_another_account_ordered_is_revoked_by_its_own_key(ours: Site) -> None:
    """As with a certificate that was taken over from another client, without its account."""
    async with ours.working():
        await ask(ours, "site", LOCAL)
        before = await ours.obtained("site")
        await ours.house.write(account_keys.begin_anew, "acme", actor="local:op")
        await ours.house.revoke("site", reason=4, actor="local:alice")
        await ours.obtained("site")
        await ours.house.until_no_job("revoke")
    assert before.current is not None
    old = before.current.id
    found = await ours.house.db.read(lambda tx: versions.get(tx, old))
    assert found is not None
    assert found.revoked_at is not None


async def test_changed_contacts_reach_the_ca_with_the_next_use_of_the_account(ours: Site) -> None:
    async def known() -> list[str]:
        found = await ours.house.db.read(lambda tx: tx.rows("SELECT contacts FROM acme_accounts"))
        return [row["contacts"] for row in found]

    await (await ours.upstream.make(await _row(ours))).probe()
    assert "ops@" not in (await known())[0]
    row = await _row(ours)
    await ours.house.change_issuer("acme", {**row.settings, "contacts": ["ops@example.com"]}, actor="local:op")
    await ours.upstream.make(await _row(ours))
    assert [("mailto:ops@example.com" in each) for each in await known()] == [True]
    [account] = await ours.house.db.read(lambda tx: rows.accounts_of(tx, "acme"))
    assert account.contacts == ("ops@example.com",)
