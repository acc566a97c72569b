"""A store to begin with, copied for each run: a CA, an account, and orders that lost their job or whose job failed."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec

from holdfast.core.own_ca.acme import Identifier, Order
from holdfast.operations.acme import accounts
from holdfast.operations.acme.authorizations import VALIDATE
from holdfast.operations.acme.context import Requester
from holdfast.operations.acme.orders import ISSUE
from holdfast.secret import Secret
from holdfast.store.database import Engine
from holdfast.store.postgres import PostgresEngine
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.tx import Tx
from holdfast.world import SystemClock
from tests.support.acme_child import BASE_URL, CA
from tests.support.acme_client import Signer, es256
from tests.support.acme_desk import Office, open_office
from tests.support.acme_replica import Answerer
from tests.support.challenge_server import a_validator
from tests.support.grounds import Ground, ground
from tests.support.postgres import Cluster
from tests.support.stores import migrated, open_store

ORPHAN: Final = "orphan"  # finalized, and its job is gone
FAILED: Final = "failed"  # finalized, and its job failed a moment ago
UNTESTED: Final = "untested"  # its challenge is answered, and the job that tests it is gone
HOSTS: Final = {ORPHAN: "127.0.0.6", FAILED: "127.0.0.7", UNTESTED: "127.0.0.8"}


@dataclass(frozen=True, slots=True)
class Planted:
    url: str
    key: ec.EllipticCurvePrivateKey
    tokens: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Seed:
    """What every copy of the store begins with."""

    folder: Path
    cluster: Cluster | None
    template: str
    signer: Signer
    orders: dict[str, Planted]

    @contextmanager
    def grown(self, parent: Path) -> Iterator[Ground]:
        with ground(parent, self.cluster, self.template) as place:
            shutil.copytree(self.folder, place.folder, dirs_exist_ok=True)
            yield place


async def sow(parent: Path, cluster: Cluster | None, answerer: Answerer) -> Seed:
    folder = parent / f"seed-{'postgresql' if cluster else 'sqlite'}"
    folder.mkdir(mode=0o700)
    url = cluster.create_database() if cluster else ""
    db = await migrated(open_store(_engine(folder, url)))
    try:
        signer = es256()
        async with open_office(db, folder) as office:
            office.proofs, office.validator = answerer.proofs, a_validator(http_port=answerer.port)
            orders = await _plant(office, signer)
    finally:
        await db.close()
    return Seed(folder, cluster, url.rpartition("/")[2] or "template1", signer, orders)


def _engine(folder: Path, url: str) -> Engine:
    if url:
        return PostgresEngine(Secret(url), connections=1)
    return SqliteEngine(folder / "holdfast.sqlite", SystemClock())


async def _plant(office: Office, signer: Signer) -> dict[str, Planted]:
    who = await _register(office, signer)
    keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in HOSTS}
    async with office.working():
        ready = {name: await office.ready(who, Identifier("ip", HOSTS[name])) for name in (ORPHAN, FAILED)}
    for name, order in ready.items():  # nobody works any more: these jobs wait
        await office.finalize(who, order, key=keys[name])
    untested = await office.order(who, Identifier("ip", HOSTS[UNTESTED]))
    challenge = await office.answer(who, untested.authzs[0])
    await office.db.write(lambda tx: _hurt(tx, ready[ORPHAN].id, ready[FAILED].id, challenge.id))
    return {
        ORPHAN: Planted(_url(ready[ORPHAN]), keys[ORPHAN]),
        FAILED: Planted(_url(ready[FAILED]), keys[FAILED]),
        UNTESTED: Planted(_url(untested), keys[UNTESTED], (challenge.token,)),
    }


async def _register(office: Office, signer: Signer) -> Requester:
    jwk = json.dumps(signer.jwk, sort_keys=True, separators=(",", ":"))
    account, _ = await accounts.register(
        office.acme_context,
        office.ca,
        jwk=jwk,
        thumbprint=signer.thumbprint,
        contacts=(),
        agreed=True,
        eab_kid=None,
        eab=None,
        address="127.0.0.1",
    )
    return Requester(account.id, account.thumbprint)


def _hurt(tx: Tx, orphan: str, failed: str, challenge: str) -> None:
    gone = "DELETE FROM jobs WHERE kind = :kind AND subject = :subject"
    changed = [
        tx.run(gone, kind=ISSUE, subject=orphan),
        tx.run(gone, kind=VALIDATE, subject=challenge),
        tx.run("UPDATE jobs SET state = 'failed', attempts = 1 WHERE kind = :k AND subject = :s", k=ISSUE, s=failed),
    ]
    if changed != [1, 1, 1]:
        raise AssertionError(f"there was nothing to hurt: {changed}")


def _url(order: Order) -> str:
    return f"{BASE_URL}/acme/{CA}/order/{order.id}"
