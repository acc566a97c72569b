"""`holdfast approvals`: what waits for a second person, and that person's word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.calling import ServerOption, clock, connected
from holdfast.cli.config import ConfigOption
from holdfast.cli.following import DryRunOption, KeyOption, once
from holdfast.cli.terminal import Column, FormatOption, LimitOption, emit, say, when

if TYPE_CHECKING:
    from holdfast.cli.client import Client

app = typer.Typer(name="approvals", help="Approve or deny what waits for a second person.")
IdArgument = Annotated[
    str, typer.Argument(metavar="APPROVAL", help="Its id, a unique prefix of it, or the certificate.")
]
NoteOption = Annotated[str, typer.Option("--note", help="Why; kept in the audit log.")]


@app.command("ls")
def ls(
    limit: LimitOption = None,
    config: ConfigOption = None,
    server: ServerOption = None,
    output: FormatOption = "table",
) -> None:
    """List what waits, the most pressing first."""
    now = clock().now()
    with connected(config, server) as client:
        rows = client.pages("/approvals", most=limit, limit=min(limit or 500, 500))
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


def _meant(client: Client, ref: str) -> str:
    """The one that waits whose id begins so, or that is about this certificate; else as it was given."""
    about = None if ref.startswith("approval_") else client.maybe(f"/certificates/{ref}")
    waiting = client.pages("/approvals", limit=500)
    alike = [
        each["id"] for each in waiting if each["id"].startswith(ref) or (about and each["certificate"] == about["id"])
    ]
    return alike[0] if len(alike) == 1 else ref


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
        path = f"/approvals/{_meant(client, approval)}/approve"
        client.post(path, {"note": note}, headers=once(idempotency_key), dry_run=dry_run)
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
        path = f"/approvals/{_meant(client, approval)}/reject"
        client.post(path, {"note": note}, headers=once(idempotency_key), dry_run=dry_run)
    say("It would be denied." if dry_run else "Denied.")
