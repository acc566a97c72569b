"""`holdfast audit`: who changed what; all of it as lines; and whether the chain of rows is whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

import typer

from holdfast.cli.everywhere import FAILED, FINDINGS, chosen
from holdfast.cli.installation.config import settings
from holdfast.cli.terminal import say
from holdfast.errors import UserError

if TYPE_CHECKING:
    from datetime import datetime

    from holdfast.cli.client import Client
    from holdfast.config import Settings
    from holdfast.core.journal import Anchor, ChainVerdict
    from holdfast.store.tx import Tx

T = TypeVar("T")
MOST: Final = 200_000  # entries of one file, which is made in memory
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
        print(json.dumps({name: found[name] for name in ("ok", "verified", "archived", "first_bad_row", "problem")}))
    elif found["ok"]:
        print(f"The audit chain holds: {found['verified']} rows, last hash {found['last_hash'][:16] or '-'}.")
        if found["archived"]:
            print(f"Rows 1 to {found['archived']} of them are archived: verify their files with --file.")
    else:
        print(f"The audit chain is broken: {found['problem']}. The {found['verified']} rows before it hold.")
    if not found["ok"]:
        raise typer.Exit(FINDINGS)


@app.command()
def archive(
    before: Annotated[str, typer.Option("--before", metavar="TIME", help="Archive entries before this time.")],
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="A new file for the entries. Keep it safe.")],
    keep_days: Annotated[
        int, typer.Option("--keep-days", min=30, max=3650, help="Refuse to archive entries younger than this.")
    ] = 90,
    forget_sink: Annotated[
        list[str] | None,
        typer.Option("--forget-sink", metavar="SINK", help="An audit sink that exists no more; may be repeated."),
    ] = None,
) -> None:
    """Archive old audit entries: write them to a file, verify it, then let the server delete them.

    The chain stays verifiable: an archive names the hash that it goes on from, and so does the store. A file has at
    most 200,000 entries; run the command again with another file for the rest.
    """
    from holdfast.cli.calling import connected
    from holdfast.cli.durations import ago

    with connected() as client:
        after, lines = _to_archive(client, ago(before))
        if not lines:
            say(f"No audit entry before {before} is left to archive.")
            return
        _archive(client, after, lines, to, {"keep_days": keep_days, "forget_sinks": forget_sink or []})


def _to_archive(client: Client, before: datetime) -> tuple[Anchor, list[str]]:
    """The entries after the newest anchor, as far as they follow each other: a clock that was set back makes a gap."""
    from contextlib import closing

    from holdfast.core.journal import ARCHIVED, START, Anchor, parsed_entry

    told = client.get("/audit", action=ARCHIVED, limit=1)["items"]
    after = Anchor(**{name: told[0]["details"][name] for name in ("seq", "hash")}) if told else START
    lines: list[str] = []
    with closing(client.lines("/audit/export", until=before.isoformat())) as exported:
        for line in exported:
            seq = parsed_entry(line).seq
            if seq > after.seq + len(lines) + 1 or len(lines) == MOST:
                break
            if seq > after.seq:  # the server may not have deleted all of the last archive yet
                lines.append(line)
    return after, lines


def _archive(client: Client, after: Anchor, lines: list[str], to: Path, wishes: dict[str, Any]) -> None:
    from holdfast.cli.client import Told
    from holdfast.cli.terminal import asked_for
    from holdfast.core.journal import anchor_line, parsed_entry
    from holdfast.world import LocalFiles

    last = parsed_entry(lines[-1])
    question = f"Delete audit entries {after.seq + 1} to {last.seq} from the server? Only {to} will have them."
    if not asked_for(question, word="archive"):
        raise typer.Exit(FAILED)
    try:
        LocalFiles().write_private(to, "\n".join([anchor_line(after), *lines, ""]).encode(), replace=False)
    except OSError as error:
        raise UserError(f"{to} cannot be written: {error}. Nothing was archived.") from None
    found = _copied(to, None)
    if not found.ok:
        LocalFiles().remove_within(to.parent, to.name)
        raise UserError(f"The chain of {to} is broken: {found.problem}. Nothing was archived.")
    say(f"{to} has the audit entries {after.seq + 1} to {last.seq}, and its chain holds.")
    try:
        client.post("/audit/archive", {"seq": found.verified, "hash": found.last_hash, **wishes})
    except Told as why:
        if why.status < 500:  # it was refused: the server keeps all of them
            LocalFiles().remove_within(to.parent, to.name)
        raise
    say("They are archived: the server deletes them with its next clean-up.")


def _asked(server: str) -> Any:
    from holdfast.cli.client import elsewhere

    with elsewhere(server) as client:
        return client.get("/audit/verify")


def _told(verdict: ChainVerdict) -> dict[str, Any]:
    return {"ok": verdict.ok, "verified": verdict.verified, "archived": verdict.archived,
            "last_hash": verdict.last_hash, "first_bad_row": verdict.bad_seq, "problem": verdict.problem}  # fmt: skip


def _copied(file: Path, against: Settings | None) -> ChainVerdict:
    """The chain of a copy; and, if so asked, that no row of it is another one in the store."""
    from dataclasses import replace

    from holdfast.core.journal import differs_from_store, parsed_copy, verify_copy
    from holdfast.store import journal
    from holdfast.world import LocalFiles

    try:
        content = LocalFiles().read(file) or b""
        after, entries = parsed_copy([line for line in content.decode().splitlines() if line])
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}.") from None
    if not entries:
        raise UserError(f"There is no file {file}, or nothing is in it.")
    found = verify_copy(entries, after)
    if against is None or not found.ok:
        return found
    kept, archived = _read(against, lambda tx: journal.known_hashes(tx, entries[0].seq, entries[-1].seq))
    other = differs_from_store(entries, kept, archived)
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
