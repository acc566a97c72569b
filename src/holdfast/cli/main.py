"""The `holdfast` command: knows every subcommand's name and line, and imports only the one that is asked for.

A declared operation is a command already (see derived.py). To write a command by hand, add a Typer `app` to a module
and a row to COMMANDS. An app with a name is a group (`typer.Typer(name="audit")` gives `holdfast audit verify`); an app
without one puts its command at the top level (`@app.command("serve")` gives `holdfast serve`). The options that all
commands share are in everywhere.py. Raise UserError for a problem that the user can solve.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from holdfast import __version__
from holdfast.cli import derived, everywhere
from holdfast.cli.quick import QUICK, hasten
from holdfast.errors import SettingRefused, StoreError, StoreRefused, StoreUnfit, Usage, UserError

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter

SECTIONS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    # By headings of the help page: the module with the app of a command (empty: derived alone), and its line there.
    "Certificates": {
        "issue": ("holdfast.cli.certificates.issue", "Ask for a certificate; it is renewed from then on."),
        "change": ("holdfast.cli.certificates.issue", "Change names, issuers, key, owner or labels of a certificate."),
        "ls": ("holdfast.cli.certificates.ls", "List certificates."),
        "attention": ("", "Show what needs a person now, the most urgent first."),
        "snooze": ("", "Put off one thing that needs you."),
        "wake": ("", "Undo a snooze of yours."),
        "get": ("holdfast.cli.certificates.ls", "Show one certificate in full."),
        "status": ("holdfast.cli.certificates.ls", "Show the state of one certificate, or of all."),
        "explain": ("holdfast.cli.certificates.ls", "Explain why a certificate is renewed, or why not yet."),
        "renew": ("holdfast.cli.certificates.issue", "Renew a certificate now."),
        "wait": ("holdfast.cli.certificates.issue", "Wait until a certificate is issued."),
        "revoke": ("holdfast.cli.certificates.issue", "Revoke a certificate, and replace it."),
        "pause": ("holdfast.cli.certificates.issue", "Pause a certificate: it is not renewed until it is resumed."),
        "resume": ("holdfast.cli.certificates.issue", "Resume a paused certificate."),
        "archive": ("holdfast.cli.certificates.issue", "Stop renewing a certificate, for good."),
        "versions": ("", "List the versions of a certificate."),
        "fetch": ("holdfast.cli.certificates.fetch", "Write a certificate, its chain and its key into files."),
        "issuances": ("", "List and show issuances: each attempt to obtain a certificate."),
        "approvals": ("", "Approve or reject issuances that need a second person."),
        "plan": ("holdfast.cli.certificates.plan", "Show what a document of certificates would change."),
        "apply": ("holdfast.cli.certificates.plan", "Change certificates to what a document says."),
        "export": ("holdfast.cli.certificates.plan", "Print the certificates as such a document."),
        "import": ("holdfast.cli.certificates.imports", "Adopt certificates from certbot, acme.sh, lego or PEM files."),
    },
    "Issuers and our own CAs": {
        "issuer": ("holdfast.cli.issuers", "Add, test and change issuers: where certificates come from."),
        "ca": ("", "Create and change our own CAs; manage their ACME clients."),
        "trust": ("holdfast.cli.trust.commands", "Let this machine trust the root of a private CA, or not."),
        "solver": ("", "Add and test solvers, which publish challenge responses."),
        "policy": ("", "Say who may have which names, and find what violates it."),
        "pki": ("holdfast.cli.own_ca.pki", "Make the root of a private CA offline, or read a certificate."),
        "challenge": ("holdfast.cli.installation.challenge", "Test from this machine what a CA would see of a name."),
        "simulate": (
            "holdfast.cli.certificates.simulate",
            "Forecast the orders of the next months, and the limits of CAs.",
        ),
    },
    "Where certificates are served": {
        "target": ("", "Add, test and change targets: where certificates are installed."),
        "deploy": ("", "Deploy a certificate to its targets, again if need be."),
        "rollback": ("", "Deploy the version before the one in use."),
        "deployments": ("", "List deployments; freeze them, and let them go on."),
        "endpoint": ("", "Watch endpoints: what certificate each serves, and until when."),
        "agent": ("holdfast.cli.agents", "Run an agent on this host; approve, ban and retire agents."),
        "discover": ("holdfast.cli.discovery", "Look for certificates that are not managed here."),
        "finds": ("", "List certificates that were found; adopt or ignore each."),
        "drill": ("", "Rehearse the replacement of many certificates."),
    },
    "Notifications and events": {
        "notify": ("holdfast.cli.notifications", "List and resend notifications; add and test channels."),
        "events": ("holdfast.cli.installation.events", "Show past events, or follow new ones."),
    },
    "Operation": {
        "serve": ("holdfast.cli.installation.serve", "Run a server: the engine, the API, the ACME server."),
        "dev": ("holdfast.cli.installation.serve", "Run a server on this machine, and get a first certificate."),
        "doctor": ("holdfast.cli.installation.doctor", "Find problems, and say how to solve them."),
        "upgrade": ("holdfast.cli.installation.upgrade", "Say whether this version can join the replicas that run."),
        "cluster": ("holdfast.cli.installation.cluster", "Show the replicas, their leases and loops; drain a replica."),
        "backup": ("holdfast.cli.installation.backup", "Make backups, check them, restore one, or rehearse that."),
        "restore": ("", "Show what was lost and found again; release after a restore."),
        "jobs": ("", "List and show jobs: waiting, running and dead."),
        "retry": ("holdfast.cli.certificates.issue", "Run a job now: one that waits, or a dead one."),
        "cancel": ("holdfast.cli.certificates.issue", "Cancel the issuance of a certificate, or a job."),
        "stats": ("", "Count certificates, expiries, outcomes and issuances."),
        "audit": ("holdfast.cli.installation.audit", "List who changed what; verify that the audit log is intact."),
        "token": ("", "Create, list and revoke tokens of the API."),
        "people": ("", "Add people who log in; change and recover accounts."),
        "key": ("holdfast.cli.installation.key", "Show or rotate the key that encrypts secrets in the store."),
        "config": ("holdfast.cli.installation.config", "Show the settings, and where each came from."),
        "mcp": ("holdfast.cli.installation.mcp", "Serve tools to an assistant (Model Context Protocol)."),
    },
    "This machine": {
        "login": ("holdfast.cli.installation.login", "Log in to a server elsewhere."),
        "logout": ("holdfast.cli.installation.login", "Log out: forget a server and its token."),
        "context": ("holdfast.cli.installation.login", "Choose between the servers that you are logged in to."),
        "completion": ("holdfast.cli.completion", "Print the completion script of a shell."),
        "help": ("holdfast.cli.topics", "Explain exit codes, output, contexts, reasons and errors."),
        "version": ("holdfast.cli.installation.version", "Print the version of this program."),
    },
}
COMMANDS: Final = {name: each for section in SECTIONS.values() for name, each in section.items()}
ABOUT: Final = "Obtain, renew and deploy TLS certificates, and say for each what happens next, when and why."
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

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Commands below a heading each."""
        width = max(map(len, self.commands))
        for heading, names in SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), self.commands[name].get_short_help_str(200)) for name in names])


