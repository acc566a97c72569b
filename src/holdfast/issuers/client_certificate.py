"""Our client certificate at a CA: a key pair in files of the operator's, read at each use, so that a new one counts.

Or, kept in the store: the setting client_certificate (PEM), and the credential client_key (PEM), sealed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final, Self

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import pkcs12
from pydantic import AfterValidator, Field, model_validator

from holdfast.core.kind import Credential
from holdfast.core.reasons import Reason
from holdfast.errors import Refused
from holdfast.issuers.kind import Parts, RestSettings
from holdfast.kind_settings import Text
from holdfast.pki import chain, keys
from holdfast.pki.keys import PrivateKey
from holdfast.pki.refused import ChainRefused, KeyRefused
from holdfast.ports import Clock, Files, Identity
from holdfast.secret import Secret

CERTIFICATE_FILE: Final = "client_certificate_file"
KEY_FILE: Final = "client_key_file"
PASSWORD: Final = "client_key_password"  # noqa: S105  (a name)
CERTIFICATE: Final = "client_certificate"
KEY: Final = "client_key"
CREDENTIALS: Final = (
    Credential(name=PASSWORD, summary="Opens an encrypted key, or a PKCS#12 file.", required=False),
    Credential(name=KEY, summary="The key of the setting client_certificate, in PEM.", required=False),
)
HALF_REPLACED_FOR: Final = (
    60.0  # seconds: between the new certificate and the new key, while a renewal replaces both files
)
_MOST: Final = 32
_PEM_KEY: Final = b"PRIVATE KEY-----"


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateSource:
    """The files or settings that hold our client certificate for one issuer."""

    certificate_file: Path | None = None
    key_file: Path | None = None
    certificate: bytes = b""
    key: Secret[bytes] | None = None
    password: Secret[str] | None = None

    @property
    def setting(self) -> str:
        """The setting to check if the CA does not accept the certificate."""
        return CERTIFICATE if self.certificate_file is None else CERTIFICATE_FILE


def _absolute(path: str) -> str:
    if not Path(path).is_absolute():
        raise ValueError("must be the absolute path of a file")
    return path


def _public(text: str) -> str:
    if "PRIVATE KEY" in text:  # settings are shown, and stay in the audit
        raise ValueError(f"has a private key in it: give that as the credential {KEY}, and replace it")
    return text


FilePath = Annotated[Text, AfterValidator(_absolute)]


class ClientCertificateSettings(RestSettings):
    """Settings of an issuer that authenticates us by a client certificate. No file is read before it is used."""

    client_certificate_file: FilePath = Field(
        default="",
        description="PEM (certificate, those above it, and the key if it has no file of its own) or PKCS#12.",
    )
    client_key_file: FilePath = Field(default="", description="PEM, if the key is in another file.")
    client_certificate: Annotated[str, AfterValidator(_public)] = Field(
        default="", max_length=200_000, description="PEM, with the credential client_key, in place of files."
    )

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if not self.client_certificate_file and not self.client_certificate:
            raise ValueError(f"{CERTIFICATE_FILE} is missing: this CA wants a client certificate")
        return self


def source_of(settings: ClientCertificateSettings, credentials: Mapping[str, Secret[str]]) -> CertificateSource:
    file, key_file, key = settings.client_certificate_file, settings.client_key_file, credentials.get(KEY)
    return CertificateSource(
        certificate_file=Path(file) if file else None,
        key_file=Path(key_file) if key_file else None,
        certificate=settings.client_certificate.encode(),
        key=Secret(key.reveal().encode()) if key else None,
        password=credentials.get(PASSWORD) or None,
    )


def shown_by(settings: ClientCertificateSettings, parts: Parts) -> Callable[[], Identity]:
    """The client certificate for this CA: read at each request, so that new files are used without a restart."""
    source = source_of(settings, parts.credentials)
    wallet: Wallet = parts.memory.setdefault("wallet", Wallet())
    return lambda: wallet.pair(source, parts.files, parts.clock).identity


@dataclass(frozen=True, slots=True)
class Pair:
    """A key pair that fits together."""

    identity: Identity
    not_before: datetime
    not_after: datetime


class Wallet:
    """The pairs of this process, by what their files said; each is taken apart once."""

    def __init__(self) -> None:
        self._read: OrderedDict[bytes, Pair] = OrderedDict()
        self._last: dict[tuple[Path | None, Path | None], tuple[Pair, float]] = {}

    def pair(self, source: CertificateSource, files: Files, clock: Clock) -> Pair:
        """The pair as it is now; Refused says which setting is to be looked at."""
        place = (source.certificate_file, source.key_file)
        try:
            found = self._current(source, files)
        except Refused:
            last, at = self._last.get(place, (None, 0.0))
            if last is None or source.certificate_file is None or clock.monotonic() - at > HALF_REPLACED_FOR:
                raise
            found = last  # a renewal is replacing the files: one is new, the other is not yet
        else:
            self._last[place] = (found, clock.monotonic())
        _in_time(found, source.setting, clock.now())
        return found

    def _current(self, source: CertificateSource, files: Files) -> Pair:
        certificate, key = _contents(source, files)
        password = b"" if source.password is None else source.password.reveal().encode()
        name = sha256(b"".join(sha256(part).digest() for part in (certificate, key.reveal(), password))).digest()
        if name not in self._read:
            self._read[name] = _parsed(certificate, key, source)
        self._read.move_to_end(name)
        while len(self._read) > _MOST:
            self._read.popitem(last=False)
        return self._read[name]


# ── Reading ──


def _contents(source: CertificateSource, files: Files) -> tuple[bytes, Secret[bytes]]:
    if source.certificate_file is None:
        return source.certificate, source.key or Secret(b"")
    certificate = _content(files, source.certificate_file, CERTIFICATE_FILE)
    key = b"" if source.key_file is None else _content(files, source.key_file, KEY_FILE)
    return certificate, Secret(key)


def _content(files: Files, path: Path, setting: str) -> bytes:
    try:
        found = files.read(path)
    except OSError as error:
        raise refused(f"The file {path} of the setting {setting} cannot be read: {error.strerror}.") from None
    if found is None:
        raise refused(f"There is no file {path}, as the setting {setting} says.")
    return found


def _parsed(certificate: bytes, key: Secret[bytes], source: CertificateSource) -> Pair:
    if b"-----BEGIN" not in certificate and not key:
        found, certificates = _of_pkcs12(certificate, source)
    else:
        found, certificates = _of_pem(certificate, key, source)
    if certificates[0].public_key() != found.public_key():
        where = "" if source.key_file is None else f" in {KEY_FILE}"
        raise refused(f"The key{where} does not belong to the certificate in {source.setting}.")
    return Pair(
        identity=Identity(chain=chain.certificates_pem(certificates), key=keys.to_pem(found)),
        not_before=certificates[0].not_valid_before_utc,
        not_after=certificates[0].not_valid_after_utc,
    )


def _of_pem(
    certificate: bytes, key: Secret[bytes], source: CertificateSource
) -> tuple[PrivateKey, tuple[x509.Certificate, ...]]:  # fmt: skip
    text, own = _apart(certificate)
    content = key if key else own
    named = KEY_FILE if source.key_file is not None else KEY if source.key is not None else source.setting
    if not content:
        raise refused(f"There is no private key in {source.setting}; put it there, or name its file in {KEY_FILE}.")
    try:
        return keys.from_pem(content, source.password), chain.parse_bundle(text)
    except KeyRefused as why:
        hint = (
            f" Check the credential {PASSWORD}." if why.code in ("key-needs-passphrase", "key-passphrase-wrong") else ""
        )
        raise refused(f"The key in {named} cannot be used. {why}{hint}") from None
    except ChainRefused as why:
        raise refused(f"The certificate in {source.setting} cannot be used. {why}") from None


def _apart(content: bytes) -> tuple[bytes, Secret[bytes]]:
    """The certificates of a PEM file, and its key if there is one among them."""
    certificates, key, block, kind = bytearray(), bytearray(), bytearray(), b""
    for line in content.splitlines():
        if line.startswith(b"-----BEGIN "):
            block, kind = bytearray(), line
        block += line + b"\n"
        if line.startswith(b"-----END "):
            if _PEM_KEY in kind:
                key += block
            elif b"CERTIFICATE" in kind:
                certificates += block
    return bytes(certificates), Secret(bytes(key))


def _of_pkcs12(content: bytes, source: CertificateSource) -> tuple[PrivateKey, tuple[x509.Certificate, ...]]:
    password = None if source.password is None else source.password.reveal().encode()
    try:
        key, leaf, others = pkcs12.load_key_and_certificates(content, password)
    except ValueError:
        raise refused(
            f"The file in {source.setting} is neither PEM nor a PKCS#12 file that {PASSWORD} opens."
        ) from None
    except UnsupportedAlgorithm:
        raise refused(
            f"The PKCS#12 file in {source.setting} has a cipher that is too old to be opened; export it with AES-256."
        ) from None
    if not isinstance(key, PrivateKey) or leaf is None:
        raise refused(f"The PKCS#12 file in {source.setting} lacks a certificate, or an EC, RSA or Ed25519 key.")
    return key, (leaf, *(others or ()))


def _in_time(pair: Pair, setting: str, now: datetime) -> None:
    if now > pair.not_after:
        raise refused(f"The client certificate in {setting} expired at {pair.not_after:%F %T}Z; put a new one there.")
    if now < pair.not_before:
        raise refused(f"The client certificate in {setting} is not valid before {pair.not_before:%F %T}Z.")


def until(show: Callable[[], Identity] | None) -> str:
    """When the client certificate expires, in words, for the test of an issuer."""
    if show is None:
        return "no client certificate is shown"
    leaf = x509.load_pem_x509_certificate(show().chain)
    return f"our client certificate ends at {leaf.not_valid_after_utc:%F %T}Z"


def refused(why: str) -> Refused:
    return Refused(why, reason=Reason.ACCOUNT_REFUSED)
