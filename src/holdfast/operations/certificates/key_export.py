"""Certificates with their keys: exported, which is audited; and adopted from elsewhere, without a new issuance."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from shlex import quote
from typing import Literal

from pydantic import BaseModel, Field, SecretStr

from holdfast.core.certificate import Certificate, CertificateSpec, CertificateState, Version, VersionState
from holdfast.errors import UserError
from holdfast.keyring import SecretOwner
from holdfast.operations.access import Action
from holdfast.operations.certificates.checks import SpecificationRefused
from holdfast.operations.certificates.lifecycle import CertificateExists, NotNow
from holdfast.operations.certificates.lifecycle import kept as decided
from holdfast.operations.certificates.policies import demand_names
from holdfast.operations.certificates.refs import found_by
from holdfast.operations.certificates.views import CertificateRef
from holdfast.operations.context import Context
from holdfast.operations.inputs import Short, StrictFlag
from holdfast.operations.installation.secret_store import NO_KEY, certificate_key
from holdfast.operations.issuance import attempts as issuance_attempts
from holdfast.operations.issuance.attempts import CertificateContext
from holdfast.operations.operation import Face, operation
from holdfast.operations.scopes import certificate
from holdfast.pki import chain as pki_chain
from holdfast.pki import keys
from holdfast.pki.chain import parse_bundle, problem_with
from holdfast.pki.in_thread import aside
from holdfast.pki.keys import PublicKey
from holdfast.secret import Secret
from holdfast.store import certificates, journal, secrets, versions
from holdfast.store.tx import Tx


class NoSuchVersion(UserError):
    status, code = 404, "no-such-version"

    def __init__(self, name: str, version: str) -> None:
        super().__init__(f"{name} has no version {version!r:.80}.")
        self.hint = f"See which it has: holdfast get {name}"


# ── Out ──


class ExportRequest(CertificateRef):
    form: Literal["pem", "combined", "pkcs12"] = "pem"
    passphrase: SecretStr | None = Field(default=None, max_length=1000, description="For PKCS#12.")
    compatible: StrictFlag = Field(default=False, description="PKCS#12 that old programs read.")
    version: Short | None = Field(default=None, description="Which version; the current one if left out.")


class Exported(BaseModel):
    certificate: str
    version: str
    form: str
    chain_pem: str
    key_pem: str | None = Field(description="For pem and combined.")
    pkcs12: str | None = Field(description="For pkcs12, in base64.")


class KeyOfAnother(UserError):
    status, code = 500, "key-of-another"

    def __init__(self, name: str) -> None:
        super().__init__(f"The key that is kept for {name} is not the key of its certificate, and is not exported.")
        self.hint = "The database was altered. Restore it from a backup, or renew the certificate with a new key."


class ChainRequest(CertificateRef):
    version: str | None = Field(default=None, max_length=100, description="Which version; the current one if left out.")


@operation(
    "certificates.chain",
    "GET /certificates/{ref}/chain",
    command="fetch",
    action=Action.SEE,
    scope=certificate(),
    media="application/x-pem-file",
    example="holdfast fetch www.example.com",
)
def chain(tx: Tx, ctx: Context, asked: ChainRequest) -> str:
    """Show the certificate and its chain in PEM, without the key."""
    return _chosen(tx, asked.ref, asked.version)[1].chain_pem


@operation(
    "certificates.export",
    "POST /certificates/{ref}/export",
    command="fetch",
    action=Action.EXPORT,
    scope=certificate(),
    dry_runs=False,
    example="holdfast fetch www.example.com --to /etc/nginx/tls",
    not_on={Face.MCP: "It returns a private key, which an assistant must not see."},
)
async def export(ctx: Context, asked: ExportRequest) -> Exported:
    """Export a certificate with its private key. The audit entry is committed before the key leaves."""
    passphrase = None if asked.passphrase is None else Secret(asked.passphrase.get_secret_value())
    if asked.form == "pkcs12" and not passphrase:
        raise SpecificationRefused(
            "A PKCS#12 file needs a passphrase.", "Send one that is not empty; in a command: --passphrase-stdin"
        )
    facts = {"form": asked.form}
    owner, key_pem, pkcs12 = await _check_is_here(ctx, asked), None, None

    def write(tx: Tx) -> tuple[Certificate, Version]:
        found, chosen = _chosen(tx, asked.ref, asked.version)
        serial = {"version": chosen.id, "serial": chosen.serial}
        journal.audit(tx, "key_exported", found.id, actor=ctx.actor, **serial, **facts)
        journal.event(tx, "key.exported", found.id, by=ctx.actor, **facts)
        return found, chosen

    found, chosen = await ctx.write(write)
    pem = await ctx.certificate_context.secret_store.reveal(chosen.key_secret, owner)
    _check_is_of(pem, chosen, found.name)
    if asked.form == "pkcs12" and passphrase is not None:
        key, parts = keys.from_pem(pem), parse_bundle(chosen.chain_pem.encode())
        both = await aside(pki_chain.to_pkcs12, key, parts, passphrase, name=found.name, compatible=asked.compatible)
        pkcs12 = base64.b64encode(both.reveal()).decode()
    else:
        key_pem = pem.reveal().decode("ascii") + (chosen.chain_pem if asked.form == "combined" else "")
    return Exported(
        certificate=found.id,
        version=chosen.id,
        form=asked.form,
        chain_pem=chosen.chain_pem,
        key_pem=key_pem,
        pkcs12=pkcs12,
    )


async def _check_is_here(ctx: Context, asked: ExportRequest) -> SecretOwner:
    """Whose the key is; before the audit log says that it left."""
    found, chosen = await ctx.read(lambda tx: _chosen(tx, asked.ref, asked.version))
    owner = certificate_key(found.id)
    if await ctx.certificate_context.secret_store.reveal(chosen.key_secret, owner) == NO_KEY:
        hint = f"The key is where the CSR was made. The chain alone: holdfast fetch {quote(found.name)} --to FOLDER"
        raise NotNow(found.name, "issued for a CSR", hint)
    return owner


def _check_is_of(pem: Secret[bytes], version: Version, name: str) -> None:
    """Whatever the row says its key is: nothing leaves but the key of this certificate."""
    leaf = parse_bundle(version.chain_pem.encode())[0]
    if keys.from_pem(pem).public_key() != leaf.public_key():
        raise KeyOfAnother(name)


def _chosen(tx: Tx, ref: str, version: str | None) -> tuple[Certificate, Version]:
    found = found_by(tx, ref)
    chosen = versions.get(tx, version or found.current_version)
    if version is not None and (chosen is None or chosen.certificate != found.id):
        raise NoSuchVersion(found.name, version)
    if chosen is None or chosen.certificate != found.id:
        raise NotNow(found.name, "not issued yet", f"Wait for it: holdfast wait {found.name} --for issued")
    return found, chosen


# ── In ──


async def adopted(
    context: CertificateContext,
    spec: CertificateSpec,
    *,
    key_pem: Secret[bytes],
    chain_pem: bytes,
    account: str | None = None,
    paused: bool = False,
    actor: str,
) -> Callable[[Tx], Certificate]:
    """Seal the key of a certificate that was issued elsewhere; the transaction keeps both from now on.

    Nothing is issued before it is due.
    """
    key, chain = keys.from_pem(key_pem), parse_bundle(chain_pem)
    version = _adopted(context, spec, key.public_key(), chain_pem, account)
    certificate_id = version.certificate
    sealed = await context.secret_store.seal(keys.to_pem(key), certificate_key(certificate_id))

    def write(tx: Tx) -> Certificate:
        now = tx.now()
        names = [each.value for each in spec.identifiers if each.type == "dns"]
        ips = [each.value for each in spec.identifiers if each.type == "ip"]
        problem = problem_with(chain, key=key.public_key(), names=names, ips=ips, now=chain[0].not_valid_before_utc)
        if problem is not None:
            raise SpecificationRefused(f"It cannot be adopted: {problem}", "Ask for it anew instead.")
        new = Certificate(
            id=certificate_id,
            wanted=spec,
            state=CertificateState.PAUSED if paused else CertificateState.ACTIVE,
            generation=1,
            version=1,
            fingerprint=spec.fingerprint(),
            changed_by=actor,
            created_at=now,
            current_version=version.id,
            ari_ask_at=now if spec.rule.ari else None,
        )
        demand_names(tx, spec, asker=None, actor=actor)
        if not certificates.insert(tx, new):
            raise CertificateExists(spec.name)
        secrets.put(tx, sealed)
        kept = replace(version, key_secret=sealed.id, issued_at=now)
        versions.insert(tx, kept)
        facts = {"name": spec.name, "serial": version.serial}
        journal.audit(tx, "certificate_adopted", new.id, actor=actor, after=decided(new), **facts)
        journal.event(tx, "certificate.adopted", new.id, by=actor, serial=version.serial)
        return issuance_attempts.replan(tx, new, now, current=kept)

    return write


def _adopted(
    context: CertificateContext, spec: CertificateSpec, key: PublicKey, pem: bytes, account: str | None
) -> Version:
    found = parse_bundle(pem)
    leaf = found[0]
    return Version(
        id=context.random.new_id("version"),
        certificate=context.random.new_id("certificate"),
        generation=1,
        state=VersionState.IMPORTED,
        key_secret="",
        chain_pem=pki_chain.certificates_pem(found).decode(),
        serial=f"{leaf.serial_number:x}",
        not_before=leaf.not_valid_before_utc,
        not_after=leaf.not_valid_after_utc,
        issuer=spec.issuers[0],
        account=account,
        spki_sha256=keys.spki_sha256(key).hex(),
        issued_at=leaf.not_valid_before_utc,
    )
