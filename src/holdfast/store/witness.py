"""Tells the witness of each transaction before it is committed, and how far the database came after it was."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from holdfast.core import witness
from holdfast.core.witness import Head
from holdfast.errors import StoreUnavailable
from holdfast.ports import Clock, Points, Witness
from holdfast.store.tx import Tx

FULL: Final = (
    "the witness in {folder} cannot be written: {why}. Nothing is signed or revoked without it: free some space, or "
    "name another folder (witness.folder)."
)
OLDER: Final = "the database lacks what this replica saw committed; it is being looked at"
OTHER_TIMELINE: Final = "the database went over to another server; it is being compared with what this replica knows"


class Witnessing:
    """What one process tells its witness. Its methods run on the writers' threads."""

    def __init__(self, file: Witness, clock: Clock, points: Points) -> None:
        self._file, self._clock, self._points = file, clock, points
        self._guard = threading.Lock()
        self.problem = ""  # why nothing can be witnessed now
        self.closed = ""  # why nothing may be signed or revoked, whatever the disk says
        self._adopting = False  # the database is known to be another one: its audit log need not go on from ours
        self.head, self._turn = witness.newest_head(file.heads())

    def before_commit(self, tx: Tx) -> None:
        """Write the facts of a transaction. StoreUnavailable if that cannot be: then it must not be committed."""
        self._check(tx)
        if tx.facts:
            self._append([witness.line(fact) for fact in tx.facts])
            self._points("witness.written")

    def _check(self, tx: Tx) -> None:
        """Refuse to add to a database that lacks what we saw committed, whenever that shows first."""
        head = self.head
        if self._adopting or head is None:
            return
        if tx.sealed is not None and tx.sealed.before < head.seq and tx.epoch <= head.epoch:
            self.close_gate(OLDER)
            raise StoreUnavailable(OLDER)
        if tx.facts and (self.closed or tx.epoch != head.epoch):
            raise StoreUnavailable(self.closed or OTHER_TIMELINE)

    def close_gate(self, why: str) -> None:
        self.closed = why

    def open_gate(self) -> None:
        self.closed = ""

    @contextmanager
    def adopting(self) -> Iterator[None]:
        """Meanwhile writes are those that put things right."""
        self._adopting = True
        try:
            yield
        finally:
            self._adopting = False

    def committed(self, tx: Tx) -> None:
        """Remember the newest audit entry: whoever finds less of the database later knows that some is missing."""
        sealed, known = tx.sealed, self.head
        if sealed is None or known is None:
            return
        with self._guard:
            if sealed.seq > known.seq and tx.epoch == known.epoch and not self._adopting:
                self.note(replace(known, seq=sealed.seq, hash=sealed.hash, at=self._clock.now()))

    def note(self, head: Head) -> None:
        self.head, self._turn = head, self._turn + 1
        self._file.note(witness.head_line(head, self._turn), self._turn)

    def check(self) -> str:
        """Why nothing can be signed now, looked at again; empty if it can."""
        if self.closed:
            return self.closed
        if self.problem:
            try:
                self._append([b"\n"])
            except StoreUnavailable:
                return self.problem
        return ""

    def contents(self) -> list[bytes]:
        return self._file.contents()

    def close(self) -> None:
        self._file.close()

    def _append(self, lines: list[bytes]) -> None:
        try:
            self._file.append(lines)
        except OSError as error:
            self.problem = FULL.format(folder=self._file.folder, why=error.strerror)
            raise StoreUnavailable(self.problem) from error
        self.problem = ""
