"""`holdfast audit`: who changed what; all of it as lines; and whether the chain of rows is whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from holdfast.cli.everywhere import FINDINGS, chosen
from holdfast.cli.installation.config import settings
from holdfast.cli.terminal import say
from holdfast.errors import UserError

if TYPE_CHECKING:
    from holdfast.config import Settings
    from holdfast.core.journal import ChainVerdict
    from holdfast.store.tx import Tx

T = TypeVar("T")
app = typer.Typer(name="audit", help="See who changed what, and check that no audit row was altered or removed.")


@app.command()
def verify(
    file: Annotated[
        Path | None, typer.Option("--file", help="A copy instead: what 'audit export' or audit.file wrote.")
    ] = None,
    against_store: Annotated[
        bool, typer.Option("--against-store", help="With --file: compare it with the store here, too.")
    ] = False,
    output: Annotated[Literal["table", "json"], typer.Option("--output", "-o", help="How to write it.")] = "table",
) -> None:
    """Verify the hash chain of the audit log, in the store here or on the server you are logged in to."""
    from holdfast.cli.client import away

    here, server = settings(), chosen().server
    there = "" if file is not None else server or away(here)
    if file is not None:
        found = _told(_copied(file, here if against_store else None))
    else:
        found = _asked(there) if there else _told(_verdict(here))
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
    from holdfast.cli.client import elsewhere

    with elsewhere(server) as client:
        return client.get("/audit/verify")


def _told(verdict: ChainVerdict) -> dict[str, Any]:
    return {"ok": verdict.ok, "verified": verdict.verified, "last_hash": verdict.last_hash,
            "first_bad_row": verdict.bad_seq, "problem": verdict.problem}  # fmt: skip


def _copied(file: Path, against: Settings | None) -> ChainVerdict:
    """The chain of a copy; and, if so asked, that no row of it is another one in the store."""
    from dataclasses import replace

    from holdfast.core.journal import parsed_entry, verify_copy
    from holdfast.store import journal
    from holdfast.world import LocalFiles

    try:
        content = LocalFiles().read(file) or b""
        entries = [parsed_entry(line) for line in content.decode().splitlines() if line]
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}.") from None
    if not entries:
        raise UserError(f"There is no file {file}, or nothing is in it.")
    found = verify_copy(entries)
    if against is None or not found.ok:
        return found
    kept = {
        row.seq: row.hash for row in _read(against, lambda tx: journal.audit_rows(tx, entries[0].seq, entries[-1].seq))
    }
    other = next((row.seq for row in entries if kept.get(row.seq) != row.hash), None)
    return found if other is None else replace(found, bad_seq=other, problem=f"row {other} is another one in the store")


def _verdict(chosen: Settings) -> ChainVerdict:
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
