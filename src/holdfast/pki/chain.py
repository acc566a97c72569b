"""Certificates that belong together: reading, ordering and checking them, and writing them as PEM or PKCS#12."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, KeySerializationEncryption, PrivateFormat, pkcs12
from cryptography.x509 import verification
from cryptography.x509.oid import AuthorityInformationAccessOID

from holdfast.pki import keys
from holdfast.pki.keys import PrivateKey, PublicKey
from holdfast.pki.refused import ChainRefused
from holdfast.pki.signing import is_self_signed
from holdfast.secret import Secret

MAX_BUNDLE: Final = 100 * 1024
MAX_CERTIFICATES: Final = 10
_LABEL: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]*)-----")
_WEAK: Final = (hashes.MD5, hashes.SHA1)
_UNREADABLE: Final = (ValueError, TypeError, UnsupportedAlgorithm, x509.DuplicateExtension, x509.InvalidVersion)


# ── Reading ──


def parse_bundle(pem: bytes) -> tuple[x509.Certificate, ...]:
    """The certificates of a PEM file, in its order. Counted before they are parsed; a private key is refused."""
    if len(pem) > MAX_BUNDLE:
        raise ChainRefused("chain-too-large", f"A chain has at most {MAX_BUNDLE} bytes; this one has {len(pem)}.")
    labels = _LABEL.findall(pem)
    if any(b"PRIVATE KEY" in label for label in labels):
        raise ChainRefused("chain-has-key", "There is a private key among the certificates.", "Replace that key.")
    if any(label != b"CERTIFICATE" for label in labels):
        raise ChainRefused("chain-malformed", "There is something else than certificates in this file.")
    if not labels:
        raise ChainRefused("chain-empty", "There is no certificate in this file (PEM format).")
    if len(labels) > MAX_CERTIFICATES:
        raise ChainRefused("chain-too-long", f"A chain has at most {MAX_CERTIFICATES} certificates.")
    try:
        return tuple(x509.load_pem_x509_certificates(pem))
    except _UNREADABLE:
        raise ChainRefused("chain-malformed", "A certificate of this chain cannot be read.") from None


def issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    """Whether its issuer's name is the other's subject, and its signature verifies with the other's key."""
    try:
        certificate.verify_directly_issued_by(issuer)
    except (*_UNREADABLE, InvalidSignature):
        return False
    return True


def ordered(certificates: Sequence[x509.Certificate]) -> tuple[x509.Certificate, ...]:
    """Leaf first, each signed by the next, all of them used; ChainRefused if there is no such order."""
    if not certificates:
        raise ChainRefused("chain-empty", "There is no certificate in this chain.")
    pool = list(certificates)
    leaves = [each for each in pool if not any(issued_by(other, each) for other in pool if other is not each)]
    if len(leaves) != 1:
        raise ChainRefused("chain-broken", "These certificates are not one chain.")
    path = [leaves[0]]
    pool.remove(path[0])
    while pool:
        above = next((each for each in pool if issued_by(path[-1], each)), None)
        if above is None:
            raise ChainRefused("chain-broken", "These certificates are not one chain.")
        path.append(above)
        pool.remove(above)
    return tuple(path)


def without_root(chain: Sequence[x509.Certificate]) -> tuple[x509.Certificate, ...]:
    """The chain that a server should send: clients have the root already, or do not trust it."""
    return tuple(each for at, each in enumerate(chain) if at == 0 or not is_self_signed(each))


# ── Judging what a CA sent us ──


def gap(certificates: Sequence[x509.Certificate]) -> str:
    """Where a served chain breaks, as a clause; empty if it leads on from the leaf, in whatever order.

    A leaf alone may be issued by a root that clients have. Those of public CAs never are, and say where their issuer's
    certificate is; without that, nothing is claimed.
    """
    path, pool = [certificates[0]], list(certificates[1:])
    while above := next((each for each in pool if issued_by(path[-1], each)), None):
        path.append(above)
        pool.remove(above)
    if len(path) > 1 or is_self_signed(path[0]):
        return ""
    if not pool and not _names_its_issuer(path[0]):
        return ""
    return f"the certificate of its issuer, {path[0].issuer.rfc4514_string() or '(empty)'}, is missing"


