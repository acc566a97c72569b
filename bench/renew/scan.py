"""What it costs to find and begin what is due, among ten thousand certificates and among a million.

The same number is due in both, scattered over the table, and the two take turns, so that a busy moment of the machine
hits both. Each round times the scan for what is due, then the sweep of the product, which begins every renewal.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import uvloop
from tests.support.ca import a_vault
from tests.support.running import add_issuer

from bench.ours import open_store
from bench.renew.server import Store, Unmeasured
from holdfast.engine.issuance import renewals
from holdfast.engine.issuance.issuer_factory import kinds as issuer_kinds
from holdfast.operations.installation.secret_store import certificate_key
from holdfast.operations.issuance.attempts import CertificateContext
from holdfast.secret import Secret
from holdfast.store import certificates
from holdfast.store.database import Database
from holdfast.world import SystemRandom

DUE = 200
DAY_US = 86_400_000_000


@dataclass(frozen=True, slots=True)
class Table:
    """A store with so many certificates, and what each round took, in milliseconds."""

    store: Store
    rows: int
    folder: Path  # for the key of its store
    scans: list[float] = field(default_factory=list)
    sweeps: list[float] = field(default_factory=list)

    @property
    def scan_ms(self) -> float:
        return statistics.median(self.scans)

    @property
    def sweep_ms(self) -> float:
        return statistics.median(self.sweeps)


def measure(folder: Path, new_store: Callable[[int], str], sizes: tuple[int, int], rounds: int) -> list[Table]:
    """Fill a table of each size and let them take turns."""
    tables = [Table(Store(new_store(rows)), rows, folder / f"of-{rows}") for rows in sizes]
    for table in tables:
        table.folder.mkdir()
        uvloop.run(furnish(table))
    uvloop.run(play(tables, rounds))
    return tables


async def furnish(table: Table) -> None:
    """A CA and a key, as the product makes them; then the many rows, by the database itself."""
    db, context = await _opened(table)
    await add_issuer(context, "own", kind="local", kinds=issuer_kinds(), settings={"ca": "default"}, actor="bench")
    secret = await context.secret_store.keep(Secret(b"no key"), certificate_key("any"), lambda _tx, kept: kept)
    await db.close()
    began = time.monotonic()
    fill(table, secret, int(datetime.now(UTC).timestamp() * 1_000_000))
    print(f"{table.rows} certificates written in {time.monotonic() - began:.1f} s", flush=True)


def fill(table: Table, secret: str, now: int) -> None:
    """All are ten days old and due in the weeks to come, no two at the same time."""
    if table.store.where.startswith("postgresql:"):
        numbers = f"generate_series(0, {table.rows - 1}) AS t (n)"
        digits = "lpad(n::text, 8, '0')"
        # Without looking up the foreign keys: they are right, and that would take longer than all the rest.
        table.store.change("SET LOCAL session_replication_role = replica", *_inserts(numbers, digits, secret, now))
        with psycopg.connect(table.store.where, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")  # as autovacuum has done by the time that a table is so large
    else:
        counting = f"SELECT 0 UNION ALL SELECT n + 1 FROM c WHERE n < {table.rows - 1}"
        numbers = f"(WITH RECURSIVE c (n) AS ({counting}) SELECT n FROM c)"
        table.store.unsafely(*_inserts(numbers, "printf('%08d', n)", secret, now))


def _inserts(numbers: str, digits: str, secret: str, now: int) -> tuple[str, str]:
    born, ends = now - 10 * DAY_US, now + 80 * DAY_US
    return (
        f"""INSERT INTO certificates (id, name, identifiers, key_kind, issuers, state, changed_by, created_at,
                                      fingerprint, next_action_at, next_cause, current_version, ari_ask_at)
            SELECT 'certificate_' || {digits}, 'n' || {digits} || '.scan.test',
                   '[["dns", "n' || {digits} || '.scan.test"]]', 'ec-p256', '["own"]', 'active', 'bench', {born},
                   'fingerprint', {now + 30 * DAY_US} + n, 'DUE_LIFETIME', 'version_' || {digits}, {now + DAY_US} + n
              FROM {numbers}""",
        f"""INSERT INTO certificate_versions (id, certificate, generation, issuance, state, key_secret, chain_pem,
                                              serial, not_before, not_after, issuer, spki_sha256, issued_at)
            SELECT 'version_' || {digits}, 'certificate_' || {digits}, 1, 'issuance_' || {digits}, 'active',
                   '{secret}', 'chain', {digits}, {born}, {ends} + n, 'own', 'key', {born}
              FROM {numbers}""",
    )


async def play(tables: list[Table], rounds: int) -> None:
    opened = [(table, *await _opened(table)) for table in tables]
    for turn in range(rounds):
        for table, db, context in opened:
            table.store.change(*_becoming_due(table, turn))
            table.scans.append(await _scan(db))
            table.sweeps.append(await _sweep(context))
    for _, db, _ in opened:
        await db.close()


def _becoming_due(table: Table, turn: int) -> tuple[str, str]:
    """Other ones each time, at equal distances over the whole table."""
    numbers = [f"{each * (table.rows // DUE) + turn:08d}" for each in range(DUE)]
    keys, versions = (", ".join(f"'{kind}_{n}'" for n in numbers) for kind in ("certificate", "version"))
    age = 55 * DAY_US
    return (
        f"""UPDATE certificate_versions SET not_before = not_before - {age}, not_after = not_after - {age}
             WHERE id IN ({versions})""",
        f"UPDATE certificates SET next_action_at = {turn} + created_at WHERE id IN ({keys})",
    )


async def _scan(db: Database) -> float:
    began = time.perf_counter()
    found = await db.write(lambda tx: certificates.due(tx, tx.now(), limit=DUE))
    took = time.perf_counter() - began
    if len(found) != DUE:
        raise Unmeasured(f"{len(found)} of {DUE} were due")
    return 1000 * took


async def _sweep(context: CertificateContext) -> float:
    began = time.perf_counter()
    begun = await renewals.sweep_due(context)
    took = time.perf_counter() - began
    if begun != DUE:
        raise Unmeasured(f"the sweep began {begun} of {DUE}")
    return 1000 * took


async def _opened(table: Table) -> tuple[Database, CertificateContext]:
    db = await open_store(table.store.where)
    return db, CertificateContext(db=db, random=SystemRandom(), secret_store=await a_vault(db, table.folder))
