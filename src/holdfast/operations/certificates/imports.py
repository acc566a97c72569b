"""Take over from another ACME client: its issuer and account in one transaction, then each certificate in its own.

Nothing is issued. Doing it again changes nothing: certificates that are here already are known by their serial number.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, SecretStr

from holdfast.core.certificate import Certificate, CertificateSpec, RenewalPolicy
from holdfast.core.documents.fields import Bad, read_field
from holdfast.core.issuers.issuer import AccountRow, IssuerAccountState, IssuerRow
from holdfast.errors import UserError
from holdfast.operations import kinds
from holdfast.operations.access import Action
from holdfast.operations.certificates import key_export
from holdfast.operations.certificates.checks import SpecificationRefused, UnknownIssuer, identifiers_of
from holdfast.operations.certificates.lifecycle import CertificateExists
from holdfast.operations.context import Context, Transaction
from holdfast.operations.inputs import Input, Labels, OwnerName, Short, StrictFlag
from holdfast.operations.installation.secret_store import account_key
from holdfast.operations.operation import Face, operation
from holdfast.operations.scopes import INSTALLATION
from holdfast.pki.chain import parse_bundle
from holdfast.secret import Secret
from holdfast.store import certificates, issuers, journal, secrets, versions
from holdfast.store.tx import Tx

_BY_HAND: Final = "Change it there, or import the files alone: holdfast import pem"
_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9]+")
ImportedText = Annotated[str, Field(max_length=1000)]
ImportVerdict = Literal["adopt", "adopted", "here already", "refused"]


class AccountImport(Input):
    """An account, or only an issuer whose account was not found (then there is no key)."""

    directory: Annotated[str, Field(max_length=500)]
    key: SecretStr | None = Field(default=None, max_length=20_000, description="PKCS#8, in PEM.")
    url: Annotated[str, Field(max_length=500)] | None = None
    contacts: list[Short] = Field(default=[], max_length=10)
    roots: Annotated[str, Field(max_length=100_000)] = Field(
        default="", description="PEM: trusted roots of an issuer that the system does not know."
    )


class AccountImported(BaseModel):
    issuer: str
    directory: str
    added: bool = Field(description="The issuer was added.")
    account: bool = Field(description="The account was adopted.")


class CertificateImport(Input):
    """What it may be called is checked for each by itself: one odd file is refused, and the others are adopted."""

    name: ImportedText
    names: list[ImportedText] = Field(min_length=1, max_length=100)
    chain: Annotated[str, Field(max_length=100_000)]
    key: SecretStr = Field(max_length=20_000)
    key_kind: ImportedText
    directory: Annotated[str, Field(max_length=500)] | None = None
    account_url: Annotated[str, Field(max_length=500)] | None = None
    reuse_key: StrictFlag = False
    preferred_chain: ImportedText | None = None
    profile: ImportedText | None = None
    challenge: Literal["any", "dns-01"] = Field(default="any", description="dns-01: its names were proved by DNS.")
    paused: StrictFlag = Field(default=False, description="Adopt it, and do not renew it.")
    renew_before_s: float | None = Field(
        default=None, gt=0, le=10**9, description="Renew it so long before it expires."
    )  # fmt: skip


class CertificatesImport(Input):
    certificates: list[CertificateImport] = Field(max_length=100)
    issuer: Short | None = Field(default=None, description="By name, where the files do not say which.")
    owner: OwnerName = ""
    labels: Labels = Field(default={})


class CertificateImported(BaseModel):
    """What came of one certificate, or would come of it."""

    name: str
    verdict: ImportVerdict
    issuer: str = ""
    why: str = ""
    next_step: str = ""
    renewal_at: str | None = None


class NoAddress(UserError):
    status, code = 400, "directory-refused"

    def __init__(self, directory: str) -> None:
        super().__init__(f"{directory!r:.120} is no address of an ACME directory.")
        self.hint = "It begins with https://. Correct it where the other client keeps it, and import again."


# ── The issuer, and our account there ──


@operation(
    "imports.account",
    "POST /imports/account",
    keyed=False,
    command="import",
    action=Action.IMPORT,
    scope=INSTALLATION,
    offline=True,
    not_on={Face.MCP: "It takes the private key of an account, which must not pass through an assistant."},
    example="holdfast import certbot /etc/letsencrypt",
)
async def import_account(ctx: Context, asked: AccountImport) -> Transaction[AccountImported]:
    """Adopt the account of another ACME client, and add its issuer if it is new.

    Both stay as they are if they are here already, so repeating it is harmless, and an
    Idempotency-Key is not kept here.
    """
    _check_address(asked.directory)
    key = None if asked.key is None else Secret(asked.key.get_secret_value().encode())
    account = ctx.ids.new("account")
    sealed = None if key is None else await ctx.certificate_context.secret_store.seal(key, account_key(account))

    def write(tx: Tx) -> AccountImported:
        row, added = _issuer_of(tx, asked, ctx.actor)
        if sealed is not None:
            secrets.put(tx, sealed)
        adopted = sealed is not None and _account(tx, row, asked, account, sealed.id, ctx.actor)
        if sealed is not None and not adopted:
            secrets.delete(tx, sealed.id)
        return AccountImported(issuer=row.name, directory=asked.directory, added=added, account=adopted)

    return write


def _check_address(directory: str) -> None:
    try:
        parts = urlsplit(directory)
        good = parts.scheme == "https" and bool(parts.hostname) and len(directory) <= 500
    except ValueError:
        good = False
    if not good:
        raise NoAddress(directory)


def _issuer_of(tx: Tx, offer: AccountImport, actor: str) -> tuple[IssuerRow, bool]:
    every = issuers.all_issuers(tx)
    found = by_directory(every, offer.directory)
    if found is not None:
        return found, False
    settings: dict[str, Any] = {"directory": offer.directory}
    settings |= {"contacts": list(offer.contacts)} if offer.contacts else {}
    settings |= {"roots": offer.roots} if offer.roots else {}
    name = new_name(offer.directory, {row.name for row in every})
    row = IssuerRow(name=name, kind="acme", settings=settings, created_at=tx.now())
    issuers.insert(tx, row)
    journal.audit(tx, "issuer_added", name, actor=actor, kind="acme", settings=settings, credentials=[])
    journal.event(tx, "issuer.added", name, kind="acme")
    return row, True


def by_directory(rows: Iterable[IssuerRow], directory: str) -> IssuerRow | None:
    wanted = directory.rstrip("/")
    return next((row for row in rows if str(row.settings.get("directory") or "").rstrip("/") == wanted), None)


def new_name(directory: str, taken: Collection[str]) -> str:
    """What people call it, or its host; with a number where that is taken."""
    presets = {name: str(each.settings.get("directory", "")) for name, each in kinds.presets().items()}
    known = next((name for name, each in presets.items() if each.rstrip("/") == directory.rstrip("/")), None)
    host = _NOT_IN_NAMES.sub("-", (urlsplit(directory).hostname or "ca").lower()).strip("-")
    base = known or host[:55].strip("-") or "ca"
    names = [base, *(f"{base}-{number}" for number in range(2, len(taken) + 3))]
    return next(name for name in names if name not in taken)


def _account(tx: Tx, row: IssuerRow, offer: AccountImport, new_id: str, secret: str, actor: str) -> bool:
    """One that has no address yet is looked up at the CA by its key, before it is first used."""
    directory = str(row.settings["directory"])
    account = AccountRow(
        id=new_id,
        issuer=row.name,
        directory=directory,
        url=offer.url,
        key_secret=secret,
        contacts=tuple(offer.contacts),
        state=IssuerAccountState.VALID if offer.url else IssuerAccountState.CREATING,
        created_at=tx.now(),
    )
    if not issuers.insert_account(tx, account):
        return False
    journal.audit(tx, "account_adopted", row.name, actor=actor, account=new_id, url=offer.url or "")
    journal.event(tx, "issuer.account", row.name, url=offer.url or "")
    return True


# ── Certificates ──


@operation(
    "imports.certificates",
    "POST /imports/certificates",
    command="import",
    action=Action.IMPORT,
    scope=INSTALLATION,
    offline=True,
    not_on={Face.MCP: "It takes private keys, which must not pass through an assistant."},
    example="holdfast import pem /etc/ssl/private --issuer letsencrypt",
)
async def import_certificates(ctx: Context, asked: CertificatesImport) -> list[CertificateImported]:
    """Adopt certificates with their keys. Nothing is issued.

    Each is adopted in a transaction of its own: one that is refused leaves the others as they are. A certificate that
    is here already is known by its serial number, so repeating it is harmless, and an
    Idempotency-Key is not kept here.
    """
    return [await _adopted(ctx, asked, each) for each in asked.certificates]


async def _adopted(ctx: Context, asked: CertificatesImport, offer: CertificateImport) -> CertificateImported:
    try:
        return await _adopt_one(ctx, asked, offer)
    except UserError as error:
        step = error.hint or f"Ask for it anew: holdfast issue {' '.join(offer.names[:5])}"
        return CertificateImported(name=offer.name, verdict="refused", why=str(error), next_step=step)


async def _adopt_one(ctx: Context, asked: CertificatesImport, offer: CertificateImport) -> CertificateImported:
    _check_fields(asked, offer)
    issuer, here = await ctx.read(lambda tx: _look(tx, asked.issuer, offer, dry_run=ctx.dry_run))
    if here is not None:
        when = _next_renewal(here)
        return CertificateImported(name=offer.name, verdict="here already", issuer=issuer, renewal_at=when)
    write = await key_export.adopted(
        ctx.certificate_context,
        _wanted(asked, offer, issuer),
        key_pem=Secret(offer.key.get_secret_value().encode()),
        chain_pem=offer.chain.encode(),
        account=offer.account_url,
        paused=offer.paused,
        actor=ctx.actor,
    )
    when = _next_renewal(await ctx.write(write))
    verdict: ImportVerdict = "adopt" if ctx.dry_run else "adopted"
    return CertificateImported(name=offer.name, verdict=verdict, issuer=issuer, renewal_at=when)


def _look(
    tx: Tx, chosen: str | None, offer: CertificateImport, *, dry_run: bool
) -> tuple[str, Certificate | None]:  # fmt: skip
    """The issuer that will renew it, and the certificate itself if it was adopted before."""
    issuer = _issuer(tx, chosen, offer, dry_run=dry_run)
    found = certificates.by_name(tx, offer.name)
    if found is None:
        return issuer, None
    serial = f"{parse_bundle(offer.chain.encode())[0].serial_number:x}"
    if any(each.serial == serial for each in versions.of(tx, found.id)):
        return issuer, found
    raise CertificateExists(offer.name)


def _issuer(tx: Tx, chosen: str | None, offer: CertificateImport, *, dry_run: bool) -> str:
    every = issuers.all_issuers(tx)
    names = {row.name for row in every}
    if offer.directory is not None:
        row = by_directory(every, offer.directory)
        if row is None:
            _check_address(offer.directory)
        if row is None and not dry_run:
            raise UnknownIssuer(offer.directory, names)
        return row.name if row is not None else new_name(offer.directory, names)
    if chosen is not None:
        if chosen not in names:
            raise UnknownIssuer(chosen, names)
        return chosen
    if len(names) == 1:
        return next(iter(names))
    listed = f"One of {', '.join(sorted(names))}." if names else "Add one first: holdfast issuer add --help"
    raise SpecificationRefused("These files do not say which issuer is to renew it: say so with --issuer.", listed)


def _check_fields(asked: CertificatesImport, offer: CertificateImport) -> None:
    """By the same rules as what people write themselves: file names and settings of others may hold anything."""
    given: dict[str, Any] = {"name": offer.name, "key": offer.key_kind, "profile": offer.profile}
    given |= {"preferred_chain": offer.preferred_chain, "owner": asked.owner, "labels": asked.labels}
    for name, value in given.items():
        try:
            _ = value if value is None else read_field(name, value)
        except Bad as bad:
            raise SpecificationRefused(
                f"Its {name.replace('_', ' ')} cannot be kept: {value!r:.80}. {bad}", _BY_HAND
            ) from None


def _wanted(asked: CertificatesImport, offer: CertificateImport, issuer: str) -> CertificateSpec:
    try:
        return CertificateSpec(
            name=offer.name,
            identifiers=identifiers_of(offer.names),
            issuers=(issuer,),
            key_kind=offer.key_kind,
            profile=offer.profile,
            preferred_chain=offer.preferred_chain,
            reuse_key=offer.reuse_key,
            rule=RenewalPolicy(
                before=None if offer.renew_before_s is None else timedelta(seconds=offer.renew_before_s)
            ),
            owner=asked.owner,
            labels=dict(asked.labels),
            challenge=offer.challenge,
        )
    except ValueError as error:
        raise SpecificationRefused(f"It cannot be kept: {error}.", "Ask for it anew: holdfast issue") from None


def _next_renewal(adopted: Certificate) -> str | None:
    return None if adopted.next_action_at is None else adopted.next_action_at.isoformat()
