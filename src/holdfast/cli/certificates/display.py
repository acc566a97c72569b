"""Certificates as people read them: a line in a list, and the status block."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from shlex import quote
from typing import Final

from holdfast.cli.certificates.options import window_shown
from holdfast.cli.everywhere import Row, chosen
from holdfast.cli.terminal import Column, duration, instant, painted, pairs, when

PROOFS: Final = (
    "DNS_TXT_NOT_VISIBLE", "PROOF_NOT_VISIBLE", "VALIDATION_FAILED", "CAA_FORBIDS", "SOLVER_FAILED",
)  # fmt: skip


def columns(now: datetime) -> list[Column]:
    return [
        Column("NAME", lambda row: str(row["name"])),
        Column("PHASE", lambda row: str(row["status"]["phase"]).upper()),
        Column("EXPIRES", lambda row: when(row["not_after"], now)),
        Column("NEXT", lambda row: _next_in_short(row, now)),
        Column("REASON", lambda row: str(row["status"]["reason_code"])),
        Column("OWNER", lambda row: row["owner"] or "-", wide=True),
        Column("CA", lambda row: ", ".join(row["issuers"]), wide=True),
        Column("NAMES", lambda row: ", ".join(row["names"]), wide=True),
        Column("LABELS", lambda row: ",".join(f"{k}={v}" for k, v in row["labels"].items()) or "-", wide=True),
        Column("ID", lambda row: str(row["id"]), wide=True),
    ]


def _next_in_short(row: Row, now: datetime) -> str:
    """ "now" for an issuance under way, unless it waits for a later time."""
    at = row["status"]["next_attempt_at"]
    to_come = at is not None and instant(at) > now and row["status"]["blocked_by"]
    return "now" if row["operation"] and not to_come else when(at, now)


def block(row: Row, now: datetime, budget: Sequence[Row] = ()) -> str:
    """The status block: what, why, when next, and what to type. `budget`: what the CA's limits leave."""
    status = row["status"]
    phase = str(status["phase"])
    head = f"{row['name']}   {painted(phase.upper(), phase)}   {_expires(row, now)}{_safe(row, now)}"
    facts = [
        ("phase", f"{_phase(row)}   owner {row['owner'] or '-'}   CA {', '.join(row['issuers'])}"),
        ("reason", f"{status['reason_code']}  {_why(status)}{_times(row, now)}  ({_acts(status)} next)"),
        ("next", f"{_next(row, now)}{_budget(budget)}"),
        *(("seen at", _seen_at(each, now)) for each in row.get("endpoints") or ()),
        *(("owed", _owed(each, now)) for each in status.get("owed", ())),  # an older server does not say
        ("now", f"{_look(row)}   |   {_do(row)}"),
    ]
    return f"{head}\n{pairs(facts)}"


def _seen_at(endpoint: Row, now: datetime) -> str:
    if endpoint["reason_code"] is None:
        return f"{endpoint['name']}  not checked yet"
    return f"{endpoint['name']}  {endpoint['reason_code']}  {endpoint['reason']}  ({when(endpoint['checked_at'], now)})"


def _owed(owed: Row, now: datetime) -> str:
    """A revocation or withdrawal that the issuer has not confirmed, with what it said last."""
    what = f"{owed['kind']} of {owed['of']}: {owed['issuer']} has not confirmed it"
    said = f"; {owed['reason']}  {owed['error']}" if owed["error"] else ""
    then = f"given up: holdfast retry {owed['job']}" if owed["given_up"] else f"next {when(owed['next_at'], now)}"
    return f"{what}{said}; {then}"


def _expires(row: Row, now: datetime) -> str:
    if row["not_after"] is None:
        return "not issued yet"
    return f"{'expires' if instant(row['not_after']) > now else 'expired'} {when(row['not_after'], now)}"


def _safe(row: Row, now: datetime) -> str:
    status = row["status"]
    if status["safe_until"] is None:
        return ""
    left = instant(status["safe_until"]) - now
    if left <= timedelta(0):
        return "" if status["phase"] in ("revoked", "expired") else "   less time is left than an issuance may take"
    fit = status.get("attempts_that_fit")  # an older server does not say
    if fit is None:
        return f"   safe for {duration(left)}"
    return f"   safe: {fit} more attempt{'' if fit == 1 else 's'} fit{'s' if fit == 1 else ''} before expiry"


def _phase(row: Row) -> str:
    status, attempt = row["status"], row["operation"]
    step = f", {attempt['state'].replace('_', ' ')}" if attempt and attempt["state"] != status["phase"] else ""
    number = status["attempt"]
    if attempt and attempt.get("order_number"):  # an older server does not say
        step += f", order {attempt['order_number']} at {attempt['issuer']}"
    failed = f", {number} failed attempt{'' if number == 1 else 's'} in a row" if number else ""
    return f"{status['phase'].replace('_', ' ')}{step}{failed}"


