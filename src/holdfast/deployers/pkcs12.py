"""PKCS#12 keystores of this machine, for Java and for Windows: key, certificate and chain in one file, by one rename.

A keystore is encrypted with new salts each time, so it is opened and its content compared, never its bytes. The bundle
that it is made of is kept beside it, for rollbacks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import PrivateFormat, pkcs12
from pydantic import Field

from holdfast.core.kind import Credential, Kind, Trait
from holdfast.core.reasons import Reason
from holdfast.core.target import DeployLimits
from holdfast.deployers.base import Bundle, Written, refused
from holdfast.deployers.files import FilesDeployer, FilesSettings
from holdfast.deployers.kind import DeployerKind, DeployerParts
from holdfast.errors import Refused
from holdfast.kind_settings import KindSettings, Text
from holdfast.pki import keys
from holdfast.pki.in_thread import aside
from holdfast.ports import FileAccess, Place
from holdfast.secret import Secret

_JKS: Final = bytes.fromhex("feedfeed")
_TRIPLE_DES: Final = bytes.fromhex("2a864886f70d010c0103")  # pbeWithSHAAnd3-KeyTripleDES-CBC, as a keystore names it
_ROUNDS: Final = 20_000  # of the key derivation: what keytool and OpenSSL take without delay
_ENCRYPTED: Final = ("password", "mac ", "integrity", "keystore", "algorithm", "pkcs")
_OLD: Final = (
    " If the server is old (Java before 8u301, Windows Server before 2019), it rejects AES-256 as a wrong password: "
    "set encryption=legacy."
)


class Pkcs12Settings(KindSettings):
    folder: Text = Field(description="The folder for bundles; the host must allow it (deployment.local_file).")
    path: Text = Field(description="The keystore, such as /etc/tomcat/keystore.p12; likewise.")
    alias: Text = Field(default="", description="The name of the entry; else that of the certificate.")
    encryption: Literal["modern", "legacy"] = Field(
        default="modern", description="modern: AES-256 and SHA-256; legacy: 3DES and SHA-1, for old servers only."
    )
    test: Text = Field(default="", description="A program of the host that tests the daemon's configuration.")
    reload: Text = Field(default="", description="A program of the host that reloads the daemon.")
    owner: Text = Field(default="", description="The user who owns the files; else as before.")
    group: Text = Field(default="", description="A group that may read the keystore; else as before.")


@dataclass(frozen=True, slots=True)
class Pkcs12Deployer:
    settings: Pkcs12Settings
    parts: DeployerParts

    @property
    def tested_by(self) -> str:
        return self.settings.test

    @property
    def reloaded_by(self) -> str:
        return self.settings.reload

    async def write(self, bundle: Bundle) -> Written:
        await self._fits(bundle)
        written = await self._files.write(bundle)
        return Written(changed=await self._stored(bundle) or written.changed, atomic=True)

    async def restore(self, bundle: Bundle, previous: Bundle | None) -> None:
        await self._files.restore(bundle, previous)
        await self._stored(bundle)

    async def test(self) -> None:
        try:
            await self._files.test()
        except Refused as why:
            raise self._with_hint(why) from None

    async def reload(self) -> None:
        try:
            await self._files.reload()
        except Refused as why:
            raise self._with_hint(why) from None

    async def probe(self) -> str:
        self._keystore()
        return f"{await self._files.probe()} The keystore is {self.settings.path}."

    async def close(self) -> None:
        """Nothing stays open."""

    @property
    def _files(self) -> FilesDeployer:
        same = self.settings.model_dump(include={"folder", "test", "reload", "owner", "group"})
        return FilesDeployer(FilesSettings(**same), self.parts)

    def _keystore(self) -> tuple[Place, str]:
        path = Path(self.settings.path)
        return self._files.allowed(str(path.parent)), path.name

    async def _fits(self, bundle: Bundle) -> None:
        """A keystore of somebody else is not overwritten: it may hold keys that are nowhere else."""
        with self._files.told():
            there = await self.parts.bundles.read(*self._keystore())
            ours = await self.parts.bundles.current(self._files.place(bundle)) is not None
        if there is None or ours:
            return
        if there.startswith(_JKS):
            hint = "Convert it by `keytool -importkeystore -deststoretype PKCS12`, or name another path"
            raise refused(f"Target {self.parts.target}: {self.settings.path} is a JKS keystore. {hint}.")
        if await aside(_opened, there, self._password) is None:
            why = f"{self.settings.path} is there, and the credential password does not open it"
            raise refused(f"Target {self.parts.target}: {why}.", Reason.TARGET_TAKEN)

    async def _stored(self, bundle: Bundle) -> bool:
        """Let the keystore hold the bundle that is current; whether it did not before."""
        files = self._files
        place, (folder, name) = files.place(bundle), self._keystore()
        with files.told():
            within = Place(root=place.root, below=(*place.below, str(await self.parts.bundles.current(place))))
            key, chain = [
                await self.parts.bundles.read(within, each) or b"" for each in ("privkey.pem", "fullchain.pem")
            ]
            wanted = _Entry(self.settings.alias or bundle.certificate, Secret(key), chain)
            there = await self.parts.bundles.read(folder, name)
            if there is not None and await aside(_holds, there, self._password, wanted, self.settings.encryption):
                return False
            made = await aside(_made, wanted, self._password, self.settings.encryption)
            access = FileAccess(owner=self.settings.owner, group=self.settings.group)
            await self.parts.bundles.replace([(folder, name, made)], access)
        return True

    @property
    def _password(self) -> Secret[str]:
        return self.parts.credentials["password"]

    def _with_hint(self, why: Refused) -> Refused:
        about_it = any(each in str(why).lower() for each in _ENCRYPTED)
        hint = _OLD if about_it and self.settings.encryption == "modern" else ""
        return Refused(f"{why}{hint}", reason=why.reason)


@dataclass(frozen=True, slots=True)
class _Entry:
    alias: str
    key: Secret[bytes]
    chain: bytes  # PEM, leaf first


def _made(entry: _Entry, password: Secret[str], encryption: str) -> Secret[bytes]:
    leaf, *above = x509.load_pem_x509_certificates(entry.chain)
    builder = PrivateFormat.PKCS12.encryption_builder().kdf_rounds(_ROUNDS)
    if encryption == "legacy":
        builder = builder.key_cert_algorithm(pkcs12.PBES.PBESv1SHA1And3KeyTripleDESCBC).hmac_hash(hashes.SHA1())  # noqa: S303
    else:
        builder = builder.key_cert_algorithm(pkcs12.PBES.PBESv2SHA256AndAES256CBC).hmac_hash(hashes.SHA256())
    lock = builder.build(password.reveal().encode())
    key = keys.from_pem(entry.key)
    return Secret(pkcs12.serialize_key_and_certificates(entry.alias.encode(), key, leaf, above, lock))


def _opened(content: bytes, password: Secret[str]) -> pkcs12.PKCS12KeyAndCertificates | None:
    try:
        return pkcs12.load_pkcs12(content, password.reveal().encode())
    except ValueError:
        return None


def _holds(content: bytes, password: Secret[str], entry: _Entry, encryption: str) -> bool:
    found = _opened(content, password)
    if (_TRIPLE_DES in content) != (encryption == "legacy") or found is None or found.key is None or found.cert is None:
        return False
    chain = [found.cert.certificate, *(each.certificate for each in found.additional_certs)]
    same = chain == x509.load_pem_x509_certificates(entry.chain)
    return same and found.cert.friendly_name == entry.alias.encode() and keys.to_pem(found.key) == entry.key  # type: ignore[arg-type]


PKCS12: Final[DeployerKind[Pkcs12Settings]] = Kind(
    name="pkcs12",
    summary="A PKCS#12 keystore of this machine, as Java and Windows read it.",
    settings=Pkcs12Settings,
    credentials=(Credential(name="password", summary="The password of the keystore and of its key."),),
    limits=DeployLimits(certificates=1),
    traits=frozenset({Trait.ATOMIC, Trait.KEEPS_PREVIOUS, Trait.RUNS_HERE}),
    make=Pkcs12Deployer,
)
