"""Our CAs: make one, bring one along, change what it may do, close it. Every change is audited."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from holdfast.core.ca import CHALLENGES, EXPERIMENTAL, CaOptions, ProfileOptions
from holdfast.core.job import Spec
from holdfast.errors import Duplicate, TryLater, UserError
from holdfast.operations import root_lists
from holdfast.operations.authorities import profile_of
from holdfast.operations.revocation import CRL
from holdfast.operations.vault import Vault
from holdfast.pki import bundle, keys, names
from holdfast.pki.aside import aside
from holdfast.pki.ceremony import Plan, make, make_intermediate
from holdfast.pki.chain import issued_by, ordered, parse_bundle, without_root
from holdfast.pki.device import place_of
from holdfast.pki.hsm import Pkcs11Signer
from holdfast.pki.issuer import Issuer, is_self_signed, open_issuer
from holdfast.pki.refused import ChainRefused, NameRefused, SignerRefused
from holdfast.pki.signer import Signer, open_signer
from holdfast.secret import Secret
from holdfast.store import cas, jobs, journal
from holdfast.store.cas import CaRow, State
from holdfast.store.database import Store
from holdfast.store.root_crls import RootCrl
from holdfast.store.tx import Tx

_CN: Final = NameOID.COMMON_NAME
NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")
MAX_SHARDS: Final = 128
CRL_ATTEMPTS: Final = 1_000_000  # it never gives up: a list that ends is an outage for whoever looks at it
CRL_LIFE_S: Final = (3600, 400 * 86400)  # pkilint's CRL profiles and clients alike know lists of hours to a year


class NoSuchCa(UserError):
    status, code = 404, "no-such-ca"

    def __init__(self, ca: str) -> None:
        super().__init__(f"There is no CA {ca!r}.")
        self.hint = "'holdfast ca own' shows those there are."


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


async def create(vault: Vault, *, ca: str, plan: Plan, options: CaOptions, actor: str) -> CaRow:
    """A root and an intermediate, made here. Both keys are sealed; the root's is put away, and signs lists at most.

    If the plan says where the root's list will be found, that list is kept from now on.
    """
    await check_new(vault.db, ca, options)
    now, taken = await vault.db.read(lambda tx: (tx.now(), common_names(tx)))
    made = await make(plan, now=now, random=vault.keyring.random, taken=taken)
    listed = root_lists.first_list(made.root, made.root_key, now) if plan.crl_url else None

    def owner(tx: Tx, ids: list[str]) -> CaRow:
        _keep_list(tx, vault, listed)
        row = CaRow(
            id=ca,
            certificate=made.intermediate.public_bytes(Encoding.DER),
            root=to_pem(made.root),
            key_secret=ids[0],
            root_secret=ids[1],
            options=options,
            created_at=tx.now(),
        )
        return _insert(tx, row, vault, actor, "ca_created")

    sealed = [keys.to_pem(made.intermediate_key), keys.to_pem(made.root_key)]
    return await _kept(vault, ca, sealed, owner)


async def create_under(
    vault: Vault, *, ca: str, under: str, plan: Plan, options: CaOptions, actor: str, any_name: bool = False
) -> CaRow:
    """The next intermediate of a root that was made here: clients trust it already. The root's key is opened once.

    It is confined as the older one is, unless the plan confines it otherwise, or it is to be for any name.
    """
    await check_new(vault.db, ca, options)
    older = await with_root(vault.db, under)
    root = x509.load_pem_x509_certificate(older.root.encode())
    root_key = keys.from_pem(await vault.reveal(older.root_secret or ""))
    now, taken = await vault.db.read(lambda tx: (tx.now(), common_names(tx)))
    before = Issuer(id=under, certificate=x509.load_der_x509_certificate(older.certificate))
    made, key = await make_intermediate(
        plan,
        root,
        root_key,
        now=now,
        random=vault.keyring.random,
        taken=taken,
        constraints=None if any_name else before.constraints,
    )
    listed = root_lists.first_list(root, root_key, now) if plan.crl_url else None

    def owner(tx: Tx, ids: list[str]) -> CaRow:
        _keep_list(tx, vault, listed)
        row = CaRow(
            id=ca,
            certificate=made.public_bytes(Encoding.DER),
            root=older.root,
            key_secret=ids[0],
            root_secret=older.root_secret,
            options=options,
            created_at=tx.now(),
        )
        return _insert(tx, row, vault, actor, "ca_created")

    return await _kept(vault, ca, [keys.to_pem(key)], owner)


async def check_new(db: Store, ca: str, options: CaOptions) -> None:
    """Refuse what could not be made, before any key is."""
    check_name(ca)
    check_options(options)
    if await db.read(lambda tx: cas.get(tx, ca)):
        raise CaExists(ca)


async def with_root(db: Store, ca: str) -> CaRow:
    """A CA whose root can sign here."""
    row = await get(db, ca)
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


def _keep_list(tx: Tx, vault: Vault, made: RootCrl | None) -> None:
    if made is not None:
        root_lists.keep(tx, made, vault.keyring.random.new_id("job"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """A CA that was made elsewhere, such as by `holdfast pki init`."""

    chain: bytes  # PEM: the issuer, what stands above it, and the root
    alternates: tuple[bytes, ...] = ()  # PEM, the issuer first: chains to other roots
    key: Secret[bytes] | None = None  # PEM
    passphrase: Secret[str] | None = None
    device: str | None = None  # instead of a key: where it is


async def adopt(
    vault: Vault, *, ca: str, brought: Brought, options: CaOptions, actor: str, dry_run: bool = False
) -> CaRow:
    """Take over an issuer with its key, or with the address of its key in a device; or only look if that can be."""
    await check_new(vault.db, ca, options)
    chain = ordered(parse_bundle(brought.chain))
    issuer, above = chain[0], without_root(chain)[1:]
    root = root_of(chain, dev=options.dev)
    now = await vault.db.read(lambda tx: tx.now())
    open_issuer(Issuer(id=ca, certificate=issuer, above=above), dev=options.dev, now=now)
    key = await _proved(vault, brought, issuer)
    alternates = tuple(_alternate(pem, issuer) for pem in brought.alternates)

    def owner(tx: Tx, ids: list[str]) -> CaRow:
        _check_key_is_free(tx, ca, issuer)
        row = CaRow(
            id=ca,
            certificate=issuer.public_bytes(Encoding.DER),
            above="".join(map(to_pem, above)),
            root=to_pem(root),
            alternates=alternates,
            key_secret=ids[0] if ids else None,
            key_device=None if ids else brought.device,
            options=options,
            created_at=tx.now(),
        )
        return row if dry_run else _insert(tx, row, vault, actor, "ca_adopted")

    if dry_run:
        return await vault.db.read(lambda tx: owner(tx, ["none"] if key else []))
    return await _kept(vault, ca, [key] if key else [], owner)


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


async def _proved(vault: Vault, brought: Brought, issuer: x509.Certificate) -> Secret[bytes] | None:
    """The key to be sealed, once it is seen to be the issuer's; None if it stays in its device."""
    if (brought.key is None) == (brought.device is None):
        raise CaRefused("A CA signs with a key, or with a device: give one of them.")
    signer: Signer
    if brought.key is not None:
        signer = await _opened(brought.key, brought.passphrase)
    else:
        signer = await _in_device(vault, brought.device or "")
    if signer.public_key != issuer.public_key():
        raise SignerRefused("signer-other-key", "The key is not the one in the issuer's certificate.")
    return keys.to_pem(keys.from_pem(brought.key, brought.passphrase)) if brought.key is not None else None


