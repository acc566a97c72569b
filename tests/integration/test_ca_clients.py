"""What an operator does about a CA's clients: EAB keys, accounts, pauses, revocations, blocked keys."""

import base64
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pydantic import ValidationError
from tests.support.ca import do, issue, opened_ca, services_of
from tests.support.pki import a_key

from holdfast.core.own_ca.acme import Account, AccountState, Identifier
from holdfast.core.own_ca.ca import CaOptions
from holdfast.core.own_ca.problem import AcmeError
from holdfast.errors import UserError
from holdfast.operations.acme import orders
from holdfast.operations.context import Services
from holdfast.operations.inputs import cursor
from holdfast.operations.installation.secret_store import eab_mac
from holdfast.operations.own_ca.clients import AlreadySo, NotFound
from holdfast.operations.own_ca.manage import CaRefused, NoSuchCa
from holdfast.pki import keys
from holdfast.pki.refused import NameRefused
from holdfast.store.acme import accounts
from holdfast.store.acme import limits as acme_limits
from holdfast.store.database import Database
from holdfast.store.own_ca import certificates
from holdfast.store.work import jobs

pytestmark = pytest.mark.anyio


async def an_office(db: Database, folder: Path, **wishes: Any) -> tuple[Services, Any]:
    opened = await opened_ca(db, folder, **wishes)
    office = services_of(opened)
    return office, opened


async def audited(db: Database) -> list[tuple[str, str, str]]:
    rows = await db.read(lambda tx: tx.rows("SELECT actor, action, subject FROM audit ORDER BY seq"))
    return [(row["actor"], row["action"], row["subject"]) for row in rows]


async def an_account(db: Database, name: str = "acct_1", thumbprint: str = "") -> str:
    def write(tx: Any) -> None:
        account = Account(
            id=name, ca="ca1", thumbprint=thumbprint or name, jwk="{}", state=AccountState.VALID, created_at=tx.now()
        )  # fmt: skip
        accounts.insert(tx, account)

    await db.write(write)
    return name


# ── EAB keys ──


async def test_the_mac_of_an_eab_key_is_told_once_and_kept_sealed(db: Database, tmp_path: Path) -> None:
    office, _ = await an_office(db, tmp_path)
    made = await do(office, "eab.create", ca="ca1", names=["*.Example.internal"], note="web team")
    mac = base64.urlsafe_b64decode(made["mac"] + "=")
    assert len(mac) == 32
    assert "=" not in made["mac"]
    key = await db.read(lambda tx: accounts.get_eab_key(tx, made["kid"]))
    assert key is not None
    assert (await office.certificate_context.secret_store.reveal(key.secret_id, eab_mac(key.kid))).reveal() == mac
    assert key.names == ("*.example.internal",)
    [listed] = await do(office, "eab.list")
    assert "mac" not in listed
    assert listed["state"] == "free"
    assert ("local:alice", "eab_key_created", made["kid"]) in await audited(db)


async def test_an_eab_key_lets_exactly_one_account_in(db: Database, tmp_path: Path) -> None:
    office, _ = await an_office(db, tmp_path)
    kid = (await do(office, "eab.create", ca="ca1"))["kid"]
    first, second = await an_account(db, "acct_1"), await an_account(db, "acct_2")
    assert await db.write(lambda tx: accounts.bind_eab_key(tx, kid, first))
    assert not await db.write(lambda tx: accounts.bind_eab_key(tx, kid, second))
    [listed] = await do(office, "eab.list")
    assert (listed["state"], listed["account"]) == ("bound", first)


@pytest.mark.parametrize("end", ["revoked", "expired"])
async def test_a_key_that_was_revoked_or_expired_lets_nobody_in(db: Database, tmp_path: Path, end: str) -> None:
    office, _ = await an_office(db, tmp_path)
    kid = (await do(office, "eab.create", ca="ca1", lives_for_s=60))["kid"]
    if end == "revoked":
        await do(office, "eab.revoke", kid=kid)
    else:
        past = "UPDATE acme_eab_keys SET expires_at = now_us() - 1"
        await db.write(lambda tx: tx.run(past))
    account = await an_account(db)
    key, now = await db.read(lambda tx: (accounts.get_eab_key(tx, kid), tx.now()))
    assert key is not None
    assert not key.usable_at(now)
    assert not await db.write(lambda tx: accounts.bind_eab_key(tx, kid, account))


