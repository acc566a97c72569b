"""The ACME clients of our CAs: EAB keys, accounts, orders, pauses, issued certificates, blocked keys."""

from __future__ import annotations

import hashlib
import re
from datetime import datetime, timedelta
from typing import Annotated, Final, Literal

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from pydantic import BaseModel, Field

from holdfast.core import base64url
from holdfast.core.own_ca import acme
from holdfast.core.own_ca.acme import AccountState
from holdfast.core.own_ca.acme import EabKey as EabKeyRow
from holdfast.core.own_ca.ca import IssuedCertificate
from holdfast.core.revocation_reason import RevocationReason
from holdfast.errors import UserError
from holdfast.operations.access import Action
from holdfast.operations.context import Context, Transaction
from holdfast.operations.inputs import (
    Input,
    NoteText,
    Option,
    OwnerName,
    Page,
    Paged,
    ReasonName,
    Short,
    cursor,
    paged,
    place,
)
from holdfast.operations.installation.secret_store import eab_mac
from holdfast.operations.operation import Face, operation
from holdfast.operations.own_ca import manage as making
from holdfast.operations.own_ca import revocation
from holdfast.operations.own_ca.cas import reason_of
from holdfast.operations.own_ca.manage import CaRefused, check_pattern, serial_of
from holdfast.operations.scopes import INSTALLATION
from holdfast.pki import names
from holdfast.pki.refused import NameRefused
from holdfast.secret import Secret
from holdfast.store import journal, secrets
from holdfast.store.acme import accounts, orders
from holdfast.store.acme import limits as acme_limits
from holdfast.store.own_ca import certificates
from holdfast.store.tx import Tx

MAC_SIZE: Final = 32  # octets: what HS256 can use (RFC 8555 §7.3.4)
MAX_NOTE: Final = 200
Id = Annotated[Short, Field(max_length=200)]
CaFilter = Annotated[str | None, Field(max_length=100, description="Only those of this CA.")]


class NotFound(UserError):
    status, code = 404, "not-found"

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(f"There is no {what}.")
        self.hint = hint


class AlreadySo(UserError):
    status, code, hint = 409, "already-so", "There is nothing left to do."


# ── EAB keys ──


class NewEabKey(Input):
    ca: Annotated[Short, Option(argument=True)] = Field(
        max_length=100, description="The CA that its account will belong to."
    )
    names: list[Annotated[str, Field(max_length=300)]] = Field(
        default=[],
        max_length=1000,
        description="Patterns of names that a CA of mode trust gives its account without a challenge.",
    )
    owner: OwnerName = Field(default="", description="Whose its account will be: policies of this owner hold for it.")
    note: str = Field(default="", max_length=1000, description="Whom it is for.")
    lives_for_s: Annotated[int | None, Option(flag="--lifetime", read="duration")] = Field(
        default=None, ge=1, le=10**10, description="An account can be bound with it for so long."
    )


class ListEabKeys(Paged):
    ca: CaFilter = None


class EabKeyRef(Input):
    kid: Annotated[Id, Option(help="The key id, as `ca eab ls` shows it.")]


class EabKeyView(BaseModel):
    kid: str
    ca: str
    state: Literal["free", "bound", "revoked"]
    account: str | None
    names: list[str]
    owner: str
    note: str
    created_at: datetime
    expires_at: datetime | None


class EabKeyCreated(EabKeyView):
    mac: str = Field(description="The HMAC key in base64url. It is shown only now; empty if it was only tried.")


def _eab_key(row: EabKeyRow) -> EabKeyView:
    return EabKeyView(
        kid=row.kid,
        ca=row.ca,
        state="revoked" if row.revoked_at else "bound" if row.account else "free",
        account=row.account,
        names=list(row.names),
        owner=row.owner,
        note=row.note,
        created_at=row.created_at,
        expires_at=row.expires_at,
    )


