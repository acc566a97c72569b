"""What a database says of itself: whose it is, where it was last used, and whether it may act."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from holdfast.core.installation import Installation, Mode, SeenDatabase
from holdfast.core.witness import Head
from holdfast.store import journal
from holdfast.store.rows import Codec, Table
from holdfast.store.tx import Tx, from_micros
from holdfast.store.work import cluster, sweeps

TABLE: Final = Table(Installation, "installation", codecs={"facts": Codec(json.dumps, json.loads)})


def get(tx: Tx) -> Installation | None:
    row = tx.row(f"SELECT {TABLE.columns} FROM installation WHERE only_one = 1")
    return None if row is None else TABLE.read(row)


def begin(tx: Tx, installation: str) -> None:
    """At the first start of this version: the database gets a name, unless another replica was quicker."""
    tx.run(
        """INSERT INTO installation (only_one, id, place, mode, generation, since)
           VALUES (1, :id, :place, 'normal', 1, now_us()) ON CONFLICT DO NOTHING""",
        id=installation,
        place=tx.place,
    )


def look(tx: Tx, row: Installation, head: Head | None) -> SeenDatabase:
    seq, _ = journal.audit_head(tx)
    newest = tx.row("SELECT at FROM audit WHERE seq = :seq", seq=seq)
    there = None if head is None else tx.row("SELECT hash FROM audit WHERE seq = :seq", seq=head.seq)
    return SeenDatabase(
        row=row,
        place=tx.place,
        epoch=tx.epoch,
        known_epoch=tx.rows("SELECT epoch FROM store_epoch WHERE only_one = 1")[0]["epoch"],
        seq=seq,
        at=row.since if newest is None else from_micros(newest["at"]),
        hash_there=None if there is None else there["hash"],
        archived=journal.anchor(tx).seq,
    )


def head(tx: Tx, row: Installation, at: datetime) -> Head:
    """What a witness is to know of this database as it is now."""
    seq, newest = journal.audit_head(tx)
    return Head(installation=row.id, generation=row.generation, epoch=tx.epoch, seq=seq, hash=newest, at=at)


def enter(tx: Tx, before: Installation, mode: Mode, why: str, **facts: Any) -> bool:
    """Stop acting. False if another replica was quicker: then it saw to what follows."""
    changed = tx.run(
        """UPDATE installation SET mode = :mode, generation = :next, since = now_us(), why = :why,
                  facts = :facts, place = :place
            WHERE only_one = 1 AND generation = :generation""",
        mode=mode,
        why=why,
        facts=json.dumps(facts),
        place=tx.place or before.place,
        generation=before.generation,
        next=max(before.generation + 1, int(tx.now().timestamp())),  # above any that a later copy may have had
    )
    if changed:
        _distrust(tx)
    return changed == 1


def _distrust(tx: Tx) -> None:
    """No lease, claim or nonce of before counts; fences and the epoch are those of the server that this is now."""
    sweeps.take_back_all(tx)
    cluster.expire_leases(tx)
    tx.run("UPDATE store_epoch SET epoch = :epoch WHERE only_one = 1", epoch=tx.epoch)


def leave(tx: Tx, mode: Mode, generation: int) -> bool:
    """Act again; False if it is not in this mode any more."""
    changed = tx.run(
        """UPDATE installation SET mode = 'normal', why = '', since = now_us()
            WHERE only_one = 1 AND mode = :mode AND generation = :generation""",
        mode=mode,
        generation=generation,
    )
    return changed == 1


def empty_budgets(tx: Tx) -> int:
    """What was used since may not be known: nothing is left, and it comes back at the rate of each limit."""
    return tx.run("UPDATE budgets SET tat = now_us() + burst * every WHERE tat < now_us() + burst * every")


# ── What replicas found again ──


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What one replica found again."""

    generation: int
    holder: str
    name: str
    certificates: int = 0
    revocations: int = 0
    serials: int = 0
    damaged: int = 0


REPLAYS: Final = Table(Replay, "replays")


def replayed(tx: Tx, made: Replay) -> None:
    columns = ("certificates", "revocations", "serials", "damaged")
    more = ", ".join(f"{each} = replays.{each} + excluded.{each}" for each in columns)
    given = ", ".join(f":{each}" for each in REPLAYS.names)
    tx.run(
        f"""INSERT INTO replays ({REPLAYS.columns}, at) VALUES ({given}, now_us())
            ON CONFLICT (generation, holder) DO UPDATE SET {more}""",
        **REPLAYS.values(made),
    )


def replays(tx: Tx, generation: int) -> list[Replay]:
    rows = tx.rows(
        f"SELECT {REPLAYS.columns} FROM replays WHERE generation = :generation ORDER BY holder", generation=generation
    )
    return [REPLAYS.read(row) for row in rows]
