"""`make contract`: a long conversation with the API, and figures of what came of it."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from bench.figures import figure

from holdfast.store.sqlite import SqliteEngine
from holdfast.world import SystemClock
from tests.contract.asking import Found, asked
from tests.contract.server import served
from tests.support.stores import migrated, open_store

PHASES = "examples,coverage,fuzzing,stateful"


async def talk(examples: int, seed: int, phases: str) -> Found:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        db = await migrated(open_store(SqliteEngine(folder / "holdfast.sqlite", SystemClock())))
        try:
            async with served(db, folder) as server:
                return await asked(server, folder, examples=examples, seed=seed, phases=phases)
        finally:
            await db.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.contract")
    parser.add_argument("--examples", type=int, default=100, help="requests to each operation, at least")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--phases", default=PHASES)
    given = parser.parse_args()
    found = asyncio.run(talk(given.examples, given.seed, given.phases))
    print(found.text)
    figure("contract_operations_tested", found.tested, "operations", found.operations, found.tested == found.operations)
    figure("contract_requests", found.cases, "requests", 5000, found.cases >= 5000)
    figure("contract_undocumented_or_5xx", len(found.failures), "failures", 0, not found.failures)
    return 1 if found.failures else 0


if __name__ == "__main__":
    sys.exit(main())
