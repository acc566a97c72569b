"""What is known about the delivery of certificates, written together: evidence, not worth a commit each."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from holdfast.store import ca_certificates, journal
from holdfast.store.database import Store
from holdfast.store.tx import Tx

MOST: int = 10_000  # beyond that, evidence is dropped: unknown is shown as unknown


class Deliveries:
    """Remembers until somebody calls flush; losing it in a crash loses no certificate."""

    def __init__(self, db: Store) -> None:
        self._db = db
        self._seen: dict[str, dict[tuple[str, str], None]] = {"fetched": {}, "acknowledged": {}, "deployed": {}}

    def __call__(self, level: str, certificate: str, account: str) -> None:
        seen = self._seen[level]
        if len(seen) < MOST:
            seen[certificate, account] = None

    async def flush(self) -> int:
        """Write what was gathered; on failure it is kept for the next time."""
        taken = {level: tuple(seen) for level, seen in self._seen.items() if seen}
        if not taken:
            return 0
        await self._db.write(lambda tx: _write(tx, taken))
        for level, certificates in taken.items():
            for each in certificates:
                self._seen[level].pop(each, None)
        return sum(map(len, taken.values()))


def _write(tx: Tx, taken: dict[str, tuple[tuple[str, str], ...]]) -> None:
    for level, certificates in taken.items():
        for start in range(0, len(certificates), 100):
            ca_certificates.deliver(tx, level, certificates[start : start + 100])


async def tell_uncollected(db: Store, after: timedelta) -> int:
    """Say once of each certificate that was issued and never collected; nothing is deleted because of it."""
    total = 0
    while told := await db.write(lambda tx: _tell(tx, after)):
        total += told
    return total


def _tell(tx: Tx, after: timedelta) -> int:
    waiting: Sequence[ca_certificates.Issued] = ca_certificates.uncollected(tx, tx.now() - after)
    for each in waiting:
        names = [identifier.value for identifier in each.identifiers]
        journal.event(tx, "certificate.uncollected", each.id, account=each.account, names=names, serial=each.serial)
    if waiting:
        ca_certificates.alerted(tx, [each.id for each in waiting])
    return len(waiting)
