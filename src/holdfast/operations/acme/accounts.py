"""Accounts of ACME clients: register, look up, change, deactivate; and keys that must not be used (RFC 8555 §7.3)."""

from __future__ import annotations

from holdfast.core.client import counted_as
from holdfast.core.own_ca.acme import Account, AccountState
from holdfast.core.own_ca.problem import AcmeError
from holdfast.errors import Duplicate
from holdfast.operations.acme.context import AcmeContext, Requester, require, require_current, within
from holdfast.operations.installation.secret_store import eab_mac
from holdfast.operations.own_ca.authorities import Authority
from holdfast.pki import csr, keys
from holdfast.pki.keys import PublicKey, thumbprint
from holdfast.secret import Secret
from holdfast.store import journal
from holdfast.store.acme import accounts, orders
from holdfast.store.acme import limits as acme_limits
from holdfast.store.acme.accounts import KeyUse
from holdfast.store.marks import inline
from holdfast.store.own_ca import certificates
from holdfast.store.tx import Tx


class KeyInUse(AcmeError):
    """Another account has this key; the reply names it (§7.3.5)."""

    def __init__(self, account: str) -> None:
        super().__init__(AcmeError.malformed("Another account has this key.", status=409).problem)
        self.account = account


async def by_id(acme_context: AcmeContext, ca: str, account: str) -> Account | None:
    found = await acme_context.db.read(inline(lambda tx: accounts.get(tx, account)))
    return found if found is not None and found.ca == ca else None


async def by_key(acme_context: AcmeContext, ca: str, thumbprint: str) -> Account | None:
    return await acme_context.db.read(lambda tx: accounts.by_key(tx, ca, thumbprint))


async def eab_key(acme_context: AcmeContext, ca: str, kid: str) -> Secret[bytes] | None:
    """The MAC key behind a key id of ours, if an account may be bound with it now."""

    def look(tx: Tx) -> str | None:
        key = accounts.get_eab_key(tx, kid)
        return key.secret_id if key is not None and key.ca == ca and key.usable_at(tx.now()) else None

    secret_id = await acme_context.db.read(look)
    return None if secret_id is None else await acme_context.authorities.secret_store.reveal(secret_id, eab_mac(kid))


async def register(
    acme_context: AcmeContext,
    authority: Authority,
    *,
    jwk: str,
    thumbprint: str,
    contacts: tuple[str, ...],
    agreed: bool,
    eab_kid: str | None,
    eab: str | None,
    address: str,
) -> tuple[Account, bool]:
    """The account of this key, and whether it was made just now. `eab_kid` has been proved by its MAC."""
    account_id, ca = acme_context.random.new_id("acct"), authority.id

    def write(tx: Tx) -> tuple[Account, bool]:
        require_current(tx, authority)
        existing = accounts.by_key(tx, ca, thumbprint)
        if existing is not None:
            return existing, False
        now = tx.now()
        _count_account(tx, acme_context, address)
        bound_by = None if eab_kid is None else accounts.get_eab_key(tx, eab_kid)
        account = Account(
            id=account_id,
            ca=ca,
            thumbprint=thumbprint,
            jwk=jwk,
            state=AccountState.VALID,
            contacts=contacts,
            eab_kid=eab_kid,
            eab=eab,
            names=() if bound_by is None else bound_by.names,
            owner="" if bound_by is None else bound_by.owner,
            agreed=agreed,
            created_at=now,
        )
        if not accounts.insert(tx, account):
            raise Duplicate(thumbprint)
        if eab_kid is not None and not accounts.bind_eab_key(tx, eab_kid, account.id):
            raise AcmeError.unauthorized("This external account key has been used or withdrawn.")
        journal.audit(tx, "account_created", account.id, actor=f"acme:{account.id}", ca=ca, key=thumbprint, eab=eab_kid)
        return account, True

    try:
        return await acme_context.db.write(write)
    except Duplicate:  # the same key at the same moment: the first one counts
        found = await by_key(acme_context, ca, thumbprint)
        if found is None:
            raise
        return found, False