async def test_keys_are_listed_by_ca_and_in_pages(db: Database, tmp_path: Path) -> None:
    office, opened = await an_office(db, tmp_path)
    await do(office, "ca.create", ca="ca2", name="Other")
    kids = sorted([(await do(office, "eab.create", ca="ca1"))["kid"] for _ in range(3)])
    await do(office, "eab.create", ca="ca2")
    assert [each["kid"] for each in await do(office, "eab.list", ca="ca1", limit=2)] == kids[:2]
    assert [each["kid"] for each in await do(office, "eab.list", ca="ca1", cursor=cursor([kids[1]]))] == kids[2:]
    assert opened.authorities.get("ca2") is not None


async def test_what_is_not_there_is_told_with_a_way_on(db: Database, tmp_path: Path) -> None:
    office, _ = await an_office(db, tmp_path)
    for verb, args in {
        "eab.revoke": {"kid": "eab_x"},
        "accounts.revoke": {"account": "acct_x"},
        "pauses.delete": {"account": "acct_x", "name": "a.example"},
        "pauses.add": {"account": "acct_x", "name": "a.example"},
        "issued.revoke": {"ca": "ca1", "serial": "ab", "reason": "superseded"},
        "orders.list": {"account": "acct_x"},
    }.items():
        with pytest.raises(NotFound) as refusal:
            await do(office, verb, **args)
        assert refusal.value.status == 404
        assert refusal.value.hint
    for verb in (
        "ca.get",
        "ca.chain",
        "ca.close",
        "ca.open",
        "eab.create",
        "issued.list",
        "orders.list",
        "accounts.list",
        "eab.list",
    ):
        with pytest.raises(NoSuchCa):
            await do(office, verb, ca="nope")
    assert await db.read(lambda tx: tx.rows("SELECT id FROM secrets WHERE id NOT IN (SELECT key_secret FROM cas)"))
    assert len(await db.read(lambda tx: tx.rows("SELECT id FROM secrets"))) == 2  # no MAC was left behind


# ── Accounts and pauses ──


async def test_an_account_is_ended_once_and_for_good(db: Database, tmp_path: Path) -> None:
    office, _ = await an_office(db, tmp_path)
    account = await an_account(db)
    await do(office, "accounts.revoke", account=account)
    [listed] = await do(office, "accounts.list", ca="ca1")
    assert listed["state"] == "revoked"
    with pytest.raises(AlreadySo):
        await do(office, "accounts.revoke", account=account)
    assert [entry for entry in await audited(db) if entry[1] == "account_revoked"] == [
        ("local:alice", "account_revoked", account)
    ]


async def test_an_account_of_this_installation_itself_is_nobodys_to_end(db: Database, tmp_path: Path) -> None:
    office, _ = await an_office(db, tmp_path)
    account = await an_account(db, "acct_kept_ca1", thumbprint="internal:acct_kept_ca1")
    with pytest.raises(CaRefused, match="this installation's own"):
        await do(office, "accounts.revoke", account=account)
    [listed] = await do(office, "accounts.list", ca="ca1")
    assert listed["state"] == "valid"


async def test_what_is_only_tried_says_what_it_would_end_and_changes_nothing(db: Database, tmp_path: Path) -> None:
    office, opened = await an_office(db, tmp_path)
    account, issued = await an_account(db), await issue(db, opened.ca)
    before = await audited(db)
    assert (await do(office, "ca.close", ca="ca1", dry_run=True))["good_certificates"] == 1
    assert (await do(office, "accounts.revoke", account=account, dry_run=True))["good_certificates"] == 1
    tried = await do(office, "issued.revoke", ca="ca1", serial=issued.serial, reason="superseded", dry_run=True)
    assert tried["names"] == ["www.example.internal"]
    assert await audited(db) == before
    [row] = await do(office, "issued.list", ca="ca1")
    assert row["revoked_at"] is None


