"""Another account at an ACME CA: the old one is put away here, and the next order makes a new one, with a new key."""

from __future__ import annotations

from holdfast.operations import epochs
from holdfast.operations.issuers import IssuerRefused, NoSuchIssuer
from holdfast.operations.issuing import Keeper
from holdfast.store import issuer_accounts, issuers, journal
from holdfast.store.issuers import IssuerRow
from holdfast.store.tx import Tx


async def begin_anew(keeper: Keeper, name: str, *, actor: str) -> IssuerRow:
    """Certificates stay as they are; orders of the old account are begun anew, and do not count as failed.

    The CA is not told: an account that it does not let in could not say so, and one that it does can still revoke.
    """

    def write(tx: Tx) -> IssuerRow:
        row = issuers.get(tx, name, lock=True)
        if row is None:
            raise NoSuchIssuer(name)
        if row.kind != "acme":
            raise IssuerRefused(
                f"{name} is a {row.kind} CA, where we have no account of our own making.",
                "Give it new credentials instead: holdfast ca credentials",
            )
        found = [each for each in issuer_accounts.of(tx, name) if each.state in ("creating", "valid")]
        if not found:
            raise IssuerRefused(f"There is no account at {name}.", "The next order makes one, with a new key.")
        for account in found:
            issuer_accounts.ended(tx, account.id, "deactivated")
        told = {"accounts": [each.id for each in found], "begun_anew": epochs.of_issuer(tx, row)}
        journal.audit(tx, "account_replaced", name, actor=actor, **told)
        journal.event(tx, "issuer.account_replaced", name, by=actor, begun_anew=told["begun_anew"])
        return row

    return await keeper.db.write(write)