def load(name: str) -> Command:
    """The real command of this name: what is written by hand, what is derived, and the options that all have."""
    written, line = (COMMANDS | HIDDEN)[name]
    loaded = typer.Typer(rich_markup_mode=None)
    alone = derived.commands().get((name,))
    if written:
        loaded.add_typer(import_module(written).app)
    elif alone:
        loaded.command(name)(derived.command_of(alone[0]))
        loaded.callback()(_group)
    else:
        loaded.add_typer(typer.Typer(name=name, help=line))
    for each in [*loaded.registered_groups]:
        if each.typer_instance is not None and (each.typer_instance.info.name == name):
            derived.fill(each.typer_instance, (name,))
    command = get_group(loaded).commands[name]
    _complete(command, (name,))
    return hasten(command)


def _group() -> None:
    """Makes a group of a program with one command."""


def _complete(command: Command, path: tuple[str, ...]) -> None:
    inner: dict[str, Command] = getattr(command, "commands", {})
    for name, each in inner.items():
        _complete(each, (*path, name))
    if not inner or getattr(command, "invoke_without_command", False):
        everywhere.with_options(command, derived.options_of(path))
        everywhere.in_plain_words(command, derived.example_of(path))


# Rich help and rich tracebacks would cost more than everything else at start; the latter also print locals.
app = typer.Typer(
    cls=LazyGroup,
    help=ABOUT,
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
@everywhere.taking_options
def whole(
    shown: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    **shared: object,
) -> None:
    everywhere.remember(shared)


def exit_code(error: UserError) -> int:
    return 2 if isinstance(error, SettingRefused | Usage) else EXIT_OF_STATUS.get(error.status, 1)


def main() -> None:
    try:
        try:
            hasten(get_command(app))(prog_name="holdfast")
        finally:
            sys.stdout.flush()  # whether it can be written is known only then
    except BrokenPipeError:  # the reader closed the pipe; end as Click does
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
