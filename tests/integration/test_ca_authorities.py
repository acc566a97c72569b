"""CAs: made, brought along, opened, changed and closed; on both engines."""

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from tests.support.ca import a_vault, adopt_ca, authorities_of, change_ca, do, opened_ca, services_of
from tests.support.pki import a_key
from tests.support.secrets_planted import INTERMEDIATE_PASSPHRASE, ROOT_PASSPHRASE

from holdfast.core.own_ca.acme import Identifier
from holdfast.core.own_ca.ca import CaMode, CaOptions, ProfileOptions
from holdfast.core.own_ca.problem import AcmeError
from holdfast.errors import TxConflict, UserError
from holdfast.operations.acme import names
from holdfast.operations.installation.secret_store import SecretStore, ca_key, root_key
from holdfast.operations.own_ca import manage as manage_ca
from holdfast.operations.own_ca.manage import Brought, CaExists, CaRefused, IssuerKeyTaken, NoSuchCa
from holdfast.pki import certify, chain, csr, keys, profile
from holdfast.pki.ceremony import CeremonyPlan, Passphrases, Result, make, perform
from holdfast.pki.profile import new_serial
from holdfast.pki.refused import ChainRefused, PkiRefused, SignerRefused
from holdfast.pki.root import certified_again, open_root
from holdfast.pki.signing import is_self_signed
from holdfast.secret import Secret
from holdfast.store.database import Database
from holdfast.store.own_ca import cas
from holdfast.store.tx import Tx
from holdfast.world import SystemClock, SystemRandom

pytestmark = pytest.mark.anyio
PLAN = CeremonyPlan(name="Example")
WORDS = Passphrases(root=Secret(ROOT_PASSPHRASE), intermediate=Secret(INTERMEDIATE_PASSPHRASE))


async def _ceremony() -> Result:
    return await perform(PLAN, WORDS, now=SystemClock().now(), random=SystemRandom())