@operation(
    "eab.create",
    "POST /acme/eab-keys",
    command="ca eab create",
    action=Action.CHANGE_ACME_CLIENTS,
    scope=INSTALLATION,
    status=201,
    keyed=False,  # a kept answer would hold the MAC key
    offline=True,
    not_on={Face.MCP: "It returns a MAC key, which must not pass through an assistant."},
    example="holdfast ca eab create internal --name '*.example.internal' --note 'web team'",
)
async def create_eab_key(ctx: Context, asked: NewEabKey) -> Transaction[EabKeyCreated]:
    """Create a key for external account binding: it lets one account in. Its MAC key is shown only now.

    So an Idempotency-Key is not kept here.
    """
    for pattern in asked.names:
        check_pattern(pattern)
    if len(asked.note) > MAX_NOTE or not asked.note.isprintable():
        raise CaRefused(f"A note has at most {MAX_NOTE} printable characters.")
    await ctx.read(lambda tx: making.found(tx, asked.ca))
    mac = Secret(ctx.certificate_context.random.token(MAC_SIZE))
    kid = ctx.ids.new("eab")
    sealed = await ctx.certificate_context.secret_store.seal(mac, eab_mac(kid))

    def write(tx: Tx) -> EabKeyCreated:
        making.found(tx, asked.ca)
        secrets.put(tx, sealed)
        row = EabKeyRow(
            kid=kid,
            ca=asked.ca,
            secret_id=sealed.id,
            names=tuple(pattern.lower() for pattern in asked.names),
            owner=asked.owner,
            note=asked.note,
            created_at=tx.now(),
            expires_at=None if asked.lives_for_s is None else tx.now() + timedelta(seconds=asked.lives_for_s),
        )
        accounts.insert_eab_key(tx, row)
        facts = {"ca": asked.ca, "names": list(row.names), "owner": asked.owner, "note": asked.note}
        journal.audit(tx, "eab_key_created", row.kid, actor=ctx.actor, after={"good": True, **facts}, **facts)
        shown = "" if ctx.dry_run else base64url.encode(mac.reveal())
        return EabKeyCreated(**dict(_eab_key(row)), mac=shown)

    return write


@operation(
    "eab.list",
    "GET /acme/eab-keys",
    command="ca eab ls",
    action=Action.SEE_CAS,
    scope=INSTALLATION,
    offline=True,
    example="holdfast ca eab ls --ca internal",
)
def list_eab_keys(tx: Tx, ctx: Context, asked: ListEabKeys) -> Page[EabKeyView]:
    """List the keys for external account binding, without their MAC keys."""
    _check_filter(tx, asked.ca)
    read = lambda after, most: accounts.eab_key_page(tx, asked.ca, after=after, limit=most)  # noqa: E731
    return paged(asked, read, lambda row: row.kid, _eab_key)


def _check_filter(tx: Tx, ca: str | None, account: str | None = None) -> None:
    """An empty list for a name that is mistyped would read as "all is well"."""
    if ca is not None:
        making.found(tx, ca)
    if account is not None:
        account_of(tx, account)


@operation(
    "eab.revoke",
    "POST /acme/eab-keys/{kid}/revoke",
    command="ca eab revoke",
    action=Action.CHANGE_ACME_CLIENTS,
    scope=INSTALLATION,
    destructive=True,
    offline=True,
    example="holdfast ca eab revoke eab_01",
)
def revoke_eab_key(tx: Tx, ctx: Context, asked: EabKeyRef) -> EabKeyView:
    """Revoke an EAB key: no account can be bound with it any more. An account that is bound stays."""
    found = accounts.get_eab_key(tx, asked.kid)
    if found is None:
        raise NotFound(f"EAB key {asked.kid}", "See what there is: holdfast ca eab ls")
    if found.revoked_at is not None:
        raise AlreadySo(f"EAB key {asked.kid} is revoked already.")
    accounts.revoke_eab_key(tx, asked.kid)
    journal.audit(tx, "eab_key_revoked", asked.kid, actor=ctx.actor, before={"good": True}, after={"good": False})
    return _eab_key(accounts.get_eab_key(tx, asked.kid) or found)


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
    return AcmeAccount(
        account=found.id,
        ca=found.ca,
        state=str(found.state),
        contacts=list(found.contacts),
        eab_key=found.eab_kid,
        names=list(found.names),
        created_at=found.created_at,
    )


