"""Part of `make bench-deploy`: 1,000 certificates on 20 real nginx, renewed together.

Twice: once as their versions are issued, and once all at a time, as when a window opens. Counted are the reloads that
each nginx is told to do, and measured is the time from when a version is issued, or the window opens, until it has been
seen served. The CA is in this process and answers at once; the store is SQLite; signing, writing, reloads and
handshakes are real.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from tests.support.deploying_child import a_yard
from tests.support.deploying_house import Yard
from tests.support.lifecycle import TruthfulCa
from tests.support.nginx import NGINX, Nginx, an_nginx

from bench.figures import figure, noted, skipped
from holdfast.operations.deployment import deployments as manage
from holdfast.operations.deployment import targets as manage_targets
from holdfast.store.tx import Tx

DAEMONS: Final = 20
EACH: Final = 50
PATIENCE: Final = 1800.0  # seconds
CA: Final = "generous"  # it allows as much as it is asked for
Counted = Callable[[], int]


def names_at(daemon: int) -> list[str]:
    return [f"www{number}.d{daemon}.example.com" for number in range(EACH)]


@dataclass(frozen=True)
class Fleet:
    """The daemons, and the parts that deploy to them."""

    yard: Yard
    folder: Path
    daemons: Sequence[Nginx]

    @property
    def names(self) -> list[str]:
        return [name for number in range(len(self.daemons)) for name in names_at(number)]

    def reloads(self) -> int:
        return sum(_lines(each.folder / "reloads") for each in self.daemons)

    async def until(self, what: Callable[[Tx], int], number: int) -> None:
        """Until so many are so."""
        end = time.monotonic() + PATIENCE
        while (there := await self.yard.house.db.read(what)) < number:
            if time.monotonic() > end:
                raise TimeoutError(f"{there} of {number}")
            await asyncio.sleep(0.25)


def _lines(file: Path) -> int:
    return file.read_text().count("\n") if file.exists() else 0


def _rules(folder: Path, daemons: Sequence[Nginx]) -> str:
    """Each reload is counted by the program that does it."""
    text = f'folders = ["{folder}"]\n[programs.nothing]\nargv = ["/bin/true"]\n'
    for number, each in enumerate(daemons):
        script = each.folder / "reload"
        script.write_text(f"#!/bin/sh\necho x >> {each.folder}/reloads\nexec {' '.join(each.reload_argv)}\n")
        script.chmod(0o755)
        text += f"[programs.test-{number}]\nargv = {[*each.test_argv]}\n"
        text += f'[programs.reload-{number}]\nargv = ["{script}"]\n'
    return text


# ── What the store says ──


def _in_place(since: datetime) -> Callable[[Tx], int]:
    def counted(tx: Tx) -> int:
        states = ("served", "installed")
        row = tx.row(
            f"SELECT COUNT(*) AS n FROM deployments WHERE state IN {states} AND created_at >= :since", since=since
        )
        return 0 if row is None else int(row["n"])

    return counted


def _waiting(since: datetime) -> Callable[[Tx], int]:
    def counted(tx: Tx) -> int:
        row = tx.row("SELECT COUNT(*) AS n FROM deployments WHERE created_at >= :since", since=since)
        return 0 if row is None else int(row["n"])

    return counted


def _times(tx: Tx, since: datetime, begun: datetime | None) -> list[float]:
    """Seconds from when each version was issued, or from `begun`, until it was seen served."""
    rows = tx.rows(
        """SELECT deployments.served_at, certificate_versions.issued_at FROM deployments
             JOIN certificate_versions ON certificate_versions.id = deployments.certificate_version
            WHERE deployments.created_at >= :since AND deployments.state = 'served'""",
        since=since,
    )
    start = None if begun is None else begun.timestamp() * 1e6
    return sorted((row["served_at"] - (start or row["issued_at"])) / 1e6 for row in rows)


def _failures(tx: Tx, since: datetime) -> int:
    row = tx.row(
        """SELECT COUNT(*) AS n FROM audit WHERE at >= :since
              AND action IN ('deployment_failed', 'deployment_rolled_back', 'deployment_rollback_failed')""",
        since=since,
    )
    return 0 if row is None else int(row["n"])


# ── The story ──


async def _prepared(fleet: Fleet) -> None:
    began = datetime.now(UTC)
    await fleet.yard.house.add(CA, TruthfulCa(), limits={"requests": None, "orders": None})
    for number, each in enumerate(fleet.daemons):
        await fleet.yard.add(f"web-{number}", settings={"folder": str(each.live), "reload": "nothing"})
        for name in names_at(number):
            await fleet.yard.house.ask(name, issuers=(CA,), targets=(f"web-{number}",))
    await fleet.until(_in_place(began), len(fleet.names))
    for number, each in enumerate(fleet.daemons):
        each.configure(*names_at(number))
        each.start()
        settings = {"test": f"test-{number}", "reload": f"reload-{number}"}
        where = [f"127.0.0.1:{each.port}"]
        await fleet.yard.do(manage_targets.change, name=f"web-{number}", settings=settings, endpoints=where)


async def _renewed(fleet: Fleet) -> datetime:
    """All are asked for; when that began."""
    began = datetime.now(UTC)
    for name in fleet.names:
        await fleet.yard.house.renew(name)
    return began


async def _as_issued(fleet: Fleet) -> None:
    before, started = fleet.reloads(), time.monotonic()
    began = await _renewed(fleet)
    await fleet.until(_in_place(began), len(fleet.names))
    await _told(fleet, "as_issued", began, None, fleet.reloads() - before, time.monotonic() - started)


async def _at_once(fleet: Fleet) -> None:
    await fleet.yard.do(manage.freeze, until=(datetime.now(UTC) + timedelta(days=30)).isoformat())
    began = await _renewed(fleet)
    await fleet.until(_waiting(began), len(fleet.names))
    before, started, opened = fleet.reloads(), time.monotonic(), datetime.now(UTC)
    await fleet.yard.do(manage.unfreeze)
    await fleet.until(_in_place(began), len(fleet.names))
    await _told(fleet, "at_once", began, opened, fleet.reloads() - before, time.monotonic() - started)


async def _told(fleet: Fleet, what: str, since: datetime, begun: datetime | None, reloads: int, took: float) -> None:
    db = fleet.yard.house.db
    times = await db.read(lambda tx: _times(tx, since, begun))
    retries = await db.read(lambda tx: _failures(tx, since))
    goal = len(fleet.daemons) + retries
    cuts = statistics.quantiles(times, n=100)
    if begun is None:
        noted(f"deploy_{what}_reloads", reloads, "reloads")
    else:
        figure(f"deploy_{what}_reloads", reloads, "reloads", goal, met=reloads <= goal)
    noted(f"deploy_{what}_retries", retries, "retries")
    figure(f"deploy_{what}_served", len(times), "certificates", len(fleet.names), met=len(times) == len(fleet.names))
    noted(f"deploy_{what}_to_served_p50", cuts[49], "s")
    noted(f"deploy_{what}_to_served_p95", cuts[94], "s")
    noted(f"deploy_{what}_took", took, "s")


async def _run(folder: Path, daemons: Sequence[Nginx]) -> None:
    yard = await a_yard(str(folder / "holdfast.sqlite"), folder, _rules(folder, daemons))
    fleet = Fleet(yard, folder, daemons)
    async with yard.house.working(kinds=yard.kinds):
        await _prepared(fleet)
        await _as_issued(fleet)
        await _at_once(fleet)
    await yard.house.db.close()


def main() -> None:
    if NGINX is None:
        skipped("deploy_at_once_reloads", "nginx is not installed: apt install nginx")
        return
    with tempfile.TemporaryDirectory(prefix="hfdeploy-") as made:
        _with_daemons(Path(made), [])


def _with_daemons(folder: Path, started: list[Nginx]) -> None:
    """One inside the other, so that all are stopped whatever happens."""
    if len(started) == DAEMONS:
        asyncio.run(_run(folder, started))
        return
    place = folder / f"d{len(started)}"
    place.mkdir()
    with an_nginx(place) as nginx:
        _with_daemons(folder, [*started, nginx])


if __name__ == "__main__":
    main()
