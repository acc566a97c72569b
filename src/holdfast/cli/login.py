"""`holdfast login` and `logout`: remember a server elsewhere and the token for it, where only this user can read."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.terminal import say
from holdfast.errors import UserError

app = typer.Typer()
FILE = Path(".config") / "holdfast" / "login.json"  # in the home folder


@app.command("login")
def login(
    server: Annotated[str, typer.Argument(metavar="URL", help="Such as https://holdfast.example.com")],
    token_stdin: Annotated[
        bool, typer.Option("--token-stdin", help="Read the token from stdin, not from a prompt.")
    ] = False,
) -> None:
    """Remember a server and a token. The first token of an installation is exchanged for an admin's."""
    from holdfast.cli import client
    from holdfast.world import LocalFiles

    token = sys.stdin.readline().strip() if token_stdin else typer.prompt("Token", hide_input=True, err=True)
    with client.elsewhere(server, token) as line:
        token = _exchanged(line, token)
    with client.elsewhere(server, token) as line:
        me = line.get("/self")
    LocalFiles().write_private(
        Path.home() / FILE, json.dumps({"server": server, "token": token}).encode(), replace=True
    )
    say(f"You are {me['actor']} ({me['role']}) at {server}. Forget it again: holdfast logout")


def _exchanged(line: Any, token: str) -> str:
    """A token that may not even ask who it is can be the first one: then it makes this user an admin."""
    from holdfast.cli.reaching import user_name

    try:
        line.get("/self")
    except UserError as error:
        if error.code != "forbidden":
            raise
        return str(line.post("/tokens", {"name": user_name(), "role": "admin", "rights": ["export"]})["token"])
    return token


@app.command("logout")
def logout() -> None:
    """Forget the server and the token. The token stays good: revoke it, if nobody needs it any more."""
    from holdfast.world import LocalFiles

    LocalFiles().remove_within(Path.home(), str(FILE))
    say("Forgotten.")
