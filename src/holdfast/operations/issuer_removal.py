"""Taking a CA away that nothing needs any more, with its credentials and the key of our account there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.errors import UserError
from holdfast.operations.issuers import NoSuchIssuer
from holdfast.operations.issuing import Keeper
from holdfast.store import issuer_accounts, issuers, journal, secrets
from holdfast.store.issuers import IssuerRow
from holdfast.store.tx import Tx

NAMED: Final = 5  # of those in its way


class IssuerInUse(UserError):
    status, code = 409, "issuer-in-use"

    def __init__(self, name: str, users: Sequence[str]) -> None:
        shown = ", ".join(users[:NAMED]) + (", …" if len(users) > NAMED else "")
        super().__init__(f"Certificates need {name}: {shown}.")
        self.hint = "Give them another CA, or archive them, and let what is under way end; or only pause the CA."


async def remove(keeper: Keeper, name: str, *, actor: str) -> IssuerRow:
    """For good. Our account at the CA stays open there, but nobody has its key any more; what was used up counts on."""

    def write(tx: Tx) -> IssuerRow:
        row = issuers.get(tx, name, lock=True)
        if row is None:
            raise NoSuchIssuer(name)
        if users := issuers.needed_by(tx, name, limit=NAMED + 1):
            raise IssuerInUse(name, users)
        accounts = issuer_accounts.of(tx, name)
        issuer_accounts.delete_of(tx, name)
        issuers.delete(tx, name)
        keys = [key for each in accounts for key in (each.key_secret, each.new_key_secret) if key is not None]
        for secret in {*keys, *row.credentials.values()}:
            secrets.delete(tx, secret)
        urls = [each.url for each in accounts if each.url is not None]
        journal.audit(tx, "issuer_removed", name, actor=actor, kind=row.kind, accounts=urls)
        journal.event(tx, "issuer.removed", name, by=actor)
        return row

    return await keeper.db.write(write)
