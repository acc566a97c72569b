"""The signature of Standard Webhooks: receivers check who sent a message, that it is whole, and that it is not old."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable
from datetime import datetime
from typing import Final

from holdfast.secret import Secret

PREFIX: Final = "whsec_"
_SIZES: Final = range(24, 65)  # bytes of a secret, as the specification asks for


def signing_key(text: Secret[str]) -> Secret[bytes]:
    """Decode a key from `whsec_` and base64; ValueError gives the reason without quoting it."""
    try:
        key = base64.b64decode(text.reveal().strip().removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"must be {PREFIX} and base64, as: {PREFIX}$(openssl rand -base64 32)") from None
    if len(key) not in _SIZES:
        raise ValueError(f"must have {_SIZES.start} to {_SIZES.stop - 1} bytes, and has {len(key)}")
    return Secret(key)


def signed(keys: Iterable[Secret[bytes]], message: str, at: datetime, body: bytes) -> dict[str, str]:
    """The headers of a message, signed with every key: while receivers change to a new one, the old one counts."""
    sent_at = str(int(at.timestamp()))
    signatures = " ".join(signature(key, message, sent_at, body) for key in keys)
    return {"webhook-id": message, "webhook-timestamp": sent_at, "webhook-signature": signatures}


def signature(key: Secret[bytes], message: str, sent_at: str, body: bytes) -> str:
    made = hmac.new(key.reveal(), f"{message}.{sent_at}.".encode() + body, hashlib.sha256)
    return f"v1,{base64.b64encode(made.digest()).decode()}"
