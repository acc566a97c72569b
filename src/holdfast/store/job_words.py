"""What was last said about a job that waits: for people; no worker reads it."""

from __future__ import annotations

from holdfast.store.issuances import storable
from holdfast.store.tx import Tx


def keep(tx: Tx, job: str, said: str) -> None:
    tx.run("UPDATE jobs SET last_error = :said WHERE id = :id", id=job, said=storable(said))
