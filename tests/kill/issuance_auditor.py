"""What must be true once a certificate is there: the store and the CA agree, and nobody has a certificate too many."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.config import KEY_NAME, Acme, Keys, Settings, StoreSettings
from holdfast.engine.issuance.issuer_factory import Upstream
from holdfast.operations.installation import keys as keyrings
from holdfast.operations.installation.secret_store import SecretStore, certificate_key
from holdfast.operations.issuance.attempts import CertificateContext
from holdfast.pki import keys
from holdfast.pki.chain import parse_bundle
from holdfast.secret import Secret
from holdfast.store import journal
from holdfast.store.database import Database
from holdfast.store.postgres import PostgresEngine
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.tx import Row, Tx
from holdfast.world import HttpTransport, LocalFiles, SystemClock, SystemRandom
from tests.kill.issuance_cas import CaOfOneRun, Truth
from tests.support.grounds import Ground
from tests.support.stores import open_store


@dataclass(frozen=True, slots=True)
class Finding:
    problems: list[str]
    keyless: int
    truth: Truth | None


async def audit(place: Ground, ca: CaOfOneRun, *, kills: int, doubted: bool) -> Finding:
    """Open the store as a replica would, and ask the CA what it knows."""
    shared = "://" in place.store
    engine = PostgresEngine(Secret(place.store), connections=1) if shared else SqliteEngine(
        place.folder / "holdfast.sqlite", SystemClock()
    )  # fmt: skip
    settings = Settings(
        store=StoreSettings(data_dir=place.folder), keys=Keys(file=place.folder / KEY_NAME), acme=Acme(first_ca="")
    )
    db, transport = open_store(engine), HttpTransport()
    try:
        files, random = LocalFiles(), SystemRandom()
        keyring = await keyrings.unlock(db, settings, files, random)
        secret_store = SecretStore(db=db, settings=settings, files=files, keyring=keyring)
        context = CertificateContext(db=db, random=random, secret_store=secret_store)
        upstream = Upstream(context=context, own_cas=None, transport=transport, clock=SystemClock())
        truth = await ca.truth(upstream)
        stored = await db.read(lambda tx: list(_in_the_store(tx, place.engine, doubted=doubted)))
        keyless = await _keyless(db, secret_store)
    finally:
        await transport.close()
        await db.close()
    wrong = [*stored, *_at_the_ca(truth, ca.more_orders * kills)]
    return Finding([*wrong, *(["a certificate in use has another key"] if keyless else [])], keyless, truth)


def _at_the_ca(truth: Truth | None, more: int) -> Iterator[str]:
    if truth is None:
        yield "the CA does not know us"
        return
    if not 1 <= truth.orders <= 1 + more:
        yield f"there are {truth.orders} orders at the CA"
    if not 1 <= truth.certificates <= 1 + more:
        yield f"there are {truth.certificates} certificates at the CA"


async def _keyless(db: Database, secret_store: SecretStore) -> int:
    """Certificates in use whose key we do not have."""
    found = 0
    for row in await db.read(lambda tx: tx.rows("SELECT certificate, key_secret, chain_pem FROM certificate_versions")):
        leaf = parse_bundle(row["chain_pem"].encode())[0]
        key = keys.from_pem(await secret_store.reveal(row["key_secret"], certificate_key(row["certificate"])))
        found += leaf.public_key() != key.public_key()
    return found


def _in_the_store(tx: Tx, engine: str, *, doubted: bool) -> Iterator[str]:
    if engine == "sqlite":
        for row in tx.rows("PRAGMA integrity_check"):
            if row["integrity_check"] != "ok":
                yield f"the file is damaged: {row['integrity_check']}"
    [attempt, *others] = tx.rows("SELECT * FROM issuances ORDER BY started_at")
    if doubted and others:  # the first was given up by a person, who hears that it could not be withdrawn for sure
        if (attempt["state"], attempt["withdrawal"]) != ("cancelled", "refused"):
            yield f"the one in doubt is {attempt['state']}, {attempt['withdrawal']}"
        attempt, *others = others
    if others:
        yield f"there were more attempts: {[(each['state'], each['error']) for each in (attempt, *others)]}"
    yield from _about(tx, attempt)
    if attempt["maybe_twice"]:
        yield "it was ordered once more"
    for row in tx.rows("SELECT id, kind, state FROM jobs WHERE kind IN ('issue', 'withdraw', 'acme.issue')"):
        yield f"a job is left: {dict(row)}"
    for row in tx.rows("SELECT type, token FROM challenge_responses"):
        yield f"a proof is left: {dict(row)}"
    told = tx.rows("SELECT subject FROM audit WHERE action = 'certificate_activated'")
    if len(told) != 1:
        yield f"the audit log tells of {len(told)} activations"
    verdict = journal.verify(tx)
    if not verdict.ok:
        yield f"the audit chain does not verify: {verdict.problem}"


def _about(tx: Tx, attempt: Row) -> Iterator[str]:
    held: list[Any] = tx.rows("SELECT id, issuance, state FROM certificate_versions")
    if attempt["state"] != "issued" or attempt["ref"] is None:
        yield f"the attempt is {attempt['state']}, with the order {attempt['ref']}"
    if [(each["issuance"], each["state"]) for each in held] != [(attempt["id"], "active")]:
        yield f"the versions are {[dict(each) for each in held]}"
    current = tx.row("SELECT current_version, last_error FROM certificates")
    if current is None or current["current_version"] not in [each["id"] for each in held] or current["last_error"]:
        yield f"the certificate is {current and dict(current)}"
