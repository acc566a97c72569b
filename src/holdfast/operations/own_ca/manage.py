"""Make, adopt, change, close and renew one of our CAs; `operations/own_ca/cas.py` declares the operations."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from holdfast.core.own_ca.ca import CHALLENGES, EXPERIMENTAL, CaOptions, CaRow, CaState, ProfileOptions, RootCrl
from holdfast.core.work.job import Spec
from holdfast.errors import Duplicate, TryLater, UserError
from holdfast.operations.installation.secret_store import SecretStore, ca_key, root_key
from holdfast.operations.own_ca import root_crls
from holdfast.operations.own_ca.authorities import profile_of
from holdfast.operations.own_ca.revocation import CRL
from holdfast.pki import chain as pki_chain
from holdfast.pki import keys, names
from holdfast.pki.ceremony import CeremonyPlan, certify_again, make, make_intermediate
from holdfast.pki.chain import issued_by, ordered, parse_bundle, without_root
from holdfast.pki.hsm import Pkcs11Signer, place_of
from holdfast.pki.in_thread import aside
from holdfast.pki.refused import ChainRefused, NameRefused, SignerRefused
from holdfast.pki.signing import Signer, SigningCertificate, is_self_signed, open_issuer, open_signer
from holdfast.secret import Secret
from holdfast.store import journal, secrets
from holdfast.store.database import Store
from holdfast.store.own_ca import cas
from holdfast.store.secrets import KeptSecret
from holdfast.store.tx import Tx
from holdfast.store.work import jobs

_CN: Final = NameOID.COMMON_NAME
NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")
MAX_SHARDS: Final = 128
CRL_ATTEMPTS: Final = 1_000_000  # it never gives up: an expired CRL is an outage for clients that check it
CRL_LIFE_S: Final = (3600, 400 * 86400)  # pkilint's CRL profiles and clients alike know lists of hours to a year


class NoSuchCa(UserError):
    status, code = 404, "no-such-ca"

    def __init__(self, ca: str) -> None:
        super().__init__(f"There is no CA {ca!r}.")
        self.hint = "See what there is: holdfast ca ls"


class CaExists(UserError):
    status, code = 409, "ca-exists"

    def __init__(self, ca: str) -> None:
        super().__init__(f"There is a CA {ca!r} already.")
        self.hint = "Choose another name: a CA is never replaced, because its certificates refer to it."


class IssuerKeyTaken(UserError):
    status, code = 409, "ca-key-taken"

    def __init__(self, ca: str) -> None:
        super().__init__(f"CA {ca!r} signs with this issuer's key already: its lists would be numbered twice.")
        self.hint = f"Use that one: holdfast ca show {ca}. Or make another: holdfast pki intermediate --help"


class CaRefused(UserError):
    code = "ca-refused"

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.hint = hint or "See: holdfast ca set --help"


# ── Making one ──


async def create(secret_store: SecretStore, *, ca: str, plan: CeremonyPlan, options: CaOptions, actor: str) -> CaRow:
    """Make a CA at once, for a process that asks for itself, such as the first start."""
    return await secret_store.db.write(await created(secret_store, ca=ca, plan=plan, options=options, actor=actor))


async def created(
    secret_store: SecretStore, *, ca: str, plan: CeremonyPlan, options: CaOptions, actor: str
) -> Callable[[Tx], CaRow]:
    """Make a root and an intermediate; the transaction that is returned keeps them, with both keys sealed.

    The root's key signs CRLs and further intermediates only. If the plan says where the CRL of the root will be
    found, that CRL is kept from now on.
    """
    await check_new(secret_store.db, ca, options)
    now, taken = await secret_store.db.read(lambda tx: (tx.now(), common_names(tx)))
    made = await make(plan, now=now, random=secret_store.keyring.random, taken=taken)
    crl = root_crls.first_list(made.root, made.root_key, now) if plan.crl_url else None
    key = await secret_store.seal(keys.to_pem(made.intermediate_key), ca_key(ca))
    kept_root = await secret_store.seal(keys.to_pem(made.root_key), root_key(made.root))

    def write(tx: Tx) -> CaRow:
        row = CaRow(
            id=ca,
            certificate=made.intermediate.public_bytes(Encoding.DER),
            root=to_pem(made.root),
            key_secret=key.id,
            root_secret=kept_root.id,
            options=options,
            created_at=tx.now(),
        )
        _keep_list(tx, secret_store, crl)
        return _insert(tx, row, (key, kept_root), secret_store, actor, "ca_created")

    return write


async def created_under(
    secret_store: SecretStore,
    *,
    ca: str,
    under: str,
    plan: CeremonyPlan,
    options: CaOptions,
    actor: str,
    any_name: bool = False,
) -> Callable[[Tx], CaRow]:
    """The next intermediate of a root that was made here: clients trust it already. The root's key is opened once.

    It is confined as the older one is, unless the plan confines it otherwise, or it is to be for any name.
    """
    await check_new(secret_store.db, ca, options)
    older = await secret_store.db.read(lambda tx: with_root(tx, under))
    root = x509.load_pem_x509_certificate(older.root.encode())
    signs = keys.from_pem(await secret_store.reveal(older.root_secret or "", root_key(root)))
    now, taken = await secret_store.db.read(lambda tx: (tx.now(), common_names(tx)))
    before = SigningCertificate(id=under, certificate=x509.load_der_x509_certificate(older.certificate))
    made, made_key = await make_intermediate(
        plan,
        root,
        signs,
        now=now,
        random=secret_store.keyring.random,
        taken=taken,
        constraints=None if any_name else before.constraints,
    )
    crl = root_crls.first_list(root, signs, now) if plan.crl_url else None
    key = await secret_store.seal(keys.to_pem(made_key), ca_key(ca))

    def write(tx: Tx) -> CaRow:
        row = CaRow(
            id=ca,
            certificate=made.public_bytes(Encoding.DER),
            root=older.root,
            key_secret=key.id,
            root_secret=older.root_secret,
            options=options,
            created_at=tx.now(),
        )
        _keep_list(tx, secret_store, crl)
        return _insert(tx, row, (key,), secret_store, actor, "ca_created")

    return write


async def check_new(db: Store, ca: str, options: CaOptions) -> None:
    """Refuse what could not be made, before any key is."""
    check_name(ca)
    check_options(options)
    await db.read(lambda tx: _check_free(tx, ca))


def _check_free(tx: Tx, ca: str) -> None:
    if cas.get(tx, ca):
        raise CaExists(ca)


def with_root(tx: Tx, ca: str) -> CaRow:
    """A CA whose root can sign here."""
    row = found(tx, ca)
    if row.root_secret is None:
        hint = "'holdfast pki intermediate' makes the next one, and 'holdfast ca adopt' takes it over."
        raise CaRefused(f"The key of the root of CA {ca!r} is not kept here.", hint)
    return row


def common_names(tx: Tx) -> set[str]:
    """Of the CAs here and their roots: no two are to have one name and different keys."""
    rows = cas.everything(tx)
    found = [x509.load_der_x509_certificate(row.certificate) for row in rows]
    found += [x509.load_pem_x509_certificate(row.root.encode()) for row in rows if row.root]
    return {str(each.value) for certificate in found for each in certificate.subject.get_attributes_for_oid(_CN)}


def _keep_list(tx: Tx, secret_store: SecretStore, made: RootCrl | None) -> None:
    if made is not None:
        root_crls.keep(tx, made, secret_store.keyring.random.new_id("job"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """A CA that was made elsewhere, such as by `holdfast pki init`."""

    chain: bytes  # PEM: the issuer, what stands above it, and the root
    alternates: tuple[bytes, ...] = ()  # PEM, the issuer first: chains to other roots
    key: Secret[bytes] | None = None  # PEM
    passphrase: Secret[str] | None = None
    device: str | None = None  # instead of a key: where it is


async def adopted(
    secret_store: SecretStore, *, ca: str, brought: Brought, options: CaOptions, actor: str
) -> Callable[[Tx], CaRow]:  # fmt: skip
    """Check a signing certificate with its key, or with the address of its key in a device.

    The transaction that is returned takes the CA over.
    """
    await check_new(secret_store.db, ca, options)
    chain = ordered(parse_bundle(brought.chain))
    issuer, above = chain[0], without_root(chain)[1:]
    root = root_of(chain, dev=options.dev)
    now = await secret_store.db.read(lambda tx: tx.now())
    open_issuer(SigningCertificate(id=ca, certificate=issuer, above=above), dev=options.dev, now=now)
    key = await _proved(secret_store, brought, issuer)
    alternates = tuple(_alternate(pem, issuer) for pem in brought.alternates)
    sealed = () if key is None else (await secret_store.seal(key, ca_key(ca)),)

    def write(tx: Tx) -> CaRow:
        _check_key_is_free(tx, ca, issuer)
        row = CaRow(
            id=ca,
            certificate=issuer.public_bytes(Encoding.DER),
            above="".join(map(to_pem, above)),
            root=to_pem(root),
            alternates=alternates,
            key_secret=sealed[0].id if sealed else None,
            key_device=None if sealed else brought.device,
            options=options,
            created_at=tx.now(),
        )
        return _insert(tx, row, sealed, secret_store, actor, "ca_adopted")

    return write


def _check_key_is_free(tx: Tx, ca: str, issuer: x509.Certificate) -> None:
    """Two CAs with one key would number two series of lists under one issuer (RFC 5280 §5.2.3)."""
    for other in cas.everything(tx):
        if other.id != ca and x509.load_der_x509_certificate(other.certificate).public_key() == issuer.public_key():
            raise IssuerKeyTaken(other.id)


def root_of(chain: tuple[x509.Certificate, ...], *, dev: bool) -> x509.Certificate:
    if not is_self_signed(chain[-1]):
        raise ChainRefused("chain-no-root", "The chain lacks its root.", "Give the root's certificate, too.")
    if len(chain) == 1 and not dev:
        raise ChainRefused("chain-only-root", "The chain is a root alone.", "Sign with an intermediate of it.")
    return chain[-1]


async def _proved(secret_store: SecretStore, brought: Brought, issuer: x509.Certificate) -> Secret[bytes] | None:
    """The key to be sealed, once it is seen to be the issuer's; None if it stays in its device."""
    if (brought.key is None) == (brought.device is None):
        raise CaRefused("A CA signs with a key, or with a device: give one of them.")
    signer: Signer
    if brought.key is not None:
        signer = await _opened(brought.key, brought.passphrase)
    else:
        signer = await _in_device(secret_store, brought.device or "")
    if signer.public_key != issuer.public_key():
        raise SignerRefused("signer-other-key", "The key is not the one in the issuer's certificate.")
    return keys.to_pem(keys.from_pem(brought.key, brought.passphrase)) if brought.key is not None else None


