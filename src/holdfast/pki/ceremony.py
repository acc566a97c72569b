"""Making a private CA: a root that is put away, an intermediate that signs, and a transcript of each step."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import NameOID

from holdfast.core.key_kind import KeyKind
from holdfast.errors import UserError
from holdfast.pki import authority, chain, keys
from holdfast.pki.authority import CaCertificateFields
from holdfast.pki.certify import Unsigned, finish
from holdfast.pki.chain import issued_by
from holdfast.pki.describe import name_in_words
from holdfast.pki.in_thread import aside
from holdfast.pki.keys import PrivateKey, to_encrypted_pem
from holdfast.pki.names import permitting
from holdfast.pki.profile import new_serial
from holdfast.pki.refused import PkiRefused
from holdfast.pki.signing import KeySigner, SigningCertificate
from holdfast.ports import Files, Random
from holdfast.secret import Secret

BACKDATE: Final = timedelta(hours=1)  # for clients whose clocks are late
YEAR: Final = timedelta(days=365.25)
MIN_PASSPHRASE: Final = 12
MAX_NAME: Final = 40  # leaves room for " Intermediate CA 2026" in 64 characters
_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's: no i, l, o, u

ROOT, ROOT_KEY, INTERMEDIATE, INTERMEDIATE_KEY, TRANSCRIPT = FILES = (
    "root.pem", "root-key.pem", "intermediate.pem", "intermediate-key.pem", "transcript.txt",
)  # fmt: skip


class FilesExist(UserError):
    """A ceremony never overwrites: the file that is there may be the only copy of a key."""

    status, code = 409, "pki-files-exist"

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} exists already; nothing was written.")
        self.hint = (
            f"Choose another folder. One without {TRANSCRIPT} is of a ceremony that did not end: it can be removed."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CeremonyPlan:
    """The names, lifetimes and key kinds that are decided before the ceremony."""

    name: str
    key_kind: KeyKind = KeyKind.EC_P256
    permit: tuple[str, ...] = ()  # DNS subtrees and networks; empty: any name
    root_years: int = 20
    intermediate_years: int = 5
    crl_url: str | None = None  # where the root's list of revoked intermediates will be found

    def __post_init__(self) -> None:
        if not 0 < len(self.name) <= MAX_NAME or not self.name.isprintable() or self.name != self.name.strip():
            raise PkiRefused("pki-name", f"The name of a CA has 1 to {MAX_NAME} printable characters.")
        if not 0 < self.intermediate_years < self.root_years <= 25:
            raise PkiRefused("pki-years", "The root lives longer than the intermediate, and at most 25 years.")
        permitting(self.permit)  # refuses a text that is no subtree, before any key is made
        check_crl_url(self.crl_url)


def check_crl_url(url: str | None) -> None:
    """CRLs are fetched over plain HTTP: a client that checks a certificate cannot check another one first for that."""
    if url is not None and not re.fullmatch(r"http://[!-~]{1,500}", url):
        raise PkiRefused("pki-crl-url", f"{url!r:.80} is no address of a list.", "Write http:// and where it will be.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Passphrases:
    """Two, and different ones: the server is given the intermediate's, and must not be able to open the root."""

    root: Secret[str]
    intermediate: Secret[str]

    def __post_init__(self) -> None:
        if any(len(each.reveal()) < MIN_PASSPHRASE for each in (self.root, self.intermediate)):
            raise PkiRefused("pki-passphrase", f"A passphrase has at least {MIN_PASSPHRASE} characters.")
        if self.root == self.intermediate:
            raise PkiRefused("pki-passphrase", "Root and intermediate need different passphrases.")


