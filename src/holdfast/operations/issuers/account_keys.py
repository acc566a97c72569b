"""Our account at an ACME issuer: a new key for it, or another account in its place."""

from __future__ import annotations

from typing import Final

from holdfast.core.issuers.issuer import IssuerAccountState, IssuerRow
from holdfast.core.kind import Trait
from holdfast.core.work.job import Job as JobRow
from holdfast.core.work.job import Spec
from holdfast.errors import TxConflict
from holdfast.operations import kinds
from holdfast.operations.access import Action
from holdfast.operations.context import Context
from holdfast.operations.installation import jobs as job_operations
from holdfast.operations.installation.jobs import JobView
from holdfast.operations.issuance import input_changed, order_budgets
from holdfast.operations.issuers import manage
from holdfast.operations.issuers.manage import IssuerRef, IssuerRefused, IssuerView
from holdfast.operations.operation import operation
from holdfast.operations.scopes import INSTALLATION
from holdfast.store import issuers, journal
from holdfast.store.tx import Tx
from holdfast.store.work import jobs

ACCOUNT_KEY: Final = "account-key"  # the job; its subject is the issuer
TRIES: Final = 10
_OTHERWISE: Final = "Give it new credentials instead: holdfast issuer set"


@operation(
    "issuers.rotate-account-key",
    "POST /issuers/{name}/account-key",
    command="issuer rotate-account-key",
    example="holdfast issuer rotate-account-key letsencrypt",
    done="Job {id} gives our account at {name} a new key. Look at it: holdfast jobs show {id}",
    action=Action.CHANGE_ISSUERS,
    scope=INSTALLATION,
    status=202,
)
def rotate_key(tx: Tx, ctx: Context, asked: IssuerRef) -> JobView:
    """Give our account at an ACME issuer a new key. Orders and certificates stay as they are.

    The result is the job that does it; asked for again meanwhile, it is the same one.
    """
    return job_operations.shown(change(tx, asked.name, job=ctx.ids.new("job"), actor=ctx.actor))


def change(tx: Tx, name: str, *, job: str, actor: str) -> JobRow:
    row = _acme(tx, name, "which has no account key")
    directory = str(row.settings.get("directory") or "")
    account = issuers.current_account(tx, name, directory)
    if account is None or account.url is None:
        raise IssuerRefused(f"There is no account at {name} yet.", "The first order makes one, with a new key.")
    # Which key is to go: a job that is begun anew after it was done must not change the next one, too.
    asked = {"old": account.key_secret, "asked_at": tx.now().isoformat()}
    paid_by = order_budgets.for_request(tx, name)
    spec = Spec(id=job, kind=ACCOUNT_KEY, subject=name, max_attempts=TRIES, payload=asked, budgets=paid_by)
    queued = jobs.enqueue(tx, spec)
    if queued == job:
        facts = {"account": account.id, "url": account.url}
        journal.audit(tx, "issuer_key_asked", name, actor=actor, **facts)
        journal.event(tx, "issuer.key_asked", name, by=actor)
    found = jobs.get(tx, queued)
    if found is None:
        raise TxConflict(f"the job for the account key of {name} ended meanwhile")
    return found


def _acme(tx: Tx, name: str, lacks: str) -> IssuerRow:
    row = manage.ISSUERS.found(tx, name, lock=True)
    if not kinds.has(row, Trait.HAS_ACCOUNT):
        raise IssuerRefused(f"{name} is a {row.kind} issuer, {lacks}.", _OTHERWISE)
    return row


@operation(
    "issuers.replace-account",
    "POST /issuers/{name}/new-account",
    command="issuer new-account",
    example="holdfast issuer new-account letsencrypt",
    done="The next order at {name} makes a new account.",
    action=Action.CHANGE_ISSUERS,
    scope=INSTALLATION,
    destructive=True,
)
def replace_account(tx: Tx, ctx: Context, asked: IssuerRef) -> IssuerView:
    """Replace our account at an ACME issuer by another one, which the next order makes.

    Orders of the old account are begun anew, and do not count as failed. The issuer is not told: an account that it
    does not let in could not say so, and one that it does can still revoke.
    """
    return manage.shown(tx, begin_anew(tx, asked.name, actor=ctx.actor))


def begin_anew(tx: Tx, name: str, *, actor: str) -> IssuerRow:
    row = _acme(tx, name, "where we have no account of our own making")
    found = [each for each in issuers.accounts_of(tx, name) if each.state in ("creating", "valid")]
    if not found:
        raise IssuerRefused(f"There is no account at {name}.", "The next order makes one, with a new key.")
    for account in found:
        issuers.account_ended(tx, account.id, IssuerAccountState.DEACTIVATED)
    told = {"accounts": [each.id for each in found], "begun_anew": input_changed.of_issuer(tx, row)}
    journal.audit(tx, "account_replaced", name, actor=actor, **told)
    journal.event(tx, "issuer.account_replaced", name, by=actor, begun_anew=told["begun_anew"])
    return row
