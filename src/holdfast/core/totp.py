"""Codes of an authenticator app (RFC 6238: HMAC-SHA-1, six digits, steps of 30 seconds, as all apps make them)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from datetime import datetime
from typing import Final
from urllib.parse import quote

STEP: Final = 30  # seconds
DIGITS: Final = 6
DRIFT: Final = 1  # steps that the clock of a phone may be off


def code_at(secret: bytes, step: int) -> str:
    """RFC 4226 §5.3."""
    mac = hmac.new(secret, step.to_bytes(8, "big"), hashlib.sha1).digest()
    start = mac[-1] & 0xF
    number = int.from_bytes(mac[start : start + 4], "big") & 0x7FFFFFFF
    return str(number % 10**DIGITS).zfill(DIGITS)


def step_of(now: datetime) -> int:
    return int(now.timestamp()) // STEP


def matching_step(secret: bytes, code: str, now: datetime, *, after: int = 0) -> int | None:
    """The step that a code is of; None if it is wrong, or of a step whose code was used before (§5.2)."""
    found = None
    for step in range(step_of(now) - DRIFT, step_of(now) + DRIFT + 1):
        same = hmac.compare_digest(code_at(secret, step).encode(), code.encode())
        if same and step > after:
            found = step
    return found


def as_text(secret: bytes) -> str:
    """As people type it into an app, and as apps read it."""
    return base64.b32encode(secret).decode().rstrip("=")


def of_text(text: str) -> bytes | None:
    """None if it is none of ours: 20 bytes."""
    try:
        found = base64.b32decode(text.strip() + "=" * (-len(text.strip()) % 8))
    except (binascii.Error, ValueError):
        return None
    return found if len(found) == 20 else None


def uri(secret: bytes, *, name: str, host: str) -> str:
    """What the QR code says (the Key URI format of authenticator apps)."""
    label = f"{quote(f'Holdfast {host}', safe='')}:{quote(name, safe='')}"
    return f"otpauth://totp/{label}?secret={as_text(secret)}&issuer={quote(f'Holdfast {host}', safe='')}"
