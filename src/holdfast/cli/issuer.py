"""`holdfast issuer`: the CAs that certificates come from."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from holdfast.cli.calling import ServerOption, connected
from holdfast.cli.config import ConfigOption
from holdfast.cli.issue import label_of
from holdfast.cli.terminal import Column, FormatOption, emit, emit_one, exact, pairs, say

app = typer.Typer(name="issuer", help="Add, test and pause the CAs that certificates come from.")
NameArgument = Annotated[str, typer.Argument(metavar="CA", help="Its name.")]
FAILED = 1  # exit code


@app.command("ls")
def ls(config: ConfigOption = None, server: ServerOption = None, output: FormatOption = "table") -> None:
    """List the CAs that certificates may come from."""
    with connected(config, server) as client:
        rows = client.get("/issuers")
    columns = [
        Column("NAME", lambda row: str(row["name"])),
        Column("KIND", lambda row: str(row["kind"])),
        Column("STATE", lambda row: "down" if row["breaker_open"] else str(row["state"])),
        Column("DIRECTORY", lambda row: str(row["settings"].get("directory") or row["settings"].get("ca") or "-")),
        Column("ERROR", lambda row: row["breaker_error"] or "-", wide=True),
    ]
    emit(rows, columns, output, empty="There is no CA. Add one: holdfast issuer add NAME --preset letsencrypt")


@app.command("add")
def add(
    name: NameArgument,
    preset: Annotated[str | None, typer.Option("--preset", help="letsencrypt, letsencrypt-staging, zerossl, …")] = None,
    directory: Annotated[str | None, typer.Option("--directory", help="Or the address of its ACME directory.")] = None,
    kind: Annotated[str, typer.Option("--kind", help="How it is spoken to.")] = "acme",
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=JSON", help="A setting; may be repeated.")
    ] = None,
    eab_kid: Annotated[str | None, typer.Option("--eab-kid", help="Of the external account binding.")] = None,
    eab_key_stdin: Annotated[bool, typer.Option("--eab-key-stdin", help="Read the key of it from stdin.")] = False,
    config: ConfigOption = None,
    server: ServerOption = None,
    output: FormatOption = "table",
) -> None:
    """Add a CA."""
    settings: dict[str, Any] = dict(map(_setting, setting or ()))
    settings |= {key: value for key, value in (("directory", directory), ("eab_kid", eab_kid)) if value is not None}
    credentials = {"eab_key": sys.stdin.readline().strip()} if eab_key_stdin else {}
    asked = {"name": name, "kind": kind, "preset": preset, "settings": settings, "credentials": credentials}
    with connected(config, server) as client:
        emit_one(client.post("/issuers", asked), output, text=_text)
    say(f"Added. See that it answers: holdfast issuer test {name}")


def _setting(text: str) -> tuple[str, Any]:
    name, value = label_of(text)
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _text(row: Any) -> str:
    facts = [("name", row["name"]), ("kind", row["kind"]), ("state", row["state"])]
    return pairs([*facts, *((name, json.dumps(value)) for name, value in row["settings"].items())])


@app.command("test")
def probe(name: NameArgument, config: ConfigOption = None, server: ServerOption = None) -> None:
    """See whether a CA answers and knows us. Nothing is ordered."""
    with connected(config, server) as client:
        found = client.post(f"/issuers/{name}/test")
    print(found["detail"])
    if not found["ok"]:
        raise typer.Exit(FAILED)


@app.command("pause")
def pause(name: NameArgument, config: ConfigOption = None, server: ServerOption = None) -> None:
    """Begin nothing new there; what is under way goes on."""
    with connected(config, server) as client:
        client.post(f"/issuers/{name}/pause")
    say(f"Paused: {name}.")


@app.command("resume")
def resume(name: NameArgument, config: ConfigOption = None, server: ServerOption = None) -> None:
    """Ask it again."""
    with connected(config, server) as client:
        client.post(f"/issuers/{name}/resume")
    say(f"Resumed: {name}.")


@app.command("budget")
def budget(
    name: NameArgument, config: ConfigOption = None, server: ServerOption = None, output: FormatOption = "table"
) -> None:
    """Show what the limits of a CA leave for now."""
    with connected(config, server) as client:
        rows = client.get(f"/issuers/{name}/budget")
    columns = [
        Column("BUDGET", lambda row: str(row["key"])),
        Column("LEFT", lambda row: f"{row['left']}/{row['burst']}"),
        Column("ONE MORE EVERY", lambda row: f"{row['every_s']:g} s"),
        Column("HELD UNTIL", lambda row: "-" if row["held_until"] is None else exact(row["held_until"])),
    ]
    emit(rows, columns, output, name="key", empty="Nothing was asked of it yet, so no budget was used.")
