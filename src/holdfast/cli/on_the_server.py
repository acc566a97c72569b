"""Commands that work on this machine's installation alone, and refuse when a server elsewhere is meant."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from holdfast.cli.config import settings
from holdfast.errors import Usage

if TYPE_CHECKING:
    from typer._click import Context


class OnlyOnTheServer(Usage):
    code = "only-on-the-server"

    def __init__(self, named: str) -> None:
        super().__init__(f"This works only on the machine of the server, and {named} names a server elsewhere.")
        if named.startswith("your login"):
            self.hint = "Run it there. For the store of this machine: holdfast logout"
        elif named.startswith("--"):
            self.hint = f"Run it there. For the installation of this machine, leave {named} out."
        else:
            self.hint = f"Run it there. For the installation of this machine: unset {named}"


class OnTheServer(TyperCommand):
    """Has no --server, and says why."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        before = args[: args.index("--")] if "--" in args else args
        if any(each == "--server" or each.startswith("--server=") for each in before):
            raise OnlyOnTheServer("--server")
        return super().parse_args(ctx, args)


def only_on_the_server(*groups: typer.Typer, module: str) -> None:
    """Make all commands of these groups such ones that are defined in this module."""
    for group in groups:
        for each in group.registered_commands:
            if each.callback is not None and each.callback.__module__ == module:
                each.cls = OnTheServer


def ask_here(config: Path | None, verb: str, **args: Any) -> Any:
    """Have a verb carried out on this machine: a change would otherwise reach another installation than was meant."""
    from holdfast.cli.client import named_elsewhere
    from holdfast.cli.reaching import ask

    chosen = settings(config)
    if named := named_elsewhere(chosen):
        raise OnlyOnTheServer(named)
    return asyncio.run(ask(chosen, verb, **args))
