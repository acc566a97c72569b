"""Two replicas of one CA: any of them answers any request, one goes on for the other, and a zombie signs nothing."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric import ec

from holdfast.store.tx import Tx
from tests.kill.ca import LEASE, ORDERS, client, quiet, until
from tests.kill.ca_auditor import problems, two_certificates
from tests.support.acme_client import b64, es256, problem
from tests.support.acme_desk import a_csr
from tests.support.acme_patient import Held, Patient, Wanted
from tests.support.acme_replica import AcmeReplica, Answerer, an_address
from tests.support.child import Strike
from tests.support.grounds import Ground, look

AT_ONCE: Final = 20
ROUNDS: Final = 5  # of twenty calls each: two transactions are seldom open in the same millisecond
PATIENCE: Final = 300.0  # seconds for one experiment
LASTING: Final = f"--ttl={9 * LEASE:g}"  # nobody loses such a lease because the machine is slow
KILLED_AT: Final = Strike("kill", "job.effect-done", 3)  # with orders in flight: two at most are of its own start
# When a replica that is alone on an empty store signs for its first client, it passes these for the n-th time.
FREEZES: Final = (
    Strike("stop", "job.claimed", 5),
    Strike("stop", "job.effect-done", 4),
    Strike("stop", "job.settling", 5),
)
# What a worker may write about orders. Not replicas and leases: to be alive again is no crime.
TABLES: Final = {
    "acme_orders": "id, state, error, certificate",
    "acme_challenges": "id, state, tries",
    "ca_issuances": "order_id, serial",
    "ca_certificates": "id, serial, order_id",
    "audit": "seq, action, subject, hash",
    "jobs": "id, state, attempts, crashes, fence",
}


@dataclass(frozen=True, slots=True)
class Found:
    """What an experiment showed."""

    problems: list[str]
    doubled: int = 0
    recovered_for: float = 0.0
    extra_writes: int = 0


@asynccontextmanager
async def two(
    place: Ground, answerer: Answerer, *wishes: str, strike: Strike | None = None
) -> AsyncIterator[tuple[Any, ...]]:
    """Both start at once on an empty store; a client that asks them in turn."""
    addresses = an_address(), an_address()
    with (
        AcmeReplica(place, "first", addresses[0], answerer.port, *wishes, strike=strike) as first,
        AcmeReplica(place, "second", addresses[1], answerer.port, *wishes) as second,
    ):
        async with asyncio.timeout(PATIENCE), client(es256(), answerer, *addresses) as patient:
            yield first, second, patient


# ── any replica answers any request ──


async def in_turn(place: Ground, answerer: Answerer) -> Found:
    """Every request of a client goes to the other replica than the one before, nonces and all."""
    async with two(place, answerer, LASTING) as (_, _, patient):
        await both_serve(patient)
        accounts = await asyncio.gather(*(patient.new_account() for _ in range(4)))
        await patient.register()
        orders = await asyncio.gather(*(patient.place(ORDERS[0]) for _ in range(4)))
        await asyncio.gather(*(patient.obtain(wanted) for wanted in ORDERS))
        wrong = patient.complaints()
        for what, found in (("accounts", accounts), ("orders", [held.url for held in orders])):
            wrong += [f"{what}: {found}"] if len(set(found)) != 1 else []
        return await judged(place, patient, wrong)


async def at_once(place: Ground, answerer: Answerer) -> Found:
    """Twenty finalize calls in one moment, each with a key of its own, on both replicas: one of them counts."""
    async with two(place, answerer, LASTING) as (_, _, patient):
        await both_serve(patient)
        await patient.register()
        wrong = [each for n in range(ROUNDS) for each in await _race(patient, f"race {n}")]
        return await judged(place, patient, [*wrong, *patient.complaints()])


async def _race(patient: Patient, name: str) -> list[str]:
    held = await patient.place(Wanted(name, ORDERS[0].hosts))
    order = await patient.ready(held)
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(AT_ONCE)]
    replies = await asyncio.gather(*(_finalize(patient, order, key) for key in keys))
    taken = [key for key, reply in zip(keys, replies, strict=True) if reply == (200, "")]
    held.key = (taken or keys)[0]
    await patient.end(held)
    wrong = [] if len(taken) == 1 else [f"{len(taken)} of {AT_ONCE} finalize calls were taken: {replies}"]
    return wrong + [str(each) for each in replies if each not in ((200, ""), (403, "orderNotReady"))]


async def _finalize(patient: Patient, order: dict[str, Any], key: ec.EllipticCurvePrivateKey) -> tuple[int, str]:
    names = patient.names(order)
    reply = await patient.post(order["finalize"], {"csr": b64(a_csr(*names, key=key))})
    return (200, "") if reply.status_code == 200 else problem(reply)


async def both_serve(patient: Patient) -> None:
    for address in patient.routes.addresses:
        await patient.answered_by(address)


# ── one goes on for the other ──


async def one_killed(place: Ground, answerer: Answerer) -> Found:
    """A replica dies with orders in flight; the other one finishes them."""
    async with two(place, answerer, strike=KILLED_AT) as (first, _, patient):
        await both_serve(patient)
        await patient.register()
        both, patient.routes.addresses = patient.routes.addresses, [first.address]
        work = asyncio.gather(*(patient.obtain(wanted) for wanted in ORDERS))
        await until(lambda: first.exit_code is not None or work.done(), "its death")
        died_at = time.monotonic()
        patient.routes.addresses = both  # every other request finds nobody at first
        await work
        wrong = [] if first.said("kill") else ["it was not killed"]
        found = await judged(place, patient, wrong)
        last = max(held.decided_at for held in patient.held.values())
        return Found(found.problems, found.doubled, recovered_for=last - died_at)


async def frozen(place: Ground, answerer: Answerer, *, strike: Strike) -> Found:
    """A replica stops in the middle of issuing, another one issues, and then the first one wakes up."""
    addresses = an_address(), an_address()
    with AcmeReplica(place, "zombie", addresses[0], answerer.port, strike=strike) as zombie:
        async with asyncio.timeout(PATIENCE), client(es256(), answerer, addresses[0]) as patient:
            await patient.register()
            held = await patient.place(ORDERS[0])
            asking = asyncio.create_task(patient.finalize(held, await patient.ready(held)))
            await asyncio.to_thread(zombie.wait_stopped)
            frozen_at, state = time.monotonic(), look(place, lambda tx: _state(tx, held))
            with AcmeReplica(place, "other", addresses[1], answerer.port, LASTING):
                asking.cancel()
                await patient.hang_up()
                patient.routes.addresses = [addresses[1]]
                await patient.end(held)
                await asyncio.sleep(max(0.0, frozen_at + 2 * LEASE - time.monotonic()))  # time is the experiment
                writes = await _woken(place, zombie)
                patient.routes.addresses = [addresses[0]]
                await patient.end(held)  # it is a replica like any other again
                found = await judged(place, patient, [] if state == "processing" else [f"it was {state} when it froze"])
                return Found(found.problems, found.doubled, held.decided_at - frozen_at, writes)


def _state(tx: Tx, held: Held) -> str:
    row = tx.row("SELECT state FROM acme_orders WHERE id = :id", id=held.url.rpartition("/")[2])
    return "gone" if row is None else str(row["state"])


async def _woken(place: Ground, zombie: AcmeReplica) -> int:
    """Wake it, and count what it changes until, two beats later, it has dropped its work or tried to settle it."""
    await quiet(place)
    before, beats = look(place, _rows), len(zombie.said("passed", "job.beaten"))
    zombie.signal(signal.SIGCONT)
    await until(lambda: len(zombie.said("passed", "job.beaten")) >= beats + 2, "the zombie's next beats")
    return len(before ^ look(place, _rows))


def _rows(tx: Tx) -> set[tuple[object, ...]]:
    return {
        (table, *row.values()) for table, columns in TABLES.items() for row in tx.rows(f"SELECT {columns} FROM {table}")
    }


async def judged(place: Ground, patient: Patient, wrong: Sequence[str]) -> Found:
    await quiet(place)
    held: list[Held] = list(patient.held.values())
    return Found([*wrong, *problems(place, held)], two_certificates(place))
