"""Tells the witness of each transaction before it is committed, and how far the database came after it was."""

from __future__ import annotations

import threading
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


class Witnessing:
    """What one process tells its witness. Its methods run on the writers' threads."""

    def __init__(self, file: Witness, clock: Clock, points: Points) -> None:
        self._file, self._clock, self._points = file, clock, points
        self._guard = threading.Lock()
        self.problem = ""  # why nothing can be witnessed now
        self.head, self._turn = witness.newest_head(file.heads())

    def before_commit(self, tx: Tx) -> None:
        """Write the facts of a transaction. StoreUnavailable if that cannot be: then it must not be committed."""
        if tx.facts:
            self._append([witness.line(fact) for fact in tx.facts])
            self._points("witness.written")

    def committed(self, tx: Tx) -> None:
        """Remember the newest audit entry: whoever finds less of the database later knows that some is missing."""
        sealed, known = tx.sealed, self.head
        if sealed is None or known is None:
            return
        with self._guard:
            if sealed.seq > known.seq or tx.epoch > known.epoch:
                self.note(Head(installation=known.installation, identity=known.identity, epoch=tx.epoch,
                               seq=sealed.seq, hash=sealed.hash, at=self._clock.now()))  # fmt: skip

    def note(self, head: Head) -> None:
        self.head, self._turn = head, self._turn + 1
        self._file.note(witness.head_line(head, self._turn), self._turn)

    def check(self) -> str:
        """Why nothing can be witnessed now, looked at again; empty if it can."""
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
