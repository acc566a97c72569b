"""An order that kills whoever works on it ends invalid, with a problem, after the third death: it is never stuck."""

import asyncio
import signal
from typing import Final

from tests.kill.ca import DECIDED_WITHIN, ORDERS, client, quiet
from tests.kill.ca_auditor import problems
from tests.kill.ca_replicas import Found
from tests.support.acme_client import es256
from tests.support.acme_patient import Patient
from tests.support.acme_replica import AcmeReplica, Answerer, an_address
from tests.support.child import Strike
from tests.support.grounds import Ground

# The first replica signs its list and its own certificate, validates, and dies; for the next, the order comes first.
DEATHS: Final = (
    Strike("kill", "job.effect-done", 4),
    Strike("kill", "job.effect-done", 1),
    Strike("kill", "job.effect-done", 1),
)


async def poisonous(place: Ground, answerer: Answerer) -> Found:
    address = an_address()
    async with asyncio.timeout(DECIDED_WITHIN), client(es256(), answerer, address) as patient:
        work = asyncio.create_task(_order(patient))
        for number, strike in enumerate(DEATHS, 1):
            with AcmeReplica(place, f"victim{number}", address, answerer.port, strike=strike) as victim:
                if await asyncio.to_thread(victim.wait) != -signal.SIGKILL:
                    raise AssertionError(f"it was not killed:\n{victim.log()}")
        with AcmeReplica(place, "last", address, answerer.port):
            await work
            await quiet(place)
            held = patient.held[ORDERS[0].name]
            wrong = [] if held.status == "invalid" else [f"it is {held.status}, not invalid"]
            return Found([*wrong, *problems(place, [held])])


async def _order(patient: Patient) -> None:
    await patient.register()
    await patient.obtain(ORDERS[0])