async def test_a_name_is_paused_as_orders_spell_it(db: Database, tmp_path: Path) -> None:
    office, _ = await an_office(db, tmp_path)
    account = await an_account(db)
    spellings = {"*.Wild.example": "wild.example", "192.0.2.1": "192.0.2.1", "2001:DB8::1": "2001:db8::1"}
    for given, paused in spellings.items():
        assert (await do(office, "pauses.add", account=account, name=given, dry_run=True))["name"] == paused
        assert await do(office, "pauses.list") == []
        assert (await do(office, "pauses.add", account=account, name=given))["name"] == paused
        assert [each["name"] for each in await do(office, "pauses.list")] == [paused]
        assert (await do(office, "pauses.delete", account=account, name=given))["name"] == paused


async def test_what_no_order_could_ever_name_is_not_paused(db: Database, tmp_path: Path) -> None:
    office, _ = await an_office(db, tmp_path)
    account = await an_account(db)
    for name in ("b\N{LATIN SMALL LETTER U WITH DIAERESIS}cher.example", "not a name", "a.*.example", ""):
        with pytest.raises(NameRefused):
            await do(office, "pauses.add", account=account, name=name)


async def test_who_was_paused_by_an_operator_is_not_told_of_failures(db: Database, tmp_path: Path) -> None:
    office, _ = await an_office(db, tmp_path)
    account = await an_account(db)
    await do(office, "pauses.add", account=account, name="a.example")
    for _ in range(3):
        await db.write(lambda tx: acme_limits.failed(tx, account, "b.example", 3))
        await db.write(lambda tx: acme_limits.failed(tx, account, "a.example", 3))
    told = {}
    for name in ("a.example", "b.example"):
        found = await db.read(lambda tx, n=name: acme_limits.record(tx, account, "", [n], until=tx.now()))  # type: ignore[misc]
        with pytest.raises(AcmeError) as refused:
            orders.check_pauses(found.paused, [Identifier("dns", name)])
        told[name] = str(refused.value)
    assert "by the operator" in told["a.example"]
    assert "after many failures" in told["b.example"]


async def test_a_pause_is_listed_and_lifted_and_both_are_audited(db: Database, tmp_path: Path) -> None:
    office, _ = await an_office(db, tmp_path)
    account = await an_account(db)
    await do(office, "pauses.add", account=account, name="A.example")
    [listed] = await do(office, "pauses.list")
    assert (listed["account"], listed["name"]) == (account, "a.example")
    assert (await db.read(lambda tx: acme_limits.record(tx, account, "", ["a.example"], until=tx.now()))).paused == {
        "a.example": 0
    }
    await do(office, "pauses.delete", account=account, name="a.example")
    assert await do(office, "pauses.list") == []
    actions = [action for _, action, _ in await audited(db)]
    assert actions[-2:] == ["name_paused", "name_unpaused"]


# ── Revoking and blocking ──


def _with_colons(serial: str) -> str:
    padded = serial.zfill(42)  # with the octet of zeros that some programs show before a high bit
    return ":".join(padded[at : at + 2] for at in range(0, 42, 2))


async def test_a_certificate_is_revoked_by_its_serial_however_it_is_written(db: Database, tmp_path: Path) -> None:
    office, opened = await an_office(db, tmp_path)
    for number, write in enumerate((str, str.upper, _with_colons)):
        issued = await issue(db, opened.ca, number=number + 1)
        told = await do(office, "issued.revoke", ca="ca1", serial=write(issued.serial), reason="superseded")
        assert (told["serial"], told["reason"]) == (issued.serial, "superseded")
        with pytest.raises(AlreadySo):
            await do(office, "issued.revoke", ca="ca1", serial=issued.serial, reason="superseded")
    rows = await do(office, "issued.list", ca="ca1")
    assert all(each["revoked_at"] for each in rows)
    job, now = await db.read(lambda tx: (jobs.live(tx, "ca.crl", "ca1/0"), tx.now()))
    assert job is not None
    assert job.due_at <= now + timedelta(seconds=60)