def _why(status: Row) -> str:
    """The last error, or else the meaning of the reason code."""
    return str(status["last_error"] or status["reason"])


def _acts(status: Row) -> str:
    who = str(status["acts_next"])
    return f"{who} act{'' if who == 'you' else 's'}"


def _times(row: Row, now: datetime) -> str:
    """Since when it has this phase, and when it last failed. An older server sends neither."""
    status = row["status"]
    since = f"since {when(status['since'], now)}" if status.get("since") else ""
    last = f"last failure {when(row['last_failure_at'], now)}" if row.get("last_failure_at") else ""
    told = ", ".join(each for each in (since, last) if each)
    return f"  {told}" if told else ""


def _budget(left: Sequence[Row]) -> str:
    """Of the CA as a whole: by orders where it limits them, else by requests."""
    by_limit = {str(each["key"]).rpartition("/")[2]: each for each in left if str(each["key"]).count("/") == 2}
    found = by_limit.get("orders") or by_limit.get("requests")
    return "" if found is None else f"; CA budget {found['left']}/{found['burst']} left"


def _next(row: Row, now: datetime) -> str:
    status, attempt = row["status"], row["operation"]
    if attempt is not None and not attempt["done"] and (not status["next_attempt_at"] or _past(status, now)):
        return "it would begin now" if chosen().dry_run else f"now: {attempt['id']} is under way"
    if status["next_attempt_at"] is None:
        return f"nothing is planned{': ' + ', '.join(status['blocked_by']) if status['blocked_by'] else ''}"
    if _past(status, now):
        return f"due, waiting for a worker: {_cause(status)}"
    if status.get("approval_ends_at"):
        again = when(status["next_attempt_at"], now)
        return f"rejected {when(status['approval_ends_at'], now)} unless approved, and then asked for again {again}"
    held = ", ".join(_held(row, each) for each in status["blocked_by"])
    return f"{when(status['next_attempt_at'], now)}: {_cause(status)}{f'; held by {held}' if held else ''}"


_CAUSES: Final = {
    "FIRST": "first issuance",
    "DUE_LIFETIME": "renewal by its lifetime",
    "DUE_ARI": "renewal at the time that the CA asked for",
    "EMERGENCY": "renewal, as little time is left",
    "REVOKED": "replacement, as it was revoked",
    "INPUT_CHANGED": "new version, as its specification changed",
    "MANUAL": "renewal that a person asked for",
}


def _cause(status: Row) -> str:
    """In words, with the code that programs and docs/reasons.md know."""
    code = str(status["next_attempt_cause"])
    return f"{_CAUSES[code]} ({code})" if code in _CAUSES else code


def _held(row: Row, by: str) -> str:
    """A back-off with its length, and after which failure."""
    status = row["status"]
    if by != "BACKOFF" or not row.get("last_failure_at"):
        return by
    span = instant(status["next_attempt_at"]) - instant(row["last_failure_at"])
    return f"back-off {duration(span)} after failure {status['attempt']}"


def _past(status: Row, now: datetime) -> bool:
    return instant(status["next_attempt_at"]) <= now


def _look(row: Row) -> str:
    """The command that tells more: about challenges, if they failed, or about the rules of renewal."""
    looks_at_proofs = row["status"]["reason_code"] in PROOFS and row["status"]["last_error"]
    if looks_at_proofs:
        return f"holdfast challenge test {quote(row['name'])}"
    archived = row["status"]["phase"] == "archived"  # its name is free for another
    return f"holdfast explain {quote(row['id'] if archived else row['name'])}"


def _do(row: Row) -> str:
    match row["status"]["phase"]:
        case "awaiting_approval":
            return "holdfast approvals ls"
        case "paused":
            return f"holdfast resume {quote(row['name'])}"
        case "pending" | "renewing":
            return f"holdfast wait {quote(row['name'])}"
        case "archived":
            return f"holdfast issue {quote(row['name'])}"
        case _:
            return f"holdfast renew {quote(row['name'])} --wait"


def full(row: Row, now: datetime) -> str:
    """One certificate, with everything that is known of it but its key."""
    facts = [
        ("id", str(row["id"])),
        ("names", ", ".join(row["names"])),
        ("CAs", ", ".join(row["issuers"])),
        ("key", "of a given CSR: it is not here" if row["csr"] else f"{row['key']}{', reused' * row['reuse_key']}"),
        ("profile", row["profile"] or ""),
        ("windows", ", ".join(map(window_shown, row["windows"]))),
        ("owner", row["owner"]),
        ("labels", ", ".join(f"{name}={value}" for name, value in row["labels"].items())),
        ("approval", "a second person must approve" if row["approval_required"] else ""),
        ("generation", f"{row['generation']}, changed by {row['changed_by']}"),
        ("serial", row["serial"] or ""),
        ("issued by", row["issuer"] or ""),
        ("valid", "" if row["not_before"] is None else f"from {when(row['not_before'], now)}"),
    ]
    return f"{block(row, now)}\n\n{pairs(facts)}"
