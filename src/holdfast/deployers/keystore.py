"""Keystores of this machine: key, certificate and chain in one file with a password, replaced by one rename.

A keystore is encrypted with new salts each time, so it is opened and its content compared, never its bytes. The bundle
that it is made of is kept beside it, for rollbacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from cryptography import x509
from pydantic import Field

from holdfast.core.kind import Credential
from holdfast.core.reasons import Reason
from holdfast.deployers.base import Bundle, Written, refused
from holdfast.deployers.files import FilesDeployer, FilesSettings
from holdfast.deployers.kind import DeployerParts
from holdfast.errors import Refused
from holdfast.kind_settings import KindSettings, Text
from holdfast.pki.in_thread import aside
from holdfast.ports import FileAccess, Place
from holdfast.secret import Secret

PASSWORD: Final = Credential(name="password", summary="The password of the keystore and of its key.")
_ROOT: Final = "holdfast-root-"
_ABOUT_IT: Final = ("password", "mac ", "integrity", "keystore", "algorithm", "pkcs")


def root_alias(place: int) -> str:
    """Entries are looked for in the order of their names."""
    return f"{_ROOT}{place:03}"


class KeystoreSettings(KindSettings):
    folder: Text = Field(description="The folder for bundles; the host must allow it (deployment.local_file).")
    path: Text = Field(description="The keystore, such as /etc/tomcat/keystore.p12; likewise.")
    truststore: Text = Field(default="", description="A truststore with the roots of our own CAs; likewise.")
    alias: Text = Field(default="", description="The name of the entry; else that of the certificate.")
    test: Text = Field(default="", description="A program of the host that tests the daemon's configuration.")
    reload: Text = Field(default="", description="A program of the host that reloads the daemon.")
    owner: Text = Field(default="", description="The user who owns the files; else as before.")
    group: Text = Field(default="", description="A group that may read the keystore; else as before.")


@dataclass(frozen=True, slots=True)
class Entry:
    alias: str
    key: Secret[bytes]  # PEM
    chain: bytes  # PEM, leaf first


class Format(Protocol):
    """How a keystore is written. It is called on a thread: deriving keys takes its time."""

    @property
    def hint(self) -> str:
        """What to try if a daemon cannot read it; a sentence, or nothing."""

    def made(self, entry: Entry, password: Secret[str]) -> Secret[bytes]:
        """A keystore with this entry."""

    def holds(self, content: bytes, password: Secret[str], entry: Entry) -> bool:
        """Whether it is what `made` would make, but for its salts."""

    def foreign(self, content: bytes, password: Secret[str]) -> str:
        """Why a keystore that was there before us must stay; empty: it is opened by the password."""

    def trusting(self, roots: Sequence[x509.Certificate], password: Secret[str]) -> bytes:
        """A truststore with these certificates, named by `root_alias`."""

    def trusted(self, content: bytes, password: Secret[str]) -> Mapping[str, x509.Certificate] | None:
        """What a truststore holds, by alias; None if it cannot be opened."""


@dataclass(frozen=True, slots=True)
class KeystoreDeployer:
    settings: KeystoreSettings
    parts: DeployerParts
    format: Format

    @property
    def tested_by(self) -> str:
        return self.settings.test

    @property
    def reloaded_by(self) -> str:
        return self.settings.reload

    async def write(self, bundle: Bundle) -> Written:
        await self._fits(bundle)
        written = await self._files.write(bundle)
        trusts = await self._trusts(bundle)
        return Written(changed=await self._stored(bundle) or trusts or written.changed, atomic=True)

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
        if problem := await aside(self.format.foreign, there, self._password):
            raise refused(f"Target {self.parts.target}: {self.settings.path} {problem}.", Reason.TARGET_TAKEN)

    async def _stored(self, bundle: Bundle) -> bool:
        """Let the keystore hold the bundle that is current; whether it did not before."""
        files = self._files
        place, (folder, name) = files.place(bundle), self._keystore()
        with files.told():
            within = Place(root=place.root, below=(*place.below, str(await self.parts.bundles.current(place))))
            key, chain = [
                await self.parts.bundles.read(within, each) or b"" for each in ("privkey.pem", "fullchain.pem")
            ]
            wanted = Entry(self.settings.alias or bundle.certificate, Secret(key), chain)
            there = await self.parts.bundles.read(folder, name)
            if there is not None and await aside(self.format.holds, there, self._password, wanted):
                return False
            made = await aside(self.format.made, wanted, self._password)
            access = FileAccess(owner=self.settings.owner, group=self.settings.group)
            await self.parts.bundles.replace([(folder, name, made)], access)
        return True

    async def _trusts(self, bundle: Bundle) -> bool:
        """Let the truststore hold the roots of this bundle; whether it did not before."""
        if not self.settings.truststore or not bundle.roots:
            return False
        path, roots = Path(self.settings.truststore), x509.load_pem_x509_certificates(bundle.roots)
        with self._files.told():
            place = self._files.allowed(str(path.parent))
            there = await self.parts.bundles.read(place, path.name)
            held = {} if there is None else await aside(self.format.trusted, there, self._password)
            if held is None or not all(each.startswith(_ROOT) for each in held):
                why = f"{path} has certificates that were not written from here, or another password"
                raise refused(f"Target {self.parts.target}: {why}; name another path.", Reason.TARGET_TAKEN)
            if list(held.values()) == roots:
                return False
            made = await aside(self.format.trusting, roots, self._password)
            await self.parts.bundles.replace([(place, path.name, made)], FileAccess(owner=self.settings.owner))
        return True

    @property
    def _password(self) -> Secret[str]:
        return self.parts.credentials["password"]

    def _with_hint(self, why: Refused) -> Refused:
        about_it = any(each in str(why).lower() for each in _ABOUT_IT)
        hint = f" {self.format.hint}" if about_it and self.format.hint else ""
        return Refused(f"{why}{hint}", reason=why.reason)
