"""Makes issuers of stored rows: our own CA, or an account at another that all replicas share."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

from holdfast.core.reasons import Reason
from holdfast.errors import Refused
from holdfast.issuers import acme_account
from holdfast.issuers.acme import AcmeIssuer
from holdfast.issuers.acme_jws import Account, Eab
from holdfast.issuers.acme_reading import Place
from holdfast.issuers.acme_wire import Memory, Wire
from holdfast.issuers.base import Issuer
from holdfast.issuers.local import LocalIssuer
from holdfast.operations.desk import Desk
from holdfast.operations.issuing import Keeper
from holdfast.pki import keys
from holdfast.pki.keys import PrivateKey
from holdfast.ports import Clock, Transport
from holdfast.secret import Secret
from holdfast.store import issuer_accounts, journal, secrets
from holdfast.store.issuer_accounts import AccountRow
from holdfast.store.issuers import IssuerRow
from holdfast.store.tx import Tx

KINDS: Final = frozenset({"acme", "local"})
_MOST_KEYS: Final = 64


class Upstream:
    """One for a process. Without a desk it has no CA of its own."""

    def __init__(self, *, keeper: Keeper, desk: Desk | None, transport: Transport, clock: Clock) -> None:
        self._keeper = keeper
        self._desk = desk
        self._transport = transport
        self._clock = clock
        self._memory = Memory()
        self._keys: OrderedDict[str, PrivateKey] = OrderedDict()  # opened account keys, by the id of their secret

    async def make(self, row: IssuerRow) -> Issuer:
        if row.kind == "local" and self._desk is not None:
            return LocalIssuer(self._desk, str(row.settings.get("ca") or row.name))
        if row.kind == "acme":
            return await self._acme(row)
        raise Refused(f"This process cannot talk to CAs of kind {row.kind!r}.", reason=Reason.UNKNOWN_ISSUER)

    async def probe(self, row: IssuerRow) -> str:
        return await (await self.make(row)).probe()

    async def _acme(self, row: IssuerRow) -> Issuer:
        wire = Wire(self._transport, self._clock, self._memory, place_of(row.settings))
        return AcmeIssuer(wire, await self._account(row, wire))

    # ── Accounts ──

    async def _account(self, row: IssuerRow, wire: Wire) -> Account:
        """The account in use; a new one is made, its key kept first, so that a crash finds it again at the CA."""
        found = await self._keeper.db.read(lambda tx: issuer_accounts.current(tx, row.name, wire.place.directory))
        if found is None:
            found = await self._begin(row, wire.place.directory)
        if found.url is not None and found.new_key_secret is None:
            return Account(found.url, await self._key(found.key_secret))
        return await self._confirm(row, wire, found)

    async def _begin(self, row: IssuerRow, directory: str) -> AccountRow:
        new_id, key = self._keeper.random.new_id("account"), await acme_account.new_key()

        def owner(tx: Tx, ids: list[str]) -> AccountRow:
            account = AccountRow(
                id=new_id,
                issuer=row.name,
                directory=directory,
                key_secret=ids[0],
                contacts=tuple(row.settings.get("contacts") or ()),
                eab_kid=row.settings.get("eab_kid"),
                created_at=tx.now(),
            )
            if issuer_accounts.insert(tx, account):
                journal.audit(tx, "account_begun", row.name, account=new_id, directory=directory)
                return account
            secrets.delete(tx, ids[0])  # another replica was faster
            return issuer_accounts.current(tx, row.name, directory) or account

        return await self._keeper.vault.keep([key], owner)

    async def _confirm(self, row: IssuerRow, wire: Wire, found: AccountRow) -> Account:
        if found.new_key_secret is not None:
            new = await self._key(found.new_key_secret)
            if (changed := await acme_account.find_account(wire, new)) is not None:
                await self._keeper.db.write(lambda tx: issuer_accounts.changed_key(tx, found.id))
                return changed
        made = await acme_account.ensure_account(
            wire,
            await self._key(found.key_secret),
            contacts=found.contacts,
            terms_agreed=bool(row.settings.get("terms_agreed", True)),
            eab=await self._eab(row),
        )

        def write(tx: Tx) -> None:
            issuer_accounts.confirmed(tx, found.id, made.url)
            journal.audit(tx, "account_made", row.name, account=found.id, url=made.url)
            journal.event(tx, "issuer.account", row.name, url=made.url)

        await self._keeper.db.write(write)
        return made

    async def _eab(self, row: IssuerRow) -> Eab | None:
        kid, secret = row.settings.get("eab_kid"), row.credentials.get("eab_key")
        if not kid or not secret:
            return None
        text = Secret((await self._keeper.vault.reveal(secret)).reveal().decode())
        try:
            return Eab.from_text(str(kid), text)
        except ValueError as error:
            raise Refused(f"The EAB key of {row.name} cannot be read: {error}.", reason=Reason.EAB_REQUIRED) from None

    async def _key(self, secret: str) -> PrivateKey:
        if secret not in self._keys:
            self._keys[secret] = keys.from_pem(await self._keeper.vault.reveal(secret))
        self._keys.move_to_end(secret)
        while len(self._keys) > _MOST_KEYS:
            self._keys.popitem(last=False)
        return self._keys[secret]


def place_of(settings: Any) -> Place:
    """Where a CA is, by the settings of its row: directory, hosts, roots (PEM)."""
    return Place(
        directory=str(settings.get("directory") or ""),
        hosts=tuple(settings.get("hosts") or ()),
        roots=str(settings.get("roots") or "").encode(),
    )
