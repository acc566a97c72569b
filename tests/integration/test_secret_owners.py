"""A secret opens for the row it was sealed for: a row that is altered to name another one gets nothing; both stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from tests.support.api import Asker, Desk, a_desk
from tests.support.ca import a_vault

from holdfast.core.access import Role
from holdfast.core.own_ca.ca import CaOptions
from holdfast.errors import KeyUnusable
from holdfast.keyring import SecretOwner
from holdfast.operations.installation.secret_store import certificate_key
from holdfast.operations.own_ca import manage as manage_ca
from holdfast.pki import keys
from holdfast.pki.ceremony import CeremonyPlan
from holdfast.secret import Secret
from holdfast.store import secrets
from holdfast.store.database import Database
from holdfast.store.secrets import KeptSecret

pytestmark = pytest.mark.anyio


async def _issued(desk: Desk, admin: Asker, name: str, owner: str) -> str:
    async with desk.house.working():
        made = await admin.post("/certificates", {"names": [name], "owner": owner}, Prefer="wait=30")
    return str(made["id"])


async def _exported(asker: Asker, name: str) -> Any:
    return await asker("POST", f"/certificates/{name}/export", {})


async def _point_at(db: Database, certificate: str, secret: str) -> None:
    await db.write(
        lambda tx: tx.run(
            "UPDATE certificate_versions SET key_secret = :secret WHERE certificate = :id",
            secret=secret,
            id=certificate,
        )
    )


async def _key_of(db: Database, certificate: str) -> str:
    sql = "SELECT key_secret FROM certificate_versions WHERE certificate = :id"
    [row] = await db.read(lambda tx: tx.rows(sql, id=certificate))
    return str(row["key_secret"])


async def test_a_row_that_names_another_key_exports_nothing(db: Database, tmp_path: Path) -> None:
    """Neither the key of another owner's certificate, nor that of a CA, nor its root's."""
    async with a_desk(db, tmp_path) as desk:
        admin = await desk.as_()
        mine, theirs = [await _issued(desk, admin, f"{each}.example.com", each) for each in ("mine", "theirs")]
        operator = await desk.as_(Role.OPERATOR, owners=("mine",), rights=frozenset({"export"}))
        assert (await _exported(operator, "mine.example.com")).status_code == 200
        await manage_ca.create(
            desk.house.certificate_context.secret_store,
            ca="ca1", plan=CeremonyPlan(name="Example"), options=CaOptions(), actor="system",
        )  # fmt: skip
        [ca] = await db.read(lambda tx: tx.rows("SELECT key_secret, root_secret FROM cas"))
        for secret in (await _key_of(db, theirs), ca["key_secret"], ca["root_secret"]):
            await _point_at(db, mine, secret)
            answer = await _exported(operator, "mine.example.com")
            assert (answer.status_code, answer.json()["code"]) == (500, "key-unusable")
            assert "PRIVATE KEY" not in answer.text


async def test_a_key_that_is_not_the_leafs_is_not_exported_even_if_it_opens(db: Database, tmp_path: Path) -> None:
    """As one that an earlier version sealed, which says nothing of its owner; or one of the same certificate."""
    async with a_desk(db, tmp_path) as desk:
        admin = await desk.as_()
        mine = await _issued(desk, admin, "mine.example.com", "mine")
        store = desk.house.certificate_context.secret_store
        key = keys.to_pem(ec.generate_private_key(ec.SECP256R1()))
        other = KeptSecret(id="secret_old", sealed=store.keyring.seal(key, **secrets.place("secret_old")))
        await db.write(lambda tx: secrets.put(tx, other))
        await _point_at(db, mine, "secret_old")
        answer = await _exported(admin, "mine.example.com")
        assert (answer.status_code, answer.json()["code"]) == (500, "key-of-another")
        assert "PRIVATE KEY" not in answer.text


async def test_a_credential_opens_for_its_remote_and_its_purpose_only(db: Database, tmp_path: Path) -> None:
    store = await a_vault(db, tmp_path)
    owner = SecretOwner("channels", "ops", "credentials/api_key")
    kept = await store.keep(Secret(b"GenieKey"), owner, lambda tx, secret: secret)
    assert (await store.reveal(kept, owner)).reveal() == b"GenieKey"
    for changed in ({"row": "mine"}, {"column": "credentials/url"}, {"table": "issuers"}):
        with pytest.raises(KeyUnusable):
            await store.reveal(kept, owner._replace(**changed))


async def test_no_secret_is_made_to_look_as_if_it_had_no_owner(db: Database, tmp_path: Path) -> None:
    store = await a_vault(db, tmp_path)
    owner, other = certificate_key("certificate_1"), certificate_key("certificate_2")
    kept = await store.keep(Secret(b"key"), owner, lambda tx, secret: secret)
    await db.write(lambda tx: tx.run("UPDATE secrets SET binding = NULL"))
    with pytest.raises(KeyUnusable):
        await store.reveal(kept, owner)
    await db.write(lambda tx: tx.run("UPDATE secrets SET id = 'secret_x'"))
    with pytest.raises(KeyUnusable):
        await store.reveal("secret_x", other)