def _brought(result: Result, **changes: object) -> Brought:
    whole = Brought(
        chain=chain.certificates_pem([result.intermediate, result.root]),
        key=Secret(result.intermediate_key_pem),
        passphrase=WORDS.intermediate,
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


async def _audited(db: Database, action: str) -> list[tuple[str, str]]:
    rows = await db.read(
        lambda tx: tx.rows("SELECT actor, subject FROM audit WHERE action = :a ORDER BY seq", a=action)
    )
    return [(row["actor"], row["subject"]) for row in rows]


# ── Making one ──


async def test_a_ca_that_was_made_signs_certificates_that_lead_to_its_root(db: Database, tmp_path: Path) -> None:
    opened = await opened_ca(db, tmp_path)
    made = opened.ca
    request = csr.parse(csr.build(["www.example.internal"], a_key()))
    now = SystemClock().now()
    chosen = made.profile(None)
    assert chosen is not None
    intent = profile.plan(chosen, request, made.issuer, serial=new_serial(SystemRandom()), now=now)
    leaf = x509.load_der_x509_certificate(certify.sign(intent, made.issuer, made.signer))
    above, roots = chain.parse_bundle(made.chain_pem), chain.parse_bundle(made.root_pem)
    assert chain.verification_problem(leaf, above, roots, now) is None
    assert not any(map(is_self_signed, above))
    places = leaf.extensions.get_extension_for_class(x509.CRLDistributionPoints).value
    assert places[0].full_name is not None
    assert places[0].full_name[0].value == opened.policy.crl_url("ca1").replace("{shard}", str(intent.crl_shard))


async def test_making_one_is_audited_once_with_its_maker(db: Database, tmp_path: Path) -> None:
    await opened_ca(db, tmp_path)
    assert await _audited(db, "ca_created") == [("local:test", "ca1")]


async def test_neither_key_of_a_ca_stands_in_the_database_in_the_open(db: Database, tmp_path: Path) -> None:
    await opened_ca(db, tmp_path)
    row = await db.read(lambda tx: cas.get(tx, "ca1"))
    assert row is not None
    assert row.key_secret is not None
    assert row.root_secret is not None
    boxes = await db.read(lambda tx: tx.rows("SELECT box FROM secrets"))
    assert len(boxes) == 2
    assert not any(b"PRIVATE KEY" in bytes(each["box"]) for each in boxes)


async def test_the_roots_key_can_still_be_brought_out_for_the_next_intermediate(db: Database, tmp_path: Path) -> None:
    opened = await opened_ca(db, tmp_path)
    row = await db.read(lambda tx: manage_ca.found(tx, "ca1"))
    root = x509.load_pem_x509_certificate(opened.ca.root_pem)
    key = keys.from_pem(await opened.secret_store.reveal(row.root_secret or "", root_key(root)))
    assert key.public_key() == root.public_key()


async def test_two_replicas_that_make_the_same_ca_at_once_make_one(db: Database, tmp_path: Path) -> None:
    secret_store = await a_vault(db, tmp_path)
    tries = [manage_ca.create(secret_store, ca="ca1", plan=PLAN, options=CaOptions(), actor="system") for _ in range(4)]
    found = await asyncio.gather(*tries, return_exceptions=True)
    assert sorted(type(each).__name__ for each in found) == ["CaExists", "CaExists", "CaExists", "CaRow"]
    assert len(await db.read(cas.everything)) == 1
    assert len(await db.read(lambda tx: tx.rows("SELECT id FROM secrets"))) == 2  # none is left without an owner


async def test_a_name_that_would_not_fit_into_an_address_is_refused(db: Database, tmp_path: Path) -> None:
    secret_store = await a_vault(db, tmp_path)
    for name in ("", "A", "a/b", "..", "-a", "a" * 33, "a\n"):
        with pytest.raises(CaRefused):
            await manage_ca.create(secret_store, ca=name, plan=PLAN, options=CaOptions(), actor="system")


async def create_under(secret_store: SecretStore, **given: Any) -> None:
    await secret_store.db.write(await manage_ca.created_under(secret_store, **given))


async def renew(secret_store: SecretStore, name: str, **given: Any) -> None:
    await secret_store.db.write(await manage_ca.renewed(secret_store, name, **given))


async def test_the_next_ca_under_the_same_root_is_trusted_by_the_same_clients(db: Database, tmp_path: Path) -> None:
    opened = await opened_ca(db, tmp_path)
    plan = CeremonyPlan(name="Example", permit=("example.internal",))
    await create_under(opened.secret_store, ca="ca2", under="ca1", plan=plan, options=CaOptions(), actor="local:test")
    await opened.authorities.refresh()
    second = opened.authorities.get("ca2")
    assert second is not None
    assert second.root_pem == opened.ca.root_pem
    assert second.issuer.public_key != opened.ca.issuer.public_key
    [root] = chain.parse_bundle(second.root_pem)
    assert chain.issued_by(second.issuer.certificate, root)
    await create_under(opened.secret_store, ca="ca3", under="ca2", plan=PLAN, options=CaOptions(), actor="local:test")
    with pytest.raises(CaExists):
        await create_under(
            opened.secret_store, ca="ca2", under="ca1", plan=plan, options=CaOptions(), actor="local:test"
        )
    assert await _audited(db, "ca_created") == [("local:test", name) for name in ("ca1", "ca2", "ca3")]


async def test_nothing_is_made_under_a_root_whose_key_is_elsewhere(db: Database, tmp_path: Path) -> None:
    secret_store, result = await a_vault(db, tmp_path), await _ceremony()
    await adopt_ca(secret_store, ca="old", brought=_brought(result), options=CaOptions(), actor="local:test")
    with pytest.raises(CaRefused, match="not kept here"):
        await create_under(secret_store, ca="new", under="old", plan=PLAN, options=CaOptions(), actor="local:test")


async def test_an_issuer_is_renewed_with_its_key_and_what_was_planned_before_is_signed_the_same(
    db: Database, tmp_path: Path
) -> None:
    opened = await opened_ca(db, tmp_path)
    before = opened.ca
    request = csr.parse(csr.build(["www.example.internal"], a_key()))
    chosen, now = before.profile(None), SystemClock().now()
    assert chosen is not None
    intent = profile.plan(chosen, request, before.issuer, serial=new_serial(SystemRandom()), now=now)
    signed = certify.sign(intent, before.issuer, before.signer)
    await do(services_of(opened), "ca.renew", ca="ca1", years=6, dry_run=True)
    assert await _audited(db, "ca_issuer_renewed") == []  # it was only tried
    await renew(opened.secret_store, "ca1", years=6, chain=None, actor="local:test")
    await opened.authorities.refresh()
    after = opened.authorities.get("ca1")
    assert after is not None
    was, now_is = before.issuer.certificate, after.issuer.certificate
    assert (now_is.subject, now_is.public_key()) == (was.subject, was.public_key())
    assert now_is.not_valid_after_utc - was.not_valid_after_utc > timedelta(days=360)
    assert now_is.serial_number != was.serial_number
    assert certify.sign(intent, after.issuer, after.signer) == signed
    above, roots = chain.parse_bundle(after.chain_pem), chain.parse_bundle(after.root_pem)
    assert chain.verification_problem(x509.load_der_x509_certificate(signed), above, roots, now) is None
    assert await _audited(db, "ca_issuer_renewed") == [("local:test", "ca1")]


async def test_an_issuer_is_not_renewed_beyond_its_root_nor_by_another(db: Database, tmp_path: Path) -> None:
    opened, result = await opened_ca(db, tmp_path), await _ceremony()
    row, secret_store = await db.read(lambda tx: manage_ca.found(tx, "ca1")), opened.secret_store
    with pytest.raises(PkiRefused, match="already expires"):
        await renew(secret_store, "ca1", years=4, chain=None, actor="local:test")
    longest = await do(services_of(opened), "ca.renew", ca="ca1", years=40, dry_run=True)
    root = x509.load_pem_x509_certificate(row.root.encode())
    assert datetime.fromisoformat(longest["expires_at"]) == root.not_valid_after_utc
    other = chain.certificates_pem([result.intermediate, result.root])
    with pytest.raises(CaRefused, match="not the issuer of CA 'ca1' again"):
        await renew(secret_store, "ca1", years=5, chain=other, actor="local:test")
    same = chain.certificates_pem([x509.load_der_x509_certificate(row.certificate)]) + row.root.encode()
    with pytest.raises(CaRefused, match="the one in use expires on"):
        await renew(secret_store, "ca1", years=5, chain=same, actor="local:test")
    with pytest.raises(NoSuchCa):
        await renew(secret_store, "nowhere", years=5, chain=None, actor="local:test")
    assert (await db.read(lambda tx: manage_ca.found(tx, "ca1"))).version == row.version


async def test_an_issuer_whose_root_is_elsewhere_is_renewed_by_what_that_signed(db: Database, tmp_path: Path) -> None:
    secret_store, result = await a_vault(db, tmp_path), await _ceremony()
    await adopt_ca(secret_store, ca="corp", brought=_brought(result), options=CaOptions(), actor="local:test")
    with pytest.raises(CaRefused, match="not kept here") as refused:
        await renew(secret_store, "corp", years=6, chain=None, actor="local:test")
    assert "holdfast pki recertify" in refused.value.hint
    pem = chain.certificates_pem([result.root])
    root = await open_root(pem, result.root_key_pem, WORDS.root)
    older = chain.certificates_pem([result.intermediate])
    again = certified_again(root, older, years=7, now=SystemClock().now(), random=SystemRandom())
    await renew(secret_store, "corp", years=5, chain=chain.certificates_pem([again]) + pem, actor="local:test")
    authorities = authorities_of(secret_store)
    await authorities.refresh()
    opened = authorities.get("corp")
    assert opened is not None
    assert opened.issuer.certificate == again
    stranger = chain.certificates_pem([(await _ceremony()).intermediate])
    with pytest.raises(PkiRefused, match="another root"):
        certified_again(root, stranger, years=9, now=SystemClock().now(), random=SystemRandom())


async def test_a_name_outside_what_its_certificate_is_confined_to_is_refused_when_it_is_ordered(
    db: Database, tmp_path: Path
) -> None:
    confined = (await opened_ca(db, tmp_path, plan=CeremonyPlan(name="Example", permit=("example.internal",)))).ca
    inside, outside = Identifier("dns", "a.example.internal"), Identifier("dns", "a.elsewhere.internal")
    names.check_allowed(confined, [inside])
    with pytest.raises(AcmeError, match=r"a\.elsewhere\.internal"):
        names.check_allowed(confined, [inside, outside])


# ── Bringing one along ──


async def test_the_intermediate_of_a_ceremony_can_be_taken_over(db: Database, tmp_path: Path) -> None:
    secret_store, result = await a_vault(db, tmp_path), await _ceremony()
    await adopt_ca(secret_store, ca="old", brought=_brought(result), options=CaOptions(), actor="local:test")
    authorities = authorities_of(secret_store)
    await authorities.refresh()
    opened = authorities.get("old")
    assert opened is not None
    assert opened.issuer.certificate == result.intermediate
    assert opened.root_pem == chain.certificates_pem([result.root])
    assert opened.chain_pem == chain.certificates_pem([result.intermediate])
    assert await _audited(db, "ca_adopted") == [("local:test", "old")]


async def test_a_key_that_signs_for_one_ca_is_not_taken_over_for_another(db: Database, tmp_path: Path) -> None:
    secret_store, result = await a_vault(db, tmp_path), await _ceremony()
    await adopt_ca(secret_store, ca="old", brought=_brought(result), options=CaOptions(), actor="local:test")
    with pytest.raises(IssuerKeyTaken, match="CA 'old' signs with this issuer's key already"):
        await adopt_ca(secret_store, ca="twin", brought=_brought(result), options=CaOptions(), actor="local:test")
    assert [row.id for row in await db.read(cas.everything)] == ["old"]


async def test_a_ca_is_not_taken_over_with_the_key_of_another(db: Database, tmp_path: Path) -> None:
    secret_store, result, other = await a_vault(db, tmp_path), await _ceremony(), await _ceremony()
    wrong = _brought(result, key=Secret(other.intermediate_key_pem))
    with pytest.raises(SignerRefused, match="not the one in the issuer's certificate"):
        await adopt_ca(secret_store, ca="old", brought=wrong, options=CaOptions(), actor="local:test")
    assert await db.read(lambda tx: tx.rows("SELECT id FROM secrets")) == []


@pytest.mark.parametrize("lacks", ["root", "intermediate"])
async def test_a_chain_is_taken_over_whole_or_not_at_all(db: Database, tmp_path: Path, lacks: str) -> None:
    secret_store, result = await a_vault(db, tmp_path), await _ceremony()
    parts = [result.intermediate] if lacks == "root" else [result.root]
    with pytest.raises(ChainRefused):
        await adopt_ca(
            secret_store,
            ca="old",
            brought=_brought(result, chain=chain.certificates_pem(parts)),
            options=CaOptions(),
            actor="local:test",
        )


async def test_a_root_signs_itself_only_where_that_was_asked_for(db: Database, tmp_path: Path) -> None:
    secret_store, made = await a_vault(db, tmp_path), await make(PLAN, now=SystemClock().now(), random=SystemRandom())
    alone = Brought(chain=chain.certificates_pem([made.root]), key=keys.to_pem(made.root_key))
    with pytest.raises(ChainRefused, match="root alone"):
        await adopt_ca(secret_store, ca="lab", brought=alone, options=CaOptions(), actor="local:test")
    await adopt_ca(secret_store, ca="lab", brought=alone, options=CaOptions(dev=True), actor="local:test")
    authorities = authorities_of(secret_store)
    await authorities.refresh()
    assert authorities.get("lab") is not None


# ── Opening ──


async def test_a_self_signed_issuer_that_came_into_the_store_somehow_does_not_sign(
    db: Database, tmp_path: Path
) -> None:
    opened = await opened_ca(db, tmp_path)
    row = await db.read(lambda tx: manage_ca.found(tx, "ca1"))
    root = x509.load_pem_x509_certificate(opened.ca.root_pem)
    key = await opened.secret_store.reveal(row.root_secret or "", root_key(root))
    kept = await opened.secret_store.keep(key, ca_key("ca1"), lambda tx, secret: secret)
    swapped = replace(row, certificate=root.public_bytes(chain.Encoding.DER), key_secret=kept)
    await db.write(lambda tx: cas.save(tx, swapped))
    await opened.authorities.refresh()
    assert opened.authorities.get("ca1") is None
    assert "self-signed" in (opened.authorities.problem("ca1") or "")


async def test_a_ca_that_cannot_be_opened_is_told_once_and_hinders_no_other(db: Database, tmp_path: Path) -> None:
    opened = await opened_ca(db, tmp_path)
    await manage_ca.create(opened.secret_store, ca="ca2", plan=PLAN, options=CaOptions(), actor="system")
    first, second = (
        await db.read(lambda tx: manage_ca.found(tx, "ca1")),
        await db.read(lambda tx: manage_ca.found(tx, "ca2")),
    )
    await db.write(lambda tx: cas.save(tx, replace(first, key_secret=second.key_secret)))
    for _ in range(3):
        await opened.authorities.refresh()
    assert [each.id for each in opened.authorities.all()] == ["ca2"]
    assert len(opened.watch.log.told("ca.not_opened")) == 1


async def test_a_change_made_elsewhere_is_followed(db: Database, tmp_path: Path) -> None:
    opened = await opened_ca(db, tmp_path)
    await db.write(lambda tx: manage_ca.set_state(tx, "ca1", "closed", actor="local:test"))
    await change_ca(db, "ca1", lambda was: replace(was, mode=CaMode.TRUST), actor="local:test")
    assert opened.authorities.get("ca1") == opened.ca
    await opened.authorities.refresh()
    now = opened.authorities.get("ca1")
    assert now is not None
    assert (now.closed, now.options.mode, now.version) == (True, CaMode.TRUST, 3)


async def test_options_survive_their_way_through_the_store(db: Database, tmp_path: Path) -> None:
    chosen = CaOptions(
        mode=CaMode.TRUST,
        eab_required=True,
        challenges=("dns-01", "dns-account-01"),
        profiles=(ProfileOptions(), ProfileOptions(name="short", lifetime_s=6 * 86400, key_kinds=("ec-p256",))),
        shards=4,
        permitted=("*.example.internal", "192.0.2.7"),
    )
    opened = await opened_ca(db, tmp_path, options=chosen)
    assert opened.ca.options == chosen
    short = opened.ca.profile("short")
    assert short is not None
    assert short.lifetime == timedelta(days=6)
    assert short.key_kinds == {"ec-p256"}
    assert opened.ca.profile("none") is None


# ── Changing ──


async def test_what_was_changed_is_audited_and_what_was_not_is_not(db: Database, tmp_path: Path) -> None:
    await opened_ca(db, tmp_path)
    await change_ca(db, "ca1", lambda was: replace(was, eab_required=True), actor="local:alice")
    await change_ca(db, "ca1", lambda was: replace(was, eab_required=True), actor="local:bob")
    assert await _audited(db, "ca_changed") == [("local:alice", "ca1")]


async def test_changes_at_the_same_time_are_all_made(db: Database, tmp_path: Path) -> None:
    await opened_ca(db, tmp_path)

    def also(name: str) -> asyncio.Future[object]:
        return asyncio.ensure_future(
            change_ca(
                db, "ca1", lambda was: replace(was, permitted=(*was.permitted, name)), actor="local:test"
            )
        )  # fmt: skip

    await asyncio.gather(*(also(f"n{n}.example.internal") for n in range(6)))
    assert len((await db.read(lambda tx: manage_ca.found(tx, "ca1"))).options.permitted) == 6


async def test_what_was_read_before_another_change_cannot_be_saved(db: Database, tmp_path: Path) -> None:
    await opened_ca(db, tmp_path)
    stale = await db.read(lambda tx: manage_ca.found(tx, "ca1"))
    await db.write(lambda tx: manage_ca.set_state(tx, "ca1", "closed", actor="local:test"))

    def write(tx: Tx) -> str:
        try:
            cas.save(tx, stale)
        except TxConflict:
            return "conflict"
        return "saved"

    assert await db.write(write) == "conflict"
    assert (await db.read(lambda tx: manage_ca.found(tx, "ca1"))).state == "closed"


@pytest.mark.parametrize(
    "change",
    [
        {"challenges": ("http-02",)},
        {"shards": 0},
        {"shards": 3},
        {"dev": True},
        {"crl_lifetime_s": 60},
        {"profiles": ()},
        {"profiles": (ProfileOptions(), ProfileOptions())},
        {"profiles": (ProfileOptions(lifetime_s=500 * 86400),)},
        {"profiles": (ProfileOptions(key_kinds=("dsa",)),)},
        {"profiles": (ProfileOptions(name="a b"),)},
        {"permitted": ("a..b",)},
        {"permitted": ("a.*.b",)},
    ],
)
async def test_what_contradicts_itself_is_refused_and_changes_nothing(
    db: Database, tmp_path: Path, change: dict[str, object]
) -> None:
    before = (await opened_ca(db, tmp_path, options=CaOptions(shards=4))).ca.options
    with pytest.raises(UserError):
        await change_ca(db, "ca1", lambda was: replace(was, **change), actor="local:test")  # type: ignore[arg-type]
    assert (await db.read(lambda tx: manage_ca.found(tx, "ca1"))).options == before


async def test_a_ca_that_is_not_there_cannot_be_changed(db: Database) -> None:
    with pytest.raises(NoSuchCa):
        await db.write(lambda tx: manage_ca.set_state(tx, "ca9", "closed", actor="local:test"))
    with pytest.raises(NoSuchCa):
        await db.read(lambda tx: manage_ca.found(tx, "ca9"))
    assert CaExists("a").status == 409
