"""The `holdfast` command: knows every subcommand's name and line, and imports only the one that is asked for.

To add a command, write `cli/<name>.py` with a Typer `app`, and add a row to COMMANDS. An app with a name is a
group (`typer.Typer(name="audit")` gives `holdfast audit verify`); an app without one puts its own command at
the top level (`@app.command("serve")` gives `holdfast serve`). Raise UserError for whatever a person can fix.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final

import typer
from typer.core import TyperGroup
from typer.main import get_group

from holdfast import __version__
from holdfast.errors import SettingRefused, UserError

if TYPE_CHECKING:
    from typer._click import Command, Context

COMMANDS: Final = {  # name: (module with its app, the line that --help shows)
    "dev": ("holdfast.cli.dev", "Run everything on this machine, and get a first certificate."),
    "serve": ("holdfast.cli.serve", "Run a replica until it is told to stop."),
    "issue": ("holdfast.cli.issue", "Ask for a certificate, which is kept renewed from then on."),
    "ls": ("holdfast.cli.ls", "List certificates."),
    "get": ("holdfast.cli.ls", "Show one certificate in full."),
    "status": ("holdfast.cli.ls", "Say how a certificate stands, or all of them."),
    "explain": ("holdfast.cli.ls", "Say why a certificate is, or is not, renewed."),
    "renew": ("holdfast.cli.issue", "Renew a certificate now."),
    "wait": ("holdfast.cli.issue", "Wait until a certificate is issued."),
    "revoke": ("holdfast.cli.issue", "Revoke a certificate, and replace it."),
    "pause": ("holdfast.cli.issue", "Do nothing about a certificate until it is resumed."),
    "resume": ("holdfast.cli.issue", "Look after a paused certificate again."),
    "archive": ("holdfast.cli.issue", "Stop keeping a certificate, for good."),
    "fetch": ("holdfast.cli.fetch", "Fetch a certificate, its chain and its key as files."),
    "retry": ("holdfast.cli.issue", "Give a dead job back its attempts."),
    "cancel": ("holdfast.cli.issue", "Stop what is under way for a certificate, or a job."),
    "events": ("holdfast.cli.events", "Show what happened, or follow what happens."),
    "approvals": ("holdfast.cli.approvals", "Approve or deny what waits for a second person."),
    "issuer": ("holdfast.cli.issuer", "Add, test and pause the CAs that certificates come from."),
    "token": ("holdfast.cli.token", "Let people and programs in, and shut them out."),
    "plan": ("holdfast.cli.plan", "Show what a document of certificates would change."),
    "apply": ("holdfast.cli.plan", "Make the certificates what a document says."),
    "export": ("holdfast.cli.plan", "Print the certificates as such a document."),
    "import": ("holdfast.cli.importing", "Adopt what certbot, acme.sh or lego keep, or PEM files."),
    "login": ("holdfast.cli.login", "Remember a server elsewhere, and a token for it."),
    "logout": ("holdfast.cli.login", "Forget them."),
    "audit": ("holdfast.cli.audit", "Check that no audit row was altered, removed or added."),
    "config": ("holdfast.cli.config", "Show the settings in force, and where each came from."),
    "key": ("holdfast.cli.key", "Show or rotate the key that encrypts the store's secrets."),
    "ca": ("holdfast.cli.ca", "Make and change CAs, let their clients in, revoke certificates."),
    "pki": ("holdfast.cli.pki", "Make a private CA, or read a certificate."),
}
# 0 done or nothing to do; 1 failed; 2 usage; 3 still in progress at timeout; 4 authentication; 5 conflict or
# stale; 6 not found; 10 findings or changes; 130 interrupted.
EXIT_OF_STATUS: Final = {401: 4, 403: 4, 404: 6, 409: 5, 412: 5}
# Typer 0.29 imports pydantic (0.1 s) to convert any option that is not a bool, even a --help nobody gave.
# With this default it is a bool, so that every help page and every command without options stays quick.
QUICK: Final = {"default_map": {"help": False}}


class LazyGroup(TyperGroup):
    """Lists commands by their stand-ins, and fetches the real one only once it is named."""

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if name in COMMANDS:
            loaded = typer.Typer(rich_markup_mode=None)
            loaded.add_typer(import_module(COMMANDS[name][0]).app)
            command = get_group(loaded).commands[name]
            command.context_settings = {**QUICK, **command.context_settings}
        return name, command, rest


# Rich help and rich tracebacks would cost more than everything else at start; the latter also print locals.
app = typer.Typer(
    cls=LazyGroup,
    help="Keep every certificate issued, renewed, deployed and watched.",
    context_settings={**QUICK},
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _stand_in() -> None:
    """Never runs: LazyGroup replaces it."""


for _name, (_, _line) in COMMANDS.items():
    app.command(_name, help=_line)(_stand_in)


@app.command(context_settings={**QUICK})
def version() -> None:
    """Print the version of this program."""
    print(__version__)


def exit_code(error: UserError) -> int:
    return 2 if isinstance(error, SettingRefused) else EXIT_OF_STATUS.get(error.status, 1)


def main() -> None:
    try:
        app(prog_name="holdfast")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        sys.exit(exit_code(error))


if __name__ == "__main__":
    main()
