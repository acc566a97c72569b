"""Our side: certificates from our own CA become due all at once, and the clock runs until each has a new version."""

import asyncio
import time
from dataclasses import dataclass

import httpx2
from tests.support.reaper import until

from bench.acme.processes import cpu_seconds, machine_seconds
from bench.renew.server import POSTGRESQL, Server, Unmeasured

LANES = 16  # requests in flight while certificates are asked for
PATIENCE_S = 120.0
LOOK_S = 0.05

# A certificate is due by its dates, not by a word of ours: two thirds of its life and a little more have passed.
OLDER = """UPDATE certificate_versions SET not_before = not_before - (not_after - not_before) * 7 / 10,
                                           not_after = not_after - (not_after - not_before) * 7 / 10"""
DUE = """UPDATE certificates SET next_action_at = created_at, next_cause = 'DUE_LIFETIME', version = version + 1,
                ari_start = NULL, ari_end = NULL, ari_pick = NULL"""
VERSIONS = "SELECT COUNT(*) FROM certificate_versions"
RENEWED = """SELECT COUNT(*) FROM certificates AS c JOIN certificate_versions AS v ON v.id = c.current_version
              JOIN issuances AS i ON i.id = v.issuance
              WHERE v.state = 'active' AND i.state = 'issued' AND i.cause = 'DUE_LIFETIME'"""


@dataclass(frozen=True, slots=True)
class ByUs:
    """So many certificates, and what they took."""

    number: int
    wall_s: float
    server_cpu_s: float
    database_cpu_s: float | None
    others: float  # cores that the rest of the machine used meanwhile

    @property
    def each_s(self) -> float:
        return self.wall_s / self.number


def measure(server: Server, number: int) -> ByUs:
    asyncio.run(ask_for(server, number))
    _wait_for_versions(server, number)
    if server.name == POSTGRESQL:
        server.store.change("ANALYZE")  # as autovacuum does within a minute
    before, machine, began = _used(server), machine_seconds(), time.monotonic()
    server.store.change(OLDER, DUE)
    _wait_for_versions(server, 2 * number)
    wall_s = time.monotonic() - began
    used = [now - then for now, then in zip(_used(server), before, strict=True)]
    others = max(0.0, machine_seconds() - machine - sum(used)) / wall_s
    if (found := server.store.rows(RENEWED)[0][0]) != number:
        raise Unmeasured(f"{found} of {number} certificates were renewed because their time had come")
    return ByUs(number, wall_s, used[0], used[1] if len(used) > 1 else None, others)


def _used(server: Server) -> list[float]:
    return [cpu_seconds(pid) for pid in server.pids]


async def ask_for(server: Server, number: int) -> None:
    """By the API, on the socket that commands use."""
    transport, numbers = httpx2.AsyncHTTPTransport(uds=str(server.data / "holdfast.sock")), iter(range(number))

    async def lane(api: httpx2.AsyncClient) -> None:
        for each in numbers:
            answer = await api.post("/api/v1/certificates", json={"names": [f"n{each}.renew.test"]})
            if answer.is_error:
                raise Unmeasured(f"{server.name}: asking for a certificate was answered with {answer.text[:200]}")

    headers = {"X-Holdfast-User": "bench"}
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://local", headers=headers, timeout=60, trust_env=False
    ) as api:
        await asyncio.gather(*(lane(api) for _ in range(LANES)))


def _wait_for_versions(server: Server, number: int) -> None:
    def there() -> bool:
        return bool(server.store.rows(VERSIONS)[0][0] >= number)

    try:
        until(there, f"{number} versions on {server.name}", seconds=PATIENCE_S, every=LOOK_S)
    except TimeoutError as why:
        raise Unmeasured(f"{why}; there are {server.store.rows(VERSIONS)[0][0]}") from why
