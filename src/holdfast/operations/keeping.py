"""Key and certificate out of our hands, or into them: exports that are audited, imports that re-issue nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from holdfast.core.certificate import Certificate, State, Version, VersionState, Wanted
from holdfast.errors import UserError
from holdfast.operations import issuing
from holdfast.operations.certificates import CertificateExists, NotNow, WishRefused, found_by
from holdfast.operations.certificates import kept as decided
from holdfast.operations.issuing import Keeper
from holdfast.pki import bundle, keys
from holdfast.pki.aside import aside
from holdfast.pki.chain import parse_bundle, problem_with
from holdfast.pki.keys import PublicKey
from holdfast.secret import Secret
from holdfast.store import certificates, journal, versions
from holdfast.store.tx import Tx

Format = Literal["pem", "combined", "pkcs12"]


class NoSuchVersion(UserError):
    status, code = 404, "no-such-version"

    def __init__(self, name: str, version: str) -> None:
        super().__init__(f"{name} has no version {version!r:.80}.")
        self.hint = f"See which it has: holdfast get {name}"


# ── Out ──


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """`key` is None for a chain alone, which is no secret."""

    certificate: str
    version: str
    chain: bytes
    key: Secret[bytes] | None = None  # PEM; or both in one, in the format that was asked for


async def chain_of(keeper: Keeper, ref: str, *, version: str | None = None) -> Exported:
    """The public part, for anybody who may see the certificate."""
    found, chosen = await keeper.db.read(lambda tx: _chosen(tx, ref, version))
    return Exported(certificate=found.id, version=chosen.id, chain=chosen.chain_pem.encode())


async def export(
    keeper: Keeper,
    ref: str,
    *,
    form: Format = "pem",
    passphrase: Secret[str] | None = None,
    compatible: bool = False,
    actor: str,
    version: str | None = None,
) -> Exported:
    """With its key: a right of its own. The audit row is committed before the key leaves."""
    if form == "pkcs12" and not passphrase:
        raise WishRefused("A PKCS#12 file needs a passphrase.", "An empty one does not count.")

    def write(tx: Tx) -> tuple[Certificate, Version]:
        found, chosen = _chosen(tx, ref, version)
        journal.audit(tx, "key_exported", found.id, actor=actor, version=chosen.id, serial=chosen.serial, form=form)
        journal.event(tx, "key.exported", found.id, by=actor, form=form)
        return found, chosen

    found, chosen = await keeper.db.write(write)
    pem = await keeper.vault.reveal(chosen.key_secret)
    chain = chosen.chain_pem.encode()
    if form == "combined":
        pem = Secret(pem.reveal() + chain)
    elif form == "pkcs12" and passphrase is not None:
        key, parts = keys.from_pem(pem), parse_bundle(chain)
        pem = await aside(bundle.to_pkcs12, key, parts, passphrase, name=found.name, compatible=compatible)
    return Exported(certificate=found.id, version=chosen.id, chain=chain, key=pem)


def _chosen(tx: Tx, ref: str, version: str | None) -> tuple[Certificate, Version]:
    found = found_by(tx, ref)
    chosen = versions.get(tx, version or found.current_version)
    if version is not None and (chosen is None or chosen.certificate != found.id):
        raise NoSuchVersion(found.name, version)
    if chosen is None or chosen.certificate != found.id:
        raise NotNow(found.name, "not issued yet", f"Wait for it: holdfast wait {found.name} --for issued")
    return found, chosen


# ── In ──


async def adopt(
    keeper: Keeper,
    wanted: Wanted,
    *,
    key_pem: Secret[bytes],
    chain_pem: bytes,
    account: str | None = None,
    paused: bool = False,
    actor: str,
) -> Certificate:
    """Keep a certificate that was issued elsewhere, with its key, from now on. Nothing is issued before it is due."""
    key, chain = keys.from_pem(key_pem), parse_bundle(chain_pem)
    version = _adopted(keeper, wanted, key.public_key(), chain_pem, account)
    certificate_id = version.certificate

    def owner(tx: Tx, ids: list[str]) -> Certificate:
        now = tx.now()
        names = [each.value for each in wanted.identifiers if each.type == "dns"]
        ips = [each.value for each in wanted.identifiers if each.type == "ip"]
        problem = problem_with(chain, key=key.public_key(), names=names, ips=ips, now=chain[0].not_valid_before_utc)
        if problem is not None:
            raise WishRefused(f"It cannot be adopted: {problem}", "Ask for it anew instead.")
        new = Certificate(
            id=certificate_id,
            wanted=wanted,
            state=State.PAUSED if paused else State.ACTIVE,
            generation=1,
            version=1,
            fingerprint=wanted.fingerprint(),
            changed_by=actor,
            created_at=now,
            current_version=version.id,
            ari_ask_at=now if wanted.rule.ari else None,
        )
        if not certificates.insert(tx, new):
            raise CertificateExists(wanted.name)
        kept = replace(version, key_secret=ids[0], issued_at=now)
        versions.insert(tx, kept)
        facts = {"name": wanted.name, "serial": version.serial}
        journal.audit(tx, "certificate_adopted", new.id, actor=actor, after=decided(new), **facts)
        journal.event(tx, "certificate.adopted", new.id, by=actor, serial=version.serial)
        return issuing.replan(tx, new, now, current=kept)

    return await keeper.vault.keep([keys.to_pem(key)], owner)


def _adopted(keeper: Keeper, wanted: Wanted, key: PublicKey, pem: bytes, account: str | None) -> Version:
    found = parse_bundle(pem)
    leaf = found[0]
    return Version(
        id=keeper.random.new_id("version"),
        certificate=keeper.random.new_id("certificate"),
        generation=1,
        state=VersionState.IMPORTED,
        key_secret="",
        chain_pem=bundle.certificates_pem(found).decode(),
        serial=f"{leaf.serial_number:x}",
        not_before=leaf.not_valid_before_utc,
        not_after=leaf.not_valid_after_utc,
        issuer=wanted.issuers[0],
        account=account,
        spki_sha256=keys.spki_sha256(key).hex(),
        issued_at=leaf.not_valid_before_utc,
    )