def _names_its_issuer(leaf: x509.Certificate) -> bool:
    try:
        access = leaf.extensions.get_extension_for_class(x509.AuthorityInformationAccess).value
    except x509.ExtensionNotFound:
        return False
    return any(each.access_method == AuthorityInformationAccessOID.CA_ISSUERS for each in access)


def problem_with(
    chain: Sequence[x509.Certificate],
    *,
    key: PublicKey,
    names: Collection[str],
    ips: Collection[str] = (),
    now: datetime,
    roots: Sequence[x509.Certificate] = (),
) -> str | None:
    """Why a received chain must not be used, in a sentence; None if it fits the order.

    Names that CAs are known to add by themselves (`added_names`) are no problem; any other one is.
    Without roots, only what the chain itself shows is checked: each certificate is signed by the next.
    """
    if not chain:
        return "There is no certificate."
    try:
        return (
            _leaf_problem(chain[0], key, names, ips)
            or _validity_problem(chain, now)
            or _strength_problem(chain)
            or _order_problem(chain)
            or (verification_problem(chain[0], chain[1:], roots, now) if roots else None)
        )
    except _UNREADABLE:
        return "A certificate of the chain cannot be read."


def _leaf_problem(
    leaf: x509.Certificate, key: PublicKey, names: Collection[str], ips: Collection[str]
) -> str | None:  # fmt: skip
    if leaf.public_key() != key:
        return "The certificate is for another key than ours."
    got_names, got_ips = subject_names(leaf)
    missing = sorted(({*names} - {*got_names}) | ({*ips} - {*got_ips}))
    extra = sorted(({*got_names} - {*names} - _companions(names)) | ({*got_ips} - {*ips}))
    if missing or extra:
        parts = [f"{word} {', '.join(found[:5])}" for word, found in (("lacks", missing), ("adds", extra)) if found]
        return f"The names of the certificate differ from those asked for: it {' and '.join(parts)}."
    return None


def added_names(certificate: x509.Certificate, names: Collection[str]) -> list[str]:
    """Names that a CA added on its own, such as www: the holder of the requested name may have each of them."""
    return sorted(({*subject_names(certificate)[0]} - {*names}) & _companions(names))


def _companions(names: Collection[str]) -> set[str]:
    """The domain itself with its wildcard, and a name with and without www: DigiCert and others give both for one."""
    above = {each.partition(".")[2] for each in names if each.startswith(("*.", "www."))}
    below = {f"www.{each}" for each in names if not each.startswith(("*.", "www."))}
    return {each for each in above | below if "." in each}


