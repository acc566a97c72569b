"""The `holdfast` command: knows every subcommand's name and line, and imports only the one that is asked for.

To add a command, write `cli/<name>.py` with a Typer `app`, and add a row to COMMANDS. An app with a name is a
group (`typer.Typer(name="audit")` gives `holdfast audit verify`); an app without one puts its own command at
the top level (`@app.command("serve")` gives `holdfast serve`). Raise UserError for whatever a person can fix.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_group

from holdfast import __version__
from holdfast.cli.quick import QUICK, hasten
from holdfast.errors import SettingRefused, StoreError, StoreRefused, StoreUnfit, Usage, UserError

if TYPE_CHECKING:
    from typer._click import Command, Context

COMMANDS: Final = {  # name: (module with its app, the line that --help shows)
    "dev": ("holdfast.cli.dev", "Run everything on this machine, and get a first certificate."),
    "serve": ("holdfast.cli.serve", "Run a replica until it is told to stop."),
    "issue": ("holdfast.cli.issue", "Ask for a certificate, which is kept renewed from then on."),
    "change": ("holdfast.cli.change", "Change what a certificate is: names, CA, key, owner, labels."),
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
    "retry": ("holdfast.cli.issue", "Run a job now: one that waits, or one that was given up."),
    "cancel": ("holdfast.cli.issue", "Stop what is under way for a certificate, or a job."),
    "simulate": ("holdfast.cli.simulate", "Forecast the months to come against what CAs allow."),
    "events": ("holdfast.cli.events", "Show what happened, or follow what happens."),
    "approvals": ("holdfast.cli.approvals", "Approve or deny what waits for a second person."),
    "issuer": ("holdfast.cli.issuer", "The same as ca, for the CAs that certificates come from."),
    "notify": ("holdfast.cli.notify", "See what people are told, requeue it, and add channels for it."),
    "token": ("holdfast.cli.token", "Let people and programs in, and shut them out."),
    "plan": ("holdfast.cli.plan", "Show what a document of certificates would change."),
    "apply": ("holdfast.cli.plan", "Make the certificates what a document says."),
    "export": ("holdfast.cli.plan", "Print the certificates as such a document."),
    "import": ("holdfast.cli.importing", "Adopt what certbot, acme.sh or lego keep, or PEM files."),
    "login": ("holdfast.cli.login", "Remember a server elsewhere, and a token for it."),
    "logout": ("holdfast.cli.login", "Forget them."),
    "context": ("holdfast.cli.login", "Choose between the servers that you are logged in to."),
    "audit": ("holdfast.cli.audit", "See who changed what; check that no audit row was altered."),
    "config": ("holdfast.cli.config", "Show the settings in force, and where each came from."),
    "key": ("holdfast.cli.key", "Show or rotate the key that encrypts the store's secrets."),
    "ca": ("holdfast.cli.ca", "Add and test CAs elsewhere; make and change our own."),
    "pki": ("holdfast.cli.pki", "Make a private CA, or read a certificate."),
    "jobs": ("holdfast.cli.jobs", "Show what is queued, what runs, and what was given up."),
    "challenge": ("holdfast.cli.challenge", "See from here what a CA would see of a name."),
    "cluster": ("holdfast.cli.cluster", "Show the replicas, their leases and their loops."),
    "doctor": ("holdfast.cli.doctor", "Look for what is wrong, and say how to put it right."),
    "completion": ("holdfast.cli.completion", "Print the script that completes words in a shell."),
    "help": ("holdfast.cli.topics", "Explain exit codes, output and contexts."),
    "mcp": ("holdfast.cli.mcp", "Serve tools to an assistant (Model Context Protocol)."),
}
HIDDEN: Final = {"__complete": ("holdfast.cli.completion", "What shells ask.")}
# 0 done or nothing to do; 1 failed; 2 usage; 3 still in progress at timeout; 4 authentication; 5 conflict or
# stale; 6 not found; 10 findings or changes; 130 interrupted.
EXIT_OF_STATUS: Final = {401: 4, 403: 4, 404: 6, 409: 5, 412: 5}


class LazyGroup(TyperGroup):
    """Lists commands by their stand-ins, and fetches the real one only once it is named."""

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if name in COMMANDS or name in HIDDEN:
            command = load(name)
        return name, command, rest


def load(name: str) -> Command:
    """The real command of this name."""
    loaded = typer.Typer(rich_markup_mode=None)
    loaded.add_typer(import_module((COMMANDS | HIDDEN)[name][0]).app)
    return hasten(get_group(loaded).commands[name])


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


for _name, (_, _line) in (COMMANDS | HIDDEN).items():
    app.command(_name, help=_line, hidden=_name in HIDDEN)(_stand_in)


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def everywhere(
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Data and errors only, no talk.")] = False,
    no_input: Annotated[bool, typer.Option("--no-input", help="Never ask back: what would need it fails.")] = False,
    shown: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Keep every certificate issued, renewed, deployed and watched."""


@app.command(context_settings={**QUICK})
def version(
    with_server: Annotated[bool, typer.Option("--with-server", help="And the server's; 10 if they differ.")] = False,
) -> None:
    """Print the version of this program."""
    print(__version__)
    if with_server:
        from holdfast.cli.skew import show

        raise typer.Exit(show())


def exit_code(error: UserError) -> int:
    return 2 if isinstance(error, SettingRefused | Usage) else EXIT_OF_STATUS.get(error.status, 1)


def main() -> None:
    try:
        try:
            app(prog_name="holdfast")
        finally:
            sys.stdout.flush()  # whether it can be written is known only then
    except BrokenPipeError:  # whoever read it has seen enough; the end as Click has it
        from holdfast.cli.terminal import let_go

        let_go(sys.stdout)
        sys.exit(1)
    except OSError as error:
        _end(UserError(f"It cannot be read or written: {error.strerror or error}: {error.filename or 'the output'}."))
    except UserError as error:
        _end(error)
    except StoreError as error:
        hint = error.hint if isinstance(error, StoreUnfit) else "Try again when the store is well (holdfast doctor)."
        _end(StoreRefused(str(error), hint))


def _end(error: UserError) -> NoReturn:
    from holdfast.cli.terminal import tame_lines  # the words may be a server's, or a CA's

    print(tame_lines(f"error: {error}"), file=sys.stderr)
    if error.hint:
        print(tame_lines(f"hint: {error.hint}"), file=sys.stderr)
    sys.exit(exit_code(error))


if __name__ == "__main__":
    main()
