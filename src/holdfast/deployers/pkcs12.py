"""PKCS#12 keystores of this machine, for Java and for Windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import KeySerializationEncryption, PrivateFormat, pkcs12
from pydantic import Field

from holdfast.core.kind import Kind, Trait
from holdfast.core.target import DeployLimits
from holdfast.deployers.keystore import PASSWORD, Entry, KeystoreDeployer, KeystoreSettings, root_alias
from holdfast.deployers.kind import DeployerKind, DeployerParts
from holdfast.pki import jks, keys
from holdfast.secret import Secret

_TRIPLE_DES: Final = bytes.fromhex("2a864886f70d010c0103")  # pbeWithSHAAnd3-KeyTripleDES-CBC, as a keystore names it
_ROUNDS: Final = 20_000  # of the key derivation: what keytool and OpenSSL take without delay
_OLD: Final = (
    "If the server is old (Java before 8u301, Windows Server before 2019), it rejects AES-256 as a wrong password: "
    "set encryption=legacy."
)


class Pkcs12Settings(KeystoreSettings):
    encryption: Literal["modern", "legacy"] = Field(
        default="modern", description="modern: AES-256 and SHA-256; legacy: 3DES and SHA-1, for old servers only."
    )


@dataclass(frozen=True, slots=True)
class Pkcs12Format:
    encryption: Literal["modern", "legacy"]

    @property
    def hint(self) -> str:
        return _OLD if self.encryption == "modern" else ""

    def made(self, entry: Entry, password: Secret[str]) -> Secret[bytes]:
        leaf, *above = x509.load_pem_x509_certificates(entry.chain)
        key = keys.from_pem(entry.key)
        lock = self._lock(password)
        return Secret(pkcs12.serialize_key_and_certificates(entry.alias.encode(), key, leaf, above, lock))

    def _lock(self, password: Secret[str]) -> KeySerializationEncryption:
        builder = PrivateFormat.PKCS12.encryption_builder().kdf_rounds(_ROUNDS)
        if self.encryption == "legacy":
            builder = builder.key_cert_algorithm(pkcs12.PBES.PBESv1SHA1And3KeyTripleDESCBC).hmac_hash(hashes.SHA1())  # noqa: S303
        else:
            builder = builder.key_cert_algorithm(pkcs12.PBES.PBESv2SHA256AndAES256CBC).hmac_hash(hashes.SHA256())
        return builder.build(password.reveal().encode())

    def holds(self, content: bytes, password: Secret[str], entry: Entry) -> bool:
        found = _opened(content, password)
        if (_TRIPLE_DES in content) != (self.encryption == "legacy") or found is None:
            return False
        if found.key is None or found.cert is None or found.cert.friendly_name != entry.alias.encode():
            return False
        chain = [found.cert.certificate, *(each.certificate for each in found.additional_certs)]
        return chain == x509.load_pem_x509_certificates(entry.chain) and keys.to_pem(found.key) == entry.key  # type: ignore[arg-type]

    def foreign(self, content: bytes, password: Secret[str]) -> str:
        if content.startswith(jks.MAGIC):
            hint = (
                "use the kind jks, convert it by `keytool -importkeystore -deststoretype PKCS12`, or name another path"
            )
            return f"is a JKS keystore: {hint}"
        unopened = "is there, and the credential password does not open it"
        return unopened if _opened(content, password) is None else ""

    def trusting(self, roots: Sequence[x509.Certificate], password: Secret[str]) -> bytes:
        """With the attribute by which Java tells a trusted certificate from one of a chain."""
        named = [pkcs12.PKCS12Certificate(each, root_alias(at).encode()) for at, each in enumerate(roots)]
        return pkcs12.serialize_java_truststore(named, self._lock(password))

    def trusted(self, content: bytes, password: Secret[str]) -> Mapping[str, x509.Certificate] | None:
        found = _opened(content, password)
        if found is None or found.key is not None:
            return None
        held = {
            (each.friendly_name or b"").decode("utf-8", "replace"): each.certificate for each in found.additional_certs
        }
        return dict(sorted(held.items()))


def _opened(content: bytes, password: Secret[str]) -> pkcs12.PKCS12KeyAndCertificates | None:
    try:
        return pkcs12.load_pkcs12(content, password.reveal().encode())
    except ValueError:
        return None


def _make(settings: Pkcs12Settings, parts: DeployerParts) -> KeystoreDeployer:
    return KeystoreDeployer(settings, parts, Pkcs12Format(settings.encryption))


PKCS12: Final[DeployerKind[Pkcs12Settings]] = Kind(
    name="pkcs12",
    summary="A PKCS#12 keystore of this machine, as Java and Windows read it.",
    settings=Pkcs12Settings,
    credentials=(PASSWORD,),
    limits=DeployLimits(certificates=1),
    traits=frozenset({Trait.ATOMIC, Trait.KEEPS_PREVIOUS, Trait.RUNS_HERE}),
    make=_make,
)
