"""dns-account-01 (draft-ietf-acme-dns-account-label): dns-01 with a label for each account, that they may coexist."""

from __future__ import annotations

from base64 import b32encode
from hashlib import sha256

from holdfast.validators import dns01
from holdfast.validators.resolver import Resolver
from holdfast.validators.verdict import Challenge, Trace


async def check(challenge: Challenge, resolver: Resolver, trace: Trace) -> None:
    """Return if the proof is there; Failed if not."""
    name = f"{label(challenge.account_url)}._acme-challenge.{challenge.base}"
    await dns01.check_at(name, challenge, resolver, trace)


def label(account_url: str) -> str:
    """Ten octets of the digest of the account's URL, which are sixteen letters without padding."""
    return "_" + b32encode(sha256(account_url.encode()).digest()[:10]).decode().lower()
