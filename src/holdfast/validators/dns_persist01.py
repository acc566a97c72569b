"""dns-persist-01 (draft-ietf-acme-dns-persist-01): a TXT record that names us and the account, and stays."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Final

from holdfast.validators import issue_value
from holdfast.validators.dns01 import only_for_names
from holdfast.validators.issue_value import IssueValue
from holdfast.validators.resolver import Resolver
from holdfast.validators.verdict import Challenge, Failed, Trace

MAX_INSTANT: Final = 10  # digits


async def check(
    challenge: Challenge, resolver: Resolver, issuers: Collection[str], now: datetime, trace: Trace
) -> None:
    """Return if the proof is there; Failed if not. How long it may be relied on is in the evidence."""
    only_for_names(challenge)
    name = f"_validation-persist.{challenge.base}"
    trace.more["record"] = name
    texts = await resolver.texts(name)
    values = [issue_value.parse(text.decode("latin-1")) for text in texts]
    ours = [value for value in values if value is not None and value.issuer in issuers]
    reasons = [unfit(value, challenge.account_url, wildcard=challenge.wildcard, now=now) for value in ours]
    fit = [value for value, reason in zip(ours, reasons, strict=True) if reason is None]
    if not fit:
        why = next(filter(None, reasons), "none names this CA")
        raise Failed("incorrectResponse", f"Of {len(texts)} TXT record(s) at {name} none is good: {why}.")
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
