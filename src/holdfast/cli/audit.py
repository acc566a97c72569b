"""`holdfast audit verify`: walk the whole audit chain and name the first bad row."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from holdfast.cli.config import ConfigOption, settings

if TYPE_CHECKING:
    from holdfast.config import Settings
    from holdfast.core.chain import Verdict

app = typer.Typer(name="audit", help="Check that no audit row was altered, removed or added.")

FINDINGS = 10  # exit code: see main.py


@app.callback()
def group() -> None:
    """Keep `verify` a subcommand although it is the only one."""


@app.command()
def verify(
    config: ConfigOption = None,
    output: Annotated[Literal["table", "json"], typer.Option("--output", "-o", help="How to write it.")] = "table",
) -> None:
    """Walk the chain from the first row to the last. A running Holdfast is not disturbed."""
    verdict = _verdict(settings(config))
    if output == "json":
        print(json.dumps({"ok": verdict.ok, "verified": verdict.verified, "first_bad_row": verdict.bad_seq,
                          "problem": verdict.problem}))  # fmt: skip
    elif verdict.ok:
        print(f"The audit chain holds: {verdict.verified} rows, last hash {verdict.last_hash[:16] or '-'}.")
    else:
        print(f"The audit chain is broken: {verdict.problem}. The {verdict.verified} rows before it hold.")
    if not verdict.ok:
        raise typer.Exit(FINDINGS)


def _verdict(chosen: Settings) -> Verdict:
    from holdfast.errors import StoreError, StoreRefused
    from holdfast.store import journal
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
            return journal.verify(Tx(session))
        finally:
            session.close()
    except StoreError as error:
        raise StoreRefused(f"The audit log cannot be read: {error}", "Try again when the store is well.") from error