async def test_a_key_that_was_compromised_is_blocked_with_its_certificate(db: Database, tmp_path: Path) -> None:
    office, opened = await an_office(db, tmp_path)
    issued = await issue(db, opened.ca)
    await do(office, "issued.revoke", ca="ca1", serial=issued.serial, reason="key-compromise")
    assert await db.read(lambda tx: certificates.blocked(tx, issued.spki_sha256))


async def test_a_key_is_blocked_by_its_digest_its_certificate_or_itself(db: Database, tmp_path: Path) -> None:
    office, opened = await an_office(db, tmp_path)
    one, two, three = (a_key(number=n).public_key() for n in (11, 12, 13))
    issued = await issue(db, opened.ca, number=12)
    pem = x509.load_der_x509_certificate(issued.der).public_bytes(Encoding.PEM).decode()
    itself = three.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    for content in (keys.spki_sha256(one).hex().upper(), pem, itself):
        await do(office, "keys.block", key=content, why="found on the street")
    for key in (one, two, three):
        digest = keys.spki_sha256(key).hex()
        assert await db.read(lambda tx, digest=digest: certificates.blocked(tx, digest))  # type: ignore[misc]
    with pytest.raises(AlreadySo):
        await do(office, "keys.block", key=pem, why="again")
    with pytest.raises(CaRefused):
        await do(office, "keys.block", key="-----BEGIN NOTHING-----", why="no key")


@pytest.mark.parametrize("serial", ["", "xyz", "0x", "a" * 43, "12 34"])
async def test_what_is_no_serial_is_refused(db: Database, tmp_path: Path, serial: str) -> None:
    office, _ = await an_office(db, tmp_path)
    with pytest.raises(CaRefused, match="no serial"):
        await do(office, "issued.revoke", ca="ca1", serial=serial, reason="superseded")


# ── Settings of a CA ──


async def test_options_are_changed_by_name_and_profiles_by_theirs(db: Database, tmp_path: Path) -> None:
    office, _ = await an_office(db, tmp_path)
    changes = {
        "mode": "trust",
        "challenges": ["dns-01"],
        "profiles": [{"name": "short", "lifetime_s": 86400}, {"name": "default", "client_auth": True}],
    }
    told = await do(office, "ca.change", ca="ca1", **changes)
    options = CaOptions.from_json(told["options"])
    assert (str(options.mode), options.challenges) == ("trust", ("dns-01",))
    assert [(each.name, each.lifetime_s, each.client_auth) for each in options.profiles] == [
        ("default", 90 * 86400, True),
        ("short", 86400, False),
    ]
    told = await do(office, "ca.change", ca="ca1", without_profiles=["short"])
    assert [each["name"] for each in told["options"]["profiles"]] == ["default"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"mode": "hope"},
        {"colour": "red"},
        {"shards": "2"},
        {"eab_required": 1},
        {"profiles": [{"lifetime_s": 5}]},
        {"profiles": [{"name": "a", "lifetime_s": "1d"}]},
        {"profiles": [{"name": "a", "colour": "red"}]},
        {"profiles": ["a"]},
        {"without_profiles": ["default"]},
        {"without_profiles": ["none"]},
    ],
)
async def test_changes_that_make_no_sense_are_refused_and_nothing_is_changed(
    db: Database, tmp_path: Path, changes: dict[str, Any]
) -> None:
    office, opened = await an_office(db, tmp_path)
    with pytest.raises((UserError, ValidationError)):
        await do(office, "ca.change", ca="ca1", **changes)
    await opened.authorities.refresh()
    assert opened.authorities.get("ca1") == opened.ca


async def test_what_is_shown_of_a_ca_holds_no_secret(db: Database, tmp_path: Path) -> None:
    office, _ = await an_office(db, tmp_path)
    told = await do(office, "ca.get", ca="ca1")
    assert told["directory"] == "https://localhost:8631/acme/ca1/directory"
    assert told["approval_required"] is False
    assert "secret" not in str(told)
    assert "PRIVATE" not in str(told)


async def test_why_a_ca_cannot_sign_is_shown(db: Database, tmp_path: Path) -> None:
    _, opened = await an_office(db, tmp_path)
    sick = services_of(opened, problem=lambda ca: "The PIN is locked.")
    assert (await do(sick, "ca.get", ca="ca1"))["problem"] == "The PIN is locked."
