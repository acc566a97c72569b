"""Makes issuers of stored rows: our own CA, or an account at another that all replicas share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, Final

from holdfast.core.reasons import Reason
from holdfast.engine.following_wire import FollowingWire
from holdfast.errors import Refused, TryLater
from holdfast.issuers import acme_account, acme_settings, digicert, entrust, globalsign, kind, sectigo, vault
from holdfast.issuers.acme import AcmeIssuer
from holdfast.issuers.acme_jws import Account, Eab
from holdfast.issuers.acme_reading import Place
from holdfast.issuers.acme_wire import Memory, Wire
from holdfast.issuers.base import Issuer
from holdfast.issuers.kind import Kind, Parts
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

# One line for each CA that is made of its settings and credentials alone.
OTHERS: Final[Mapping[str, Kind]] = {
    "digicert": digicert.KIND,
    "sectigo": sectigo.KIND,
    "entrust": entrust.KIND,
    "globalsign": globalsign.KIND,
    "vault": vault.KIND,
}
KINDS: Final = frozenset({"acme", "local", *OTHERS})
_MOST_KEYS: Final = 64


def check(kind_name: str, settings: Mapping[str, Any], credentials: Collection[str]) -> None:
    """Whether an issuer can be made of these; ValueError names the setting that is missing, unknown or malformed."""
    if kind_name in OTHERS:
        kind.check(OTHERS[kind_name], settings, credentials)
    elif kind_name == "acme":
        known = credentials if isinstance(credentials, Mapping) else dict.fromkeys(credentials)
        acme_settings.check(settings, known)
    elif kind_name == "local":
        acme_settings.check_local(settings)


class Upstream:
    """One for a process. Without a desk it has no CA of its own."""

    def __init__(self, *, keeper: Keeper, desk: Desk | None, transport: Transport, clock: Clock) -> None:
        self._keeper = keeper
        self._desk = desk
        self._transport = transport
        self._clock = clock
        self._memory = Memory()
        self._keys: OrderedDict[str, PrivateKey] = OrderedDict()  # opened account keys, by the id of their secret
        self._sessions: dict[str, dict[str, Any]] = {}  # what issuers of one row remember, by its name and version

    async def make(self, row: IssuerRow) -> Issuer:
        if row.kind == "local" and self._desk is not None:
            return LocalIssuer(self._desk, str(row.settings.get("ca") or row.name))
        if row.kind == "acme":
            return await self._acme(row)
        if row.kind in OTHERS:
            return await self._other(row, OTHERS[row.kind])
        raise Refused(f"This process cannot talk to CAs of kind {row.kind!r}.", reason=Reason.UNKNOWN_ISSUER)

    async def probe(self, row: IssuerRow) -> str:
        said = await (await self.make(row)).probe()
        terms = (await self._wire(row).directory()).terms if row.kind == "acme" else None  # it was just read
        return f"{said} Our account there agreed to {terms}" if terms else said

    async def _other(self, row: IssuerRow, found: Kind) -> Issuer:
        try:
            kind.check(found, row.settings, row.credentials)
        except ValueError as why:
            raise Refused(f"The settings of {row.name} cannot be used: {why}.", reason=Reason.ACCOUNT_REFUSED) from None
        parts = Parts(
            name=row.name,
            settings=row.settings,
            credentials={purpose: await self._text(secret) for purpose, secret in row.credentials.items()},
            transport=self._transport,
            clock=self._clock,
            files=self._keeper.vault.files,
            memory=self._session(row),
        )
        return found.make(parts)

    async def _text(self, secret: str) -> Secret[str]:
        return Secret((await self._keeper.vault.reveal(secret)).reveal().decode("utf-8", "replace").strip())

    def _session(self, row: IssuerRow) -> dict[str, Any]:
        """Changed settings or credentials begin anew: nothing of the old account is carried over."""
        known = self._sessions.get(row.name, {})
        if known.get("version") != row.version:
            self._sessions[row.name] = known = {"version": row.version}
        return known

    async def _acme(self, row: IssuerRow) -> Issuer:
        wire = self._wire(row)
        return AcmeIssuer(wire, await self._account(row, wire))

    def _wire(self, row: IssuerRow) -> Wire:
        other = partial(self._other_key, row.name)
        return FollowingWire(self._transport, self._clock, self._memory, place_of(row.settings), other)

    # ── Accounts ──

    async def _account(self, row: IssuerRow, wire: Wire) -> Account:
        """The account in use; a new one is made, its key kept first, so that a crash finds it again at the CA."""
        found = await self._keeper.db.read(lambda tx: issuer_accounts.current(tx, row.name, wire.place.directory))
        if found is None:
            found = await self._begin(row, wire.place.directory)
        if found.url is not None and found.new_key_secret is None:
            account = Account(found.url, await self._key(found.key_secret))
            await self._tell_contacts(row, wire, found, account)
            return account
        return await self._confirm(row, wire, found)

    async def _tell_contacts(self, row: IssuerRow, wire: Wire, found: AccountRow, account: Account) -> None:
        """Addresses that were changed in the settings, at the next use of the account; no order waits for that."""
        wanted = tuple(row.settings.get("contacts") or ())
        if "contacts" not in row.settings or wanted == found.contacts:
            return
        refused = ""
        try:
            await acme_account.set_contacts(wire, account, wanted)
        except TryLater:
            return  # the next use tells them
        except Refused as why:
            if why.reason == Reason.ACCOUNT_GONE:
                return  # whoever uses it finds out, and makes another, with these addresses
            refused = str(why)  # said once, and not again before they are changed again

        def write(tx: Tx) -> None:
            issuer_accounts.told_contacts(tx, found.id, wanted)
            told: dict[str, Any] = {"url": account.url, "contacts": list(wanted), "refused": refused}
            journal.audit(tx, "account_contacts_told", row.name, account=found.id, **told)
            journal.event(tx, "issuer.contacts_told", row.name, alert=bool(refused), error=refused, url=account.url)

        await self._keeper.db.write(write)

    async def _begin(self, row: IssuerRow, directory: str) -> AccountRow:
        new_id, key = self._keeper.random.new_id("account"), await acme_account.new_key()

        def owner(tx: Tx, ids: list[str]) -> AccountRow:
            account = AccountRow(
                id=new_id,
                issuer=row.name,
                directory=directory,
                key_secret=ids[0],
                contacts=tuple(row.settings.get("contacts") or ()),
                eab_kid=str(row.settings.get("eab_kid") or "") or None,
                created_at=tx.now(),
            )
            if issuer_accounts.insert(tx, account):
                journal.audit(tx, "account_begun", row.name, account=new_id, directory=directory)
                return account
            secrets.delete(tx, ids[0])  # another replica was faster
            return issuer_accounts.current(tx, row.name, directory) or account

        return await self._keeper.vault.keep([key], owner)

    async def _confirm(self, row: IssuerRow, wire: Wire, found: AccountRow) -> Account:
        if found.url is not None and found.new_key_secret is not None:
            try:
                return await self._change(row, wire, found, found.new_key_secret)
            except KeyKept:
                return Account(found.url, await self._key(found.key_secret))
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

    # ── New keys for them ──

    async def change_key(self, row: IssuerRow, old: str) -> None:
        """Give the account a new key, if `old` is still its key: kept here first, so that neither can be lost."""
        wire = self._wire(row)
        found = await self._keeper.db.read(lambda tx: issuer_accounts.current(tx, row.name, wire.place.directory))
        if found is None or found.url is None or found.key_secret != old:
            return
        new = found.new_key_secret or await self._keep_new(row, found)
        if new is not None:
            await self._change(row, wire, found, new)

    async def _keep_new(self, row: IssuerRow, found: AccountRow) -> str | None:
        """The id of the new key; None if somebody else changes it."""

        def owner(tx: Tx, ids: list[str]) -> str | None:
            if not issuer_accounts.changing_key(tx, found.id, found.key_secret, ids[0]):
                secrets.delete(tx, ids[0])
                return None
            journal.audit(tx, "issuer_key_begun", row.name, account=found.id, url=found.url)
            return ids[0]

        return await self._keeper.vault.keep([await acme_account.new_key()], owner)

    async def _change(self, row: IssuerRow, wire: Wire, found: AccountRow, new: str) -> Account:
        """Tell the CA, perhaps again: whoever died at it may have got through, and then it knows the new key."""
        old, key = Account(found.url or "", await self._key(found.key_secret)), await self._key(new)
        try:
            changed = await acme_account.change_key(wire, old, key)
        except Refused as why:
            words, known = str(why), await acme_account.find_account(wire, key)
            if known is None:  # or the only good key would be forgotten
                await self._keeper.db.write(lambda tx: _kept(tx, row, found, new, words))
                raise KeyKept(f"{row.name} did not take the new key: {why}", reason=why.reason) from why
            changed = known
        await self._keeper.db.write(lambda tx: _changed(tx, row, found, new))
        return changed

    async def _other_key(self, issuer: str, account: Account) -> Account | None:
        found = await self._keeper.db.read(lambda tx: issuer_accounts.current(tx, issuer))
        if found is None or found.url != account.url:
            return None
        for secret in filter(None, (found.key_secret, found.new_key_secret)):
            key = await self._key(secret)
            if key.public_key() != account.key.public_key():
                return Account(account.url, key)
        return None

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


class KeyKept(Refused):
    """The CA did not take a new key: the old one stays good."""


def _changed(tx: Tx, row: IssuerRow, found: AccountRow, new: str) -> None:
    if issuer_accounts.changed_key(tx, found.id, new):
        secrets.delete(tx, found.key_secret)  # the CA knows it no more
        journal.audit(tx, "issuer_key_changed", row.name, account=found.id, url=found.url)
        journal.event(tx, "issuer.key_changed", row.name, url=found.url)


def _kept(tx: Tx, row: IssuerRow, found: AccountRow, new: str, why: str) -> None:
    if issuer_accounts.kept_key(tx, found.id, new):
        secrets.delete(tx, new)
        journal.audit(tx, "issuer_key_kept", row.name, account=found.id, url=found.url, why=why)
        journal.event(tx, "issuer.key_kept", row.name, alert=True, url=found.url, error=why)


def place_of(settings: Any) -> Place:
    """Where a CA is, by the settings of its row: directory, hosts, roots (PEM), request_timeout_seconds."""
    return Place(
        directory=str(settings.get("directory") or ""),
        hosts=tuple(settings.get("hosts") or ()),
        roots=str(settings.get("roots") or "").encode(),
        deadline_for=acme_settings.request_timeout_s(settings),
    )