async def _in_device(secret_store: SecretStore, address: str) -> Signer:
    """Open a CA's key in a device. A device that is away is an error here: the person who adds the CA can look."""
    try:
        return await aside(lambda: Pkcs11Signer(place_of(address, secret_store.files.read)))
    except TryLater as error:
        hint = "Is the device there, and is its token called so? 'pkcs11-tool -L --module LIBRARY' lists tokens."
        raise SignerRefused("hsm-unavailable", f"{error}.", hint) from error


async def _opened(key: Secret[bytes], passphrase: Secret[str] | None) -> Signer:
    try:
        return await aside(open_signer, key, passphrase)
    except SignerRefused as refused:
        if refused.code in ("key-needs-passphrase", "key-passphrase-wrong"):
            refused.hint = "Name a file whose first line opens it: --passphrase-file FILE"
        raise


def _alternate(pem: bytes, issuer: x509.Certificate) -> str:
    chain = parse_bundle(pem)
    if chain[0].public_key() != issuer.public_key() or chain[0].subject != issuer.subject:
        raise ChainRefused("chain-alternate", "An alternate chain begins with a certificate of the same issuer.")
    if any(not issued_by(lower, upper) for lower, upper in pairwise(chain)):
        raise ChainRefused("chain-broken", "The certificates of an alternate chain are not one chain.")
    return pki_chain.certificates_pem(without_root(chain)).decode()


