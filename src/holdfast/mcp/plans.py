"""Plans: what a destructive tool would do, sealed for the caller that asked, so that any process can confirm it.

A plan is its own record: no table keeps it. Its seal is made with the caller's token, so that nobody else can confirm
or alter it. It ends soon, it holds only while things are as they were when it was made, and its id is the
Idempotency-Key of what it does: confirmed twice, on whatever replica, it happens once.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

LIVES_FOR: Final = timedelta(minutes=10)
PREFIX: Final = "plan_"
_PURPOSE: Final = b"holdfast mcp plan, version 1"


class NoPlan(Exception):
    """Not a plan that this caller may confirm now; says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    action: str
    args: Mapping[str, Any]
    saw: str  # digest of what it was shown for
    once: str
    expires_at: datetime


def digest(shown: Any) -> str:
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()[:32]


def seal(plan: Plan, secret: bytes) -> str:
    fields = [plan.action, dict(plan.args), plan.saw, plan.once, int(plan.expires_at.timestamp())]
    text = json.dumps(fields, separators=(",", ":")).encode()
    return PREFIX + _encode(_mac(secret, text) + text)


def opened(text: str, secret: bytes, now: datetime) -> Plan:
    """Raises NoPlan."""
    bare = text.removeprefix(PREFIX)
    try:
        raw = base64.b64decode(bare + "=" * (-len(bare) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise NoPlan("This is no plan id.") from None
    mac, content = raw[:32], raw[32:]
    if not text.startswith(PREFIX) or not hmac.compare_digest(mac, _mac(secret, content)):
        raise NoPlan("This is not a plan of yours: it was altered, or made with another token.")
    action, args, saw, once, expires = json.loads(content)
    plan = Plan(action=action, args=args, saw=saw, once=once, expires_at=datetime.fromtimestamp(expires, tz=UTC))
    if now >= plan.expires_at:
        raise NoPlan(f"This plan ended at {plan.expires_at:%Y-%m-%dT%H:%M:%SZ}.")
    return plan


def _mac(secret: bytes, content: bytes) -> bytes:
    key = hashlib.sha256(_PURPOSE + b"\0" + secret).digest()
    return hmac.digest(key, content, "sha256")


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
