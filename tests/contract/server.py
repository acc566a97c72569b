"""A server to be asked anything: a CA that issues at once, a few certificates, and a token for all of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast.api.caller import Throttle
from holdfast.store.database import Database
from tests.support.api import Asker, a_desk, on_a_port

NAMES = ("one.example.com", "two.example.com", "three.example.com")
APPROVED = {"approval_required": True}


class Unbounded(Throttle):
    """Whoever tests without a token comes a thousand times from one address."""

    def failed(self, address: str) -> float:
        return 0.0


@dataclass(frozen=True, slots=True)
class Served:
    url: str
    token: str
    places: Mapping[str, Sequence[str]]  # what is there, for each parameter of an address


@asynccontextmanager
async def served(db: Database, folder: Path) -> AsyncIterator[Served]:
    async with a_desk(db, folder) as desk, desk.house.working(), on_a_port(desk) as url:
        desk.api.state.throttle = Unbounded()
        ask = await desk.as_()
        for name in NAMES:
            await ask.post("/certificates", {"names": [name], "owner": "web"}, Prefer="wait=30")
        asked = [await ask.post("/certificates", {"names": [f"a{n}.example.com"], **APPROVED}) for n in range(3)]
        yield Served(url, ask.token, {**await _places(ask), "issuance": [each["operation"]["id"] for each in asked]})


async def _places(ask: Asker) -> dict[str, list[str]]:
    held = await ask.get(f"/certificates/{NAMES[0]}")
    return {
        "ref": [*NAMES, held["id"]],
        "approval": [each["id"] for each in (await ask.get("/approvals"))["items"]],
        "name": ["ca"],
    }
