"""The ACME clients of our CAs: their accounts, their orders, and the names that are paused for them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, Field

from holdfast.core.own_ca import acme
from holdfast.core.own_ca.acme import AccountState
from holdfast.errors import UserError
from holdfast.operations.access import Action
from holdfast.operations.context import Context
from holdfast.operations.inputs import (
    Input,
    Option,
    Page,
    Paged,
    Short,
    cursor,
    from_row,
    paged,
    place,
)
from holdfast.operations.operation import operation
from holdfast.operations.own_ca import manage as making
from holdfast.operations.own_ca.manage import CaRefused
from holdfast.operations.scopes import INSTALLATION
from holdfast.pki import names
from holdfast.pki.refused import NameRefused
from holdfast.store import journal
from holdfast.store.acme import accounts, orders
from holdfast.store.acme import limits as acme_limits
from holdfast.store.own_ca import certificates
from holdfast.store.tx import Tx

Id = Annotated[Short, Field(max_length=200)]
CaFilter = Annotated[
    str | None,
    Field(max_length=100, description="Only those of this CA; of all, if left out."),
    Option(argument=True, metavar="[CA]"),
]


class NotFound(UserError):
    status, code = 404, "not-found"

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(f"There is no {what}.")
        self.hint = hint


class AlreadySo(UserError):
    status, code, hint = 409, "already-so", "There is nothing left to do."


def check_filter(tx: Tx, ca: str | None, account: str | None = None) -> None:
    """An empty list for a name that is mistyped would read as "all is well"."""
    if ca is not None:
        making.found(tx, ca)
    if account is not None:
        account_of(tx, account)


# ── Accounts and orders ──


class ListAccounts(Paged):
    ca: CaFilter = None


class AccountRef(Input):
    account: Id


class AcmeAccount(BaseModel):
    account: str
    ca: str
    state: str
    contacts: list[str]
    eab_key: str | None
    names: list[str] = Field(description="Patterns of names that it gets without a challenge.")
    created_at: datetime


class RevokedAccount(AcmeAccount):
    good_certificates: int = Field(description="Its certificates that are good, and that it cannot renew any more.")


class ListOrders(Paged):
    ca: CaFilter = None
    account: Annotated[str | None, Field(max_length=200, description="Only those of this account.")] = None
    under_way: bool = Field(default=False, description="Only orders under way: pending, ready or processing.")


class AcmeOrder(BaseModel):
    order: str
    ca: str
    account: str
    state: str
    names: list[str]
    profile: str
    problem: str | None
    created_at: datetime


def _account(found: acme.Account) -> AcmeAccount:
    lists = {"contacts": list(found.contacts), "names": list(found.names)}
    return from_row(AcmeAccount, found, account=found.id, eab_key=found.eab_kid, **lists)


@operation(
    "accounts.list",
    "GET /acme/accounts",
    command="ca accounts",
    action=Action.SEE_CAS,
    scope=INSTALLATION,
    offline=True,
    example="holdfast ca accounts internal",
)
def list_accounts(tx: Tx, ctx: Context, asked: ListAccounts) -> Page[AcmeAccount]:
    """List the ACME accounts of our CAs, the oldest first."""
    check_filter(tx, asked.ca)
    read = lambda after, most: accounts.page(tx, asked.ca, after=after, limit=most)  # noqa: E731
    return paged(asked, read, lambda found: found.id, _account)


@operation(
    "accounts.revoke",
    "POST /acme/accounts/{account}/revoke",
    command="ca revoke-account",
    action=Action.CHANGE_ACME_CLIENTS,
    scope=INSTALLATION,
    destructive=True,
    asks="Account {account} of CA {ca} is revoked for good: it can renew none of its {good_certificates} certificates.",
    offline=True,
    example="holdfast ca revoke-account acct_01",
)
def revoke_account(tx: Tx, ctx: Context, asked: AccountRef) -> RevokedAccount:
    """Revoke an ACME account for good. Its certificates stay as they are."""
    found = _revocable(tx, asked.account)
    if not accounts.end(tx, asked.account, "revoked"):
        raise AlreadySo(f"Account {asked.account} is {found.state} already.")
    states = {"before": {"state": found.state}, "after": {"state": "revoked"}}
    journal.audit(tx, "account_revoked", asked.account, actor=ctx.actor, ca=found.ca, **states)
    good = certificates.good(tx, ca=found.ca, account=found.id)
    return RevokedAccount(**dict(_account(account_of(tx, found.id))), good_certificates=good)


def account_of(tx: Tx, account: str) -> acme.Account:
    found = accounts.get(tx, account)
    if found is None:
        raise NotFound(f"account {account}", "See what there is: holdfast ca accounts")
    return found


def _revocable(tx: Tx, account: str) -> acme.Account:
    """An account of a client. Our own accounts have no key, and the next order would go on with it."""
    found = account_of(tx, account)
    if found.internal:
        problem = f"Account {account} is this installation's own: its certificates come by it, and no client uses it."
        raise CaRefused(problem, f"To take no more orders: holdfast ca close {found.ca}")
    if found.state is not AccountState.VALID:
        raise AlreadySo(f"Account {account} is {found.state} already.")
    return found


@operation(
    "orders.list",
    "GET /acme/orders",
    command="ca orders",
    action=Action.SEE_CAS,
    scope=INSTALLATION,
    offline=True,
    example="holdfast ca orders internal",
)
def list_orders(tx: Tx, ctx: Context, asked: ListOrders) -> Page[AcmeOrder]:
    """List the ACME orders at our CAs, the oldest first."""
    check_filter(tx, asked.ca, asked.account)
    read = lambda after, most: orders.page(  # noqa: E731
        tx, ca=asked.ca, account=asked.account, under_way=asked.under_way, after=after, limit=most
    )
    return paged(asked, read, lambda found: found.id, _order)


def _order(found: acme.Order) -> AcmeOrder:
    names, problem = [each.value for each in found.identifiers], None if found.error is None else found.error.detail
    return from_row(AcmeOrder, found, order=found.id, names=names, problem=problem)


# ── Names that are paused ──


class ListPauses(Paged):
    """All names that are paused, the longest paused first."""


class PauseRef(Input):
    account: Annotated[Id, Option(argument=True)] = Field(description="The ACME account.")
    name: Annotated[str, Option(argument=True)] = Field(
        max_length=300, description="The name; the wildcard of it is paused with it."
    )


class PausedName(BaseModel):
    account: str
    name: str
    failures: int = Field(description="In a row; 0: an operator paused it.")
    paused_at: datetime | None


class UnpausedName(BaseModel):
    account: str
    name: str


def _paused(found: acme_limits.Pause) -> PausedName:
    return from_row(PausedName, found)


@operation(
    "pauses.list",
    "GET /acme/pauses",
    command="ca pauses",
    action=Action.SEE_CAS,
    scope=INSTALLATION,
    offline=True,
    example="holdfast ca pauses",
)
def list_pauses(tx: Tx, ctx: Context, asked: ListPauses) -> Page[PausedName]:
    """List the names that are paused: they failed too often in a row, or an operator paused them."""
    found = acme_limits.pauses(tx, after=place(asked.cursor, int, str, str), limit=asked.limit + 1)
    rows = found[: asked.limit]
    end = acme_limits.place_of(rows[-1]) if len(found) > asked.limit else None
    return Page(items=[_paused(each) for each in rows], next=cursor(end))


@operation(
    "pauses.add",
    "POST /acme/pauses",
    command="ca pause-name",
    action=Action.CHANGE_ACME_CLIENTS,
    scope=INSTALLATION,
    status=201,
    offline=True,
    example="holdfast ca pause-name acct_01 www.example.internal",
)
def pause(tx: Tx, ctx: Context, asked: PauseRef) -> PausedName:
    """Pause a name of an ACME account: no more orders for it, or for its wildcard, until it is unpaused."""
    wanted = _pausable(asked.name)
    account_of(tx, asked.account)
    acme_limits.pause(tx, asked.account, wanted)
    states = {"before": {"paused": False}, "after": {"paused": True}}
    journal.audit(tx, "name_paused", wanted, actor=ctx.actor, account=asked.account, **states)
    return PausedName(account=asked.account, name=wanted, failures=0, paused_at=tx.now())


@operation(
    "pauses.delete",
    "DELETE /acme/pauses/{account}/{name}",
    command="ca unpause-name",
    action=Action.CHANGE_ACME_CLIENTS,
    scope=INSTALLATION,
    offline=True,
    example="holdfast ca unpause-name acct_01 www.example.internal",
)
def unpause(tx: Tx, ctx: Context, asked: PauseRef) -> UnpausedName:
    """Unpause a name of an ACME account: orders for it are taken again, and its failures are forgotten."""
    wanted = next((each for each in _spellings(asked.name) if acme_limits.unpause(tx, asked.account, each)), None)
    if wanted is None:
        problem = f"pause of {asked.name} for account {asked.account}"
        raise NotFound(problem, "See what there is: holdfast ca pauses")
    states = {"before": {"paused": True}, "after": {"paused": False}}
    journal.audit(tx, "name_unpaused", wanted, actor=ctx.actor, account=asked.account, **states)
    return UnpausedName(account=asked.account, name=wanted)


def _pausable(name: str) -> str:
    """As orders spell it: without the "*." of a wildcard, which is paused with its name; refused if none ever would."""
    base = name.strip().removeprefix("*.")
    try:
        return names.dns_name(base, wildcard=False)
    except NameRefused as refused:
        try:
            return names.ip_address(base)
        except NameRefused:
            raise refused from None


def _spellings(name: str) -> list[str]:
    """As it is paused, and as it is listed if it was paused before names were looked at."""
    try:
        return [_pausable(name), name.lower()]
    except NameRefused:
        return [name.lower()]
