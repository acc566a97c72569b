"""Jobs, tokens, people and audit entries as people read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from holdfast.cli.calling import clock
from holdfast.cli.everywhere import Displays, Row, chosen
from holdfast.cli.terminal import Column, emit, emit_one, exact, pairs, say, when


def approvals(rows: Sequence[Row]) -> None:
    now = clock().now()
    columns = [
        Column("ID", lambda row: str(row["id"])),
        Column("CERTIFICATE", lambda row: str(row["name"])),
        Column("ASKED BY", lambda row: str(row["requested_by"])),
        Column("EXPIRES", lambda row: when(row["expires_at"], now)),
        Column("ISSUANCE", lambda row: str(row["issuance"]), wide=True),
    ]
    emit(rows, columns, name="id", empty="Nothing waits for approval.")


def jobs(rows: Sequence[Row]) -> None:
    now = clock().now()
    columns = [
        Column("ID", lambda row: str(row["id"])),
        Column("KIND", lambda row: str(row["kind"])),
        Column("ABOUT", lambda row: str(row["about"])),
        Column("STATE", lambda row: str(row["state"])),
        Column("ATTEMPT", lambda row: _attempts(row)),
        Column("DUE", lambda row: when(row["due_at"], now)),
        Column("REASON", lambda row: str(row["reason_code"] or "-")),
        Column("ERROR", lambda row: str(row["last_error"] or "-"), wide=True),
        Column("HOLDER", lambda row: str(row["holder"] or "-"), wide=True),
    ]
    emit(rows, columns, name="id", empty="There are no such jobs.")


ENDLESS: Final = 1000  # attempts, from which on there is no last one to speak of


def _attempts(row: Row) -> str:
    most = row["max_attempts"]
    return str(row["attempt"]) if most >= ENDLESS else f"{row['attempt']}/{most}"


def job(row: Row) -> None:
    now = clock().now()
    emit_one(row, text=lambda each: _job(each, now), name="id")


def _job(row: Row, now: datetime) -> str:
    waits = row["next_attempt_at"] is not None
    facts = [
        ("id", str(row["id"])),
        ("kind", str(row["kind"])),
        ("about", str(row["about"])),
        ("state", str(row["state"])),
        ("attempt", _attempts(row)),
        ("due", when(row["due_at"], now) if waits else ""),
        ("began", "" if row["last_attempt_at"] is None else when(row["last_attempt_at"], now)),
        ("ended", "" if row["finished_at"] is None else when(row["finished_at"], now)),
        ("holder", str(row["holder"] or "")),
        ("reason", str(row["reason_code"] or "")),
        ("error", str(row["last_error"] or "")),
    ]
    return pairs(facts)


def tokens(rows: Sequence[Row]) -> None:
    now = clock().now()
    columns = [
        Column("ID", lambda row: str(row["id"])),
        Column("NAME", lambda row: f"{row['kind']}:{row['name']}"),
        Column("ROLE", lambda row: "+".join([row["role"], *row["rights"]])),
        Column("STATE", lambda row: _state(row, now)),
        Column("LAST USED", lambda row: when(row["last_used_at"], now)),
        Column("ONLY", _scope, wide=True),
        Column("MADE", lambda row: f"{when(row['created_at'], now)} by {row['created_by']}", wide=True),
    ]
    empty = "There are no tokens. Make one: holdfast token create NAME --role admin"
    emit(rows, columns, name="id", empty=empty)


def _state(row: Row, now: datetime) -> str:
    if row["revoked_at"]:
        return "revoked"
    return "never expires" if row["expires_at"] is None else f"expires {when(row['expires_at'], now)}"


def _scope(row: Row) -> str:
    return ", ".join([*row["owners"], *(f"{name}={value}" for name, value in row["labels"].items())]) or "everything"


def made_token(row: Row) -> None:
    if chosen().dry_run:
        say(f"A token of {row['name']} ({row['role']}) could be made.")
        return
    emit_one(row, text=lambda each: str(each["token"]), name="token")
    say(f"Token {row['id']} of {row['name']} ({row['role']}). It is not shown again: set HOLDFAST_TOKEN to it.")


def people(rows: list[Row]) -> None:
    now = clock().now()
    columns = [
        Column("NAME", lambda row: str(row["name"])),
        Column("ROLE", lambda row: "+".join([row["role"], *row["rights"]])),
        Column("LOGS IN BY", lambda row: "disabled" if row["disabled_at"] else _ways(row)),
        Column("LAST LOG-IN", lambda row: when(row["last_login_at"], now)),
        Column("ONLY", _scope),
        Column("ADDED", lambda row: f"{when(row['created_at'], now)} by {row['created_by']}", wide=True),
    ]
    emit(rows, columns, name="name", empty="No person can log in yet. Add one: holdfast people add NAME --role admin")


def _ways(row: Row) -> str:
    return ", ".join(row["logs_in_by"]) or "not set up yet"


def _person(row: Row) -> str:
    now = clock().now()
    facts = [
        ("name", str(row["name"])),
        ("role", "+".join([row["role"], *row["rights"]])),
        ("only", _scope(row)),
        ("logs in by", _ways(row)),
        ("last log-in", when(row["last_login_at"], now)),
        ("added", f"{when(row['created_at'], now)} by {row['created_by']}"),
        ("disabled", "" if row["disabled_at"] is None else when(row["disabled_at"], now)),
    ]
    return pairs(facts)


def sessions(rows: list[Row]) -> None:
    now = clock().now()
    columns = [
        Column("ID", lambda row: str(row["id"])),
        Column("PERSON", lambda row: str(row["person"])),
        Column("BY", lambda row: str(row["method"])),
        Column("ADDRESS", lambda row: str(row["address"])),
        Column("SINCE", lambda row: when(row["created_at"], now)),
        Column("LAST USED", lambda row: when(row["used_at"], now)),
        Column("EXPIRES", lambda row: when(row["expires_at"], now)),
        Column("BROWSER", lambda row: str(row["client"]), wide=True),
    ]
    emit(rows, columns, name="id", empty="No browser is logged in.")


def link(row: Row) -> None:
    if chosen().dry_run:
        say(f"A link for {row['name']} could be made.")
        return
    emit_one(row, text=lambda each: str(each["link"]), name="link")
    say(f"{row['name']} can follow the link once. It is not shown again.")


def whoami(row: Row) -> None:
    facts = [("actor", row["actor"]), ("role", "+".join([row["role"], *row["rights"]])), ("only", _scope(row))]
    emit_one(row, text=lambda each: pairs(facts), name="actor")


def audit(rows: Sequence[Row]) -> None:
    columns = [
        Column("SEQ", lambda row: str(row["seq"])),
        Column("AT", lambda row: exact(row["at"])),
        Column("ACTOR", lambda row: str(row["actor"])),
        Column("FROM", _origin),
        Column("ACTION", lambda row: str(row["action"])),
        Column("ABOUT", lambda row: str(row["about"])),
        Column("SUBJECT", lambda row: str(row["subject"]), wide=True),
        Column("DETAILS", lambda row: json.dumps(row["details"], ensure_ascii=False, default=str), wide=True),
    ]
    emit(rows, columns, name="seq", empty="There is no such audit entry.")


def _origin(row: Row) -> str:
    origin = row["origin"] or {}
    return " ".join(str(origin[name]) for name in ("face", "address") if origin.get(name)) or "-"


SHOWN: Final[Displays] = {
    "approvals.list": approvals,
    "jobs.list": jobs,
    "jobs.get": job,
    "jobs.retry": job,
    "people.list": people,
    "people.get": lambda row: emit_one(row, text=_person, name="name"),
    "people.add": link,
    "people.reset": link,
    "people.recover": link,
    "sessions.list": sessions,
    "tokens.list": tokens,
    "tokens.create": made_token,
    "tokens.self": whoami,
    "tokens.revoke": lambda row: None,
    "audit.list": audit,
}