async def update(
    acme_context: AcmeContext, who: Requester, contacts: tuple[str, ...] | None, *, address: str = ""
) -> Account:
    """Change an account's contacts; without contacts, only read the account. Contacts that it has change nothing."""

    def write(tx: Tx) -> Account:
        require(tx, who)
        if contacts is not None and contacts != _existing(tx, who).contacts:
            _count_change(tx, acme_context, who, address)
            accounts.set_contacts(tx, who.account, contacts)
            journal.audit(tx, "account_updated", who.account, actor=f"acme:{who.account}", contacts=len(contacts))
        return _existing(tx, who)

    return await (acme_context.db.read(write) if contacts is None else acme_context.db.write(write))


def _count_change(tx: Tx, acme_context: AcmeContext, who: Requester, address: str) -> None:
    """Each change is an audit entry, which is kept for ever."""
    rates = {f"change/{who.account}": acme_context.policy.changes_per_account}
    within(acme_limits.take(tx, rates, tx.now()), "changes of this account")
    _count_account(tx, acme_context, address)


def _count_account(tx: Tx, acme_context: AcmeContext, address: str) -> None:
    rates = {f"account/{counted_as(address)}": acme_context.policy.accounts_per_address} if address else {}
    within(acme_limits.take(tx, rates, tx.now()), "accounts that are new or changed from this address")


async def deactivate(acme_context: AcmeContext, who: Requester) -> Account:
    """For good: the key can never have an account here again (§7.3.6)."""

    def write(tx: Tx) -> Account:
        require(tx, who)
        accounts.end(tx, who.account, "deactivated")
        problem = AcmeError.unauthorized("The account was deactivated.").problem
        ended = [order for order in orders.open_of(tx, who.account) if orders.refuse(tx, order, problem)]
        journal.audit(tx, "account_deactivated", who.account, actor=f"acme:{who.account}", orders=ended)
        return _existing(tx, who)

    return await acme_context.db.write(write)


async def change_key(
    acme_context: AcmeContext, who: Requester, *, jwk: str, thumbprint: str, address: str = ""
) -> Account:
    """Give the account another key (§7.3.5). Challenges answered before keep the key they were answered with."""

    def write(tx: Tx) -> Account:
        require(tx, who)
        _count_change(tx, acme_context, who, address)
        account = _existing(tx, who)
        holder = accounts.by_key(tx, account.ca, thumbprint)
        if holder is not None:
            raise KeyInUse(holder.id)
        if not accounts.set_key(tx, who.account, old=who.thumbprint, jwk=jwk, thumbprint=thumbprint):
            raise AcmeError.unauthorized("The account has another key by now.", status=401)
        journal.audit(
            tx, "account_key_changed", who.account, actor=f"acme:{who.account}", old=who.thumbprint, new=thumbprint
        )
        return _existing(tx, who)

    try:
        return await acme_context.db.write(write)
    except Duplicate:  # at the same moment as another
        holder = await acme_context.db.read(lambda tx: accounts.by_key(tx, _existing(tx, who).ca, thumbprint))
        raise KeyInUse(who.account if holder is None else holder.id) from None


async def order_ids(acme_context: AcmeContext, who: Requester, *, after: str = "", limit: int = 100) -> list[str]:
    def look(tx: Tx) -> list[str]:
        require(tx, who)
        return orders.ids_of(tx, who.account, after=after, limit=limit)

    return await acme_context.db.read(look)


def _existing(tx: Tx, who: Requester) -> Account:
    account = accounts.get(tx, who.account)
    if account is None:
        raise AcmeError.account_does_not_exist("There is no such account.")
    return account


def names_of_key(request: csr.CertificateRequest) -> tuple[str, str]:
    """Under which the key of a CSR is found among blocked keys, and among those of accounts."""
    return keys.spki_sha256(request.spki).hex(), thumbprint(request.public_key)


def check_certificate_key(found: KeyUse) -> None:
    """Of any account here: what a TLS server can be made to sign must not speak for an account."""
    if found.blocked:
        raise AcmeError.bad_csr("This key is blocked: it is known to be compromised.")
    if found.of_account:
        raise AcmeError.bad_csr("The key of a certificate must not be the key of an account.")


async def check_account_key(acme_context: AcmeContext, key: PublicKey) -> None:
    """Before an account gets this key (§6.2)."""
    fingerprint = keys.spki_sha256(key).hex()
    if await acme_context.db.read(lambda tx: certificates.blocked(tx, fingerprint)):
        raise AcmeError.bad_public_key("This key is blocked: it is known to be compromised. Use another.")
