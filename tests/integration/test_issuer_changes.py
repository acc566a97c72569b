"""Settings of a CA changed by those who have read them, and CAs that are taken away; on both stores."""

from pathlib import Path

import pytest
from tests.support.api import a_desk
from tests.support.later import LaterCa
from tests.support.lifecycle import House
from tests.support.running import add_issuer, run, services_of
from tests.support.secrets_planted import ISSUER_CREDENTIAL, NEW_CREDENTIAL, OLD_CREDENTIAL
from tests.support.terminal import a_terminal

from holdfast.core.issuers.issuer import AccountRow, IssuerAccountState
from holdfast.operations.installation.secret_store import account_key
from holdfast.operations.issuers import manage as manage_issuers
from holdfast.operations.issuers.manage import IssuerInUse
from holdfast.secret import Secret
from holdfast.store import issuers
from holdfast.store.database import Database
from holdfast.store.tx import Tx

pytestmark = pytest.mark.anyio
NAME = "www.example.com"
NONE = {"settings": {"poll_max_wait_seconds": None}}


# ── Settings ──


async def test_settings_are_changed_by_those_who_have_read_them(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask, place = await desk.as_(), "/issuers/ca"
        wish = {"settings": {"poll_max_wait_seconds": 60}}
        read = (await ask("GET", "/issuers/ca")).headers["etag"]
        blind = await ask("PATCH", place, wish)
        assert (blind.status_code, blind.json()["code"]) == (428, "precondition-required")
        done = await ask("PATCH", place, wish, headers={"If-Match": read})
        assert (done.status_code, done.json()["settings"]) == (200, wish["settings"])
        assert done.headers["etag"] == (await ask("GET", "/issuers/ca")).headers["etag"] != read
        late = await ask("PATCH", place, {"settings": {"a": 1}}, headers={"If-Match": read})
        assert (late.status_code, late.json()["code"]) == (412, "issuer-changed")
        assert (await ask.get("/issuers/ca"))["settings"] == wish["settings"]
        assert (await ask("PATCH", place, NONE, headers={"If-Match": "*"})).json()["settings"] == {}


async def test_a_command_changes_what_it_names_and_leaves_the_rest(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path, works=False) as typed:
        await typed.desk.house.change_issuer("ca", {"a": 1, "b": [2]}, actor="local:test")
        tried = await typed.ok("issuer", "set", "ca", "--set", "a=3", "--dry-run", "-o", "json")
        assert tried.json["settings"] == {"a": 3, "b": [2]}
        done = await typed.ok("issuer", "set", "ca", "--set", "c=x", "--set", "a=null", "-o", "json")
        assert done.json["settings"] == {"b": [2], "c": "x"}
        for wrong in (("--set", "a=null"), ("--set", "poll_max_wait_seconds=-1")):
            assert (await typed("issuer", "set", "ca", *wrong)).code != 0, wrong
        row = await typed.desk.house.read(manage_issuers.found, "ca")
        assert row.settings == {"b": [2], "c": "x"}


# ── Taking one away ──


async def _with_an_account(house: House, name: str) -> None:
    """A CA with a credential, and an account with a key, whose change is under way."""
    keys = [Secret(OLD_CREDENTIAL.encode()), Secret(NEW_CREDENTIAL.encode())]
    await add_issuer(
        house.certificate_context,
        name,
        kind="test",
        available=frozenset({"test"}),
        settings={},
        credentials={"eab_key": Secret(ISSUER_CREDENTIAL.encode())},
        actor="local:test",
    )

    store, owner = house.certificate_context.secret_store, account_key(f"account_{name}")
    old, new = [await store.keep(each, owner, lambda tx, secret: secret) for each in keys]

    def write(tx: Tx) -> None:
        account = AccountRow(
            id=f"account_{name}", issuer=name, directory="", url="https://ca.example/1", key_secret=old,
            new_key_secret=new, state=IssuerAccountState.VALID, created_at=tx.now(),
        )  # fmt: skip
        issuers.insert_account(tx, account)

    await house.db.write(write)


async def _secrets(db: Database) -> int:
    return len(await db.read(lambda tx: tx.rows("SELECT id FROM secrets")))


async def test_a_ca_that_nobody_needs_goes_with_all_its_secrets(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path, works=False) as typed:
        before = await _secrets(db)
        await _with_an_account(typed.desk.house, "old")
        assert await _secrets(db) == before + 3
        assert "Nothing was changed" in (await typed.ok("issuer", "rm", "old", "--dry-run")).err
        assert (await typed("issuer", "rm", "old")).code == 1, "nobody was asked, and nobody said yes"
        assert await _secrets(db) == before + 3
        await typed.ok("issuer", "rm", "old", "--yes")
        assert await _secrets(db) == before
        assert [row.name for row in await typed.desk.house.read(issuers.all_issuers)] == ["ca"]
        gone = await typed("issuer", "rm", "old", "--yes")
        assert (gone.code != 0, "no issuer named 'old'" in gone.err) == (True, True)


async def test_a_ca_stays_while_certificates_name_it(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask, house = await desk.as_(), desk.house
        await house.add("second", LaterCa())
        await house.ask(NAME, issuers=["ca", "second"])
        refused = await ask("DELETE", "/issuers/second")
        assert (refused.status_code, refused.json()["code"]) == (409, "issuer-in-use")
        assert NAME in refused.json()["detail"]
        await house.set_state(NAME, "archived", actor="local:alice")
        assert (await ask("DELETE", "/issuers/second")).json()["name"] == "second"
        assert (await ask("DELETE", "/issuers/second")).status_code == 404


async def test_a_ca_stays_until_it_has_heard_what_it_is_to_hear(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        house = desk.house
        async with house.working():
            await house.ask(NAME)
            kept = (await house.settled(NAME)).certificate.id
        await house.set_state(NAME, "archived", actor="local:alice")
        await house.revoke(kept, reason=4, actor="local:alice")
        with pytest.raises(IssuerInUse, match=NAME):
            await run(services_of(house.certificate_context), manage_issuers.delete, name="ca")
        async with house.working():
            await house.until_no_job("revoke")
        await run(services_of(house.certificate_context), manage_issuers.delete, name="ca")
        assert len(house.cas["ca"].revoked) == 1


# ── The key of an account ──


async def test_a_command_asks_for_a_new_account_key_once(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path, works=False) as typed:
        await _with_an_account(typed.desk.house, "le")
        await db.write(lambda tx: tx.run("UPDATE issuers SET kind = 'acme' WHERE name = 'le'"))
        assert "Nothing was changed" in (await typed.ok("issuer", "rotate-account-key", "le", "--dry-run")).err
        assert await db.read(lambda tx: tx.rows("SELECT id FROM jobs")) == []
        first = await typed.ok("issuer", "rotate-account-key", "le")
        again = await typed.ok("issuer", "rotate-account-key", "le")
        [job] = await db.read(lambda tx: tx.rows("SELECT id, kind, subject FROM jobs"))
        assert (job["kind"], job["subject"]) == ("account-key", "le")
        assert job["id"] in first.err
        assert job["id"] in again.err
        other = await typed("issuer", "rotate-account-key", "ca")
        assert (other.code != 0, "no account key" in other.err) == (True, True)


async def test_a_command_has_the_next_order_make_a_new_account(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path, works=False) as typed:
        await _with_an_account(typed.desk.house, "le")
        await db.write(lambda tx: tx.run("UPDATE issuers SET kind = 'acme' WHERE name = 'le'"))

        async def states() -> list[str]:
            return [row["state"] for row in await db.read(lambda tx: tx.rows("SELECT state FROM issuer_accounts"))]

        before = await states()
        assert "Nothing was changed" in (await typed.ok("issuer", "new-account", "le", "--dry-run")).err
        assert await states() == before
        assert "makes a new account" in (await typed.ok("issuer", "new-account", "le", "--yes")).err
        assert await states() == ["deactivated"]
        [row] = await db.read(lambda tx: tx.rows("SELECT subject FROM audit WHERE action = 'account_replaced'"))
        assert row["subject"] == "le"
        again = await typed("issuer", "new-account", "le", "--yes")
        assert (again.code != 0, "no account at le" in again.err) == (True, True)
