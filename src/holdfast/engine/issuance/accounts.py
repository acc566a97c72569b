"""Our accounts at ACME servers: one key each, stored before its first use and shared by all replicas.

Also how a key is replaced, and how an account that the CA does not know any more is put away.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from holdfast.core.issuers.issuer import AccountRow, IssuerAccountState, IssuerRow
from holdfast.core.reasons import Reason
from holdfast.core.work.job import Again, Done, Outcome
from holdfast.engine.kind import JobKind, Work
from holdfast.errors import Refused, TryLater
from holdfast.issuers.acme import account as acme_account
from holdfast.issuers.acme.reading import ResponseContext
from holdfast.issuers.acme.settings import AcmeSettings
from holdfast.issuers.acme.wire import AcmeReply, CaAccount, Eab, Memory, Wire
from holdfast.operations.installation.secret_store import account_key
from holdfast.operations.issuance.attempts import CertificateContext
from holdfast.operations.issuers.account_keys import ACCOUNT_KEY
from holdfast.pki import keys
from holdfast.pki.keys import PrivateKey
from holdfast.ports import Clock, Transport
from holdfast.store import issuances, issuers, journal, secrets
from holdfast.store.tx import Tx

PATIENCE: Final = timedelta(minutes=10)
A_WHILE: Final = timedelta(seconds=20)

ChangeKey = Callable[[IssuerRow, str], Awaitable[None]]  # of the account there, if this is still its key


def kind(context: CertificateContext, change_key: ChangeKey) -> JobKind:
    """Jobs of this kind have a CA as subject."""

    async def handler(work: Work) -> Outcome:
        row = await context.db.read(lambda tx: issuers.get(tx, work.claim.subject))
        if row is None:
            return Done()
        if await context.db.read(lambda tx: _better_later(tx, work)):
            return Again(after=A_WHILE, reason="PROOFS_UNDER_WAY")
        work.check()
        await change_key(row, work.claim.payload["old"])
        work.point("job.effect-done")
        return Done()

    return JobKind(name=ACCOUNT_KEY, handler=handler, slots=1, timeout=timedelta(minutes=2))


def _better_later(tx: Tx, work: Work) -> bool:
    """Proofs are made of the account's key (RFC 8555 §8.1): those that the CA is about to look at would not be right.

    Where there are some at any time, it is done all the same: what fails by it is tried again.
    """
    asked_at = datetime.fromisoformat(work.claim.payload["asked_at"])
    return tx.now() < asked_at + PATIENCE and issuances.is_proving(tx, work.claim.subject)


def ended(tx: Tx, issuer: str, url: str | None, why: str) -> None:
    """Of the account that was used: another replica may have made a new one meanwhile."""
    for account in issuers.accounts_of(tx, issuer):
        if account.url == url and url is not None and account.state is IssuerAccountState.VALID:
            issuers.account_ended(tx, account.id, IssuerAccountState.GONE)
            journal.audit(tx, "account_gone", issuer, account=account.id, url=url)
            journal.event(tx, "issuer.account_gone", issuer, url=url, error=issuances.storable(why))


def is_anothers(ref: Mapping[str, object] | None, account: str | None) -> bool:
    """Whether an order was placed by an account that is not in use any more, and can see it no longer."""
    placed_by = None if ref is None else ref.get("account")
    return placed_by is not None and account is not None and placed_by != account


NOT_BY_US: Final = ("malformed", "unauthorized")  # what CAs call a signature by another key than the account's

# The account with another key than this one, if it has one.
OtherKey = Callable[[CaAccount], Awaitable[CaAccount | None]]


class FollowingWire(Wire):
    """A step that has its key in hand goes on while the key is changed, and must not count as refused."""

    def __init__(
        self, transport: Transport, clock: Clock, memory: Memory, place: ResponseContext, other: OtherKey
    ) -> None:
        super().__init__(transport, clock, memory, place)
        self._other = other

    async def post(
        self, url: str, payload: Mapping[str, object] | None, by: CaAccount | PrivateKey, what: str
    ) -> AcmeReply:
        reply = await super().post(url, payload, by, what)
        if reply.word not in NOT_BY_US or not isinstance(by, CaAccount):
            return reply
        if (other := await self._other(by)) is not None:
            again = await super().post(url, payload, other, what)
            return reply if again.word in NOT_BY_US else again
        if reply.word == "unauthorized":
            await self._see_account(reply if url == by.url else None, by)
        return reply

    async def _see_account(self, reply: AcmeReply | None, account: CaAccount) -> None:
        """One that was closed is as good as forgotten: another is made. One that the CA has barred stays refused."""
        shown = reply or await super().post(account.url, None, account, "our account")
        if acme_account.standing(shown) == "deactivated":
            raise Refused(f"{self.place.name}: our account was deactivated there.", reason=Reason.ACCOUNT_GONE)


_MOST_KEYS: Final = 64


class AcmeAccounts:
    """One for a process."""

    def __init__(self, *, context: CertificateContext, transport: Transport, clock: Clock) -> None:
        self._certificate_context = context
        self._transport = transport
        self._clock = clock
        self._memory = Memory()
        self._keys: OrderedDict[tuple[str, str], PrivateKey] = (
            OrderedDict()
        )  # opened account keys, by the id of their secret

    def wire(self, issuer: str, place: ResponseContext) -> Wire:
        return FollowingWire(self._transport, self._clock, self._memory, place, partial(self._other_key, issuer))

    async def account(
        self, issuer: str, wire: Wire, *, contacts: tuple[str, ...] | None, terms_agreed: bool, eab: Eab | None
    ) -> CaAccount:
        """The account in use; a new one is made, its key kept first, so that a crash finds it again at the CA."""
        found = await self._certificate_context.db.read(
            lambda tx: issuers.current_account(tx, issuer, wire.place.directory)
        )
        if found is None:
            found = await self._begin(issuer, wire.place.directory, contacts or (), None if eab is None else eab.kid)
        if found.url is not None and found.new_key_secret is None:
            account = CaAccount(found.url, await self._key(found, found.key_secret))
            if contacts is not None and contacts != found.contacts:
                await self._tell_contacts(issuer, wire, found, account, contacts)
            return account
        return await self._confirm(issuer, wire, found, terms_agreed=terms_agreed, eab=eab)

    async def _tell_contacts(
        self, issuer: str, wire: Wire, found: AccountRow, account: CaAccount, wanted: tuple[str, ...]
    ) -> None:
        """Addresses that were changed in the settings, at the next use of the account; no order waits for that."""
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
            issuers.contacts_told(tx, found.id, wanted)
            told: dict[str, Any] = {"url": account.url, "contacts": list(wanted), "refused": refused}
            journal.audit(tx, "account_contacts_told", issuer, account=found.id, **told)
            journal.event(tx, "issuer.contacts_told", issuer, alert=bool(refused), error=refused, url=account.url)

        await self._certificate_context.db.write(write)

    async def _begin(self, issuer: str, directory: str, contacts: tuple[str, ...], kid: str | None) -> AccountRow:
        new_id, key = self._certificate_context.random.new_id("account"), await acme_account.new_key()

        def write(tx: Tx, secret: str) -> AccountRow:
            account = AccountRow(
                id=new_id,
                issuer=issuer,
                directory=directory,
                key_secret=secret,
                contacts=contacts,
                eab_kid=kid,
                created_at=tx.now(),
            )
            if issuers.insert_account(tx, account):
                journal.audit(tx, "account_begun", issuer, account=new_id, directory=directory)
                return account
            secrets.delete(tx, secret)  # another replica was faster
            return issuers.current_account(tx, issuer, directory) or account

        return await self._certificate_context.secret_store.keep(key, account_key(new_id), write)

    async def _confirm(
        self, issuer: str, wire: Wire, found: AccountRow, *, terms_agreed: bool, eab: Eab | None
    ) -> CaAccount:
        if found.url is not None and found.new_key_secret is not None:
            try:
                return await self._change(issuer, wire, found, found.new_key_secret)
            except KeyKept:
                return CaAccount(found.url, await self._key(found, found.key_secret))
        made = await acme_account.ensure_account(
            wire,
            await self._key(found, found.key_secret),
            contacts=found.contacts,
            terms_agreed=terms_agreed,
            eab=eab,
        )

        def write(tx: Tx) -> None:
            issuers.account_confirmed(tx, found.id, made.url)
            journal.audit(tx, "account_made", issuer, account=found.id, url=made.url)
            journal.event(tx, "issuer.account", issuer, url=made.url)

        await self._certificate_context.db.write(write)
        return made

    # ── New keys for them ──

    async def change_key(self, row: IssuerRow, old: str) -> None:
        """Give the account a new key, if `old` is still its key: kept here first, so that neither can be lost."""
        issuer, wire = row.name, self.wire(row.name, AcmeSettings.model_validate(row.settings).place())
        found = await self._certificate_context.db.read(
            lambda tx: issuers.current_account(tx, issuer, wire.place.directory)
        )
        if found is None or found.url is None or found.key_secret != old:
            return
        new = found.new_key_secret or await self._keep_new(issuer, found)
        if new is not None:
            await self._change(issuer, wire, found, new)

    async def _keep_new(self, issuer: str, found: AccountRow) -> str | None:
        """The id of the new key; None if another job changes it."""

        def write(tx: Tx, secret: str) -> str | None:
            if not issuers.changing_account_key(tx, found.id, found.key_secret, secret):
                secrets.delete(tx, secret)
                return None
            journal.audit(tx, "issuer_key_begun", issuer, account=found.id, url=found.url)
            return secret

        key = await acme_account.new_key()
        return await self._certificate_context.secret_store.keep(key, account_key(found.id), write)

    async def _change(self, issuer: str, wire: Wire, found: AccountRow, new: str) -> CaAccount:
        """Tell the CA, perhaps again: a worker that died here may have got through: the CA knows the new key."""
        old, key = CaAccount(found.url or "", await self._key(found, found.key_secret)), await self._key(found, new)
        try:
            changed = await acme_account.change_key(wire, old, key)
        except Refused as why:
            words, known = str(why), await acme_account.find_account(wire, key)
            if known is None:  # or the only good key would be forgotten
                await self._certificate_context.db.write(lambda tx: _kept(tx, issuer, found, new, words))
                raise KeyKept(f"{issuer} did not take the new key: {why}", reason=why.reason) from why
            changed = known
        await self._certificate_context.db.write(lambda tx: _changed(tx, issuer, found, new))
        return changed

    async def _other_key(self, issuer: str, account: CaAccount) -> CaAccount | None:
        found = await self._certificate_context.db.read(lambda tx: issuers.current_account(tx, issuer))
        if found is None or found.url != account.url:
            return None
        for secret in filter(None, (found.key_secret, found.new_key_secret)):
            key = await self._key(found, secret)
            if key.public_key() != account.key.public_key():
                return CaAccount(account.url, key)
        return None

    async def _key(self, account: AccountRow, secret: str) -> PrivateKey:
        known = (account.id, secret)
        if known not in self._keys:
            content = await self._certificate_context.secret_store.reveal(secret, account_key(account.id))
            self._keys[known] = keys.from_pem(content)
        self._keys.move_to_end(known)
        while len(self._keys) > _MOST_KEYS:
            self._keys.popitem(last=False)
        return self._keys[known]


class KeyKept(Refused):
    """The CA did not take a new key: the old one stays good."""


def _changed(tx: Tx, issuer: str, found: AccountRow, new: str) -> None:
    if issuers.changed_account_key(tx, found.id, new):
        secrets.delete(tx, found.key_secret)  # the CA knows it no more
        journal.audit(tx, "issuer_key_changed", issuer, account=found.id, url=found.url)
        journal.event(tx, "issuer.key_changed", issuer, url=found.url)


def _kept(tx: Tx, issuer: str, found: AccountRow, new: str, why: str) -> None:
    if issuers.kept_account_key(tx, found.id, new):
        secrets.delete(tx, new)
        journal.audit(tx, "issuer_key_kept", issuer, account=found.id, url=found.url, why=why)
        journal.event(tx, "issuer.key_kept", issuer, alert=True, url=found.url, error=why)
