"""The challenges that a TXT record answers: dns-01, dns-account-01 and dns-persist-01."""

from __future__ import annotations

import hmac
from base64 import b32encode
from collections.abc import Collection
from datetime import datetime
from hashlib import sha256
from typing import Final

from holdfast.core import base64url
from holdfast.validators import caa
from holdfast.validators.caa import IssueValue
from holdfast.validators.resolver import Resolver
from holdfast.validators.verdict import ChallengeFailed, ChallengeToCheck, Trace

# ── dns-01 ──
# RFC 8555 §8.4: a TXT record under the name holds the digest of the key authorization.


async def check_dns01(challenge: ChallengeToCheck, resolver: Resolver, trace: Trace) -> None:
    """Return if the record is there; raise ChallengeFailed if not."""
    await check_at(f"_acme-challenge.{challenge.base}", challenge, resolver, trace)


async def check_at(name: str, challenge: ChallengeToCheck, resolver: Resolver, trace: Trace) -> None:
    only_for_names(challenge)
    trace.more["record"] = name
    texts = await resolver.texts(name)
    trace.more["records"] = len(texts)
    expected = base64url.encode(sha256(challenge.key_authorization.encode()).digest()).encode()
    if not texts:
        raise ChallengeFailed("incorrectResponse", f"There is no TXT record at {name}.")
    # What the records say is not repeated: an alias may have led us to one that only we can see.
    if not any(hmac.compare_digest(text, expected) for text in texts):
        raise ChallengeFailed(
            "incorrectResponse", f"Of {len(texts)} TXT record(s) at {name} none is the one we look for."
        )


def only_for_names(challenge: ChallengeToCheck) -> None:
    if challenge.identifier_type != "dns":
        raise ChallengeFailed("rejectedIdentifier", "An address cannot be proved by DNS (RFC 8738 §7).")


# ── dns-account-01 ──
# draft-ietf-acme-dns-account-label: dns-01 with a label for each account, so that several accounts can coexist.


async def check_dns_account01(challenge: ChallengeToCheck, resolver: Resolver, trace: Trace) -> None:
    """Return if the record is there; raise ChallengeFailed if not."""
    name = f"{label(challenge.account_url)}._acme-challenge.{challenge.base}"
    await check_at(name, challenge, resolver, trace)


def label(account_url: str) -> str:
    """Ten octets of the digest of the account's URL, which are sixteen letters without padding."""
    return "_" + b32encode(sha256(account_url.encode()).digest()[:10]).decode().lower()


# ── dns-persist-01 ──
# draft-ietf-acme-dns-persist-01: a permanent TXT record that names our CA and the account.


MAX_INSTANT: Final = 10  # digits


async def check_dns_persist01(
    challenge: ChallengeToCheck, resolver: Resolver, issuers: Collection[str], now: datetime, trace: Trace
) -> None:
    """Return if the record is there; raise ChallengeFailed if not. The evidence says how long it may be relied on."""
    only_for_names(challenge)
    name = f"_validation-persist.{challenge.base}"
    trace.more["record"] = name
    texts = await resolver.texts(name)
    values = [caa.parse_issue_value(text.decode("latin-1")) for text in texts]
    ours = [value for value in values if value is not None and value.issuer in issuers]
    reasons = [unfit(value, challenge.account_url, wildcard=challenge.wildcard, now=now) for value in ours]
    fit = [value for value, reason in zip(ours, reasons, strict=True) if reason is None]
    if not fit:
        why = next(filter(None, reasons), "none names this CA")
        raise ChallengeFailed("incorrectResponse", f"Of {len(texts)} TXT record(s) at {name} none is good: {why}.")
    trace.more["persist_until"] = max(map(_until, fit), default=None, key=lambda at: at or 10**MAX_INSTANT)


def unfit(value: IssueValue, account_url: str, *, wildcard: bool, now: datetime) -> str | None:
    """Why a record that names us does not do."""
    if value.all("accounturi") != [account_url]:
        return "it names another account"
    if wildcard and [policy.lower() for policy in value.all("policy")] != ["wildcard"]:
        return "it has no policy=wildcard"
    instants = value.all("persistuntil")
    if len(instants) > 1 or not all(at.isdigit() and at.isascii() and len(at) <= MAX_INSTANT for at in instants):
        return "its persistUntil is no instant"
    if instants and int(instants[0]) < now.timestamp():
        return "its persistUntil has passed"
    return None


def _until(value: IssueValue) -> int | None:
    instants = value.all("persistuntil")
    return int(instants[0]) if instants else None
