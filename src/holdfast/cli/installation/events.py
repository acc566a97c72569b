"""`holdfast events`: what happened, and with -f what happens, from any id on."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from holdfast.cli.calling import clock, connected
from holdfast.cli.everywhere import DETACHED, Row, chosen
from holdfast.cli.terminal import Column, emit, say, tame, when

app = typer.Typer()
_COLUMNS = [
    Column("ID", lambda row: str(row["id"])),
    Column("AT", lambda row: when(row["at"], clock().now())),
    Column("EVENT", lambda row: str(row["name"])),
    Column("ABOUT", lambda row: str(row.get("about") or row["subject"])),
    Column("DETAILS", lambda row: _details(row)),
]


@app.command("events")
def events(
    certificate: Annotated[
        str | None, typer.Argument(metavar="[CERT]", help="Only events of this certificate.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow new events.")] = False,
    after: Annotated[int | None, typer.Option("--after", min=0, help="Those after this id.")] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=500, help="At most so many: the newest, or the next.")
    ] = 100,
) -> None:
    """Show past events; with -f, follow new ones, from now on or from --after on."""
    with connected() as client:
        if not follow:
            newest = {"newest": True} if after is None else {"after": after}
            page = client.get("/events", **newest, subject=certificate, limit=limit)
            emit(page["items"], _COLUMNS, name="id", empty="Nothing happened.")
            return
        last = after
        try:
            for event in client.events(after=after, subject=certificate):
                last = event["id"]
                line = (
                    json.dumps(event)
                    if chosen().output in ("json", "jsonl")
                    else "  ".join(c.cell(tame(event)) for c in _COLUMNS)
                )
                print(line, flush=True)
            say(f"The server ended the stream. Go on from here: holdfast events -f --after {last or 0}")
            raise typer.Exit(1)
        except KeyboardInterrupt:
            say(f"\nGo on from here: holdfast events -f --after {last}" if last is not None else "")
            raise typer.Exit(DETACHED) from None


def _details(row: Row) -> str:
    return " ".join(f"{name}={value}" for name, value in row["details"].items() if value not in (None, ""))
