"""`holdfast cluster`: the replicas, who holds which lease, and when each loop last did its round."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from holdfast import __version__
from holdfast.cli.calling import clock, connected
from holdfast.cli.certificates.progress import TimeoutOption, WaitOption, Watched, once, watch
from holdfast.cli.everywhere import FINDINGS, Row, chosen
from holdfast.cli.terminal import (
    Column,
    as_table,
    emit,
    emit_one,
    instant,
    say,
    when,
)  # fmt: skip

if TYPE_CHECKING:
    from holdfast.cli.client import Client

app = typer.Typer(name="cluster", help="Show the replicas, their leases and their loops; drain a replica.")
SILENT_AFTER: Final = timedelta(seconds=30)


@app.callback(invoke_without_command=True)
def cluster(
    context: typer.Context,
) -> None:
    """Show the replicas, their leases and their loops."""
    if context.invoked_subcommand is None:
        status()


@app.command("status")
def status() -> None:
    """Show the replicas, their leases and their loops."""
    found = _found()
    emit_one(found, text=_text, name="at")


@app.command("replicas")
def replicas() -> None:
    """List the replicas that were seen lately."""
    found = _found()
    emit(found["replicas"], _replicas(instant(found["at"])))


@app.command("leases")
def leases() -> None:
    """List who holds which lease, and until when."""
    found = _found()
    emit(found["leases"], _leases(found), empty="No lease is held.")


@app.command("loops")
def loops() -> None:
    """List the loops: when each last did its round, and where."""
    found = _found()
    emit(found["loops"], _loops(found), empty="No loop was seen yet.")


def _found() -> Any:
    with connected() as client:
        return client.get("/cluster")


# ── Taking a replica out of work ──

ReplicaArgument = Annotated[
    str,
    typer.Argument(metavar="[REPLICA]", help="Its name, or its id; without one, the replica that answers."),
]


@app.command("drain")
def drain(
    replica: ReplicaArgument = "self",
    why: Annotated[str, typer.Option("--why", help="For the audit log.")] = "",
    even_last: Annotated[bool, typer.Option("--even-last", help="Drain it even if no other replica works.")] = False,
    wait: WaitOption = False,
    timeout: TimeoutOption = 300,
) -> None:
    """Drain a replica: it finishes its jobs and takes no new ones until it is resumed or restarted."""
    asked = {"why": why, "even_last": even_last}
    with connected() as client:
        path = f"/cluster/replicas/{replica}/drain"
        row = client.post(path, asked, headers=once(), dry_run=chosen().dry_run)
        code = 0
        if wait and not chosen().dry_run:
            code = watch(client, _draining(client, row), _drained, timeout=timeout, clock=clock())
            row = _one(client, row)
    now = clock().now()
    emit_one(row, text=lambda each: _part([each], _replicas(now)))
    if chosen().dry_run:
        say("Nothing was changed: it would take no more work.")
    elif not wait:
        say(f"It ends what it has. Follow it: holdfast cluster drain {row['name']} --wait")
    elif code == 0:
        say(f"{row['name']} has nothing left to do, and can be stopped. Or: holdfast cluster resume {row['name']}")
    if code:
        raise typer.Exit(code)


@app.command("resume")
def resume(
    replica: ReplicaArgument = "self",
) -> None:
    """Resume a drained replica: it takes jobs again."""
    with connected() as client:
        path = f"/cluster/replicas/{replica}/resume"
        row = client.post(path, headers=once(), dry_run=chosen().dry_run)
    now = clock().now()
    emit_one(row, text=lambda each: _part([each], _replicas(now)))
    say("Nothing was changed." if chosen().dry_run else "It takes work again with its next heartbeat.")


def _draining(client: Client, row: Row) -> Watched:
    return Watched(
        look=lambda: _one(client, row),
        line=lambda each: f"{each['name']}: {_working(each)}, {each['running']} of its jobs run",
        subject=row["holder"],
        next_at=lambda each: None,
        again=f"holdfast cluster drain {row['name']} --wait",
        later="holdfast cluster replicas",
    )


def _one(client: Client, was: Row) -> Row:
    """The replica as it is now. A replica that is gone counts as drained."""
    found: Sequence[Row] = client.get("/cluster")["replicas"]
    gone = {**was, "drained": True, "running": 0}
    return next((each for each in found if each["holder"] == was["holder"]), gone)


def _drained(row: Row) -> int | None:
    return 0 if row["drained"] else None


# ── How it is written ──


def _text(found: Row) -> str:
    parts = [
        _part(found["replicas"], _replicas(instant(found["at"]))),
        _part(found["leases"], _leases(found)),
        _part(found["loops"], _loops(found)),
    ]
    return "\n\n".join(part for part in parts if part)


def _part(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    return as_table(rows, [column for column in columns if not column.wide])


def _replicas(now: datetime) -> list[Column]:
    return [
        Column("REPLICA", lambda row: str(row["name"])),
        Column("STATE", lambda row: _state(row, now)),
        Column("VERSION", lambda row: str(row["version"])),
        Column("SEEN", lambda row: when(row["seen_at"], now)),
        Column("STARTED", lambda row: when(row["started_at"], now)),
        Column("JOBS", lambda row: str(row.get("running", "-"))),
        Column("CLOCK", _ahead),
        Column("HOLDER", lambda row: str(row["holder"]), wide=True),
    ]


def _state(row: Row, now: datetime) -> str:
    if now - instant(row["seen_at"]) > SILENT_AFTER:
        return "silent"
    return _working(row)


def _working(row: Row) -> str:
    if row.get("drained"):
        return "drained"
    return "draining" if row["draining"] else "alive"


def _ahead(row: Row) -> str:
    """An older server does not say."""
    ahead = row.get("clock_ahead_s")
    return "-" if ahead is None else f"{ahead:+.1f} s"


def _leases(found: Row) -> list[Column]:
    now, names = instant(found["at"]), _names(found)
    return [
        Column("LEASE", lambda row: str(row["name"])),
        Column("HELD BY", lambda row: names.get(row["holder"], str(row["holder"]))),
        Column("UNTIL", lambda row: when(row["until"], now)),
        Column("FENCE", lambda row: str(row["fence"]), wide=True),
    ]


def _loops(found: Row) -> list[Column]:
    now, names = instant(found["at"]), _names(found)
    return [
        Column("LOOP", lambda row: str(row["name"])),
        Column("LAST ROUND", lambda row: when(row["ended_at"], now)),
        Column("NEXT", lambda row: when(row["next_at"], now)),
        Column("ON", lambda row: names.get(row["replica"], str(row["replica"]))),
        Column("TOOK", lambda row: "-" if row["took_s"] is None else f"{row['took_s']:.2f} s", wide=True),
        Column("ERROR", lambda row: str(row["error"] or "-")),
    ]


def _names(found: Row) -> dict[str, str]:
    """Replicas by the names that people gave them."""
    return {row["holder"]: row["name"] for row in found["replicas"]}


# ── Versions of this program and of the server ──


def show_versions() -> int:
    """Print the versions of the server's replicas; the exit code."""
    with connected() as client:
        found = client.get("/cluster")
    versions = sorted({str(row["version"]) for row in found["replicas"]})
    print("\n".join(f"server {each}" for each in versions))
    others = [each for each in versions if each != __version__]
    if others:
        say(f"This program is {__version__}, the server {', '.join(others)}: upgrade the older of them.")
    return FINDINGS if others else 0
