"""dns-01 (RFC 8555 §8.4): a TXT record under the name holds the digest of the key authorization."""

from __future__ import annotations

import hmac
from hashlib import sha256

from holdfast.core import base64url
from holdfast.validators.resolver import Resolver
from holdfast.validators.verdict import Challenge, Failed, Trace


async def check(challenge: Challenge, resolver: Resolver, trace: Trace) -> None:
    """Return if the proof is there; Failed if not."""
    await check_at(f"_acme-challenge.{challenge.base}", challenge, resolver, trace)


async def check_at(name: str, challenge: Challenge, resolver: Resolver, trace: Trace) -> None:
    only_for_names(challenge)
    trace.more["record"] = name
    texts = await resolver.texts(name)
    trace.more["records"] = len(texts)
    expected = base64url.encode(sha256(challenge.key_authorization.encode()).digest()).encode()
    if not texts:
        raise Failed("incorrectResponse", f"There is no TXT record at {name}.")
    # What the records say is not repeated: an alias may have led us to one that only we can see.
    if not any(hmac.compare_digest(text, expected) for text in texts):
        raise Failed("incorrectResponse", f"Of {len(texts)} TXT record(s) at {name} none is the one we look for.")


def only_for_names(challenge: Challenge) -> None:
    if challenge.identifier_type != "dns":
        raise Failed("rejectedIdentifier", "An address cannot be proved by DNS (RFC 8738 §7).")
