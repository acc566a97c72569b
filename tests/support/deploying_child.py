"""A replica that renews a certificate, deploys it to a real daemon, and dies where it is told to.

    python -m tests.support.deploying_child STORE FOLDER RULES POINT NTH

STORE is a file or a PostgreSQL address, RULES a file as `deployment.local_file`. POINT "none" lets it live: it ends
when its newest deployment is served. Run again on the same store it goes on from wherever it was killed. POINT "swaps"
renews NTH times, each time once the version before is served.
"""

import asyncio
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

from holdfast.core.deployment import DeploymentState
from holdfast.deployers.local_file import rules_of
from holdfast.operations.issuance.attempts import CertificateContext
from holdfast.ports import Points, no_points
from holdfast.secret import Secret
from holdfast.store import issuers
from holdfast.store.database import Engine
from holdfast.store.deployments import deployments
from holdfast.store.postgres import PostgresEngine
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.tx import Tx
from holdfast.store.work import sweeps
from holdfast.world import SystemClock, SystemRandom
from tests.support.ca import a_vault
from tests.support.child import die_with_parent
from tests.support.deploying_house import Yard, a_look
from tests.support.engine import Watch, eventually
from tests.support.lifecycle import Board, House, TruthfulCa
from tests.support.mortal import Strike
from tests.support.stores import migrated, open_store

NAME = "www.example.com"


def engine_of(store: str) -> Engine:
    return PostgresEngine(Secret(store), connections=1) if "://" in store else SqliteEngine(Path(store), SystemClock())


async def a_yard(store: str, folder: Path, rules: str, points: Points = no_points) -> Yard:
    """On a store that may have been used before: then its CA is known, and only its truth is new."""
    db = await migrated(open_store(engine_of(store)))
    context = CertificateContext(db=db, random=SystemRandom(), secret_store=await a_vault(db, folder))
    house = House(db=db, certificate_context=context, cas={}, board=Board(), watch=Watch())
    house.cas["ca"] = TruthfulCa()
    if not await db.read(issuers.all_issuers):
        await house.add("ca", house.cas["ca"])
    return Yard(house, rules_of(rules), a_look(), points)


def _lost(tx: Tx) -> None:
    """The lease of a dead process, without the wait for its end; what waits for a time is due now."""
    tx.run("UPDATE jobs SET lease_until = 0 WHERE state = 'running'")
    sweeps.take_back_expired(tx, timedelta(seconds=30))
    tx.run("UPDATE jobs SET due_at = now_us(), crashes = 0 WHERE state = 'ready'")
    tx.run("UPDATE deployments SET next_at = now_us() WHERE next_at IS NOT NULL")


async def main(store: str, folder: Path, rules: str, point: str, nth: int) -> None:
    strike: Points = no_points if point in ("none", "swaps") else Strike(point, nth)
    yard = await a_yard(store, folder, rules, strike)
    await yard.house.db.write(_lost)
    before = (await yard.house.view(NAME)).certificate
    rows = await yard.house.read(deployments.of, before.id)
    wanted = rows[0].number  # of a life after a death

    async def served() -> bool:
        newest = (await yard.house.read(deployments.of, before.id))[0]
        return newest.number >= wanted and newest.state is DeploymentState.SERVED

    async with yard.house.working(kinds=yard.kinds, points=strike):
        for number in range({"none": 0, "swaps": nth}.get(point, 1)):
            wanted += 1
            somebody = f"local:life-{os.getpid()}-{number}"  # one person may ask for so many renewals in an hour
            await yard.house.renew(NAME, actor=somebody)
            await eventually(served)
            wanted = (await yard.house.read(deployments.of, before.id))[0].number
        await eventually(served)
    await yard.house.db.close()


if __name__ == "__main__":
    die_with_parent()
    signal.alarm(110 if sys.argv[4] != "swaps" else 3500)
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]).read_text(), sys.argv[4], int(sys.argv[5])))
    os._exit(0)
