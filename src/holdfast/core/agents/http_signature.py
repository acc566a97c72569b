"""HTTP message signatures (RFC 9421) and content digests (RFC 9530), as far as agents use them.

The path is covered and not the whole address: a proxy that ends TLS may have another name than the server behind it.
"""

from __future__ import annotations

import re
from binascii import Error, a2b_base64, b2a_base64
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Literal

LABEL: Final = "agent"
COVERED: Final = '("@method" "@path" "content-digest")'
Algorithm = Literal["ed25519", "ecdsa-p256-sha256"]
_INPUT: Final = re.compile(
    r"agent=(?P<params>\(\"@method\" \"@path\" \"content-digest\"\)"
    r";created=(?P<created>\d{1,12});nonce=\"(?P<nonce>[A-Za-z0-9_-]{16,64})\""
    r";keyid=\"(?P<agent>agent_[0-9a-z]{26})/(?P<generation>\d{1,9})\""
    r";alg=\"(?P<alg>ed25519|ecdsa-p256-sha256)\")"
)
_SIGNATURE: Final = re.compile(r"agent=:([A-Za-z0-9+/]{1,200}={0,2}):")


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureParams:
    """Who signed, when, and by which generation of its identity."""

    agent: str
    generation: int
    created: int  # seconds since 1970
    nonce: str
    algorithm: Algorithm = "ecdsa-p256-sha256"

    @property
    def text(self) -> str:
        return (
            f'{COVERED};created={self.created};nonce="{self.nonce}"'
            f';keyid="{self.agent}/{self.generation}";alg="{self.algorithm}"'
        )


@dataclass(frozen=True, slots=True)
class SignedBy:
    params: SignatureParams
    signature: bytes


def content_digest(body: bytes) -> str:
    return f"sha-256=:{_b64(sha256(body).digest())}:"


def signature_base(method: str, path: str, digest: str, params: SignatureParams) -> bytes:
    """The text that is signed (§2.5)."""
    lines = [f'"@method": {method}', f'"@path": {path}', f'"content-digest": {digest}']
    return "\n".join([*lines, f'"@signature-params": {params.text}']).encode()


def headers(digest: str, params: SignatureParams, signature: bytes) -> dict[str, str]:
    return {
        "Content-Digest": digest,
        "Signature-Input": f"{LABEL}={params.text}",
        "Signature": f"{LABEL}=:{_b64(signature)}:",
    }


def parsed(signature_input: str, signature: str) -> SignedBy | None:
    """The signature of an agent, exactly as we write it; None for anything else."""
    found, value = _INPUT.fullmatch(signature_input), _SIGNATURE.fullmatch(signature)
    if found is None or value is None:
        return None
    try:
        octets = a2b_base64(value[1], strict_mode=True)
    except Error:
        return None
    params = SignatureParams(
        agent=found["agent"],
        generation=int(found["generation"]),
        created=int(found["created"]),
        nonce=found["nonce"],
        algorithm="ed25519" if found["alg"] == "ed25519" else "ecdsa-p256-sha256",
    )
    return SignedBy(params, octets)


def _b64(octets: bytes) -> str:
    return b2a_base64(octets, newline=False).decode()