def _insert(
    tx: Tx, row: CaRow, sealed: Sequence[KeptSecret], secret_store: SecretStore, actor: str, action: str
) -> CaRow:
    _check_free(tx, row.id)
    for each in sealed:
        secrets.put(tx, each)
    try:
        cas.insert(tx, row)
    except Duplicate:  # another replica, or another person, was quicker
        raise CaExists(row.id) from None
    for shard in range(row.options.shards):  # the first lists at once: certificates refer to them from the first on
        job = secret_store.keyring.random.new_id("job")
        jobs.enqueue(tx, Spec(id=job, kind=CRL, subject=f"{row.id}/{shard}", max_attempts=CRL_ATTEMPTS))
    issuer = x509.load_der_x509_certificate(row.certificate)
    facts = {"issuer": issuer.subject.rfc4514_string(), "serial": f"{issuer.serial_number:x}"}
    journal.audit(tx, action, row.id, actor=actor, **facts, device=row.key_device or "")
    journal.event(tx, action.replace("ca_", "ca."), row.id, **facts)
    return row


def to_pem(certificate: x509.Certificate) -> str:
    return pki_chain.certificates_pem([certificate]).decode()


# ── Changing one ──


def change_options(tx: Tx, row: CaRow, options: CaOptions, *, actor: str) -> CaRow:
    """Change settings of a CA."""
    check_options(options, before=row.options)
    if options == row.options:
        return row
    was, is_now = row.options.to_json(), options.to_json()
    changed = {name: is_now[name] for name in is_now if is_now[name] != was[name]}
    journal.audit(tx, "ca_changed", row.id, actor=actor, before=was, after=is_now, **changed)
    saved = cas.save(tx, replace(row, options=options))
    if changed.keys() & {"shards", "crl_lifetime_s"}:
        _list_anew(tx, saved)
    return saved


