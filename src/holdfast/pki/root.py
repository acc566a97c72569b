"""A root that is brought out of its safe: it signs the next intermediate, or a list of those that are revoked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.x509.oid import NameOID

from holdfast.pki import bundle, crl, keys
from holdfast.pki.aside import aside
from holdfast.pki.ceremony import (
    INTERMEDIATE,
    INTERMEDIATE_KEY,
    MIN_PASSPHRASE,
    TRANSCRIPT,
    Plan,
    certify_again,
    make_intermediate,
    put_away,
    write_new,
)
from holdfast.pki.chain import parse_bundle
from holdfast.pki.crl import Revoked
from holdfast.pki.issuer import Issuer, is_self_signed
from holdfast.pki.keys import PrivateKey
from holdfast.pki.refused import ChainRefused, PkiRefused, SignerRefused
from holdfast.pki.signer import KeySigner
from holdfast.ports import Files, Random
from holdfast.secret import Secret

CRL_DAYS: Final = (1, 400)


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """A root with its key open: for as long as it takes to sign."""

    certificate: x509.Certificate
    key: PrivateKey = field(repr=False)

    @property
    def organization(self) -> str:
        """By which name the CA goes on."""
        found = self.certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
        return str(found[0].value) if found else ""


async def open_root(certificate: bytes, key: bytes, passphrase: Secret[str]) -> Root:
    """Refuses what is no root, and a key that is another's."""
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
    root: Root, plan: Plan, passphrase: Secret[str], *, now: datetime, random: Random
) -> Next:  # fmt: skip
    """A weak passphrase is refused before anything is made."""
    if len(passphrase.reveal()) < MIN_PASSPHRASE:
        raise PkiRefused("pki-passphrase", f"A passphrase has at least {MIN_PASSPHRASE} characters.")
    certificate, key = await make_intermediate(plan, root.certificate, root.key, now=now, random=random)
    return Next(certificate=certificate, key_pem=await aside(put_away, key, passphrase, random))


def certified_again(root: Root, older: bytes, *, years: int, now: datetime, random: Random) -> x509.Certificate:
    """The same intermediate until a later day; its key is not needed for that."""
    [certificate, *_] = parse_bundle(older)
    return certify_again(certificate, root.certificate, root.key, years=years, now=now, random=random)


def save(files: Files, folder: Path, made: Next, transcript: str) -> None:
    """Write the certificate, the key and what was done, none over another."""
    write_new(
        files,
        folder,
        {
            INTERMEDIATE_KEY: made.key_pem,
            INTERMEDIATE: bundle.certificates_pem([made.certificate]),
            TRANSCRIPT: transcript.encode(),
        },
    )


def revocation_list(root: Root, revoked: Sequence[Revoked], *, number: int, now: datetime, days: int) -> bytes:
    """The root's own list, in DER: for whoever checks intermediates. `number` must grow from list to list."""
    if not CRL_DAYS[0] <= days <= CRL_DAYS[1]:
        raise SignerRefused("crl-days", f"A root's list is good for {CRL_DAYS[0]} to {CRL_DAYS[1]} days.")
    return crl.sign(
        Issuer(id="root", certificate=root.certificate),
        KeySigner(root.key),
        number=number,
        this_update=now,
        next_update=now + timedelta(days=days),
        revoked=revoked,
    )
