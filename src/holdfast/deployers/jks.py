"""JKS keystores of this machine, for Java programs that cannot read PKCS#12."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from holdfast.core.kind import Kind, Trait
from holdfast.core.target import DeployLimits
from holdfast.deployers.keystore import PASSWORD, Entry, KeystoreDeployer, KeystoreSettings, root_alias
from holdfast.deployers.kind import DeployerKind, DeployerParts
from holdfast.pki import jks, keys
from holdfast.ports import Clock, Random
from holdfast.secret import Secret


class JksSettings(KeystoreSettings):
    """Nothing besides: the format has one encryption."""


@dataclass(frozen=True, slots=True)
class JksFormat:
    clock: Clock
    random: Random
    hint: str = ""

    def made(self, entry: Entry, password: Secret[str]) -> Secret[bytes]:
        return Secret(jks.encoded([_told(entry)], password, at=self.clock.now(), salts=self._salts()))

    def holds(self, content: bytes, password: Secret[str], entry: Entry) -> bool:
        try:
            return jks.decoded(content, password) == [_told(entry)]
        except ValueError:
            return False

    def foreign(self, content: bytes, password: Secret[str]) -> str:
        if not content.startswith(jks.MAGIC):
            return "is there, and is no JKS keystore: use the kind pkcs12, or name another path"
        try:
            others = len(jks.decoded(content, password)) - 1
        except ValueError:
            return "is there, and the credential password does not open it"
        return f"has {others} more entries, which would be lost: name another path" if others > 0 else ""

    def trusting(self, roots: Sequence[x509.Certificate], password: Secret[str]) -> bytes:
        told = [(root_alias(at), each.public_bytes(Encoding.DER)) for at, each in enumerate(roots)]
        entries = [jks.JksEntry(alias=alias, chain=(each,)) for alias, each in told]
        return jks.encoded(entries, password, at=self.clock.now(), salts=self._salts())

    def trusted(self, content: bytes, password: Secret[str]) -> Mapping[str, x509.Certificate] | None:
        try:
            found = jks.decoded(content, password)
            return {each.alias: x509.load_der_x509_certificate(each.chain[0]) for each in found}
        except (ValueError, IndexError):
            return None

    def _salts(self) -> Iterator[bytes]:
        while True:
            yield self.random.token(20)


def _told(entry: Entry) -> jks.JksEntry:
    chain = [each.public_bytes(Encoding.DER) for each in x509.load_pem_x509_certificates(entry.chain)]
    key = keys.from_pem(entry.key).private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    return jks.JksEntry(alias=entry.alias.lower(), chain=tuple(chain), key=Secret(key))


def _make(settings: JksSettings, parts: DeployerParts) -> KeystoreDeployer:
    return KeystoreDeployer(settings, parts, JksFormat(parts.clock, parts.random))


JKS: Final[DeployerKind[JksSettings]] = Kind(
    name="jks",
    summary="A JKS keystore of this machine, for Java programs that cannot read PKCS#12.",
    settings=JksSettings,
    credentials=(PASSWORD,),
    limits=DeployLimits(certificates=1),
    traits=frozenset({Trait.ATOMIC, Trait.KEEPS_PREVIOUS, Trait.RUNS_HERE}),
    make=_make,
)