def _list_anew(tx: Tx, row: CaRow) -> None:
    """New shards get their first list at once, old ones a list of the new life."""
    for shard in range(row.options.shards):
        job, subject = f"job_{row.id}.{shard}.{row.version}", f"{row.id}/{shard}"
        if jobs.enqueue(tx, Spec(id=job, kind=CRL, subject=subject, max_attempts=CRL_ATTEMPTS)) != job:
            jobs.bring_forward(tx, CRL, subject, tx.now())


def set_state(tx: Tx, ca: str, state: CaState, *, actor: str) -> CaRow:
    """Close a CA for new accounts and orders, or open it again. It revokes and signs CRLs in either state."""
    row = found(tx, ca)
    if row.state == state:
        return row
    word = "ca_closed" if state == "closed" else "ca_reopened"
    journal.audit(tx, word, ca, actor=actor, before={"state": row.state}, after={"state": state})
    return cas.save(tx, replace(row, state=state))


def found(tx: Tx, ca: str) -> CaRow:
    row = cas.get(tx, ca)
    if row is None:
        raise NoSuchCa(ca)
    return row


# ── What may be decided ──


def check_name(ca: str) -> None:
    if not NAME.fullmatch(ca):
        raise CaRefused(f"{ca!r:.60} is no name for a CA.", "Use 1 to 32 of a-z, 0-9 and -, such as internal-2026.")


def check_options(options: CaOptions, before: CaOptions | None = None) -> None:
    """Refuse what contradicts itself, or what certificates already out there rule out."""
    if unknown := set(options.challenges) - {*CHALLENGES, *EXPERIMENTAL}:
        known = ", ".join((*CHALLENGES, *EXPERIMENTAL))
        raise CaRefused(f"There is no challenge {min(unknown)!r}.", f"There are: {known}.")
    if not 1 <= options.shards <= MAX_SHARDS or (before is not None and options.shards < before.shards):
        raise CaRefused(f"A CRL has 1 to {MAX_SHARDS} shards, and never fewer than before.")
    if not CRL_LIFE_S[0] <= options.crl_lifetime_s <= CRL_LIFE_S[1]:
        raise CaRefused("A CRL lives between an hour and 400 days.")
    if before is not None and options.dev != before.dev:
        raise CaRefused("Whether a CA may sign with its root is decided when it is made.")
    _check_profiles(options.profiles)
    for pattern in options.permitted:
        check_pattern(pattern)


def _check_profiles(profiles: tuple[ProfileOptions, ...]) -> None:
    if not profiles or len({each.name for each in profiles}) < len(profiles):
        raise CaRefused("A CA has at least one profile, and each has a name of its own.")
    for each in profiles:
        if not NAME.fullmatch(each.name):
            raise CaRefused(f"{each.name!r:.60} is no name for a profile.", "Use a-z, 0-9 and -, such as short-lived.")
        try:
            profile_of(each)
        except ValueError as error:
            raise CaRefused(f"Profile {each.name!r}: {error}.") from None


def check_pattern(pattern: str) -> None:
    """A name, "*." and a name (everything below it), an address, or "*"."""
    try:
        if pattern != "*":
            names.dns_name(pattern.removeprefix("*."), wildcard=False)
    except NameRefused:
        try:
            names.ip_address(pattern)
        except NameRefused:
            problem = f"{pattern!r:.80} is no pattern of names."
            raise CaRefused(problem, "Write a name, *.example.internal for all below, an address, or *.") from None