async def _in_device(vault: Vault, address: str) -> Signer:
    """What may pass for a CA that signs already is for whoever brings one: they are here, and can look."""
    try:
        return await aside(Pkcs11Signer, place_of(address, vault.files.read))
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
    return bundle.certificates_pem(without_root(chain)).decode()


async def _kept(
    vault: Vault, ca: str, sealed: list[Secret[bytes]], owner: Callable[[Tx, list[str]], CaRow]
) -> CaRow:  # fmt: skip
    try:
        return await vault.keep(sealed, owner)
    except Duplicate:  # another replica, or another person, was quicker
        raise CaExists(ca) from None


def _insert(tx: Tx, row: CaRow, vault: Vault, actor: str, action: str) -> CaRow:
    cas.insert(tx, row)
    for shard in range(row.options.shards):  # the first lists at once: certificates refer to them from the first on
        job = vault.keyring.random.new_id("job")
        jobs.enqueue(tx, Spec(id=job, kind=CRL, subject=f"{row.id}/{shard}", max_attempts=CRL_ATTEMPTS))
    issuer = x509.load_der_x509_certificate(row.certificate)
    facts = {"issuer": issuer.subject.rfc4514_string(), "serial": f"{issuer.serial_number:x}"}
    journal.audit(tx, action, row.id, actor=actor, **facts, device=row.key_device or "")
    journal.event(tx, action.replace("ca_", "ca."), row.id, **facts)
    return row


def to_pem(certificate: x509.Certificate) -> str:
    return bundle.certificates_pem([certificate]).decode()


# ── Changing one ──


async def get(db: Store, ca: str) -> CaRow:
    row = await db.read(lambda tx: cas.get(tx, ca))
    if row is None:
        raise NoSuchCa(ca)
    return row


async def change_options(
    db: Store, ca: str, change: Callable[[CaOptions], CaOptions], *, actor: str, dry_run: bool = False
) -> CaRow:
    """Decide something else about a CA. `change` is a pure function: it is asked again if somebody else was quicker."""

    def write(tx: Tx) -> CaRow:
        row = _found(tx, ca)
        options = change(row.options)
        check_options(options, before=row.options)
        if options == row.options or dry_run:
            return replace(row, options=options)
        was, is_now = row.options.to_json(), options.to_json()
        changed = {name: is_now[name] for name in is_now if is_now[name] != was[name]}
        journal.audit(tx, "ca_changed", ca, actor=actor, before=was, after=is_now, **changed)
        saved = cas.save(tx, replace(row, options=options))
        if changed.keys() & {"shards", "crl_lifetime_s"}:
            _list_anew(tx, saved)
        return saved

    return await (db.read(write) if dry_run else db.write(write))


def _list_anew(tx: Tx, row: CaRow) -> None:
    """New shards get their first list at once, old ones a list of the new life."""
    for shard in range(row.options.shards):
        job, subject = f"job_{row.id}.{shard}.{row.version}", f"{row.id}/{shard}"
        if jobs.enqueue(tx, Spec(id=job, kind=CRL, subject=subject, max_attempts=CRL_ATTEMPTS)) != job:
            jobs.bring_forward(tx, CRL, subject, tx.now())


async def set_state(db: Store, ca: str, state: State, *, actor: str) -> CaRow:
    """Close a CA for new accounts and orders, or open it again. Its lists and revocations go on in any case."""

    def write(tx: Tx) -> CaRow:
        row = _found(tx, ca)
        if row.state == state:
            return row
        word = "ca_closed" if state == "closed" else "ca_reopened"
        journal.audit(tx, word, ca, actor=actor, before={"state": row.state}, after={"state": state})
        return cas.save(tx, replace(row, state=state))

    return await db.write(write)


def _found(tx: Tx, ca: str) -> CaRow:
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
