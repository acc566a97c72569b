"""`holdfast audit`: who changed what; all of it as lines; and whether the chain of rows is whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from holdfast.cli.calling import ServerOption, connected
from holdfast.cli.config import ConfigOption, settings
from holdfast.cli.spans import ago
from holdfast.cli.terminal import Column, FormatOption, emit, harmless, say
from holdfast.errors import UserError

if TYPE_CHECKING:
    from holdfast.config import Settings
    from holdfast.core.chain import Verdict
    from holdfast.store.tx import Tx

T = TypeVar("T")
app = typer.Typer(name="audit", help="See who changed what, and check that no audit row was altered or removed.")

FINDINGS = 10  # exit code: see main.py
ActorOption = Annotated[str | None, typer.Option("--actor", help="Such as human:alice, robot:ci or system.")]
ActionOption = Annotated[str | None, typer.Option("--action", help="Such as key_exported.")]
SubjectOption = Annotated[str | None, typer.Option("--subject", help="The id of what was changed.")]
SinceOption = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="Such as 2030-01-31, or 1h: an hour ago.")
]
UntilOption = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Up to this time.")]
_COLUMNS = [
    Column("SEQ", lambda row: str(row["seq"])),
    Column("AT", lambda row: str(row["at"])[:19] + "Z"),
    Column("ACTOR", lambda row: str(row["actor"])),
    Column("FROM", lambda row: _origin(row)),
    Column("ACTION", lambda row: str(row["action"])),
    Column("SUBJECT", lambda row: str(row["subject"])),
]


@app.command("ls")
def ls(
    actor: ActorOption = None,
    action: ActionOption = None,
    subject: SubjectOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000)] = 100,
    config: ConfigOption = None,
    server: ServerOption = None,
    output: FormatOption = "table",
) -> None:
    """Show changes, the newest first."""
    with connected(config, server) as client:
        rows = client.pages(
            "/audit", most=limit, actor=actor, action=action, subject=subject, since=_at(since), until=_at(until),
            limit=min(limit, 500),
        )  # fmt: skip
    emit(rows, _COLUMNS, output, name="seq", empty="There is no such row.")


def _at(text: str | None) -> str | None:
    return None if text is None else ago(text).isoformat()


def _origin(row: Any) -> str:
    origin = row["origin"] or {}
    return " ".join(str(origin[name]) for name in ("face", "address") if origin.get(name)) or "-"


@app.command("export")
def export(
    actor: ActorOption = None,
    action: ActionOption = None,
    subject: SubjectOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    config: ConfigOption = None,
    server: ServerOption = None,
) -> None:
    """Print every row as a line of JSON, the oldest first, with the hashes of the chain."""
    with connected(config, server) as client:
        wanted = {"actor": actor, "action": action, "subject": subject, "since": _at(since), "until": _at(until)}
        for line in client.lines("/audit/export", **wanted):
            print(harmless(line))


@app.command()
def verify(
    file: Annotated[
        Path | None, typer.Option("--file", help="A copy instead: what 'audit export' or audit.file wrote.")
    ] = None,
    against_store: Annotated[
        bool, typer.Option("--against-store", help="With --file: its rows are those of the store here, too.")
    ] = False,
    config: ConfigOption = None,
    server: ServerOption = None,
    output: Annotated[Literal["table", "json"], typer.Option("--output", "-o", help="How to write it.")] = "table",
) -> None:
    """Walk the chain from the first row to the last: of the store here, or of the server you are logged in to."""
    from holdfast.cli.client import away

    chosen = settings(config)
    there = "" if file is not None else server or away(chosen)
    if file is not None:
        found = _told(_copied(file, chosen if against_store else None))
    else:
        found = _asked(there) if there else _told(_verdict(chosen))
    say(f"The server at {there} was asked." if there else "")
    if output == "json":
        print(json.dumps({name: found[name] for name in ("ok", "verified", "first_bad_row", "problem")}))
    elif found["ok"]:
        print(f"The audit chain holds: {found['verified']} rows, last hash {found['last_hash'][:16] or '-'}.")
    else:
        print(f"The audit chain is broken: {found['problem']}. The {found['verified']} rows before it hold.")
    if not found["ok"]:
        raise typer.Exit(FINDINGS)


def _asked(server: str) -> Any:
    with connected(None, server) as client:
        return client.get("/audit/verify")


def _told(verdict: Verdict) -> dict[str, Any]:
    return {"ok": verdict.ok, "verified": verdict.verified, "last_hash": verdict.last_hash,
            "first_bad_row": verdict.bad_seq, "problem": verdict.problem}  # fmt: skip


def _copied(file: Path, against: Settings | None) -> Verdict:
    """The chain of a copy; and, if so asked, that no row of it is another one in the store."""
    from dataclasses import replace

    from holdfast.core import chain
    from holdfast.store import journal
    from holdfast.world import LocalFiles

    try:
        content = LocalFiles().read(file) or b""
        entries = [chain.parsed(line) for line in content.decode().splitlines() if line]
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}.") from None
    if not entries:
        raise UserError(f"There is no file {file}, or nothing is in it.")
    found = chain.verify_copy(entries)
    if against is None or not found.ok:
        return found
    kept = {
        row.seq: row.hash for row in _read(against, lambda tx: journal.audit_rows(tx, entries[0].seq, entries[-1].seq))
    }
    other = next((row.seq for row in entries if kept.get(row.seq) != row.hash), None)
    return found if other is None else replace(found, bad_seq=other, problem=f"row {other} is another one in the store")


def _verdict(chosen: Settings) -> Verdict:
    from holdfast.store import journal

    return _read(chosen, journal.verify)


def _read(chosen: Settings, look: Callable[[Tx], T]) -> T:
    """In the store itself, which may run no server."""
    from holdfast.errors import StoreError, StoreRefused
    from holdfast.store.sqlite import open_read_only
    from holdfast.store.tx import Session, Tx
    from holdfast.world import SystemClock

    file = chosen.store.sqlite_file
    session: Session
    try:
        if file is not None:
            session = open_read_only(file, SystemClock())
        else:
            from holdfast.store.postgres import PostgresEngine

            engine = PostgresEngine(chosen.store.url, connections=1)
            session = engine.connect(write=False, deadline=chosen.store.deadline.total_seconds())
        try:
            session.begin(write=False)
            return look(Tx(session))
        finally:
            session.close()
    except StoreError as error:
        raise StoreRefused(f"The audit log cannot be read: {error}", "Try again when the store is well.") from error
