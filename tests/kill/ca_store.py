"""The store dies under a CA at work, three times: COMMITs whose outcome nobody knows are looked up, never assumed."""

import asyncio
from pathlib import Path
from typing import Final

from tests.kill.ca import until
from tests.kill.ca_replicas import Found, both_serve, judged, two
from tests.support.acme_patient import OVER, Patient, Wanted
from tests.support.acme_replica import HOSTS, Answerer
from tests.support.grounds import ground
from tests.support.postgres import Cluster

STREAMS: Final = 5  # orders in flight
LENGTH: Final = 8  # orders of each stream, one after another
DEATHS: Final = 3


def store_killed(folder: Path, answerer: Answerer) -> Found:
    """Two replicas on a PostgreSQL of their own, which is killed, with all its sessions, and recovers."""
    with Cluster(tmpfs=True) as cluster, ground(folder, cluster) as place:

        async def run() -> Found:
            async with two(place, answerer) as (_, _, patient):
                await both_serve(patient)
                await patient.register()
                await _disturbed(cluster, patient)
                return await judged(place, patient, _undecided(patient))

        return asyncio.run(run())


async def _disturbed(cluster: Cluster, patient: Patient) -> None:
    work = asyncio.gather(*(_stream(patient, host) for host in HOSTS[:STREAMS]))
    for death in range(1, DEATHS + 1):
        enough = death * STREAMS * LENGTH // (DEATHS + 1)
        await until(lambda enough=enough: _decided(patient) >= enough, "some of the orders")  # type: ignore[misc]
        await asyncio.to_thread(cluster.kill)
        await asyncio.to_thread(cluster.restart)
    await work


async def _stream(patient: Patient, host: str) -> None:
    for number in range(LENGTH):
        await patient.obtain(Wanted(f"{host} {number}", (host,)))


def _decided(patient: Patient) -> int:
    return sum(held.status in OVER for held in patient.held.values())


def _undecided(patient: Patient) -> list[str]:
    wrong = [f"{held.name} is {held.status}" for held in patient.held.values() if held.status != "valid"]
    missing = STREAMS * LENGTH - len(patient.held)
    return wrong + ([f"{missing} orders were not placed"] if missing else [])
