"""A key and a chain that were found side by side: whether they can be kept from now on, and as what."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa

from holdfast.importing.found import FoundCertificate, Trouble
from holdfast.pki import bundle, chain, keys, names
from holdfast.pki.keys import KeyKind, PrivateKey, PublicKey
from holdfast.pki.refused import KeyRefused, PkiRefused
from holdfast.secret import Secret

_KEY_BLOCK: Final = re.compile(
    rb"-----BEGIN ((?:[A-Z0-9]+ )?PRIVATE KEY)-----.*?-----END \1-----[^\S\n]*\n?", re.DOTALL
)
_CERTIFICATE_BLOCK: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\s?", re.DOTALL)
ANEW: Final = "Ask for it anew instead: holdfast issue"


# ── Parts of files ──


def key_blocks(content: bytes) -> list[bytes]:
    """The private keys of a PEM file, without what may stand around them, such as EC PARAMETERS."""
    return [match.group(0) for match in _KEY_BLOCK.finditer(content)]


def certificate_blocks(content: bytes) -> bytes:
    return b"".join(match.group(0).rstrip() + b"\n" for match in _CERTIFICATE_BLOCK.finditer(content))


def private_key(content: bytes, file: str) -> PrivateKey:
    """The one key of a file. An encrypted one is refused: whoever imports it has to open it first."""
    blocks = key_blocks(content)
    if len(blocks) != 1:
        what = "There is no private key in this file." if not blocks else "There is more than one private key in it."
        raise Trouble(file, what, "Put the key that belongs to the certificate there, in PEM format.")
    try:
        return keys.from_pem(blocks[0])
    except KeyRefused as refused:
        if refused.code == "key-needs-passphrase":
            step = f"Decrypt a copy first: openssl pkey -in {file} -out decrypted.key, and import that."
            raise Trouble(file, "The key is encrypted.", step) from None
        raise Trouble(file, str(refused), f"{ANEW}.") from None


def certificates(content: bytes, file: str) -> tuple[x509.Certificate, ...]:
    try:
        return chain.parse_bundle(certificate_blocks(content))
    except PkiRefused as refused:
        raise Trouble(file, str(refused), "Restore the file from a backup, or ask for the certificate anew.") from None


# ── Together ──


def found(
    parts: Sequence[x509.Certificate],
    key: PrivateKey,
    *,
    file: str,
    key_file: str,
    name: str | None,
    now: datetime,
    **more: Any,
) -> FoundCertificate:
    """The two as one, if they belong together and are still of use; Trouble says what is wrong."""
    leaf, public = parts[0], key.public_key()
    wanted = _names(leaf, file)
    if leaf.public_key() != public:
        problem = f"The key does not belong to the certificate in {file}."
        raise Trouble(key_file, problem, "Find the key that was made for it, or ask for the certificate anew.")
    if leaf.not_valid_after_utc <= now:
        again = f"{ANEW} {' '.join(wanted[:5])}{' …' if len(wanted) > 5 else ''}"
        raise Trouble(file, f"The certificate expired at {leaf.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}.", again)
    problem_of_chain = _problem(parts, public, wanted)
    if problem_of_chain is not None:
        raise Trouble(file, problem_of_chain, f"{ANEW} {wanted[0]}")
    kind, notes = _kind(public)
    more["notes"] = (*more.get("notes", ()), *notes)
    return FoundCertificate(
        file=file,
        name=name or wanted[0],
        names=wanted,
        chain=bundle.certificates_pem(parts),
        key=Secret(keys.to_pem(key).reveal()),
        key_kind=kind,
        serial=f"{leaf.serial_number:x}",
        not_before=leaf.not_valid_before_utc,
        not_after=leaf.not_valid_after_utc,
        **more,
    )


def _names(leaf: x509.Certificate, file: str) -> tuple[str, ...]:
    try:
        dns, ips = chain.subject_names(leaf)
        wanted = [names.dns_name(each) for each in dns] + [names.ip_address(each) for each in ips]
    except PkiRefused as refused:
        raise Trouble(file, str(refused), "This name cannot be kept; ask for the others anew.") from None
    except (ValueError, x509.DuplicateExtension):
        raise Trouble(file, "The names in this certificate cannot be read.", f"{ANEW}.") from None
    if not wanted:
        raise Trouble(file, "The certificate has no subject alternative names.", f"{ANEW} with the names it is for.")
    return tuple(dict.fromkeys(wanted))


def _problem(parts: Sequence[x509.Certificate], key: PublicKey, wanted: Sequence[str]) -> str | None:
    """As it was on its first day: what ended since, such as a cross-signature, does not matter for keeping it."""
    dns, ips = chain.subject_names(parts[0])
    return chain.problem_with(parts, key=key, names=dns, ips=ips, now=parts[0].not_valid_before_utc)


def _kind(key: PublicKey) -> tuple[str, tuple[str, ...]]:
    """The kind of its next key: the same, or the nearest that we make."""
    kind = keys.kind_of(key)
    if kind is not None:
        return kind.value, ()
    near = KeyKind.RSA_2048
    if isinstance(key, rsa.RSAPublicKey):
        near = KeyKind.RSA_3072 if key.key_size <= 3072 else KeyKind.RSA_4096
    return near.value, (f"its next key will be {near.value}: keys of the present kind are not made here",)
