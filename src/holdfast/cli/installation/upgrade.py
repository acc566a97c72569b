"""`holdfast upgrade check`: run by the version that is to come, before the first replica of it is started."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from holdfast.cli.everywhere import FINDINGS
from holdfast.cli.installation.config import settings
from holdfast.cli.installation.doctor import show

if TYPE_CHECKING:
    from holdfast.config import Settings
    from holdfast.core.finding import Finding

app = typer.Typer(name="upgrade", help="Say whether this version can join the replicas that run.")


@app.callback()
def group() -> None:
    """Say whether this version can join the replicas that run."""


@app.command("check")
def check() -> None:
    """Compare this version with the database: schema, replicas and jobs. Exit code 10: stop all replicas first."""
    import asyncio

    here = settings()
    if show([("upgrade", each) for each in asyncio.run(_looked(here))]):
        raise typer.Exit(FINDINGS)


async def _looked(chosen: Settings) -> list[Finding]:
    from holdfast import __version__, job_kinds
    from holdfast.core import upgrade
    from holdfast.core.finding import bad
    from holdfast.errors import StoreError, StoreRefused
    from holdfast.from_settings import open_store
    from holdfast.operations.installation import upgrading
    from holdfast.ports import no_points
    from holdfast.world import SystemClock

    if chosen.store.sqlite_file is not None:
        saw = "no: a SQLite database belongs to one process"
        return [bad("rolling", saw, "Back it up, stop the server, and start this version: it changes the schema.")]
    db = open_store(chosen, SystemClock(), no_points)
    try:
        found = await db.read(lambda tx: upgrading.as_it_is(tx, chosen.engine.lease_ttl))
    except StoreError as error:
        raise StoreRefused(f"The database cannot be asked: {error}", "Check store.url, then try again.") from error
    finally:
        await db.close()
    return upgrade.check(upgrading.steps_of_this_version(), job_kinds.ALL, __version__, found)