def new_passphrase(random: Random) -> Secret[str]:
    """130 random bits in groups that can be read aloud."""
    number = int.from_bytes(random.token(17), "big")
    letters = "".join(_ALPHABET[(number >> shift) & 31] for shift in range(0, 130, 5))
    return Secret("-".join([letters[at : at + 5] for at in range(0, 20, 5)] + [letters[20:]]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The two certificates, and their keys under their passphrases."""

    root: x509.Certificate
    intermediate: x509.Certificate
    root_key_pem: bytes
    intermediate_key_pem: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A root and an intermediate with unencrypted keys, for a caller that seals the keys at once."""

    root: x509.Certificate
    root_key: PrivateKey = field(repr=False)
    intermediate: x509.Certificate
    intermediate_key: PrivateKey = field(repr=False)


async def perform(plan: CeremonyPlan, passphrases: Passphrases, *, now: datetime, random: Random) -> Result:
    """Make keys and certificates; nothing is written yet. Certificates that fail the checks are never returned."""
    made = await make(plan, now=now, random=random)
    return Result(
        root=made.root,
        intermediate=made.intermediate,
        root_key_pem=await aside(put_away, made.root_key, passphrases.root, random),
        intermediate_key_pem=await aside(put_away, made.intermediate_key, passphrases.intermediate, random),
    )


async def make(plan: CeremonyPlan, *, now: datetime, random: Random, taken: Collection[str] = ()) -> Made:
    """The same with the keys not encrypted: for a server that seals both with its own.

    `taken` are common names of other CAs: no two are to have one name and different keys.
    """
    root_key = await keys.generate(plan.key_kind)
    begins = _begin(now)
    root_plan = CaCertificateFields(
        organization=plan.name,
        common_name=_common_name(plan, "Root", now, root_key, taken),
        key=root_key.public_key(),
        serial=new_serial(random),
        not_before=begins,
        not_after=begins + plan.root_years * YEAR,
        path_length=1,
    )
    root = _signed(authority.prepare(root_plan), root_key, None, now)
    below, key = await make_intermediate(plan, root, root_key, now=now, random=random, taken=taken)
    return Made(root=root, root_key=root_key, intermediate=below, intermediate_key=key)


async def make_intermediate(
    plan: CeremonyPlan,
    root: x509.Certificate,
    root_key: PrivateKey,
    *,
    now: datetime,
    random: Random,
    taken: Collection[str] | None,
    constraints: x509.NameConstraints | None = None,
) -> tuple[x509.Certificate, PrivateKey]:
    """A new intermediate under a root, which may be years old: it expires with its root, if not before.

    `constraints` hold if the plan has none of its own. `taken`: None, if the names given before are not known.
    """
    key = await keys.generate(plan.key_kind)
    begins, ends = _span(root, plan.intermediate_years, now)
    below = CaCertificateFields(
        organization=plan.name,
        common_name=_common_name(plan, "Intermediate", now, key, taken),
        key=key.public_key(),
        serial=new_serial(random),
        not_before=begins,
        not_after=ends,
        path_length=0,
        constraints=permitting(plan.permit) or constraints,
        crl_url=plan.crl_url,
    )
    return _signed(authority.prepare(below, root), root_key, root, now), key


def _common_name(plan: CeremonyPlan, role: str, now: datetime, key: PrivateKey, taken: Collection[str] | None) -> str:
    """With a part of the key's identifier where the plain one may be another's: one name with two keys misleads."""
    plain = f"{plan.name} {role} CA {now.year}"
    if taken is not None and plain not in taken:
        return plain
    return f"{plan.name} {'' if role == 'Intermediate' else f'{role} '}CA {now.year} {_short_id(key)}"


def _short_id(key: PrivateKey) -> str:
    return keys.key_identifier(key.public_key()).hex()[:8]


def certify_again(
    older: x509.Certificate,
    root: x509.Certificate,
    root_key: PrivateKey,
    *,
    years: int,
    now: datetime,
    random: Random,
    crl_url: str | None = None,
) -> x509.Certificate:
    """The same intermediate until a later day: same name, same key, so that all it ever signed verifies with either.

    Without a `crl_url` it keeps the one it has.
    """
    check_crl_url(crl_url)
    if not issued_by(older, root):
        raise PkiRefused("pki-other-root", "This intermediate was signed by another root.")
    begins, ends = _span(root, years, now)
    if ends <= older.not_valid_after_utc:
        problem = f"It would expire {ends:%F}, and already expires {older.not_valid_after_utc:%F}."
        raise PkiRefused(
            "pki-no-later", problem, f"Its root expires {root.not_valid_after_utc:%F}: no longer than that."
        )
    issuer = SigningCertificate(id="", certificate=older)
    again = CaCertificateFields(
        organization=_part(older, NameOID.ORGANIZATION_NAME),
        common_name=_part(older, NameOID.COMMON_NAME),
        key=issuer.public_key,
        serial=new_serial(random),
        not_before=begins,
        not_after=ends,
        path_length=0,
        constraints=issuer.constraints,
        crl_url=crl_url or crl_url_of(older),
    )
    if again.subject != older.subject:
        raise PkiRefused("pki-subject", "Its name is not one of ours.", "Have it signed anew where it was made.")
    return _signed(authority.prepare(again, root), root_key, root, now)


def organization_of(certificate: x509.Certificate) -> str:
    """The organization in the root's subject, which new intermediates keep."""
    return _part(certificate, NameOID.ORGANIZATION_NAME)


def crl_url_of(certificate: x509.Certificate) -> str | None:
    """The CRL address that a certificate names; None if it names none."""
    try:
        points = certificate.extensions.get_extension_for_class(x509.CRLDistributionPoints).value
    except x509.ExtensionNotFound:
        return None
    names = [name for point in points for name in point.full_name or ()]
    return next((name.value for name in names if isinstance(name, x509.UniformResourceIdentifier)), None)


def _span(root: x509.Certificate, years: int, now: datetime) -> tuple[datetime, datetime]:
    begins = max(_begin(now), root.not_valid_before_utc)
    return begins, min(begins + years * YEAR, root.not_valid_after_utc)


def _part(certificate: x509.Certificate, oid: x509.ObjectIdentifier) -> str:
    found = certificate.subject.get_attributes_for_oid(oid)
    return str(found[0].value) if found else ""


def _begin(now: datetime) -> datetime:
    return now.astimezone(UTC).replace(microsecond=0) - BACKDATE


def _signed(content: Unsigned, key: PrivateKey, issuer: x509.Certificate | None, now: datetime) -> x509.Certificate:
    if not isinstance(content.preview, x509.Certificate):
        raise TypeError("only certificates are made here")
    if found := authority.findings(content.preview, issuer, now=now):
        raise PkiRefused(found[0].code, f"The certificate would be wrong: {found[0].problem}.")
    certificate = x509.load_der_x509_certificate(finish(content, KeySigner(key)))
    if not issued_by(certificate, issuer or certificate):
        raise PkiRefused("pki-check", "The certificate does not verify with its issuer's.")
    return certificate


def put_away(key: PrivateKey, passphrase: Secret[str], random: Random) -> bytes:
    pem = to_encrypted_pem(key, passphrase, random)
    if keys.from_pem(pem, passphrase).public_key() != key.public_key():
        raise PkiRefused("pki-check", "An encrypted key does not open again.")
    return pem


def save(files: Files, folder: Path, result: Result, transcript: str) -> None:
    """Write all five files, 0600, none over another; the transcript last: without it, the ceremony did not end."""
    contents = {
        ROOT_KEY: result.root_key_pem,
        INTERMEDIATE_KEY: result.intermediate_key_pem,
        ROOT: chain.certificates_pem([result.root]),
        INTERMEDIATE: chain.certificates_pem([result.intermediate]),
        TRANSCRIPT: transcript.encode(),
    }
    check_free(files, folder)
    write_new(files, folder, contents)


def write_new(files: Files, folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files in this order, none over another."""
    check_free(files, folder, contents)
    for name, content in contents.items():
        try:
            files.write_private(folder / name, content, replace=False)
        except FileExistsError:
            raise FilesExist(folder / name) from None
        except OSError as error:
            raise PkiRefused("pki-files", f"{folder / name} cannot be written: {error.strerror or error}.") from error


def check_free(files: Files, folder: Path, names: Iterable[str] = FILES) -> None:
    for name in names:
        if files.read(folder / name) is not None:
            raise FilesExist(folder / name)


# ── The transcript ──
# The record of a ceremony: each file with its fingerprint, and what a person must do with it.


_WIDTH: Final = 100
_REPLACE_BEFORE: Final = timedelta(days=365)


def transcript(plan: CeremonyPlan, result: Result, folder: Path, *, now: datetime, version: str) -> str:
    """For people to read, sign and file; it holds no secret."""
    ends = result.intermediate.not_valid_after_utc
    paragraphs = [
        f"Key ceremony for {plan.name!r}\n"
        f"Made at {now:%F %T}Z by Holdfast {version} in {folder}. Both keys: {plan.key_kind}.",
        _authority("The root", result.root, "signs intermediates only; at most 1 CA below it"),
        _authority("The intermediate", result.intermediate, f"signs end certificates only; names: {_names(plan)}"),
        "Checked: both certificates against our rules before they were signed, each signature after that, and that\n"
        "both encrypted keys open again with their passphrases.",
        "What to do now\n"
        + _step(ROOT, "is public. Install it on every machine that is to trust this CA; compare its fingerprint there.")
        + _step(
            ROOT_KEY,
            "is encrypted; the next CRL and the next intermediate need it. Copy it to two media that are kept in two "
            "places, try to read both copies, then remove it from this machine. Keep its passphrase apart from them. "
            "A thief of both can make certificates that everyone above trusts; without either of them, the CA ends "
            "with its intermediate.",
        )
        + _step(INTERMEDIATE, "is public. The CA sends it to clients along with each certificate.")
        + _step(
            INTERMEDIATE_KEY,
            "is encrypted, and is used every day: it goes to the CA server, with its passphrase, and into its backup.",
        )
        + _step(
            "calendar",
            f"Make the next intermediate before {ends - _replace_before(plan):%F}; this one expires {ends:%F}.",
        ),
    ]
    return "\n\n".join(paragraphs)


def succession(
    plan: CeremonyPlan, root: x509.Certificate, made: x509.Certificate, folder: Path, *, now: datetime
) -> str:
    """The record of a new intermediate under a root that was there before."""
    ends = made.not_valid_after_utc
    paragraphs = [
        f"The next intermediate of {plan.name!r}\nMade at {now:%F %T}Z in {folder}. Its key: {plan.key_kind}.",
        _authority("The root, brought out for this", root, "put it away again"),
        _authority("The intermediate", made, f"signs end certificates only; names: {_names(plan)}"),
        "What to do now\n"
        + _step(INTERMEDIATE, "is public. The CA sends it to clients along with each certificate.")
        + _step(INTERMEDIATE_KEY, "is encrypted: 'holdfast ca adopt' takes it over, with its passphrase.")
        + _step("calendar", f"Make the next one before {ends - _replace_before(plan):%F}; this one expires {ends:%F}."),
    ]
    return "\n\n".join(paragraphs)


def _replace_before(plan: CeremonyPlan) -> timedelta:
    """A year ahead, or less for a short life: certificates must not outlive it."""
    return min(_REPLACE_BEFORE, plan.intermediate_years * _REPLACE_BEFORE / 4)


def _authority(title: str, certificate: x509.Certificate, may: str) -> str:
    key = certificate.public_key()
    rows = {
        "subject": name_in_words(certificate.subject),
        "serial": f"{certificate.serial_number:x}",
        "valid": f"{certificate.not_valid_before_utc:%F %T}Z to {certificate.not_valid_after_utc:%F %T}Z",
        "it": may,
        "SHA-256 of the certificate": certificate.fingerprint(hashes.SHA256()).hex(),
        "SHA-256 of its public key": keys.spki_sha256(key).hex() if isinstance(key, keys.PublicKey) else "",
    }
    width = max(map(len, rows))
    return "\n".join([title, *(f"  {word.ljust(width)}  {text}" for word, text in rows.items())])


def _names(plan: CeremonyPlan) -> str:
    return f"only {', '.join(plan.permit)} and below" if plan.permit else "any"


def _step(what: str, text: str) -> str:
    filled = textwrap.wrap(text, _WIDTH - 24)
    return "".join(
        f"  {word.ljust(22)}{line}\n" for word, line in zip([what, *[""] * len(filled)], filled, strict=False)
    )