@operation(
    "accounts.list",
    "GET /acme/accounts",
    command="ca accounts",
    action=Action.SEE_CAS,
    scope=INSTALLATION,
    offline=True,
    example="holdfast ca accounts --ca internal",
)
def list_accounts(tx: Tx, ctx: Context, asked: ListAccounts) -> Page[AcmeAccount]:
    """List the ACME accounts of our CAs, the oldest first."""
    _check_filter(tx, asked.ca)
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
    example="holdfast ca orders --ca internal",
)
def list_orders(tx: Tx, ctx: Context, asked: ListOrders) -> Page[AcmeOrder]:
    """List the ACME orders at our CAs, the oldest first."""
    _check_filter(tx, asked.ca, asked.account)
    read = lambda after, most: orders.page(  # noqa: E731
        tx, ca=asked.ca, account=asked.account, after=after, limit=most
    )
    return paged(asked, read, lambda found: found.id, _order)


def _order(found: acme.Order) -> AcmeOrder:
    return AcmeOrder(
        order=found.id,
        ca=found.ca,
        account=found.account,
        state=str(found.state),
        names=[each.value for each in found.identifiers],
        profile=found.profile,
        problem=None if found.error is None else found.error.detail,
        created_at=found.created_at,
    )


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
    return PausedName(
        account=found.account, name=found.name, failures=found.failures, paused_at=found.paused_at
    )  # fmt: skip


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


# ── Certificates ──


class ListIssued(Paged):
    ca: str = Field(max_length=100, description="The name of the CA.")


class RevokeIssued(Input):
    ca: Annotated[str, Option(flag="--ca")] = Field(max_length=100, description="The CA that issued it.")
    serial: str = Field(max_length=200, description="The serial number, in hex.")
    reason: ReasonName = Field(description="Why.")


class IssuedCertificateView(BaseModel):
    certificate: str
    serial: str
    names: list[str]
    account: str
    expires_at: datetime
    delivery: str
    revoked_at: datetime | None


class RevokedCertificate(IssuedCertificateView):
    reason: ReasonName
    also: list[str] = Field(
        description="The serials of others with the same key, which are revoked with it when the key is compromised."
    )


def _certificate(found: IssuedCertificate) -> IssuedCertificateView:
    return IssuedCertificateView(
        certificate=found.id,
        serial=found.serial,
        names=[each.value for each in found.identifiers],
        account=found.account,
        expires_at=found.not_after,
        delivery=found.delivery,
        revoked_at=found.revoked_at,
    )


@operation(
    "issued.list",
    "GET /cas/{ca}/certificates",
    command="ca certificates",
    action=Action.SEE_CAS,
    scope=INSTALLATION,
    offline=True,
    example="holdfast ca certificates internal",
)
def list_issued(tx: Tx, ctx: Context, asked: ListIssued) -> Page[IssuedCertificateView]:
    """List the certificates that a CA of ours has issued, the oldest first."""
    making.found(tx, asked.ca)
    read = lambda after, most: certificates.page(tx, ca=asked.ca, after=after, limit=most)  # noqa: E731
    return paged(asked, read, lambda found: found.id, _certificate)