def serial_of(text: str) -> str:
    """As OpenSSL, browsers or we write it: with colons, with leading zeros, in capitals."""
    plain = text.replace(":", "").strip().lower().removeprefix("0x")
    if not re.fullmatch(r"[0-9a-f]{1,42}", plain):
        raise CaRefused(f"{text!r:.60} is no serial number.", "Write it in hex, such as 5f2c…, colons or not.")
    return f"{int(plain, 16):x}"


YEARS: Final = 5


async def renewed(
    secret_store: SecretStore, ca: str, *, years: int, chain: bytes | None, actor: str, crl_url: str | None = None
) -> Callable[[Tx], CaRow]:
    """Sign the CA's certificate again, or check the one that was signed elsewhere; the transaction puts it to use.

    Orders under way are not disturbed: the name and the key of the CA stay. Without a chain the root signs, if its
    key is kept here; if `crl_url` says where the CRL of the root is found, that CRL is kept from now on.
    """
    older, now = await secret_store.db.read(lambda tx: (found(tx, ca), tx.now()))
    if chain is None:
        row = await _signed_here(secret_store, older, years, now, crl_url)
    else:
        row = _brought(older, chain, now)
    crl = await root_crls.next_list(secret_store, row) if chain is None and crl_url is not None else None

    def write(tx: Tx) -> CaRow:
        current = cas.get(tx, ca)
        if current is None or current.version != row.version:
            raise CaRefused(f"CA {ca!r} was changed meanwhile; its certificate is as it was.", "Try again.")
        was, is_now = _ends(current), _ends(row)
        journal.audit(tx, "ca_issuer_renewed", ca, actor=actor, before=was, after=is_now)
        journal.event(tx, "ca.issuer_renewed", ca, **is_now)
        if crl is not None:
            root_crls.keep(tx, crl, secret_store.keyring.random.new_id("job"))
        return cas.save(tx, row)

    return write


async def _signed_here(secret_store: SecretStore, row: CaRow, years: int, now: datetime, crl_url: str | None) -> CaRow:
    if row.root_secret is None:
        hint = f"Where it is: holdfast pki recertify. Then here: holdfast ca renew {row.id} --chain FILE"
        raise CaRefused(f"The key of the root of CA {row.id!r} is not kept here.", hint)
    root = x509.load_pem_x509_certificate(row.root.encode())
    signs = keys.from_pem(await secret_store.reveal(row.root_secret, root_key(root)))
    older = x509.load_der_x509_certificate(row.certificate)
    made = certify_again(older, root, signs, years=years, now=now, random=secret_store.keyring.random, crl_url=crl_url)
    return replace(row, certificate=made.public_bytes(Encoding.DER))


def _brought(row: CaRow, pem: bytes, now: datetime) -> CaRow:
    """A certificate that was signed elsewhere, with what leads to its root."""
    older = x509.load_der_x509_certificate(row.certificate)
    chain = ordered(parse_bundle(pem))
    issuer, above = chain[0], without_root(chain)[1:]
    if (issuer.subject, issuer.public_key()) != (older.subject, older.public_key()):
        hint = "A new key makes another CA: holdfast ca adopt. The old one's lists go on beside it."
        raise CaRefused(f"This is not the issuer of CA {row.id!r} again: its name or its key is another.", hint)
    if issuer.not_valid_after_utc <= older.not_valid_after_utc:
        raise CaRefused(f"This one expires on {_day(issuer)}, and the one in use expires on {_day(older)}.")
    root = root_of(chain, dev=row.options.dev)
    open_issuer(SigningCertificate(id=row.id, certificate=issuer, above=above), dev=row.options.dev, now=now)
    return replace(
        row,
        certificate=issuer.public_bytes(Encoding.DER),
        above="".join(map(to_pem, above)),
        root=to_pem(root),
    )


def _ends(row: CaRow) -> dict[str, str]:
    issuer = x509.load_der_x509_certificate(row.certificate)
    return {"serial": f"{issuer.serial_number:x}", "ends": f"{issuer.not_valid_after_utc:%FT%TZ}"}


def _day(certificate: x509.Certificate) -> str:
    return f"{certificate.not_valid_after_utc:%F}"
