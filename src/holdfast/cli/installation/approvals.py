"""`holdfast approvals`: issuances that wait for the approval of a second person."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.calling import clock, connected
from holdfast.cli.certificates.progress import once
from holdfast.cli.everywhere import chosen
from holdfast.cli.terminal import Column, LimitOption, emit, say, when

if TYPE_CHECKING:
    from holdfast.cli.client import Client

app = typer.Typer(name="approvals", help="Approve or reject issuances that wait for a second person.")
IdArgument = Annotated[
    str, typer.Argument(metavar="APPROVAL", help="Its id, a unique prefix of it, or the certificate.")
]
NoteOption = Annotated[str, typer.Option("--note", help="Why; kept in the audit log.")]


@app.command("ls")
def ls(
    limit: LimitOption = None,
) -> None:
    """List the issuances that wait for approval, the most urgent first."""
    now = clock().now()
    with connected() as client:
        rows = client.pages("/approvals", most=limit, limit=min(limit or 500, 500))
        for row in rows:
            row["name"] = client.get(f"/certificates/{row['certificate']}")["name"]
    columns = [
        Column("ID", lambda row: str(row["id"])),
        Column("CERTIFICATE", lambda row: str(row["name"])),
        Column("ASKED BY", lambda row: str(row["requested_by"])),
        Column("EXPIRES", lambda row: when(row["expires_at"], now)),
        Column("ISSUANCE", lambda row: str(row["issuance"]), wide=True),
    ]
    emit(rows, columns, name="id", empty="Nothing waits for approval.")


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
) -> None:
    """Approve an issuance. The requester cannot approve it."""
    with connected() as client:
        path = f"/approvals/{_meant(client, approval)}/approve"
        client.post(path, {"note": note}, headers=once(), dry_run=chosen().dry_run)
    say("It would be approved." if chosen().dry_run else "Approved: it is under way now.")


@app.command("reject")
def reject(
    approval: IdArgument,
    note: NoteOption = "",
) -> None:
    """Reject an issuance: it ends."""
    with connected() as client:
        path = f"/approvals/{_meant(client, approval)}/reject"
        client.post(path, {"note": note}, headers=once(), dry_run=chosen().dry_run)
    say("It would be rejected." if chosen().dry_run else "Rejected.")
