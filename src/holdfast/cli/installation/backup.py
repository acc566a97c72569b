"""`holdfast backup`: check a backup, restore it, or rehearse that: files of this machine, without a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from holdfast.cli.installation.config import settings
from holdfast.cli.installation.key import OnTheServer

if TYPE_CHECKING:
    from holdfast.backups import Restorer
    from holdfast.core.backup import BackupHeader

app = typer.Typer(name="backup", help="Make backups, check them, restore one, or rehearse that.")
File = Annotated[Path, typer.Argument(metavar="FILE", help="The backup, which ends in .hfb.")]
Output = Annotated[Literal["table", "json"], typer.Option("--output", "-o", help="How to write it.")]


@app.command(cls=OnTheServer)
def verify(file: File, output: Output = "table") -> None:
    """Check that a backup is whole, is ours and opens with the key that is here. Nothing is written."""
    from holdfast.backups import verified
    from holdfast.world import LocalFiles, SystemRandom

    header = verified(file, settings(), LocalFiles(), SystemRandom())
    _show(header, output, f"The backup is whole: {sum(header.counts.values())} rows.")


@app.command(cls=OnTheServer)
def restore(file: File, output: Output = "table") -> None:
    """Make the database that the settings name from a backup. It must be empty; the server must not run.

    The installation is in quarantine when it starts: look at what differs (holdfast restore show), then release it.
    """
    done = _restorer().restore(file)
    told = (
        f"{sum(done.counts.values())} rows were restored in {done.took_s:.1f} s. Start the server: it is in quarantine."
    )
    _show(done.header, output, told, took_s=done.took_s)


@app.command(cls=OnTheServer)
def rehearse(
    file: File,
    into: Annotated[
        str,
        typer.Option("--into", metavar="URL", help="An empty PostgreSQL database; without it, a file that is removed."),
    ] = "",
    output: Output = "table",
) -> None:
    """Restore a backup to a place where it does no harm, check all of it, and say how long that took."""
    from holdfast.secret import Secret

    done = _restorer().rehearse(file, Secret(into) if into else None)
    told = f"{sum(done.counts.values())} rows can be restored in {done.took_s:.1f} s; the audit log holds."
    _show(done.header, output, told, took_s=done.took_s)


def _restorer() -> Restorer:
    from holdfast.backups import Restorer
    from holdfast.ports import no_points
    from holdfast.world import LocalFiles, SystemClock, SystemRandom

    return Restorer(
        settings=settings(), files=LocalFiles(), clock=SystemClock(), random=SystemRandom(), points=no_points
    )


def _show(header: BackupHeader, output: str, told: str, **more: float) -> None:
    facts = {
        "id": header.id,
        "at": f"{header.at:%FT%TZ}",
        "version": header.version,
        "installation": header.installation,
        "store": header.store,
        "audit_seq": header.audit_seq,
        "audit_hash": header.audit_hash,
        "crls": dict(header.crls),
        "rows": dict(header.counts),
        **more,
    }
    if output == "json":
        print(json.dumps(facts))
        return
    print(f"Backup {header.id} of {header.at:%F %T}Z, by Holdfast {header.version} on {header.store}.")
    print(f"Installation {header.installation}; audit entry {header.audit_seq}, hash {header.audit_hash[:16]}.")
    print(told)
