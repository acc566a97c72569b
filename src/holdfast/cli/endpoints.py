"""Endpoints as people read them: what must be seen there, and what each address showed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import typer

from holdfast.cli.calling import clock
from holdfast.cli.everywhere import FINDINGS, Displays, Row
from holdfast.cli.terminal import Column, emit, emit_one, pairs, when


def listed(rows: Sequence[Row]) -> None:
    now = clock().now()
    columns = [
        Column("NAME", lambda row: str(row["name"])),
        Column("SEEN", lambda row: str(row["reason_code"] or "not yet")),
        Column("EXPIRES", lambda row: when(row["expires_at"], now)),
        Column("CERTIFICATE", lambda row: str(row["certificate"] or "-")),
        Column("CHECKED", lambda row: when(row["checked_at"], now)),
        Column("PLACE", lambda row: str(row["place"]), wide=True),
        Column("OWNER", lambda row: str(row["owner"] or "-"), wide=True),
        Column("WHY", lambda row: str(row["reason"] or "-"), wide=True),
    ]
    emit(rows, columns, name="name", empty="No endpoint is watched. Add one: holdfast endpoint add HOST")


def one(row: Row) -> None:
    now = clock().now()
    emit_one(row, text=lambda each: _shown(each, now), name="name")


def checked(row: Row) -> None:
    """What was just seen; the exit code says whether it is as it should be."""
    one(row)
    if row["reason_code"] != "OK":
        raise typer.Exit(FINDINGS)


def _shown(row: Row, now: datetime) -> str:
    expected = " and ".join(each for each in (row["certificate"], row["twin"]) if each)
    facts = [
        ("endpoint", f"{row['name']}   {row['place']}"),
        ("asks for", row["server_name"] or ""),
        ("must show", f"the current version of {expected}" if expected else "a valid certificate for its name"),
        ("target", row["target"] or ""),
        ("owner", row["owner"]),
        ("verdict", f"{row['reason_code']}  {row['reason']}" if row["reason_code"] else "It was not checked yet."),
        ("since", when(row["since"], now) if row["since"] else ""),
        ("checked", when(row["checked_at"], now) if row["checked_at"] else ""),
        ("next check", when(row["next_check_at"], now) if row["next_check_at"] else ""),
    ]
    return "\n".join([pairs([fact for fact in facts if fact[1]]), *(_seen(each, now) for each in row["seen"])])


def _seen(seen: Row, now: datetime) -> str:
    which = f" ({seen['key']})" if seen["key"] else ""
    head = f"  {seen['address'] or '-'}{which}: {seen['samples']} x {seen['outcome']}"
    if seen["problem"]:
        return f"{head}: {seen['problem']}"
    chain = f"chain of {len(seen['chain'])}"
    return f"{head}   {seen['sha256'][:16]}…   expires {when(seen['not_after'], now)}   {chain}   {seen['tls'] or ''}"


SHOWN: Final[Displays] = {
    "endpoints.list": listed,
    "endpoints.get": one,
    "endpoints.add": one,
    "endpoints.change": one,
    "endpoints.check": checked,
}
