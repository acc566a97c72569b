"""Certificates as people read them: a line in a list, and the status block."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast.cli.terminal import Column, duration, instant, painted, pairs, when

BAD: Final = ("failing", "expired", "revoked")
Certificate = Mapping[str, Any]


def columns(now: datetime) -> list[Column]:
    return [
        Column("NAME", lambda row: str(row["name"])),
        Column("PHASE", lambda row: str(row["status"]["phase"]).upper()),
        Column("EXPIRES", lambda row: when(row["not_after"], now)),
        Column("NEXT", lambda row: "now" if row["operation"] else when(row["status"]["next_attempt_at"], now)),
        Column("REASON", lambda row: str(row["status"]["reason_code"])),
        Column("OWNER", lambda row: row["owner"] or "-", wide=True),
        Column("CA", lambda row: ", ".join(row["issuers"]), wide=True),
        Column("NAMES", lambda row: ", ".join(row["names"]), wide=True),
        Column("LABELS", lambda row: ",".join(f"{k}={v}" for k, v in row["labels"].items()) or "-", wide=True),
        Column("ID", lambda row: str(row["id"]), wide=True),
    ]


def block(row: Certificate, now: datetime) -> str:
    """The status block: what, why, when next, and what to type."""
    status = row["status"]
    phase = str(status["phase"])
    head = f"{row['name']}   {painted(phase.upper(), phase)}   {_expires(row, now)}{_safe(status, now)}"
    facts = [
        ("phase", f"{_phase(row)}   owner {row['owner'] or '-'}   CA {', '.join(row['issuers'])}"),
        ("reason", f"{status['reason_code']}  {status['reason']}  ({status['acts_next']} acts next)"),
        ("error", _error(status, now)),
        ("next", _next(row, now)),
        ("now", f"holdfast explain {row['name']}   |   {_do(row)}"),
    ]
    return f"{head}\n{pairs(facts)}"


def _expires(row: Certificate, now: datetime) -> str:
    if row["not_after"] is None:
        return "not issued yet"
    return f"{'expires' if instant(row['not_after']) > now else 'expired'} {when(row['not_after'], now)}"


def _safe(status: Mapping[str, Any], now: datetime) -> str:
    if status["safe_until"] is None:
        return ""
    left = instant(status["safe_until"]) - now
    return f"   safe for {duration(left)}" if left > timedelta(0) else "   too late for a safe attempt"


def _phase(row: Certificate) -> str:
    status, attempt = row["status"], row["operation"]
    step = f", {attempt['state'].replace('_', ' ')}" if attempt else ""
    failed = f", {status['attempt']} failed attempts in a row" if status["attempt"] else ""
    return f"{status['phase'].replace('_', ' ')}{step}{failed}"


def _error(status: Mapping[str, Any], now: datetime) -> str:
    return f"{status['last_error']}  (attempt {when(status['last_attempt_at'], now)})" if status["last_error"] else ""


def _next(row: Certificate, now: datetime) -> str:
    status, attempt = row["status"], row["operation"]
    if attempt is not None and not attempt["done"] and (not status["next_attempt_at"] or _past(status, now)):
        return f"now: {attempt['id']} is under way"
    if status["next_attempt_at"] is None:
        return f"nothing is planned{': ' + ', '.join(status['blocked_by']) if status['blocked_by'] else ''}"
    blocked = f"; held by {', '.join(status['blocked_by'])}" if status["blocked_by"] else ""
    return f"{when(status['next_attempt_at'], now)}: {status['next_attempt_cause']}{blocked}"


def _past(status: Mapping[str, Any], now: datetime) -> bool:
    return instant(status["next_attempt_at"]) <= now


def _do(row: Certificate) -> str:
    match row["status"]["phase"]:
        case "awaiting_approval":
            return "holdfast approvals ls"
        case "paused":
            return f"holdfast resume {row['name']}"
        case "pending" | "renewing":
            return f"holdfast wait {row['name']}"
        case "archived":
            return f"holdfast issue {row['name']}"
        case _:
            return f"holdfast renew {row['name']} --wait"


def full(row: Certificate, now: datetime) -> str:
    """One certificate, with everything that is known of it but its key."""
    facts = [
        ("id", str(row["id"])),
        ("names", ", ".join(row["names"])),
        ("CAs", ", ".join(row["issuers"])),
        ("key", f"{row['key']}{', reused' if row['reuse_key'] else ''}"),
        ("profile", row["profile"] or ""),
        ("owner", row["owner"]),
        ("labels", ", ".join(f"{name}={value}" for name, value in row["labels"].items())),
        ("approval", "a second person must approve" if row["approval_required"] else ""),
        ("generation", f"{row['generation']}, changed by {row['changed_by']}"),
        ("serial", row["serial"] or ""),
        ("issued by", row["issuer"] or ""),
        ("valid", "" if row["not_before"] is None else f"from {when(row['not_before'], now)}"),
    ]
    return f"{block(row, now)}\n\n{pairs(facts)}"
