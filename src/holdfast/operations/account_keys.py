"""A new key for our account at an ACME CA: asked for by a person, done by a job, which may die at any step of it."""

from __future__ import annotations

from typing import Final

from holdfast.core.job import Spec
from holdfast.errors import TxConflict
from holdfast.operations import paying
from holdfast.operations.issuers import IssuerRefused, NoSuchIssuer
from holdfast.operations.issuing import Keeper
from holdfast.store import issuer_accounts, issuers, jobs, journal
from holdfast.store.jobs import Job
from holdfast.store.tx import Tx

ACCOUNT_KEY: Final = "account-key"  # the job; its subject is the CA
TRIES: Final = 10


async def change(keeper: Keeper, name: str, *, actor: str) -> Job:
    """Ask for it; asked again before it is done, it is the same job. Orders and certificates stay as they are."""
    new = keeper.random.new_id("job")

    def write(tx: Tx) -> Job:
        row = issuers.get(tx, name, lock=True)
        if row is None:
            raise NoSuchIssuer(name)
        if row.kind != "acme":
            raise IssuerRefused(f"{name} is a {row.kind} CA, which has no account key.", _OTHERWISE)
        directory = str(row.settings.get("directory") or "")
        account = issuer_accounts.current(tx, name, directory)
        if account is None or account.url is None:
            raise IssuerRefused(f"There is no account at {name} yet.", "The first order makes one, with a new key.")
        # Which key is to go: a job that is begun anew after it was done must not change the next one, too.
        asked = {"old": account.key_secret, "asked_at": tx.now().isoformat()}
        paid_by = paying.for_request(tx, name)
        spec = Spec(id=new, kind=ACCOUNT_KEY, subject=name, max_attempts=TRIES, payload=asked, budgets=paid_by)
        job = jobs.enqueue(tx, spec)
        if job == new:
            facts = {"account": account.id, "url": account.url}
            journal.audit(tx, "issuer_key_asked", name, actor=actor, **facts)
            journal.event(tx, "issuer.key_asked", name, by=actor)
        found = jobs.get(tx, job)
        if found is None:
            raise TxConflict(f"the job for the account key of {name} ended meanwhile")
        return found

    return await keeper.db.write(write)


_OTHERWISE: Final = "Give it new credentials instead: holdfast issuer credentials"
