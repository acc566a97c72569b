"""H2, H3, M1, M2, M7: what can be asked for with a token of little right, or by ACME clients without any proof."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final

import httpx2

from tests.attack.attack import Attack, Operator, Target
from tests.support.acme_client import AcmeClient

ATTACKER: Final = "127.0.0.2"
FORECASTS: Final = ({"more": "100000", "months": "36", "lifetime_days": "1"}, {"more": "100000", "lifetime_days": "47"})
LONG: Final = ".".join(["x" * 60] * 3)
SLOW: Final = 300  # names that lead to servers which say nothing


@asynccontextmanager
async def _line() -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.AsyncHTTPTransport(verify=False, local_address=ATTACKER)
    async with httpx2.AsyncClient(transport=transport, timeout=30) as http:
        yield http


async def _ask(target: Target, path: str, query: dict[str, str], patience: float) -> None:
    """Again and again, leaving after a while."""
    headers = {"Authorization": f"Bearer {target.token}"}
    async with _line() as http:
        while True:
            with suppress(httpx2.HTTPError, TimeoutError):
                async with asyncio.timeout(patience):
                    await http.get(f"http://127.0.0.1:{target.server}/api/v1{path}", params=query, headers=headers)


async def forecasts(target: Target) -> None:
    await asyncio.gather(*(_ask(target, "/forecast", FORECASTS[n % 2], 1.0) for n in range(8)))


async def unknown_parameters(target: Target) -> None:
    query = {f"expires_before_owner{n}": "" for n in range(900)}
    await asyncio.gather(*(_ask(target, "/certificates", query, 10.0) for _ in range(4)))


async def _client(target: Target, http: httpx2.AsyncClient) -> AcmeClient:
    client = await AcmeClient(http, f"https://localhost:{target.acme}/acme/default/directory").start()
    await client.register()
    return client


async def unproved_names(target: Target) -> None:
    """Orders of a hundred names as long as names can be, by one account after the other."""
    async with _line() as http:
        while True:
            client = await _client(target, http)
            for n in range(60):
                await client.order(*(f"{f'n{n}m{m}':x<58}.{LONG}.example" for m in range(100)))


async def slow_validations(target: Target) -> None:
    hosts = [f"127.0.3.{1 + n % 250}" for n in range(250)] + [f"127.0.4.{1 + n}" for n in range(SLOW - 250)]
    lines = []
    for host in hosts:
        line = socket.socket()
        line.bind((host, target.http))
        line.listen(50)
        lines.append(line)
    async with _line() as http:
        client = await _client(target, http)
        for start in range(0, SLOW, 50):
            placed = await client.order(*hosts[start : start + 50])
            for authz in placed.json().get("authorizations", ()):
                found = (await client.get(authz)).json()
                [challenge] = [each for each in found["challenges"] if each["type"] == "http-01"]
                await client.post(challenge["url"], {})
        await asyncio.Event().wait()


def a_tight_issuer(operator: Operator) -> str:
    """An issuer that allows 20 orders in 10 minutes, a certificate of team-a from it, and a token of team-a."""
    operator.type("issuer", "add", "local", "tight", "--set", "ca=default", "--set", 'limits={"orders": [20, 600]}')
    operator.type("issue", "a.internal", "--issuer", "tight", "--owner", "team-a", "--wait")
    return operator.token("agent", "--owner", "team-a")


async def cancelled_renewals(target: Target) -> None:
    """The agent of one team renews and cancels without end."""
    headers = {"Authorization": f"Bearer {target.token}"}
    at = f"http://127.0.0.1:{target.server}/api/v1/certificates/a.internal"
    async with _line() as http:
        while True:
            for verb in ("renew", "cancel"):
                with suppress(httpx2.HTTPError):
                    await http.post(f"{at}/{verb}", json={}, headers=headers)


def another_team(operator: Operator, number: int) -> None:
    operator.type(
        "issue", f"b{number}.internal", "--issuer", "tight", "--owner", "team-b", "--wait", "--timeout", "60s"
    )


_BY_VIEWERS: Final = tuple(
    Attack(run.__name__, finding, partial(run))
    for finding, run in (
        ("H2", forecasts), ("H3", unproved_names), ("M1", slow_validations), ("M7", unknown_parameters),
    )
)  # fmt: skip
ATTACKS: Final = (
    *_BY_VIEWERS,
    Attack("cancelled_renewals", "M2", cancelled_renewals, prepare=a_tight_issuer, bystander=another_team),
)
