"""Solvers: who publishes challenge responses for which names. Add, list, test, pause, delete; no restart is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field

from holdfast import plugins
from holdfast.core.certificate import ANY_CHALLENGE, Certificate
from holdfast.core.kind import Trait
from holdfast.core.own_ca.acme import Identifier, permits
from holdfast.core.solver import SolverRow, SolverState, unproved
from holdfast.errors import UserError
from holdfast.operations import kinds, remotes
from holdfast.operations.access import Action, Owned
from holdfast.operations.certificates import refs
from holdfast.operations.context import Context, Transaction
from holdfast.operations.inputs import Input, Nothing, Option, RemoteName, Short
from holdfast.operations.issuance import input_changed
from holdfast.operations.operation import operation
from holdfast.operations.remote_operations import (
    TAKES_CREDENTIALS,
    Changing,
    RemoteChange,
    RemoteFamily,
    RemoteRef,
    declare_change,
    declare_get,
    declare_switches,
    declare_test,
)
from holdfast.operations.remotes import (
    Credentials,
    GivenCredentials,
    NamedRemotes,
    NoSuchRemote,
    RemoteChanged,
    RemoteExists,
    RemoteRefused,
    RemoteSettings,
    RemoteView,
)
from holdfast.operations.scopes import INSTALLATION
from holdfast.store import certificates, issuers, solvers
from holdfast.store.tx import Tx


class NoSuchSolver(NoSuchRemote):
    code, noun, command = "no-such-solver", "solver", "holdfast solver"


class SolverExists(RemoteExists):
    code, noun, command = "solver-exists", "solver", "holdfast solver"


class SolverChanged(RemoteChanged):
    code, noun, command = "solver-changed", "solver", "holdfast solver"


class SolverRefused(RemoteRefused):
    code, noun, command = "solver-refused", "solver", "holdfast solver"


class SolverInUse(UserError):
    status, code = 409, "solver-in-use"

    def __init__(self, name: str, certificate: str) -> None:
        super().__init__(f"Certificate {certificate} asks for solver {name}.")
        self.hint = f"Let it be proved otherwise first: holdfast change {quote(certificate)} --solver ''"


class SolverRef(RemoteRef):
    name: Annotated[str, Option(metavar="SOLVER")] = Field(max_length=100, description="The solver's name.")


NamePattern = Annotated[Short, Field(pattern=r"^(\*|(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|[0-9a-fA-F:.]+)$")]


class NewSolver(Input):
    name: Annotated[RemoteName, Option(argument=True, metavar="SOLVER")]
    kind: Short = Field(description="How it publishes: dns-rfc2136, dns-lexicon, http, tls-alpn, …")
    names: Annotated[list[NamePattern], Field(min_length=1, max_length=100), Option(flag="--for", metavar="NAME")] = (
        Field(description="A name or pattern that it is for, such as corp.example or *.corp.example; may be repeated.")
    )
    settings: RemoteSettings = Field(default={}, description="A setting of its kind, as text or JSON.")
    credentials: GivenCredentials = Field(
        default={}, description="A credential of its kind: a file, - for stdin, or env:VARIABLE."
    )


class SolverChange(SolverRef, RemoteChange):
    """Fields that are left out keep their values. A setting or credential that is null is removed."""

    names: Annotated[
        list[NamePattern] | None, Field(min_length=1, max_length=100), Option(flag="--for", metavar="NAME")
    ] = Field(default=None, description="The names or patterns that it is for from now on; may be repeated.")


class SolverView(RemoteView):
    """A solver, without its credentials."""

    names: list[str] = Field(description="Patterns of names that it publishes challenge responses for.")


def shown(tx: Tx, row: SolverRow) -> SolverView:
    return SolverView(**dict(remotes.view_of(row, tx.now())), names=list(row.names))


SOLVERS: Final[NamedRemotes[SolverRow]] = NamedRemotes(
    noun="solver",
    table=solvers,
    active=SolverState.ACTIVE,
    paused=SolverState.PAUSED,
    wake=lambda tx, name: input_changed.of_a_solver(tx),
    decided=lambda row: {**remotes.decided(row), "names": list(row.names)},
    missing=NoSuchSolver,
    taken=SolverExists,
    changed=SolverChanged,
    refused=SolverRefused,
)
FAMILY: Final = RemoteFamily(
    name="solvers",
    command="solver",
    remotes=SOLVERS,
    ref=SolverRef,
    view=SolverView,
    shown=shown,
    see=Action.SEE_ISSUERS,
    change=Action.CHANGE_ISSUERS,
)


@operation(
    "solvers.list",
    "GET /solvers",
    command="solver ls",
    action=Action.SEE_ISSUERS,
    scope=INSTALLATION,
    example="holdfast solver ls",
)
def list_solvers(tx: Tx, ctx: Context, asked: Nothing) -> list[SolverView]:
    """List the solvers in the order in which they are tried: the first that fits a name publishes for it."""
    return [shown(tx, each) for each in solvers.in_order(tx)]


MOST_GAPS: Final = 500


class Gap(BaseModel):
    certificate: str
    issuer: str
    challenge: str = Field(description="The challenge that it asks for; a wildcard is proved by dns-01 only.")
    names: list[str] = Field(description="Names that no solver here can prove.")


@operation(
    "solvers.gaps",
    "GET /solvers/gaps",
    command="solver gaps",
    action=Action.SEE_ISSUERS,
    scope=INSTALLATION,
    example="holdfast solver gaps",
)
async def gaps(ctx: Context, asked: Nothing) -> list[Gap]:
    """List certificates whose next renewal would fail: no solver can prove their names by the challenge they need."""
    known = await ctx.services.known_solvers()
    found = [] if known is None else await ctx.read(_validated)
    seen = [row for row in found if refs.sees(ctx.principal, Owned.of(row))]
    return [_gap(row, names) for row in seen if (names := unproved(row.wanted, known or ()))]


def _gap(row: Certificate, names: Sequence[Identifier]) -> Gap:
    asked = row.wanted.challenge
    by = "dns-01" if asked == ANY_CHALLENGE and any(each.wildcard for each in names) else asked
    return Gap(certificate=row.name, issuer=row.wanted.issuers[0], challenge=by, names=[each.value for each in names])


def _validated(tx: Tx) -> list[Certificate]:
    """Of those that not every solver can prove, the ones whose first issuer asks for challenges."""
    asking = {row.name for row in issuers.all_issuers(tx) if kinds.has(row, Trait.HAS_ACCOUNT)}
    return [row for row in certificates.hard_to_prove(tx, MOST_GAPS) if row.wanted.issuers[0] in asking]


get: Final = declare_get(FAMILY, "Show one solver, without its credentials.")


@operation(
    "solvers.add",
    "POST /solvers",
    command="solver add",
    action=Action.CHANGE_ISSUERS,
    scope=INSTALLATION,
    status=201,
    example="holdfast solver add cf --kind dns-lexicon --for '*.shop.example' --set provider=cloudflare "
    "--credential auth_token=-",
    done="Added; it is used from now on. Try it: holdfast solver test {name}",
    not_on=TAKES_CREDENTIALS,
)
async def add_solver(ctx: Context, asked: NewSolver) -> Transaction[SolverView]:
    """Add a solver. It is used at once, by all replicas, before those of the file keeping.solvers_file."""
    given = remotes.secrets_of(asked.credentials)
    _check(ctx, asked.kind, asked.settings, given)
    sealed = await SOLVERS.sealed(ctx.certificate_context.secret_store, asked.name, given)

    def write(tx: Tx) -> SolverView:
        kept = remotes.put(tx, sealed)
        row = SolverRow(
            name=asked.name, kind=asked.kind, names=_each_once(asked.names), settings=asked.settings,
            credentials=kept, created_at=tx.now(),
        )  # fmt: skip
        SOLVERS.insert(tx, row, ctx.actor)
        input_changed.of_a_solver(tx)
        return shown(tx, row)

    return write


def _each_once(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.lower() for each in names))


def _check(ctx: Context, kind: str, settings: Mapping[str, Any], credentials: Credentials) -> None:
    _check_kind(kind, settings)
    try:
        ctx.services.solver_fit(kind, settings, credentials)
    except ValueError as why:
        raise SolverRefused(f"The settings of solver kind {kind} do not fit: {why}.") from None


def _check_kind(kind: str, settings: Mapping[str, Any]) -> None:
    """No request over the API runs programs or writes files of the server's machine: that takes its operator's file."""
    known = plugins.kinds(plugins.SOLVERS)
    SOLVERS.check_kind(kind, known)
    if Trait.RUNS_HERE in known[kind].traits or settings.get("provider") == "localzone":
        hint = "Write it into the file that the setting keeping.solvers_file names, and restart."
        raise SolverRefused(f"A solver of kind {kind} uses programs or files of the server's machine.", hint)


async def _check_change(ctx: Context, row: SolverRow, settings: Mapping[str, Any], credentials: Credentials) -> None:
    _check(ctx, row.kind, settings, credentials)


change: Final = declare_change(
    FAMILY,
    """Change a solver. Options you leave out keep their values.

    Certificates whose challenges failed are tried again.
    """,
    SolverChange,
    Changing(
        check=_check_change,
        fields=lambda asked, row: {} if asked.names is None else {"names": _each_once(asked.names)},
        follows=lambda tx, before, after: {"begun_anew": input_changed.of_a_solver(tx)},
    ),
    example="holdfast solver set cf --credential auth_token=/run/secrets/token",
)
pause, resume = declare_switches(
    FAMILY,
    pause="Pause a solver: it publishes nothing; others that fit the names are used.",
    resume="Resume a paused solver. Certificates that failed for want of it are tried again.",
)


@operation(
    "solvers.delete",
    "DELETE /solvers/{name}",
    command="solver rm",
    action=Action.CHANGE_ISSUERS,
    scope=INSTALLATION,
    destructive=True,
    example="holdfast solver rm cf",
    done="Solver {name} is deleted.",
)
def delete(tx: Tx, ctx: Context, asked: SolverRef) -> SolverView:
    """Delete a solver for good, with its credentials. What it published and has not removed yet stays."""
    row = SOLVERS.found(tx, asked.name, lock=True)
    if named_by := certificates.with_solver(tx, row.name):
        raise SolverInUse(row.name, named_by)
    solvers.delete(tx, row.name)
    SOLVERS.deleted(tx, row, ctx.actor, kind=row.kind)
    return shown(tx, row)


async def _tested(ctx: Context, name: str) -> str:
    row = await ctx.read(lambda tx: SOLVERS.found(tx, name))
    about = _probe_name(row)
    call = ctx.services.try_solver(row, about)
    return await SOLVERS.reached(name, call, lambda _: f"Look at its settings: holdfast solver show {name}")


def _probe_name(row: SolverRow) -> Identifier:
    """A name that is not in use, below the first that the solver is for."""
    first = next((each for each in row.names if each != "*"), None)
    if first is None:
        hint = "Add one for the names that you have: holdfast solver add NAME --for corp.example"
        raise SolverRefused("A solver for every name has no name to be tested with.", hint)
    below = Identifier("dns", f"holdfast-test.{first.removeprefix('*.')}")
    return below if permits(row.names, below) else Identifier("dns", first.removeprefix("*."))


test: Final = declare_test(
    FAMILY,
    "Test a solver: it publishes a challenge response for a name of its own, looks for it, and removes it again.",
    _tested,
)
