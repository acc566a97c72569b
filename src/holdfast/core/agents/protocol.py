"""What agents and servers must write in the same way: paths, and the texts that keys sign."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

PROTOCOL: Final = 1
PREFIX: Final = "/agent/v1/"
ROOTS: Final = PREFIX + "roots"
ENROL: Final = PREFIX + "enrol"
CHALLENGE: Final = PREFIX + "challenge"
RECOVER: Final = PREFIX + "recover"
RENEW: Final = PREFIX + "renew"
POLL: Final = PREFIX + "poll"
LARGEST_REQUEST: Final = 256 * 1024  # bytes
LARGEST_ANSWER: Final = 4 * 1024 * 1024


def enrolment_transcript(token: str, name: str, binding: bytes, sealing: bytes, csr: bytes) -> bytes:
    """Signed by the token's key and by the binding key: neither can be replaced on the way."""
    parts = [b"holdfast agent enrolment 1", token.encode(), name.encode(), binding, sealing, csr]
    return b"".join(sha256(part).digest() for part in parts)


def recovery_transcript(agent: str, challenge: str, csr: bytes) -> bytes:
    parts = [b"holdfast agent recovery 1", agent.encode(), challenge.encode(), csr]
    return b"".join(sha256(part).digest() for part in parts)


def challenge_text(agent: str, at: int) -> bytes:
    """What the server signs as a challenge, so that it need not remember it."""
    return f"recovery challenge 1 of {agent} at {at}".encode()


def fingerprint_words(sha256_hex: str) -> str:
    """The digest of a binding key as people compare it: 8 groups of 4."""
    return "-".join(sha256_hex[at : at + 4] for at in range(0, 32, 4))
