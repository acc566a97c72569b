"""Our CAs, as people ask for them: list, show, create, adopt, change, close, open, renew, sign the CRL of the root."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from pydantic import BaseModel, Field, SecretStr, Strict

from holdfast.core.key_kind import KeyKind as Kind
from holdfast.core.kind import Trait
from holdfast.core.own_ca.ca import CaMode, CaOptions, CaRow, CaState, ProfileOptions
from holdfast.core.revocation_reason import RevocationReason
from holdfast.errors import UserError
from holdfast.operations import kinds
from holdfast.operations.access import Action
from holdfast.operations.context import Context, OwnCaServices, Transaction
from holdfast.operations.inputs import (
    Input,
    KeyKindName,
    OneOf,
    Option,
    Page,
    Paged,
    ReasonName,
    Short,
    StrictFlag,
    paged,
)
from holdfast.operations.issuance.attempts import APPROVAL_SETTING
from holdfast.operations.operation import Face, operation
from holdfast.operations.own_ca import manage as making
from holdfast.operations.own_ca import publication, root_crls
from holdfast.operations.own_ca.manage import Brought, CaRefused, serial_of
from holdfast.operations.own_ca.root_crls import Revoking
from holdfast.operations.scopes import INSTALLATION
from holdfast.pki import keys
from holdfast.pki.ceremony import CeremonyPlan
from holdfast.secret import Secret
from holdfast.store import issuers
from holdfast.store.own_ca import cas as rows
from holdfast.store.own_ca import certificates
from holdfast.store.tx import Tx

Whole = Annotated[int, Strict()]
ModeName = Annotated[str, OneOf(CaMode)]
Pattern = Annotated[str, Field(max_length=300)]


CLIENT: Final = "client"  # the name of the profile that client_certificates offers


class ProfileSettings(Input):
    """A profile is added, or changed if the CA has one of its name. Fields you leave out keep their values."""

    name: Short
    description: Annotated[str, Field(max_length=500)] | None = None
    lifetime_s: Whole | None = Field(
        default=None,
        description="Of a certificate whose client asks for no other. Given without max_lifetime_s, it is the longest.",
    )
    max_lifetime_s: Whole | None = Field(default=None, description="The longest that a client may ask for (notAfter).")
    backdate_s: Whole | None = Field(default=None, description="For clients whose clocks are late.")
    client_auth: StrictFlag | None = Field(default=None, description="Certificates are for TLS clients, too.")
    common_name: StrictFlag | None = Field(default=None, description="The first name is the common name, too.")
    must_staple: StrictFlag | None = Field(default=None, description="Clients may ask for must-staple (RFC 7633).")
    key_kinds: list[KeyKindName] | None = Field(
        default=None, max_length=10, description="Kinds of keys; empty: those that every client can use."
    )


class CaSettings(Input):
    """Settings of a CA. Those you leave out keep their values."""

    mode: ModeName | None = Field(default=None, description="Prove names by challenges, or trust EAB keys.")
    eab_required: StrictFlag | None = Field(default=None, description="Let only accounts with an EAB key in.")
    challenges: list[Short] | None = Field(default=None, max_length=10, description="The challenges to offer.")
    permitted: Annotated[
        list[Pattern] | None,
        Option(flag="--permit", help="A pattern of names to issue for; may be repeated. none: every name."),
    ] = Field(default=None, max_length=1000, description="Patterns of names to issue for; empty: every name.")
    shards: Whole | None = Field(default=None, description="Parts of the CRL; may only grow.")
    crl_lifetime_s: Annotated[Whole | None, Option(flag="--crl-lifetime", read="duration")] = Field(
        default=None, description="How long a CRL is good for, such as 7d."
    )
    client_certificates: StrictFlag | None = Field(
        default=None,
        description=f"Offer the profile {CLIENT!r}: certificates that clients show (mutual TLS).",
    )
    profiles: Annotated[list[ProfileSettings] | None, Option(flag="--profile", read="profile")] = Field(
        default=None, max_length=100, description="A file (JSON or TOML) with the fields of a profile; may be repeated."
    )


class CaProfile(BaseModel):
    name: str
    description: str
    lifetime_s: int
    max_lifetime_s: int
    backdate_s: int
    client_auth: bool
    common_name: bool
    must_staple: bool
    key_kinds: list[str]


class CaOptionsInForce(BaseModel):
    """The settings of a CA as they are."""

    mode: ModeName
    eab_required: bool
    challenges: list[str]
    profiles: list[CaProfile] = Field(description="The first is the default.")
    shards: int
    crl_lifetime_s: int
    permitted: list[str]
    dev: bool = Field(description="A self-signed certificate may sign.")


def changed(options: CaOptions, asked: CaSettings, without_profiles: list[str] | None = None) -> CaOptions:
    """The options with these changes."""
    changes: dict[str, Any] = asked.model_dump(
        include={"eab_required", "shards", "crl_lifetime_s", "challenges", "permitted"}, exclude_none=True
    )
    changes |= {name: tuple(changes[name]) for name in ("challenges", "permitted") if name in changes}
    if asked.mode is not None:
        changes["mode"] = CaMode(asked.mode)
    return replace(options, **changes, profiles=_profiles(options, asked, without_profiles or []))


def _profiles(options: CaOptions, asked: CaSettings, without: list[str]) -> tuple[ProfileOptions, ...]:
    known = {each.name: each for each in options.profiles}
    for name in without:
        if known.pop(name, None) is None:
            raise CaRefused(f"There is no profile {name!r:.60}.")
    for given in asked.profiles or ():
        known[given.name] = _profile(given, known)
    if asked.client_certificates:
        first = next(iter(known.values()), ProfileOptions())
        known.setdefault(CLIENT, replace(first, name=CLIENT, client_auth=True, description="For clients (mutual TLS)."))
    elif asked.client_certificates is False:
        known.pop(CLIENT, None)
    return tuple(known.values())


def _profile(given: ProfileSettings, known: Mapping[str, ProfileOptions]) -> ProfileOptions:
    before = asdict(known.get(given.name, ProfileOptions()))
    asked = given.model_dump(exclude_none=True)
    longest = {"max_lifetime_s": given.lifetime_s} if given.lifetime_s is not None else {}
    merged = {**before, **longest, **asked}
    return ProfileOptions(**{**merged, "key_kinds": tuple(merged["key_kinds"])})


Pem = Annotated[str, Field(max_length=200_000)]
_ROOM: Final = 40  # characters of a name that fit into the certificates of a root and its intermediate


class CaChanged(UserError):
    status, code = 412, "ca-changed"

    def __init__(self, row: CaRow) -> None:
        super().__init__(f"CA {row.id} was changed since you looked: it is at version {row.version}.")
        self.hint = "Look again, and decide with what you see then."


# ── Inputs ──


class CaRef(Input):
    ca: str = Field(max_length=100, description="The name of the CA.")


class ListCas(Paged):
    """All our CAs, in the order of their names."""


class ChainOf(CaRef):
    root: bool = Field(default=False, description="The root instead: what clients are to trust.")


class NewCa(CaSettings):
    ca: Annotated[str, Option(argument=True)] = Field(max_length=100, description="The name of the CA: a-z, 0-9 and -.")
    name: Short | None = Field(
        default=None, description="Its name in certificates; without it, Holdfast and the name of the CA."
    )
    key_kind: Annotated[KeyKindName, Option(flag="--key")] = Field(
        default="ec-p256", description="The kind of both keys."
    )
    confine: list[Short] = Field(
        default=[], max_length=100, description="Domains and networks that its certificate is confined to."
    )
    under: Short | None = Field(default=None, description="Under the root of this CA, which clients trust already.")
    any_name: StrictFlag = Field(default=False, description="With `under`: not confined as that CA is.")


class AdoptCa(CaSettings):
    ca: str = Field(max_length=100, description="The name of the CA: a-z, 0-9 and -.")
    chain: Annotated[Pem, Option(read="files")] = Field(
        description="PEM: the signing certificate, its intermediates, the root; may be repeated."
    )
    alternates: Annotated[list[Pem], Option(flag="--alternate", read="file")] = Field(
        default=[], max_length=10, description="PEM: a chain to another root; may be repeated."
    )
    key: SecretStr | None = Field(default=None, max_length=20_000, description="PEM: the key of the CA.")
    passphrase: Annotated[SecretStr | None, Option(flag="--passphrase-file")] = Field(
        default=None, max_length=1000, description="Opens the key."
    )
    device: Annotated[str, Field(max_length=1000)] | None = Field(
        default=None, description="Instead of a key: its PKCS#11 address."
    )
    dev: StrictFlag = Field(default=False, description="Let a self-signed certificate sign.")


class CaChange(CaSettings, CaRef):
    """Settings you leave out keep their values."""

    without_profiles: list[Short] = Field(default=[], max_length=100, description="Profiles to offer no more.")


class CaRenewal(CaRef):
    years: int = Field(default=making.YEARS, ge=1, le=100, description="It expires with the root, if not before.")
    chain: Annotated[Pem | None, Option(read="files")] = Field(
        default=None, description="PEM, signed elsewhere: signing certificate, intermediates, root; may be repeated."
    )


class RootCrlWish(CaRef):
    revoke: str | None = Field(
        default=None, max_length=200, description="The serial of an intermediate to revoke, in hex."
    )
    reason: ReasonName = Field(default="unspecified", description="Why.")
    days: int | None = Field(
        default=None, ge=1, le=3650, description="How long the CRL is good for; as before, or 180 days."
    )


# ── Results ──


class Ca(BaseModel):
    """One of our CAs in brief."""

    ca: str
    state: Annotated[str, OneOf(CaState)]
    mode: ModeName
    eab_required: bool
    subject: str = Field(description="Of its signing certificate.")
    expires_at: datetime = Field(description="When its signing certificate expires.")


class CaDetails(Ca):
    """All about one of our CAs; never its key."""

    directory: str = Field(description="Where ACME clients begin.")
    crl: str = Field(description="Where its CRLs are found.")
    serial: str
    not_before: datetime
    key_kind: str
    device: str | None = Field(description="The PKCS#11 address of its key, if that is in a device.")
    root: str = Field(description="The subject of its root.")
    root_sha256: str
    root_expires_at: datetime
    options: CaOptionsInForce
    approval_required: bool = Field(description="What Holdfast keeps from it needs the approval of a second person.")
    problem: str | None = Field(description="Why it cannot sign at the replica that answers.")
    version: int
    created_at: datetime


class ClosedCa(Ca):
    good_certificates: int = Field(description="Certificates of it that are good, and cannot be renewed while closed.")


class RenewedCa(Ca):
    expired_before: datetime = Field(description="When the certificate that it replaces expires.")


class CutOffCa(BaseModel):
    ca: str
    good_certificates: int


class RootCrlSigned(BaseModel):
    ca: str
    number: int
    expires_at: datetime
    revoked: list[str] = Field(description="The serials of the intermediates on it.")
    address: str
    cut_off: list[CutOffCa] = Field(description="Our CAs that clients do not believe any more because of it.")


def _own_ca(ctx: Context) -> OwnCaServices:
    if ctx.services.own_ca is None:
        raise AssertionError("this process was composed without our own CAs")
    return ctx.services.own_ca


def _brief(row: CaRow) -> Ca:
    signing = x509.load_der_x509_certificate(row.certificate)
    return Ca(
        ca=row.id,
        state=row.state,
        mode=row.options.mode.value,
        eab_required=row.options.eab_required,
        subject=signing.subject.rfc4514_string(),
        expires_at=signing.not_valid_after_utc,
    )


def _whole(tx: Tx, ctx: Context, row: CaRow) -> CaDetails:
    own = _own_ca(ctx)
    signing = x509.load_der_x509_certificate(row.certificate)
    root = x509.load_pem_x509_certificate(row.root.encode())
    key = signing.public_key()
    return CaDetails(
        **dict(_brief(row)),
        directory=own.policy.acme_url(row.id, "directory"),
        crl=own.policy.crl_url(row.id),
        serial=f"{signing.serial_number:x}",
        not_before=signing.not_valid_before_utc,
        key_kind=str(keys.kind_of(key)) if isinstance(key, keys.PublicKey) else "",
        device=row.key_device,
        root=root.subject.rfc4514_string(),
        root_sha256=root.fingerprint(hashes.SHA256()).hex(),
        root_expires_at=root.not_valid_after_utc,
        options=CaOptionsInForce.model_validate(row.options.to_json()),
        approval_required=_needs_approval(tx, row.id),
        problem=own.problem(row.id),
        version=row.version,
        created_at=row.created_at,
    )


def _needs_approval(tx: Tx, ca: str) -> bool:
    ours = [row for row in issuers.all_issuers(tx) if kinds.has(row, Trait.OURS)]
    return any(row.settings.get(APPROVAL_SETTING) for row in ours if (row.settings.get("ca") or row.name) == ca)


# ── Looking ──


@operation(
    "ca.list",
    "GET /cas",
    command="ca ls",
    action=Action.SEE_CAS,
    scope=INSTALLATION,
    offline=True,
    example="holdfast ca ls",
)
def list_cas(tx: Tx, ctx: Context, asked: ListCas) -> Page[Ca]:
    """List our own CAs."""
    every = rows.everything(tx)
    return paged(asked, lambda after, most: [row for row in every if row.id > after][:most], lambda row: row.id, _brief)


@operation(
    "ca.get",
    "GET /cas/{ca}",
    command="ca show",
    action=Action.SEE_CAS,
    scope=INSTALLATION,
    versioned=True,
    offline=True,
    example="holdfast ca show internal",
)
def get(tx: Tx, ctx: Context, asked: CaRef) -> CaDetails:
    """Show one of our CAs: its certificates, addresses and settings."""
    return _whole(tx, ctx, making.found(tx, asked.ca))


@operation(
    "ca.chain",
    "GET /cas/{ca}/chain",
    command="ca chain",
    action=Action.SEE_CAS,
    scope=INSTALLATION,
    offline=True,
    media="application/x-pem-file",
    example="holdfast ca chain internal --root",
)
def chain(tx: Tx, ctx: Context, asked: ChainOf) -> str:
    """Print the chain of a CA in PEM: its signing certificate and the intermediates above it, without the root."""
    row = making.found(tx, asked.ca)
    return row.root if asked.root else publication.chain_pem(row)


# ── Making and changing ──


@operation(
    "ca.create",
    "POST /cas",
    command="ca create",
    action=Action.CHANGE_CAS,
    scope=INSTALLATION,
    status=201,
    offline=True,
    example="holdfast ca create internal --permit '*.example.internal'",
)
async def create(ctx: Context, asked: NewCa) -> Transaction[CaDetails]:
    """Create a CA: a root, whose key is put away, and an intermediate that signs."""
    own, secret_store = _own_ca(ctx), ctx.certificate_context.secret_store
    plan = CeremonyPlan(
        name=asked.name or (f"Holdfast {asked.ca}" if len(asked.ca) < _ROOM - 8 else asked.ca[: _ROOM - 8]),
        key_kind=Kind(asked.key_kind),
        permit=tuple(asked.confine),
        crl_url=own.policy.root_crl_url(asked.ca),
    )
    options = changed(CaOptions(), asked)
    if asked.under is None:
        write = await making.created(secret_store, ca=asked.ca, plan=plan, options=options, actor=ctx.actor)
    else:
        write = await making.created_under(
            secret_store,
            ca=asked.ca,
            under=asked.under,
            plan=plan,
            options=options,
            actor=ctx.actor,
            any_name=asked.any_name,
        )
    ctx.after_commit(own.refresh)
    return lambda tx: _whole(tx, ctx, write(tx))


@operation(
    "ca.adopt",
    "POST /cas/{ca}/adopt",
    command="ca adopt",
    action=Action.CHANGE_CAS,
    scope=INSTALLATION,
    status=201,
    offline=True,
    not_on={Face.MCP: "It takes the private key of a CA, which must not pass through an assistant."},
    example="holdfast ca adopt old --chain intermediate.pem --chain root.pem --key intermediate-key.pem",
)
async def adopt(ctx: Context, asked: AdoptCa) -> Transaction[CaDetails]:
    """Take over a CA that was made elsewhere, such as by 'holdfast pki init'."""
    if asked.device is not None and ctx.origin.get("face") != "local":
        # The address of a device names a library to load and a file to read: only this machine's users may choose them.
        hint = "Run it there: holdfast ca adopt NAME --chain FILE --device ADDRESS"
        raise CaRefused("The key of a CA is looked for in a device only by a user of the server's machine.", hint)
    brought = Brought(
        chain=asked.chain.encode(),
        alternates=tuple(each.encode() for each in asked.alternates),
        key=None if asked.key is None else Secret(asked.key.get_secret_value().encode()),
        passphrase=None if asked.passphrase is None else Secret(asked.passphrase.get_secret_value()),
        device=asked.device,
    )
    options = replace(changed(CaOptions(), asked), dev=asked.dev)
    write = await making.adopted(
        ctx.certificate_context.secret_store, ca=asked.ca, brought=brought, options=options, actor=ctx.actor
    )
    ctx.after_commit(_own_ca(ctx).refresh)
    return lambda tx: _whole(tx, ctx, write(tx))


@operation(
    "ca.change",
    "PATCH /cas/{ca}",
    command="ca set",
    action=Action.CHANGE_CAS,
    scope=INSTALLATION,
    versioned=True,
    offline=True,
    example="holdfast ca set internal --eab-required",
)
def change(tx: Tx, ctx: Context, asked: CaChange) -> CaDetails:
    """Change settings of a CA. Options you leave out keep their values."""
    if not asked.model_fields_set - {"ca"}:
        raise CaRefused("No setting of the CA is given.", "'holdfast ca set --help' shows what can be changed.")
    row = making.found(tx, asked.ca)
    if ctx.expected_version not in (None, row.version):
        raise CaChanged(row)
    options = changed(row.options, asked, asked.without_profiles)
    ctx.after_commit(_own_ca(ctx).refresh)
    return _whole(tx, ctx, making.change_options(tx, row, options, actor=ctx.actor))


@operation(
    "ca.close",
    "POST /cas/{ca}/close",
    command="ca close",
    action=Action.CHANGE_CAS,
    scope=INSTALLATION,
    destructive=True,
    asks="CA {ca} will take no new accounts and orders: its {good_certificates} good certificates cannot be renewed.",
    offline=True,
    example="holdfast ca close internal",
)
def close(tx: Tx, ctx: Context, asked: CaRef) -> ClosedCa:
    """Close a CA: it takes no new accounts and orders. It goes on to revoke and to sign CRLs."""
    row = making.set_state(tx, asked.ca, CaState.CLOSED, actor=ctx.actor)
    ctx.after_commit(_own_ca(ctx).refresh)
    return ClosedCa(**dict(_brief(row)), good_certificates=certificates.good(tx, ca=asked.ca))


@operation(
    "ca.open",
    "POST /cas/{ca}/open",
    command="ca open",
    action=Action.CHANGE_CAS,
    scope=INSTALLATION,
    offline=True,
    example="holdfast ca open internal",
)
def reopen(tx: Tx, ctx: Context, asked: CaRef) -> Ca:
    """Open a closed CA again: it takes accounts and orders."""
    row = making.set_state(tx, asked.ca, CaState.ACTIVE, actor=ctx.actor)
    ctx.after_commit(_own_ca(ctx).refresh)
    return _brief(row)


# ── What its root signs ──


@operation(
    "ca.renew",
    "POST /cas/{ca}/renew",
    command="ca renew",
    action=Action.CHANGE_CAS,
    scope=INSTALLATION,
    destructive=True,
    asks="The signing certificate of CA {ca} will expire at {expires_at} instead of {expired_before}.",
    offline=True,
    example="holdfast ca renew internal --years 5",
)
async def renew(ctx: Context, asked: CaRenewal) -> Transaction[RenewedCa]:
    """Give the signing certificate of a CA a later expiry. Its name and key stay, so that clients notice nothing.

    The root signs it, if its key is kept here. Otherwise 'holdfast pki recertify' signs it where the key of the root
    is, and `chain` brings it.
    """
    own, ca = _own_ca(ctx), asked.ca
    write = await making.renewed(
        ctx.certificate_context.secret_store,
        ca,
        years=asked.years,
        chain=None if asked.chain is None else asked.chain.encode(),
        actor=ctx.actor,
        crl_url=own.policy.root_crl_url(ca),
    )
    ctx.after_commit(own.refresh)

    def whole(tx: Tx) -> RenewedCa:
        before = _brief(making.found(tx, ca)).expires_at
        return RenewedCa(**dict(_brief(write(tx))), expired_before=before)

    return whole


@operation(
    "ca.root-crl",
    "POST /cas/{ca}/root-crl",
    command="ca root-crl",
    action=Action.CHANGE_CAS,
    scope=INSTALLATION,
    destructive=True,
    asks="CRL {number} of the root of CA {ca} names intermediates: {revoked}. CAs that clients reject then: {cut_off}.",
    offline=True,
    example="holdfast ca root-crl internal --revoke 5f2c --reason key-compromise",
)
async def root_crl(ctx: Context, asked: RootCrlWish) -> Transaction[RootCrlSigned]:
    """Sign the CRL of a root whose key is kept here: which of its intermediates are revoked, for good."""
    own, secret_store = _own_ca(ctx), ctx.certificate_context.secret_store
    revoking = None
    if asked.revoke is not None:
        revoking = Revoking(serial=int(serial_of(asked.revoke), 16), reason=reason_of(asked.reason))
    life = None if asked.days is None else timedelta(days=asked.days)
    row = await ctx.read(lambda tx: making.found(tx, asked.ca))
    made = await root_crls.next_list(secret_store, row, revoking=revoking, life=life)

    def write(tx: Tx) -> RootCrlSigned:
        cut_off = root_crls.cut_off(tx, made.root, revoking)
        if not root_crls.write(tx, made, job=ctx.ids.new("job"), actor=ctx.actor, revoking=revoking):
            raise CaRefused(
                "Another CRL of this root was signed at the same moment; this one was not kept.", "Try again."
            )
        return RootCrlSigned(
            ca=asked.ca,
            number=made.number,
            expires_at=made.next_update,
            revoked=root_crls.serials(made),
            address=own.policy.root_crl_url(asked.ca),
            cut_off=[CutOffCa(ca=each.id, good_certificates=certificates.good(tx, ca=each.id)) for each in cut_off],
        )

    return write


def reason_of(name: ReasonName) -> RevocationReason:
    return RevocationReason(name)
