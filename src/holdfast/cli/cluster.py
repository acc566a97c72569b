"""`holdfast cluster`: the replicas, who holds which lease, and when each loop last did its round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import typer

from holdfast.cli.calling import ServerOption, connected
from holdfast.cli.config import ConfigOption
from holdfast.cli.terminal import Column, ColumnsOption, FormatOption, Row, as_table, emit, emit_one, instant, when

app = typer.Typer(name="cluster", help="Show the replicas, their leases and their loops.")
SILENT_AFTER: Final = timedelta(seconds=30)


@app.callback(invoke_without_command=True)
def cluster(
    context: typer.Context, config: ConfigOption = None, server: ServerOption = None, output: FormatOption = "table"
) -> None:
    """Show the replicas, their leases and their loops."""
    if context.invoked_subcommand is None:
        status(config=config, server=server, output=output)


@app.command("status")
def status(config: ConfigOption = None, server: ServerOption = None, output: FormatOption = "table") -> None:
    """Everything at once."""
    found = _found(config, server)
    emit_one(found, output, text=_text, name="at")


@app.command("replicas")
def replicas(
    columns: ColumnsOption = None,
    config: ConfigOption = None,
    server: ServerOption = None,
    output: FormatOption = "table",
) -> None:
    """List the replicas that were seen lately."""
    found = _found(config, server)
    emit(found["replicas"], _replicas(instant(found["at"])), output, only=columns)


@app.command("leases")
def leases(
    columns: ColumnsOption = None,
    config: ConfigOption = None,
    server: ServerOption = None,
    output: FormatOption = "table",
) -> None:
    """List who holds which lease, and until when."""
    found = _found(config, server)
    emit(found["leases"], _leases(found), output, only=columns, empty="Nobody holds a lease.")


@app.command("loops")
def loops(
    columns: ColumnsOption = None,
    config: ConfigOption = None,
    server: ServerOption = None,
    output: FormatOption = "table",
) -> None:
    """List the loops: when each last did its round, and where."""
    found = _found(config, server)
    emit(found["loops"], _loops(found), output, only=columns, empty="No loop was seen yet.")


def _found(config: Any, server: str | None) -> Any:
    with connected(config, server) as client:
        return client.get("/cluster")


# ── How it is written ──


def _text(found: Mapping[str, Any]) -> str:
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
        Column("HOLDER", lambda row: str(row["holder"]), wide=True),
    ]


def _state(row: Row, now: datetime) -> str:
    if now - instant(row["seen_at"]) > SILENT_AFTER:
        return "silent"
    return "draining" if row["draining"] else "alive"


def _leases(found: Mapping[str, Any]) -> list[Column]:
    now, names = instant(found["at"]), _names(found)
    return [
        Column("LEASE", lambda row: str(row["name"])),
        Column("HELD BY", lambda row: names.get(row["holder"], str(row["holder"]))),
        Column("UNTIL", lambda row: when(row["until"], now)),
        Column("FENCE", lambda row: str(row["fence"]), wide=True),
    ]


def _loops(found: Mapping[str, Any]) -> list[Column]:
    now, names = instant(found["at"]), _names(found)
    return [
        Column("LOOP", lambda row: str(row["name"])),
        Column("LAST ROUND", lambda row: when(row["ended_at"], now)),
        Column("NEXT", lambda row: when(row["next_at"], now)),
        Column("ON", lambda row: names.get(row["replica"], str(row["replica"]))),
        Column("TOOK", lambda row: "-" if row["took_s"] is None else f"{row['took_s']:.2f} s", wide=True),
        Column("ERROR", lambda row: str(row["error"] or "-")),
    ]


def _names(found: Mapping[str, Any]) -> dict[str, str]:
    """Replicas by the names that people gave them."""
    return {row["holder"]: row["name"] for row in found["replicas"]}