def subject_names(certificate: x509.Certificate) -> tuple[list[str], list[str]]:
    """The DNS names, in lower case, and the addresses of a certificate."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return [], []
    dns = [name.lower() for name in found.get_values_for_type(x509.DNSName)]
    return dns, [str(ip) for ip in found.get_values_for_type(x509.IPAddress)]


def _validity_problem(chain: Sequence[x509.Certificate], now: datetime) -> str | None:
    for at, each in enumerate(chain):
        which = "The certificate" if at == 0 else f"Certificate {at + 1} of the chain"
        if now < each.not_valid_before_utc:
            return f"{which} is not valid before {each.not_valid_before_utc:%F %T}Z."
        if now > each.not_valid_after_utc:
            return f"{which} expired at {each.not_valid_after_utc:%F %T}Z."
    return None


def _strength_problem(chain: Sequence[x509.Certificate]) -> str | None:
    for at, each in enumerate(chain):
        signed_by_itself = at > 0 and each.subject == each.issuer  # a root's own signature protects nothing
        if not signed_by_itself and isinstance(each.signature_hash_algorithm, _WEAK):
            return f"Certificate {at + 1} of the chain is signed with {each.signature_hash_algorithm.name}."
        if problem := keys.key_problem(each.public_key(), ed25519_allowed=True):
            return f"Certificate {at + 1} of the chain has a weak key. {problem}"
    return None


def _order_problem(chain: Sequence[x509.Certificate]) -> str | None:
    for at, (lower, upper) in enumerate(pairwise(chain), start=1):
        if issued_by(lower, upper):
            continue
        if upper in chain[:at]:
            return f"Certificate {at + 1} of the chain is there twice."
        if not is_self_signed(lower) and any(issued_by(lower, other) for other in chain):
            return f"The chain is out of order: certificate {at} is not signed by the next one."
        if at == 1 and not is_self_signed(lower):
            return "The chain does not build: the certificate is not signed by the next one."
        return f"Certificate {at + 1} does not belong to the chain: it did not sign certificate {at}."
    return None


def verification_problem(
    leaf: x509.Certificate, above: Sequence[x509.Certificate], roots: Sequence[x509.Certificate], now: datetime
) -> str | None:
    """What RFC 5280 path validation, as TLS clients do it, says about a server certificate at a given time.

    Like browsers, it knows no Ed25519: a chain with such a key is never trusted by it.
    """
    names, ips = subject_names(leaf)
    subject = x509.DNSName(names[0].replace("*", "any")) if names else None
    if subject is None and not ips:
        return "The certificate has no name."
    try:
        policy = verification.PolicyBuilder().store(verification.Store(list(roots))).time(now)
        verifier = policy.build_server_verifier(subject or x509.IPAddress(ipaddress.ip_address(ips[0])))
        verifier.verify(leaf, list(above))
    except verification.VerificationError as error:
        return f"The chain does not lead to a root that we trust: {error}"
    return None


# ── Files for servers ──
# Certificates and keys as servers want them: PEM files, and PKCS#12 (RFC 7292) for those that know nothing else.


ROUNDS: Final = 100_000  # of PBKDF2, for each of two boxes and the MAC; old Java takes at most 5 million


def certificates_pem(chain: Sequence[x509.Certificate]) -> bytes:
    """Leaf first, as nginx's ssl_certificate and RFC 8555 §9.1 want them."""
    return b"".join(each.public_bytes(Encoding.PEM) for each in chain)


def to_pkcs12(
    key: PrivateKey,
    chain: Sequence[x509.Certificate],
    passphrase: Secret[str],
    *,
    name: str,
    compatible: bool = False,
) -> Secret[bytes]:
    """A .p12 file with AES-256 and SHA-256; `compatible`: 3DES and SHA-1, for Windows before 2019, Java before 8u301.

    It takes tenths of a second on purpose: call it through aside().
    """
    if not passphrase:
        raise ValueError("a PKCS#12 file needs a passphrase")
    if not chain or chain[0].public_key() != key.public_key():
        raise ChainRefused("chain-other-key", "The first certificate of the chain is not for this key.")
    content = pkcs12.serialize_key_and_certificates(
        name.encode(), key, chain[0], list(chain[1:]) or None, _encryption(passphrase, compatible=compatible)
    )
    return Secret(content)


def _encryption(passphrase: Secret[str], *, compatible: bool) -> KeySerializationEncryption:
    builder = PrivateFormat.PKCS12.encryption_builder()
    if compatible:
        builder = builder.kdf_rounds(2048).key_cert_algorithm(pkcs12.PBES.PBESv1SHA1And3KeyTripleDESCBC)
        builder = builder.hmac_hash(hashes.SHA1())  # noqa: S303  (the point of `compatible`)
    else:
        builder = builder.kdf_rounds(ROUNDS).key_cert_algorithm(pkcs12.PBES.PBESv2SHA256AndAES256CBC)
        builder = builder.hmac_hash(hashes.SHA256())
    return builder.build(passphrase.reveal().encode())
