"""A root that is brought out of its safe: it signs the next intermediate, or a CRL of the revoked ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509

from holdfast.core.revocation_reason import RevocationReason
from holdfast.pki import chain, crl, keys
from holdfast.pki.ceremony import (
    INTERMEDIATE,
    INTERMEDIATE_KEY,
    MIN_PASSPHRASE,
    TRANSCRIPT,
    CeremonyPlan,
    certify_again,
    make_intermediate,
    organization_of,
    put_away,
    write_new,
)
from holdfast.pki.chain import parse_bundle
from holdfast.pki.in_thread import aside
from holdfast.pki.keys import PrivateKey
from holdfast.pki.refused import ChainRefused, PkiRefused, SignerRefused
from holdfast.pki.signing import KeySigner, SigningCertificate, is_self_signed
from holdfast.ports import Files, Random
from holdfast.secret import Secret

CRL_LIFE: Final = (timedelta(days=1), timedelta(days=400))


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """A root with its key open: for as long as it takes to sign."""

    certificate: x509.Certificate
    key: PrivateKey = field(repr=False)

    @property
    def organization(self) -> str:
        return organization_of(self.certificate)


async def open_root(certificate: bytes, key: bytes, passphrase: Secret[str]) -> Root:
    """Refuses a certificate that is no root, and a key that does not belong to it."""
    [root, *others] = parse_bundle(certificate)
    if others or not is_self_signed(root):
        raise ChainRefused("chain-no-root", "This is not the certificate of a root alone.")
    opened = await aside(keys.from_pem, key, passphrase)
    if opened.public_key() != root.public_key():
        raise SignerRefused("signer-other-key", "The key is not the one in the root's certificate.")
    return Root(certificate=root, key=opened)


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """An intermediate, and its key under its passphrase."""

    certificate: x509.Certificate
    key_pem: bytes


async def next_intermediate(
    root: Root,
    plan: CeremonyPlan,
    passphrase: Secret[str],
    *,
    now: datetime,
    random: Random,
    like: x509.Certificate | None = None,
) -> Next:
    """A weak passphrase is refused first. `like` is the earlier intermediate, whose constraints are kept.

    Its name has a mark of its key, because the names given before are not known here.
    """
    if len(passphrase.reveal()) < MIN_PASSPHRASE:
        raise PkiRefused("pki-passphrase", f"A passphrase has at least {MIN_PASSPHRASE} characters.")
    constraints = None if like is None else SigningCertificate(id="", certificate=like).constraints
    certificate, key = await make_intermediate(
        plan, root.certificate, root.key, now=now, random=random, taken=None, constraints=constraints
    )
    return Next(certificate=certificate, key_pem=await aside(put_away, key, passphrase, random))


def certified_again(
    root: Root, older: bytes, *, years: int, now: datetime, random: Random, crl_url: str | None = None
) -> x509.Certificate:
    """The same intermediate until a later day; its key is not needed for that."""
    [certificate, *_] = parse_bundle(older)
    return certify_again(certificate, root.certificate, root.key, years=years, now=now, random=random, crl_url=crl_url)


def save(files: Files, folder: Path, made: Next, transcript: str) -> None:
    """Write the certificate, the key and the transcript, none over another file."""
    write_new(
        files,
        folder,
        {
            INTERMEDIATE_KEY: made.key_pem,
            INTERMEDIATE: chain.certificates_pem([made.certificate]),
            TRANSCRIPT: transcript.encode(),
        },
    )


def revocation_list(
    root: Root,
    revoked: Sequence[x509.RevokedCertificate],
    *,
    number: int,
    now: datetime,
    life: timedelta,
) -> bytes:
    """The root's own CRL, in DER, for clients that check intermediates. `number` must grow from CRL to CRL."""
    if not CRL_LIFE[0] <= life <= CRL_LIFE[1]:
        least, most = (each.days for each in CRL_LIFE)
        raise SignerRefused("crl-days", f"A root's list is good for {least} to {most} days.")
    return crl.sign(
        SigningCertificate(id="root", certificate=root.certificate),
        KeySigner(root.key),
        number=number,
        this_update=now,
        next_update=now + life,
        revoked=(),
        kept=revoked,
    )


def entry(serial: int, at: datetime, reason: RevocationReason) -> x509.RevokedCertificate:
    """An intermediate that is revoked; of a CA it is said that the CA is compromised, not a key (RFC 5280 §5.3.1)."""
    builder = x509.RevokedCertificateBuilder(serial).revocation_date(at.astimezone(UTC).replace(microsecond=0))
    flag = x509.ReasonFlags.ca_compromise if reason is RevocationReason.KEY_COMPROMISE else crl.FLAGS.get(reason)
    return (builder if flag is None else builder.add_extension(x509.CRLReason(flag), critical=False)).build()


@dataclass(frozen=True, slots=True)
class Listed:
    """The entries of a root's earlier CRL, which the next CRL repeats."""

    number: int
    entries: tuple[x509.RevokedCertificate, ...]

    def __contains__(self, serial: int) -> bool:
        return any(each.serial_number == serial for each in self.entries)


def read_list(content: bytes, root: x509.Certificate) -> Listed:
    """A CRL of this root, in DER or PEM."""
    try:
        parse = x509.load_pem_x509_crl if content.startswith(b"-----") else x509.load_der_x509_crl
        found = parse(content)
        number = found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        ours = found.issuer == root.subject and found.is_signature_valid(root.public_key())  # type: ignore[arg-type]
    except (ValueError, TypeError, x509.ExtensionNotFound):
        raise SignerRefused("crl-unreadable", "The earlier list cannot be read.") from None
    if not ours:
        raise SignerRefused("crl-other-root", "The earlier list is another CA's.", "Give the last one of this root.")
    return Listed(number, tuple(found))
