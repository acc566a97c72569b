"""Keys on the host: those that the server sealed to this agent, and those that were made here and stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from holdfast.agent.state import AgentFolder
from holdfast.core import base64url
from holdfast.core.agents.item import WorkOrder, failed, well
from holdfast.pki import agent_keys
from holdfast.secret import Secret

BUNDLES: Final = ("bundle", "previous")
_MAKERS: Final[Mapping[str, Any]] = {
    "ec-p256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "ec-p384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "rsa-2048": lambda: rsa.generate_private_key(65537, 2048),
    "rsa-3072": lambda: rsa.generate_private_key(65537, 3072),
    "rsa-4096": lambda: rsa.generate_private_key(65537, 4096),
    "ed25519": ed25519.Ed25519PrivateKey.generate,
}


def _file_of(spki: bytes) -> str:
    return f"key-{sha256(spki).hexdigest()[:32]}.pem"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostKeys:
    folder: AgentFolder

    def for_item(self, item: WorkOrder) -> dict[str, Secret[bytes]]:
        """The keys of the bundles in an item: unsealed, or found here by their public halves."""
        raw = item.body.get("keys")
        sealed: Mapping[str, Any] = raw if isinstance(raw, dict) else {}
        found: dict[str, Secret[bytes]] = {}
        for name in BUNDLES:
            body = item.body.get(name)
            if isinstance(sealed.get(name), str):
                content = base64url.decode(sealed[name])
                found[name] = agent_keys.unseal(content, self.folder.sealing(), purpose=item.id)
            elif isinstance(body, dict):
                kept = self.folder.files.read(self.folder.path / _file_of(_spki(body)))
                found |= {} if kept is None else {name: Secret(kept)}
        return found

    def csr(self, item: WorkOrder) -> dict[str, Any]:
        """A new key of the kind that is asked for, and a CSR for exactly these names. The key stays here.

        For the same issuance it is the same key, however often it is asked for. Nothing that is served changes.
        """
        from holdfast.pki import csr

        kind, subject = str(item.body.get("key_kind", "")), str(item.body.get("issuance", ""))
        if kind not in _MAKERS or not subject:
            return failed("TARGET_REFUSED", f"This agent makes no keys of kind {kind!r:.40}.", refused=True)
        pending = f"pending-{sha256(subject.encode()).hexdigest()[:32]}.pem"
        key = self.folder.key(pending, _MAKERS[kind])
        names = [str(each) for each in item.body.get("names", [])]
        ips = [str(each) for each in item.body.get("ips", [])]
        content = csr.build(names, key, ips=ips, common_name=item.body.get("common_name") is True)
        file = self.folder.path / _file_of(agent_keys.public_der(key))
        if self.folder.files.read(file) is None:
            self.folder.files.write_private(file, agent_keys.to_pem(key).reveal(), replace=True)
        return well({"csr": base64url.encode(content)})


def _spki(body: Mapping[str, Any]) -> bytes:
    leaf = x509.load_pem_x509_certificate(str(body.get("leaf", "")).encode())
    return leaf.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
