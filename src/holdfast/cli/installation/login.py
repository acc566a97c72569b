"""`holdfast login`, `logout`, `context`: servers elsewhere and tokens for them, where only this user can read."""

from __future__ import annotations

import sys
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from holdfast.cli.installation import contexts
from holdfast.cli.terminal import Column, emit, say
from holdfast.errors import UserError

app = typer.Typer()
context = typer.Typer(name="context", help="Choose between the servers that you are logged in to.")
app.add_typer(context)
NameArgument = Annotated[str, typer.Argument(metavar="CONTEXT", help="Its name, as 'context ls' shows it.")]


@app.command("login")
def login(
    server: Annotated[str, typer.Argument(metavar="URL", help="Such as https://holdfast.example.com")],
    token_stdin: Annotated[
        bool, typer.Option("--token-stdin", help="Read the token from stdin even at a terminal.")
    ] = False,
    name: Annotated[str, typer.Option("--name", help="The name of the context; the host, if left out.")] = "",
) -> None:
    """Log in: save a server and a token. The first token of an installation is exchanged for an admin's."""
    from holdfast.cli import client

    piped = token_stdin or not sys.stdin.isatty()
    token = sys.stdin.readline().strip() if piped else typer.prompt("Token", hide_input=True, err=True)
    with client.elsewhere(server, token) as line:
        token = _exchanged(line, token)
    with client.elsewhere(server, token) as line:
        me = line.get("/self")
    called = name or urlsplit(server).netloc or "default"
    contexts.write(contexts.read().with_(called, server, token))
    say(f"You are {me['actor']} ({me['role']}) at {server}, context {called}. Forget it again: holdfast logout")
    _say_if_without_effect(called)


def _say_if_without_effect(called: str) -> None:
    """Warn the user if commands still go to the server of this machine."""
    from holdfast.cli import client
    from holdfast.cli.installation.config import settings
    from holdfast.config import CONTEXT_VARIABLE

    try:
        runs = client.goes_here(settings())
    except UserError:  # what is wrong with the settings of this machine is no matter of a login elsewhere
        return
    if runs is not None:
        here = f"Commands still go to the Holdfast that runs on this machine (data folder {runs})."
        say(f"{here} To have them go to this one: export {CONTEXT_VARIABLE}={called}")


def _exchanged(line: Any, token: str) -> str:
    """A token that may not even ask who it is can be the first one: then it makes this user an admin."""
    from holdfast.cli.client import user_name

    try:
        line.get("/self")
    except UserError as error:
        if error.code != "forbidden":
            raise
        return str(line.post("/tokens", {"name": user_name(), "role": "admin", "rights": ["export"]})["token"])
    return token


@app.command("logout")
def logout(
    name: Annotated[str | None, typer.Argument(metavar="[CONTEXT]", help="The current one, if left out.")] = None,
) -> None:
    """Forget a server and its token. The token stays valid until it is revoked: holdfast token revoke"""
    kept = contexts.read()
    if name is not None:
        kept.get(name)
    contexts.write(kept.without(name or kept.current))
    say("Forgotten.")


@context.command("ls")
def ls() -> None:
    """List the servers that you are logged in to."""
    kept = contexts.read()
    rows = [
        {"name": name, "server": each["server"], "current": name == kept.current} for name, each in kept.known.items()
    ]
    columns = [
        Column("", lambda row: "*" if row["current"] else ""),
        Column("NAME", lambda row: str(row["name"])),
        Column("SERVER", lambda row: str(row["server"])),
    ]
    emit(rows, columns, empty="You are logged in nowhere. Begin with: holdfast login URL")


@context.command("use")
def use(name: NameArgument) -> None:
    """Send commands to this server, unless a server runs with the data folder of this machine."""
    contexts.write(contexts.read().using(name))
    say(f"Commands go to {contexts.read().known[name]['server']} now.")
