"""An authenticator in software: makes passkeys and signs with them, as a browser hands it on (WebAuthn §6)."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass, field
from os import urandom
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from fido2 import cbor
from fido2.cose import ES256
from fido2.webauthn import AttestedCredentialData

from holdfast.core import base64url


@dataclass
class Authenticator:
    """What it says can be changed, to lie with it."""

    origin: str
    rp: str
    flags: int = 0x05  # user present and verified
    count: int = 0
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    id: bytes = field(default_factory=lambda: urandom(16))

    def create(self, options: dict[str, Any]) -> str:
        public = ES256.from_cryptography_key(self.key.public_key())
        credential = AttestedCredentialData.create(bytes(16), self.id, public)
        data = self._data(self.flags | 0x40) + credential
        made = cbor.encode({"fmt": "none", "attStmt": {}, "authData": data})
        client = self._client("webauthn.create", options)
        return self._answer({"attestationObject": made, "clientDataJSON": client})

    def get(self, options: dict[str, Any]) -> str:
        data, client = self._data(self.flags), self._client("webauthn.get", options)
        signature = self.key.sign(data + hashlib.sha256(client).digest(), ec.ECDSA(SHA256()))
        return self._answer({"authenticatorData": data, "clientDataJSON": client, "signature": signature})

    def _data(self, flags: int) -> bytes:
        return hashlib.sha256(self.rp.encode()).digest() + struct.pack(">BI", flags, self.count)

    def _client(self, kind: str, options: dict[str, Any]) -> bytes:
        said = {"type": kind, "challenge": options["publicKey"]["challenge"], "origin": self.origin}
        return json.dumps(said).encode()

    def _answer(self, response: dict[str, bytes]) -> str:
        name = base64url.encode(self.id)
        parts = {key: base64url.encode(value) for key, value in response.items()}
        return json.dumps(
            {"id": name, "rawId": name, "type": "public-key", "response": parts, "clientExtensionResults": {}}
        )
