"""`holdfast token`: let people and programs in, see who may, and shut them out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from holdfast.cli.calling import ServerOption, clock, connected
from holdfast.cli.config import ConfigOption
from holdfast.cli.following import DryRunOption
from holdfast.cli.given import label as label_of
from holdfast.cli.spans import span
from holdfast.cli.terminal import Column, FormatOption, emit, emit_one, pairs, say, when

app = typer.Typer(name="token", help="Make, list and revoke tokens of the API.")
Role = Literal["admin", "operator", "viewer", "auditor", "agent"]


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Who will use it.")],
    role: Annotated[Role, typer.Option("--role", help="What it may do.")] = "viewer",
    kind: Annotated[
        Literal["human", "robot", "agent"] | None,
        typer.Option("--kind", help="Who that is; left out: an agent for the role agent, else a human."),
    ] = None,
    owner: Annotated[list[str] | None, typer.Option("--owner", help="Only for certificates of this owner.")] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", "-l", metavar="NAME=VALUE", help="Only for those with this label.")
    ] = None,
    export: Annotated[bool, typer.Option("--export", help="With the right to export private keys.")] = False,
    expires: Annotated[str, typer.Option("--expires", metavar="SPAN", help="Such as 90d, or never.")] = "90d",
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    server: ServerOption = None,
    output: FormatOption = "table",
) -> None:
    """Make a token. It is printed once, to stdout: only a hash of it is kept."""
    asked = {
        "name": name, "role": role, "rights": ["export"] if export else [], "owners": owner or [],
        **({"kind": kind} if kind else {}),
        "labels": dict(map(label_of, label or ())),
        "expires_in_s": None if expires == "never" else int(span(expires).total_seconds()),
    }  # fmt: skip
    with connected(config, server) as client:
        made = client.post("/tokens", asked, dry_run=dry_run)
    if dry_run:
        say(f"A token of {made['name']} ({made['role']}) could be made. Nothing was changed.")
        return
    emit_one(made, output, text=lambda row: str(row["token"]), name="token")
    say(f"Token {made['id']} of {made['name']} ({made['role']}). It is not shown again: set HOLDFAST_TOKEN to it.")


@app.command("ls")
def ls(config: ConfigOption = None, server: ServerOption = None, output: FormatOption = "table") -> None:
    """List tokens, without what would let anybody in."""
    now = clock().now()
    with connected(config, server) as client:
        rows = client.pages("/tokens", limit=500)
    columns = [
        Column("ID", lambda row: str(row["id"])),
        Column("NAME", lambda row: f"{row['kind']}:{row['name']}"),
        Column("ROLE", lambda row: "+".join([row["role"], *row["rights"]])),
        Column("STATE", lambda row: _state(row, now)),
        Column("LAST USED", lambda row: when(row["last_used_at"], now)),
        Column("ONLY", lambda row: _scope(row), wide=True),
        Column("MADE", lambda row: f"{when(row['created_at'], now)} by {row['created_by']}", wide=True),
    ]
    emit(
        rows, columns, output, name="id", empty="There are no tokens. Make one: holdfast token create NAME --role admin"
    )


def _state(row: Any, now: Any) -> str:
    if row["revoked_at"]:
        return "revoked"
    return "good for ever" if row["expires_at"] is None else f"expires {when(row['expires_at'], now)}"


def _scope(row: Any) -> str:
    return ", ".join([*row["owners"], *(f"{name}={value}" for name, value in row["labels"].items())]) or "everything"


@app.command("revoke")
def revoke(
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="Its id, as 'token ls' shows it, or a unique prefix.")],
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    server: ServerOption = None,
) -> None:
    """Shut a token out, for good."""
    with connected(config, server) as client:
        row = client.post(f"/tokens/{token}/revoke", dry_run=dry_run)
    say(f"{'It would be revoked' if dry_run else 'Revoked'}: {row['id']}.")


@app.command("whoami")
def whoami(config: ConfigOption = None, server: ServerOption = None, output: FormatOption = "table") -> None:
    """Say whom the server takes you for."""
    with connected(config, server) as client:
        me = client.get("/self")
    facts = [("actor", me["actor"]), ("role", "+".join([me["role"], *me["rights"]])), ("only", _scope(me))]
    emit_one(me, output, text=lambda row: pairs(facts), name="actor")
