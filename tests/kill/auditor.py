"""What must be true once a successor has finished: the store, the CA, the audit log and the key file agree."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.config import Settings, StoreSettings
from holdfast.keyring import Keyring, read_key_file
from holdfast.operations.installation.keys import Sources
from holdfast.store import journal, secrets
from holdfast.store.tx import Tx
from holdfast.store.work import cluster
from holdfast.world import LocalFiles, SystemRandom
from tests.support.ca_server import Ca
from tests.support.grounds import Ground, look


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What was asked for, and how often somebody was killed meanwhile."""

    errands: Sequence[str]
    secrets: Sequence[str] = ()
    kills: int = 0


def problems(ground: Ground, ca: Ca, promise: Promise) -> list[str]:
    """Everything that is wrong, as sentences; nothing when all is well."""
    lost = look(ground, _taken_back)
    return [*_at_the_ca(ca, promise, lost), *look(ground, lambda tx: list(_in_the_store(tx, ground, promise)))]


def _taken_back(tx: Tx) -> dict[str, int]:
    """How often each errand's job was taken from one who went silent: dead, or slower than its lease."""
    taken = "SELECT subject AS key, COUNT(*) AS n FROM audit WHERE action = 'job_taken_back' GROUP BY 1"
    return _counted(tx.rows(taken))


def _at_the_ca(ca: Ca, promise: Promise, lost: dict[str, int]) -> Iterator[str]:
    yield from _differences("certificates at the CA", ca.certificates, dict.fromkeys(promise.errands, 1))
    for errand, orders in ca.ordered.items():
        # Each death, and each lease that was too short, may repeat the effect it interrupted, and no other.
        if orders > 1 + max(promise.kills, lost.get(errand, 0)):
            yield f"{errand} was ordered {orders} times with {promise.kills} kills"
    for line in ca.over_limit:
        yield f"the CA's limit was exceeded: {line}"


def _in_the_store(tx: Tx, ground: Ground, promise: Promise) -> Iterator[str]:
    if ground.engine == "sqlite":
        yield from _intact(tx)
    issued = {row["id"]: row["state"] for row in tx.rows("SELECT id, state FROM errands")}
    yield from _differences("errands", issued, dict.fromkeys(promise.errands, "issued"))
    for row in tx.rows("SELECT id, state FROM jobs"):
        yield f"the job {row['id']} is left {row['state']}"
    done = _counted(tx.rows("SELECT subject AS key, COUNT(*) AS n FROM job_history WHERE state = 'done' GROUP BY 1"))
    yield from _differences("jobs done", done, dict.fromkeys(promise.errands, 1))
    for lease in cluster.held_leases(tx):
        yield f"the lease {lease.name} is left held by {lease.holder} until {lease.until}; now it is {tx.now()}"
    yield from _in_the_journal(tx, promise)
    yield from _among_the_secrets(tx, ground.folder, promise)


def _intact(tx: Tx) -> Iterator[str]:
    for row in tx.rows("PRAGMA integrity_check"):
        if row["integrity_check"] != "ok":
            yield f"the file is damaged: {row['integrity_check']}"
    for row in tx.rows("PRAGMA foreign_key_check"):
        yield f"a reference is broken: {dict(row)}"


def _in_the_journal(tx: Tx, promise: Promise) -> Iterator[str]:
    verdict = journal.verify(tx)
    if not verdict.ok:
        yield f"the audit chain does not verify: {verdict.problem}"
    steps = ("asked", "ordered", "issued")
    audited = _counted(tx.rows("SELECT subject || ' ' || action AS key, COUNT(*) AS n FROM audit GROUP BY 1"))
    own = {key: n for key, n in audited.items() if " errand_" in key}
    yield from _differences("audit rows", own, {f"{e} errand_{s}": 1 for e in promise.errands for s in steps})
    told = _counted(tx.rows("SELECT subject || ' ' || name AS key, COUNT(*) AS n FROM events GROUP BY 1"))
    own = {key: n for key, n in told.items() if " errand." in key}
    yield from _differences("events", own, {f"{e} errand.{s}": 1 for e in promise.errands for s in steps[1:]})
    numbers = [row["id"] for row in tx.rows("SELECT id FROM events ORDER BY id")]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"the events have gaps: {numbers}"


def _among_the_secrets(tx: Tx, folder: Path, promise: Promise) -> Iterator[str]:
    if not promise.secrets:
        return
    settings, files = Settings(store=StoreSettings(data_dir=folder)), LocalFiles()
    checks = secrets.checks(tx)
    keyring = Keyring(Sources(settings, files).all_of(checks), SystemRandom())
    current = keyring.current.id
    under = {kept.id: kept.sealed for kept in secrets.under(tx, current, after="", limit=1000)}
    found = {key: keyring.open(sealed, **secrets.place(key)).reveal().decode() for key, sealed in under.items()}
    owned = {row["secret"]: row["name"] for row in tx.rows("SELECT name, secret FROM owners")}
    yield from _differences("secrets under the current key", found, owned)
    if sorted(owned.values()) != sorted(promise.secrets):
        yield f"owners of secrets: {sorted(owned.values())}"
    if [check.kek_id for check in checks] != [current]:
        yield f"keys that the database still knows: {checks}"
    in_file = [kek.id for kek in read_key_file(files, settings.key_file) or ()]
    if in_file != [current]:
        yield f"keys in the file: {in_file}, current is {current}"


def _counted(rows: Iterable[object]) -> dict[str, int]:
    return {row["key"]: row["n"] for row in rows}  # type: ignore[index]


def _differences(what: str, found: dict[str, object], wanted: dict[str, object]) -> Iterator[str]:
    if found != wanted:
        wrong = sorted(key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key))
        yield f"{what}: " + ", ".join(f"{key} is {found.get(key)}, not {wanted.get(key)}" for key in wrong)
