"""Notices that the database lost commits, is older than before or is somewhere else; and finds again what was lost.

Every replica looks for itself, at the start and every few seconds. From the first doubt on our CAs sign, revoke and
list nothing. Each replica puts back what its own witness and its own audit file know; the holder of one lease waits for
all of them. After a failover work then goes on by itself. After anything else a person releases the installation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

from holdfast.core import witness
from holdfast.core.installation import SAME, Change, Installation, Judgement, Mode, judge
from holdfast.core.witness import Fact
from holdfast.engine.worker import WorkerIdentity
from holdfast.errors import StoreUnavailable
from holdfast.operations.installation import quarantine
from holdfast.operations.own_ca import replay
from holdfast.operations.own_ca.replay import PutBack
from holdfast.pki.in_thread import aside
from holdfast.ports import Clock, Files, Points, Random
from holdfast.store import installation
from holdfast.store.database import Database
from holdfast.store.installation import Replay
from holdfast.store.tx import Tx
from holdfast.store.witness import Witnessing
from holdfast.store.work import cluster
from holdfast.telemetry import Telemetry

LEASE: Final = "recovery"
LOOK_EVERY: Final = timedelta(seconds=2)
COMPARING: Final = "the database is being compared with what this replica knows of it"
MODES: Final = {
    Change.FAILED_OVER: Mode.RECOVERING,
    Change.OLDER: Mode.QUARANTINE,
    Change.ELSEWHERE: Mode.QUARANTINE,
}


@dataclass(slots=True, kw_only=True)
class Recovery:
    """One replica's part."""

    db: Database
    witness: Witnessing
    identity: WorkerIdentity
    ttl: timedelta
    audit_file: Path | None
    files: Files
    clock: Clock
    random: Random
    points: Points
    telemetry: Telemetry
    _since: dict[int, float] = field(default_factory=dict)  # when we first saw a generation, by our own clock

    async def tick(self) -> None:
        """Look, and do what follows. StoreUnavailable if the server is not the one that should answer."""
        row = await self._row()
        judgement = await self._judged(row)
        match judgement.change:
            case Change.BEHIND:
                self.witness.close_gate(judgement.why)
                raise StoreUnavailable(judgement.why)
            case Change.FAILED_OVER | Change.OLDER | Change.ELSEWHERE:
                row = await self._enter(row, judgement)
        if self._owes_replay(row):
            await self._replay(row)
        if row.mode is Mode.RECOVERING:
            row = await self._finish(row)
        self._open_or_close(row)

    # ── Looking ──

    async def _row(self) -> Installation:
        found = await self.db.read(installation.get)
        if found is None:
            found = await self.db.write(self._begin)
        return found

    def _begin(self, tx: Tx) -> Installation:
        """A database without a name is new, or from before there were names: then it is the one that we know."""
        head = self.witness.head
        used = tx.row("SELECT seq FROM audit LIMIT 1") is not None
        installation.begin(tx, head.installation if head is not None and used else self.random.new_id("inst"))
        row = installation.get(tx)
        if row is None:
            raise AssertionError("it was inserted, or was there")
        return row

    async def _judged(self, row: Installation) -> Judgement:
        head = self.witness.head
        if head is None or head.installation != row.id:  # the first look of this replica at this database
            seen = await self.db.read(lambda tx: installation.look(tx, row, None))
        else:
            seen = await self.db.read(lambda tx: installation.look(tx, row, head))
        found = judge(seen, head)
        if found.change is Change.NONE and (head is None or head.installation != row.id):
            self.witness.note(await self.db.read(lambda tx: installation.head(tx, row, self.clock.now())))
        return SAME if row.mode is not Mode.NORMAL and found.change is not Change.ELSEWHERE else found

    async def _enter(self, row: Installation, judgement: Judgement) -> Installation:
        self.witness.close_gate(COMPARING)
        mode, missing = MODES[judgement.change], judgement.missing
        facts = {"change": judgement.change.value, "missing_s": int(missing.total_seconds()), "place": row.place}

        def write(tx: Tx) -> Installation:
            if installation.enter(tx, row, mode, judgement.why, **facts):
                quarantine.told(tx, mode, judgement)
            return installation.get(tx) or row

        with self.witness.adopting():
            entered = await self.db.write(write)
        self.points("recovery.entered")
        self.telemetry.log.error("store.changed", mode=entered.mode.value, why=judgement.why, **facts)
        return entered

    # ── Finding again ──

    def _owes_replay(self, row: Installation) -> bool:
        head = self.witness.head
        return head is not None and head.installation == row.id and head.generation < row.generation

    async def _replay(self, row: Installation) -> None:
        self.witness.close_gate(COMPARING)
        facts, damaged = await aside(self._witnessed)
        with self.witness.adopting():
            found = await replay.put_back(self.db, facts, self.random, self.points)
            if self.audit_file is not None:
                lines = self.files.lines(self.audit_file)
                found += await replay.put_back(self.db, replay.audited(lines), self.random, self.points)
            found += PutBack(damaged=damaged)
            await self.db.write(lambda tx: self._note_replay(tx, row, found))
            self.witness.note(await self.db.read(lambda tx: installation.head(tx, row, self.clock.now())))
        self.telemetry.log.info("witness.replayed", generation=row.generation, certificates=found.certificates,
                                revocations=found.revocations, serials=found.serials, damaged=damaged)  # fmt: skip

    def _witnessed(self) -> tuple[list[Fact], int]:
        read = [witness.facts(content) for content in self.witness.contents()]
        return [fact for facts, _ in read for fact in facts], sum(damaged for _, damaged in read)

    def _note_replay(self, tx: Tx, row: Installation, found: PutBack) -> None:
        made = Replay(
            generation=row.generation,
            holder=self.identity.holder,
            name=self.identity.name,
            certificates=found.certificates,
            revocations=found.revocations,
            serials=found.serials,
            damaged=found.damaged,
        )
        installation.replayed(tx, made)
        if row.mode is Mode.NORMAL and (found.certificates or found.revocations or found.serials):
            quarantine.found_late(tx, made)

    async def _finish(self, row: Installation) -> Installation:
        """After a failover: once every replica that is alive has replayed, by whoever holds the lease."""
        waited = self.clock.monotonic() - self._since.setdefault(row.generation, self.clock.monotonic())

        def write(tx: Tx) -> Installation:
            lease = cluster.take_lease(tx, LEASE, self.identity.holder, self.ttl)
            if lease is None:
                return row
            if not set(self._awaited(tx, row, waited)) - {
                each.holder for each in installation.replays(tx, row.generation)
            }:
                quarantine.recovered(tx, row)
            cluster.release_lease(tx, lease)
            return installation.get(tx) or row

        return await self.db.write(write)

    def _awaited(self, tx: Tx, row: Installation, waited: float) -> Iterator[str]:
        """Replicas whose witness may know more: all that live, and for the time of a lease those that lived before."""
        patient = waited < self.ttl.total_seconds()
        for each in cluster.all_replicas(tx):
            if each.seen_at >= row.since or (patient and each.seen_at >= row.since - 2 * self.ttl):
                yield each.holder

    def _open_or_close(self, row: Installation) -> None:
        reason = quarantine.reason(row)
        if reason:
            self.witness.close_gate(reason)
        else:
            self.witness.open_gate()
        self.telemetry.metrics.quarantine.set(row.mode is Mode.QUARANTINE)