@operation(
    "issued.revoke",
    "POST /cas/{ca}/certificates/{serial}/revoke",
    command="ca revoke",
    action=Action.REVOKE_ISSUED,
    scope=INSTALLATION,
    destructive=True,
    asks="The certificate {serial} of {names} is revoked for good, and others of the same key: {also}.",
    offline=True,
    example="holdfast ca revoke 5f2c --ca internal --reason superseded",
)
def revoke(tx: Tx, ctx: Context, asked: RevokeIssued) -> RevokedCertificate:
    """Revoke a certificate that a CA of ours has issued. It is on the CRL within a minute."""
    reason = reason_of(asked.reason)
    found = _revocable_certificate(tx, asked.ca, asked.serial, reason)
    also = _also_revoked(tx, found, reason)
    standing = revocation.RevocationRight.KEY
    if not revocation.revoke(tx, found, reason, actor=ctx.actor, job=ctx.ids.new("job"), standing=standing):
        raise _revoked_already(found)
    after = certificates.get(tx, found.id) or found
    return RevokedCertificate(**dict(_certificate(after)), reason=asked.reason, also=also)


def _revocable_certificate(tx: Tx, ca: str, serial: str, reason: RevocationReason) -> IssuedCertificate:
    """A certificate that is revoked can be revoked again only because its key is known to be compromised by now."""
    wanted = serial_of(serial)
    making.found(tx, ca)
    found = certificates.by_serial(tx, ca, wanted)
    if found is None:
        raise NotFound(f"certificate {wanted} of CA {ca!r}", f"See what there is: holdfast ca certificates {ca}")
    if found.revoked_at is not None and (
        reason is not RevocationReason.KEY_COMPROMISE or found.reason == reason.number
    ):
        raise _revoked_already(found)
    return found


def _also_revoked(tx: Tx, found: IssuedCertificate, reason: RevocationReason) -> list[str]:
    if reason is not RevocationReason.KEY_COMPROMISE:
        return []
    others = certificates.good_or_milder(tx, found.spki_sha256, reason.number)
    return [each.serial for each in others if each.id != found.id]


def _revoked_already(found: IssuedCertificate) -> AlreadySo:
    return AlreadySo(f"Certificate {found.serial} is revoked already.")


# ── Keys ──


class BlockKey(Input):
    key: Annotated[str, Option(argument=True, read="key")] = Field(
        max_length=20_000, description="The SHA-256 of a public key in hex, or a certificate or public key in PEM."
    )
    why: NoteText = Field(description="For the audit log.")


class BlockedKey(BaseModel):
    key: str = Field(description="The SHA-256 of the public key.")


@operation(
    "keys.block",
    "POST /acme/blocked-keys",
    command="ca block-key",
    action=Action.CHANGE_ACME_CLIENTS,
    scope=INSTALLATION,
    status=201,
    destructive=True,
    offline=True,
    example="holdfast ca block-key leaked.pem --why 'found in a public repository'",
)
def block_key(tx: Tx, ctx: Context, asked: BlockKey) -> BlockedKey:
    """Block a public key: our CAs never issue for it again."""
    fingerprint = _fingerprint(asked.key)
    if certificates.blocked(tx, fingerprint):
        raise AlreadySo(f"Key {fingerprint} is blocked already.")
    certificates.block_key(tx, fingerprint, asked.why)
    journal.audit(tx, "key_blocked", fingerprint, actor=ctx.actor, after={"blocked": True}, why=asked.why)
    return BlockedKey(key=fingerprint)


def _fingerprint(text: str) -> str:
    if re.fullmatch(r"[0-9a-fA-F]{64}", text.strip()):
        return text.strip().lower()
    try:
        key: PublicKeyTypes
        if "BEGIN CERTIFICATE REQUEST" in text:
            key = x509.load_pem_x509_csr(text.encode()).public_key()
        elif "BEGIN CERTIFICATE" in text:
            key = x509.load_pem_x509_certificate(text.encode()).public_key()
        else:
            key = load_pem_public_key(text.encode())
        return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()
    except ValueError:
        hint = "Give a certificate, a request or a public key in PEM, or the SHA-256 of its SubjectPublicKeyInfo."
        raise CaRefused("This is no public key.", hint) from None
