"""`holdfast jobs`: what is queued, what runs, and what was given up."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from holdfast.cli.calling import ServerOption, clock, connected
from holdfast.cli.config import ConfigOption
from holdfast.cli.terminal import Column, ColumnsOption, FormatOption, emit, emit_one, pairs, when

app = typer.Typer(name="jobs", help="Show what is queued, what runs, and what was given up.")


@app.command("ls")
def ls(
    state: Annotated[Literal["ready", "running", "failed", "dead"] | None, typer.Option("--state")] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="Only of this queue, such as issue.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many.")] = 100,
    columns: ColumnsOption = None,
    config: ConfigOption = None,
    server: ServerOption = None,
    output: FormatOption = "table",
) -> None:
    """List jobs that are not finished. Give a dead one its attempts back: holdfast retry JOB"""
    with connected(config, server) as client:
        rows = client.pages("/jobs", most=limit, state=state, kind=kind, limit=min(limit, 500))
    now = clock().now()
    shown = [
        Column("ID", lambda row: str(row["id"])),
        Column("KIND", lambda row: str(row["kind"])),
        Column("ABOUT", lambda row: str(row["subject"])),
        Column("STATE", lambda row: str(row["state"])),
        Column("ATTEMPT", lambda row: f"{row['attempt']}/{row['max_attempts']}"),
        Column("DUE", lambda row: when(row["due_at"], now)),
        Column("REASON", lambda row: str(row["reason_code"] or "-")),
        Column("ERROR", lambda row: str(row["last_error"] or "-"), wide=True),
        Column("HOLDER", lambda row: str(row["holder"] or "-"), wide=True),
    ]
    emit(rows, shown, output, name="id", empty="There are no such jobs.", only=columns)


@app.command("show")
def show(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Its id.")],
    config: ConfigOption = None,
    server: ServerOption = None,
    output: FormatOption = "table",
) -> None:
    """Show one job in full."""
    with connected(config, server) as client:
        found = client.get(f"/jobs/{job}")
    emit_one(found, output, text=_text, name="id")


def _text(row: Any) -> str:
    now = clock().now()
    waits = row["next_attempt_at"] is not None
    facts = [
        ("id", str(row["id"])),
        ("kind", str(row["kind"])),
        ("about", str(row["subject"])),
        ("state", str(row["state"])),
        ("attempt", f"{row['attempt']}/{row['max_attempts']}"),
        ("due", when(row["due_at"], now) if waits else ""),
        ("began", "" if row["last_attempt_at"] is None else when(row["last_attempt_at"], now)),
        ("ended", "" if row["finished_at"] is None else when(row["finished_at"], now)),
        ("holder", str(row["holder"] or "")),
        ("reason", str(row["reason_code"] or "")),
        ("error", str(row["last_error"] or "")),
    ]
    return pairs(facts)
