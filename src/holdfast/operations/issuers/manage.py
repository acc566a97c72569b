"""Issuers: where certificates come from. List, add, change, pause, resume, test, delete; credentials and budgets."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Final

from pydantic import BaseModel, Field

from holdfast.core.issuers import budget as budget_rules
from holdfast.core.issuers import ca_limits
from holdfast.core.issuers.budget import Budget
from holdfast.core.issuers.issuer import IssuerRow, IssuerState
from holdfast.errors import TryLater, UserError
from holdfast.operations import kinds, remotes
from holdfast.operations.access import Action
from holdfast.operations.context import Context, Transaction
from holdfast.operations.inputs import Input, Option, Page, Paged, RemoteName, Short, paged
from holdfast.operations.issuance import input_changed
from holdfast.operations.issuance.attempts import APPROVAL_SETTING
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
    Fit,
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
from holdfast.store import certificates, issuers
from holdfast.store.secrets import KeptSecret
from holdfast.store.tx import Tx
from holdfast.store.work import budgets

LONGEST_WINDOW_S: Final = 86_400
NAMED: Final = 5  # certificates that are named as in the way of a deletion


class NoSuchIssuer(NoSuchRemote):
    code, noun, command = "no-such-issuer", "issuer", "holdfast issuer"


class IssuerExists(RemoteExists):
    code, noun, command = "issuer-exists", "issuer", "holdfast issuer"


class IssuerChanged(RemoteChanged):
    code, noun, command = "issuer-changed", "issuer", "holdfast issuer"


class IssuerRefused(RemoteRefused):
    code, noun, command = "issuer-refused", "issuer", "holdfast issuer"


class IssuerInUse(UserError):
    status, code = 409, "issuer-in-use"

    def __init__(self, name: str, users: Sequence[str]) -> None:
        shown = ", ".join(users[:NAMED]) + (", …" if len(users) > NAMED else "")
        super().__init__(f"Certificates need {name}: {shown}.")
        self.hint = "Give them another issuer or archive them, and wait for issuances under way; or pause this issuer."


# ── Inputs and results ──


class IssuerRef(RemoteRef):
    name: Annotated[str, Option(metavar="ISSUER")] = Field(max_length=100, description="The issuer's name.")


class NewIssuer(Input):
    name: Annotated[RemoteName, Option(argument=True, metavar="ISSUER")]
    kind: Short = Field(default="acme", description="How it is spoken to: acme, digicert, vault, …")
    preset: Short | None = Field(
        default=None, description="A public ACME CA whose address is known: letsencrypt, zerossl, …"
    )
    settings: RemoteSettings = Field(default={}, description="A setting of its kind, as text or JSON.")
    credentials: GivenCredentials = Field(
        default={}, description="A credential of its kind: a file, - for stdin, or env:VARIABLE."
    )


class IssuerChange(IssuerRef, RemoteChange):
    """Settings and credentials that are left out keep their values; those that are null are removed."""


class IssuerView(RemoteView):
    """An issuer, without its credentials."""


class BudgetLeft(BaseModel):
    key: str
    left: int
    burst: int
    every_s: float
    held_until: datetime | None


def shown(tx: Tx, row: IssuerRow) -> IssuerView:
    return IssuerView(**dict(remotes.view_of(row, tx.now())))


ISSUERS: Final[NamedRemotes[IssuerRow]] = NamedRemotes(
    noun="issuer",
    table=issuers,
    active=IssuerState.ACTIVE,
    paused=IssuerState.PAUSED,
    wake=lambda tx, name: certificates.wake_for_issuer(tx, name, tx.now()),
    decided=remotes.decided,
    missing=NoSuchIssuer,
    taken=IssuerExists,
    changed=IssuerChanged,
    refused=IssuerRefused,
)
FAMILY: Final = RemoteFamily(
    name="issuers",
    command="issuer",
    remotes=ISSUERS,
    ref=IssuerRef,
    view=IssuerView,
    shown=shown,
    see=Action.SEE_ISSUERS,
    change=Action.CHANGE_ISSUERS,
)


def found(tx: Tx, name: str) -> IssuerRow:
    return ISSUERS.found(tx, name)


# ── Looking ──


@operation("issuers.list", "GET /issuers", command="issuer ls", action=Action.SEE_ISSUERS, scope=INSTALLATION)
def list_issuers(tx: Tx, ctx: Context, asked: Paged) -> Page[IssuerView]:
    """List the issuers, in the order of their names."""

    def read(after: str, limit: int) -> list[IssuerRow]:
        return issuers.page(tx, after=after, limit=limit)

    return paged(asked, read, lambda row: row.name, lambda row: shown(tx, row))


get: Final = declare_get(FAMILY, "Show one issuer, without its credentials.")


@operation(
    "issuers.budget",
    "GET /issuers/{name}/budget",
    command="issuer budget",
    action=Action.SEE_ISSUERS,
    scope=INSTALLATION,
)
def budget(tx: Tx, ctx: Context, asked: IssuerRef) -> list[BudgetLeft]:
    """Show what an issuer's limits, as far as they are known, leave for now.

    Budgets of single domains and sets of names are shown to askers who see all certificates.
    """
    now, held = tx.now(), left(tx, asked.name)
    if ctx.principal.confined:
        wide = ca_limits.wide_keys(asked.name, _place(tx, asked.name))
        held = [each for each in held if each.key in wide]
    return [_left(each, now) for each in held]


def _left(held: Budget, now: datetime) -> BudgetLeft:
    return BudgetLeft(
        key=held.key,
        left=budget_rules.remaining(held, now, urgent=True),
        burst=held.limit.burst,
        every_s=held.limit.every.total_seconds(),
        held_until=held.not_before,
    )


def left(tx: Tx, name: str) -> list[Budget]:
    """The budgets of one issuer, with those that it shares with other rows for the same CA."""
    prefixes = (f"ca/{name}/", f"ca/{_place(tx, name)}/")
    return [each for each in budgets.all_budgets(tx) if each.key.startswith(prefixes)]


def _place(tx: Tx, name: str) -> str:
    return ca_limits.place_of(kinds.limits_of(found(tx, name)), name)


# ── Adding and changing ──


@operation(
    "issuers.add",
    "POST /issuers",
    command="issuer add",
    action=Action.CHANGE_ISSUERS,
    scope=INSTALLATION,
    status=201,
    example="holdfast issuer add letsencrypt letsencrypt",
    done="Added. See that it knows us: holdfast issuer test {name}",
    not_on=TAKES_CREDENTIALS,
)
async def add_issuer(ctx: Context, asked: NewIssuer) -> Transaction[IssuerView]:
    """Add an issuer. Its credentials are sealed and never shown again. A preset may stand where its kind would."""
    available = ctx.services.issuer_kinds
    kind, preset = _by_preset(asked.kind, asked.preset, available)
    for name in preset.keys() & asked.settings.keys():
        if asked.settings[name] != preset[name]:
            raise IssuerRefused(f"A preset has its own {name}.", f"For another {name}, name the kind: {kind}")
    settings = {**asked.settings, **preset}
    ISSUERS.check_kind(kind, available, f"; and by preset: {', '.join(kinds.presets())}")
    given = remotes.secrets_of(asked.credentials)
    _check(kind, settings, given, ctx.services.fit)
    sealed = await ISSUERS.sealed(ctx.certificate_context.secret_store, asked.name, given)
    return lambda tx: shown(tx, add(tx, asked.name, kind=kind, settings=settings, credentials=sealed, actor=ctx.actor))


def add(
    tx: Tx,
    name: str,
    *,
    kind: str,
    settings: Mapping[str, object],
    credentials: Mapping[str, KeptSecret] | None = None,
    actor: str,
) -> IssuerRow:
    """Add an issuer whose settings were checked before."""
    kept = remotes.put(tx, credentials or {})
    row = IssuerRow(name=name, kind=kind, settings=settings, credentials=kept, created_at=tx.now())
    ISSUERS.insert(tx, row, actor)
    return row


def _by_preset(kind: str, preset: str | None, available: Collection[str]) -> tuple[str, Mapping[str, object]]:
    """The kind, and the settings that a preset has; the name of a preset may stand where that of a kind would."""
    known = kinds.presets()
    if preset is None and kind not in available and kind in known:
        preset = kind
    if preset is None:
        return kind, {}
    if preset not in known:
        raise IssuerRefused(f"There is no preset {preset!r:.40}.", f"There are: {', '.join(known)}.")
    return known[preset]


def _check(kind: str, settings: Mapping[str, object], credentials: Collection[str], fit: Fit) -> None:
    """What holds for issuers of every kind, then what holds for this one."""
    window = settings.get("poll_max_wait_seconds")
    if window is not None and (isinstance(window, bool) or not isinstance(window, int | float) or not _fits(window)):
        raise IssuerRefused(
            f"poll_max_wait_seconds is {window!r:.40}.", "It is a number of seconds from 0 to 86400; 0: the default."
        )
    if not isinstance(settings.get(APPROVAL_SETTING, False), bool):
        raise IssuerRefused(f"{APPROVAL_SETTING} is {settings[APPROVAL_SETTING]!r:.40}.", "It is true or false.")
    _limits(kind, settings)
    try:
        fit(kind, settings, credentials)
    except ValueError as why:
        raise IssuerRefused(
            f"The settings of issuer kind {kind} do not fit: {why}.", "See: holdfast issuer add --help"
        ) from None


def _fits(window: float) -> bool:
    return 0 <= window <= LONGEST_WINDOW_S


def _limits(kind: str, settings: Mapping[str, object]) -> None:
    if problem := ca_limits.problem_with(settings.get("limits")):
        raise IssuerRefused(
            f"The limits of this issuer cannot be read: {problem}.", 'For example: {"orders": [300, 36]}.'
        )
    try:
        kinds.limits_by(kind, settings)
    except (ValueError, TypeError, OverflowError) as error:
        raise IssuerRefused(f"The limits of this issuer cannot be used: {error}.") from None


def _changed(tx: Tx, before: IssuerRow, after: IssuerRow) -> dict[str, object]:
    same = (before.settings, before.credentials) == (after.settings, after.credentials)
    return {"begun_anew": 0 if same else input_changed.of_issuer(tx, after)}


async def _check_change(ctx: Context, row: IssuerRow, settings: Mapping[str, object], credentials: Credentials) -> None:
    _check(row.kind, settings, credentials, ctx.services.fit)


change: Final = declare_change(
    FAMILY,
    """Change an issuer. Settings and credentials you leave out keep their values.

    The change holds from the next step of each issuance under way. Where a setting changes that decides who gets the
    credentials, such as base_url or roots, give the credentials again.
    """,
    IssuerChange,
    Changing(check=_check_change, follows=_changed),
    example="holdfast issuer set corp --set poll_max_wait_seconds=3600",
)
pause, resume = declare_switches(
    FAMILY,
    pause="Pause an issuer: no new issuance begins there; those under way go on.",
    resume="Resume a paused issuer. Certificates that waited for it are looked at by the next sweep.",
)


@operation(
    "issuers.delete",
    "DELETE /issuers/{name}",
    command="issuer rm",
    action=Action.CHANGE_ISSUERS,
    scope=INSTALLATION,
    destructive=True,
    done="Issuer {name} is deleted.",
)
def delete(tx: Tx, ctx: Context, asked: IssuerRef) -> IssuerView:
    """Delete an issuer for good, with its credentials and our account's key. Refused while certificates need it.

    Our account at the CA stays open there, but its key is gone; what was used up of its limits still counts.
    """
    row = ISSUERS.found(tx, asked.name, lock=True)
    if users := issuers.needed_by(tx, row.name, limit=NAMED + 1):
        raise IssuerInUse(row.name, users)
    accounts = issuers.accounts_of(tx, row.name)
    issuers.delete_accounts(tx, row.name)
    issuers.delete(tx, row.name)
    keys = [key for each in accounts for key in (each.key_secret, each.new_key_secret) if key is not None]
    remotes.delete_secrets(tx, keys)
    urls = [each.url for each in accounts if each.url is not None]
    ISSUERS.deleted(tx, row, ctx.actor, kind=row.kind, accounts=urls)
    return shown(tx, row)


async def _tested(ctx: Context, name: str) -> str:
    row = await ctx.write(lambda tx: _paid_for(tx, name))
    return await ISSUERS.reached(name, ctx.services.probe(row), lambda why: _look_at(row, why))


def _look_at(row: IssuerRow, why: TryLater) -> str:
    """Which setting says where it is, unless the reason names another one."""
    if "setting" in str(why):
        return ""
    kind = kinds.kind_of(row)
    setting = "base_url" if kind is None else kind.address
    given = str(row.settings.get(setting) or "not set")[:120]
    return f"Check its setting {setting} ({given}), and the network."


def _paid_for(tx: Tx, name: str) -> IssuerRow:
    """A test is made of requests like any other, and pays for them."""
    row = found(tx, name)
    limit = kinds.limits_of(row).requests
    if limit is None:
        return row
    many = kinds.requests_of(row).look
    paid, until = budgets.take_some(tx, ca_limits.request_key(name), limit, many)
    if not paid:
        why = f"{name} was not asked: it allows no more requests before {until:%F %T}Z."
        raise IssuerRefused(why, f"Wait until then. See its budgets: holdfast issuer budget {name}")
    return row


test: Final = declare_test(FAMILY, "Test whether an issuer can be reached and knows us. Nothing is ordered.", _tested)
