"""Making a private CA: a root that is put away, an intermediate that signs, and a transcript of what was done."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.x509.oid import NameOID

from holdfast.errors import UserError
from holdfast.pki import authority, bundle, keys
from holdfast.pki.aside import aside
from holdfast.pki.authority import Authority
from holdfast.pki.chain import issued_by
from holdfast.pki.constraints import permitting
from holdfast.pki.encrypted import to_encrypted_pem
from holdfast.pki.intent import new_serial
from holdfast.pki.issuer import Issuer
from holdfast.pki.keys import KeyKind, PrivateKey
from holdfast.pki.refused import PkiRefused
from holdfast.pki.signer import KeySigner
from holdfast.pki.unsigned import Unsigned, finish
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
class Plan:
    """What is decided before the ceremony."""

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
        permitting(self.permit)  # refuses what is no subtree, before any key is made
        check_crl_url(self.crl_url)


def check_crl_url(url: str | None) -> None:
    """Over plain HTTP: whoever fetches a list to check a certificate cannot check one for that first."""
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
    """A root and an intermediate with their keys in the open: for whoever seals them at once."""

    root: x509.Certificate
    root_key: PrivateKey = field(repr=False)
    intermediate: x509.Certificate
    intermediate_key: PrivateKey = field(repr=False)


async def perform(plan: Plan, passphrases: Passphrases, *, now: datetime, random: Random) -> Result:
    """Make keys and certificates; nothing is written yet. What does not pass the checks is never returned."""
    made = await make(plan, now=now, random=random)
    return Result(
        root=made.root,
        intermediate=made.intermediate,
        root_key_pem=await aside(put_away, made.root_key, passphrases.root, random),
        intermediate_key_pem=await aside(put_away, made.intermediate_key, passphrases.intermediate, random),
    )


async def make(plan: Plan, *, now: datetime, random: Random, taken: Collection[str] = ()) -> Made:
    """The same with the keys not encrypted: for a server that seals both with its own.

    `taken` are common names of other CAs: no two are to have one name and different keys.
    """
    root_key = await keys.generate(plan.key_kind)
    begins = _begin(now)
    root_plan = Authority(
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
    plan: Plan,
    root: x509.Certificate,
    root_key: PrivateKey,
    *,
    now: datetime,
    random: Random,
    taken: Collection[str] | None,
    constraints: x509.NameConstraints | None = None,
) -> tuple[x509.Certificate, PrivateKey]:
    """A new intermediate under a root, which may be years old: it ends with its root, if not before.

    `constraints` hold if the plan has none of its own. `taken`: None, if nobody knows which names were given before.
    """
    key = await keys.generate(plan.key_kind)
    begins, ends = _span(root, plan.intermediate_years, now)
    below = Authority(
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


def _common_name(plan: Plan, role: str, now: datetime, key: PrivateKey, taken: Collection[str] | None) -> str:
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
        problem = f"It would end {ends:%F}, and ends {older.not_valid_after_utc:%F} as it is."
        raise PkiRefused("pki-no-later", problem, f"Its root ends {root.not_valid_after_utc:%F}: no longer than that.")
    issuer = Issuer(id="", certificate=older)
    again = Authority(
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
    """By which name the CA goes on."""
    return _part(certificate, NameOID.ORGANIZATION_NAME)


def crl_url_of(certificate: x509.Certificate) -> str | None:
    """Where a certificate says that the list of its issuer is; None if it does not."""
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
        ROOT: bundle.certificates_pem([result.root]),
        INTERMEDIATE: bundle.certificates_pem([result.intermediate]),
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
