"""`holdfast approvals`: what waits for a second person, and that person's word."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.calling import ServerOption, clock, connected
from holdfast.cli.config import ConfigOption
from holdfast.cli.following import DryRunOption, KeyOption, once
from holdfast.cli.terminal import Column, FormatOption, emit, say, when

app = typer.Typer(name="approvals", help="Approve or deny what waits for a second person.")
IdArgument = Annotated[str, typer.Argument(metavar="APPROVAL", help="Its id, as 'approvals ls' shows it.")]
NoteOption = Annotated[str, typer.Option("--note", help="Why; kept in the audit log.")]


@app.command("ls")
def ls(config: ConfigOption = None, server: ServerOption = None, output: FormatOption = "table") -> None:
    """List what waits, the most pressing first."""
    now = clock().now()
    with connected(config, server) as client:
        rows = client.get("/approvals")
        for row in rows:
            row["name"] = client.get(f"/certificates/{row['certificate']}")["name"]
    columns = [
        Column("ID", lambda row: str(row["id"])),
        Column("CERTIFICATE", lambda row: str(row["name"])),
        Column("ASKED BY", lambda row: str(row["requested_by"])),
        Column("ENDS", lambda row: when(row["expires_at"], now)),
        Column("ATTEMPT", lambda row: str(row["issuance"]), wide=True),
    ]
    emit(rows, columns, output, name="id", empty="Nothing waits for approval.")


@app.command("approve")
def approve(
    approval: IdArgument,
    note: NoteOption = "",
    dry_run: DryRunOption = False,
    idempotency_key: KeyOption = None,
    config: ConfigOption = None,
    server: ServerOption = None,
) -> None:
    """Let the attempt go on. Whoever asked for it may not say this."""
    with connected(config, server) as client:
        client.post(f"/approvals/{approval}/approve", {"note": note}, headers=once(idempotency_key), dry_run=dry_run)
    say("It would be approved." if dry_run else "Approved: it is under way now.")


@app.command("deny")
def deny(
    approval: IdArgument,
    note: NoteOption = "",
    dry_run: DryRunOption = False,
    idempotency_key: KeyOption = None,
    config: ConfigOption = None,
    server: ServerOption = None,
) -> None:
    """End the attempt."""
    with connected(config, server) as client:
        client.post(f"/approvals/{approval}/reject", {"note": note}, headers=once(idempotency_key), dry_run=dry_run)
    say("It would be denied." if dry_run else "Denied.")
