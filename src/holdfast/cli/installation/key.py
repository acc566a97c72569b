"""`holdfast key`: show or rotate the key that encrypts what the store keeps secret."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer.core import TyperCommand

from holdfast.cli.everywhere import FINDINGS, Row
from holdfast.cli.installation.config import settings
from holdfast.cli.terminal import instant
from holdfast.errors import Usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typer._click import Context

    from holdfast.config import Settings
    from holdfast.operations.installation.key_rotation import Rotation

app = typer.Typer(name="key", help="Show or rotate the key that encrypts the secrets in the store.")


class OnlyOnTheServer(Usage):
    code = "only-on-the-server"
    hint = "Run it there. For the installation of this machine, leave --server out."

    def __init__(self) -> None:
        super().__init__("This works only on the machine of the server: it reads and writes files there.")


class OnTheServer(TyperCommand):
    """Refuses --server, before the command's name and after it."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        before = args[: args.index("--")] if "--" in args else args
        source = ctx.find_root().get_parameter_source("server")
        named = source is not None and source.name == "COMMANDLINE"
        if named or any(each == "--server" or each.startswith("--server=") for each in before):
            raise OnlyOnTheServer
        return super().parse_args(ctx, args)


@app.command(cls=OnTheServer)
def status(
    output: Annotated[Literal["table", "json"], typer.Option("--output", "-o", help="How to write it.")] = "table",
) -> None:
    """Show which keys the database uses, and whether they are here. While a server runs here, it is asked."""
    import asyncio

    from holdfast.cli import client

    chosen, as_json = settings(), output == "json"
    try:
        with client.local(chosen) as line:
            _print([_row(each) for each in line.get("/keys")], as_json=as_json)
    except client.NoServer:
        asyncio.run(_status(chosen, as_json=as_json))


def _print(rows: Sequence[dict[str, object]], *, as_json: bool) -> None:
    print(json.dumps(rows, indent=2) if as_json else _table(rows))


@app.command(cls=OnTheServer)
def create(path: Annotated[Path, typer.Argument(metavar="FILE", help="The key file; it must not exist yet.")]) -> None:
    """Make a key file for a new installation, as a first start would: for several replicas, or for a Secret."""
    from holdfast.errors import UserError
    from holdfast.keyring import new_kek, render_key_file
    from holdfast.world import LocalFiles, SystemClock, SystemRandom

    content = render_key_file([new_kek(SystemRandom(), SystemClock().now())])
    try:
        LocalFiles().write_private(path, content, replace=False)
    except FileExistsError:
        raise UserError(f"There is a file {path} already: it is left as it is.") from None
    print(f"{path} is made. Keep a copy apart from the backups of the database, and name it: HOLDFAST_KEYS_FILE={path}")


@app.command(cls=OnTheServer)
def rotate() -> None:
    """Make a new key, put every secret under it, and drop the old one.

    It may be interrupted at any moment: run it again to end it. On SQLite, stop Holdfast first. With a
    passphrase, set HOLDFAST_KEYS_PASSPHRASE to the new one and HOLDFAST_KEYS_PREVIOUS_PASSPHRASE to the one
    in use. Backups made before need the old key: keep a copy of the key file (or the passphrase) for them.
    """
    import asyncio

    chosen = settings()
    done = asyncio.run(_rotate(chosen))
    print(_told(done, chosen))
    if done.unusable:
        print(f"error: {_damage(done)}", file=sys.stderr)
        raise typer.Exit(FINDINGS)


async def _status(chosen: Settings, *, as_json: bool) -> None:
    from holdfast.cli.opening import opened
    from holdfast.operations.installation import keys
    from holdfast.world import LocalFiles, SystemRandom

    files = LocalFiles()
    async with opened(chosen) as db:
        found = await keys.standing(db, chosen, files)
        _print([_row({**asdict(each), "created_at": each.created_at.isoformat()}) for each in found], as_json=as_json)
        keyring = await keys.unlock(db, chosen, files, SystemRandom(), create=False)  # or says what is wrong
        if note := keys.owed(chosen, keyring):
            print(note, file=sys.stderr)


async def _rotate(chosen: Settings) -> Rotation:
    from holdfast.cli.opening import opened
    from holdfast.operations.installation import key_rotation, keys
    from holdfast.ports import no_points
    from holdfast.world import LocalFiles, SystemClock, SystemRandom

    files, random, clock = LocalFiles(), SystemRandom(), SystemClock()
    async with opened(chosen) as db:
        keyring = await keys.unlock(db, chosen, files, random, create=False)
        return await key_rotation.rotate(db, keyring, chosen, files, random=random, clock=clock, points=no_points)


def _row(key: Row) -> dict[str, object]:
    return {
        "key": key["id"],
        "use": key["use"],
        "from": key["kind"],
        "here": "yes" if key["held"] else "no",
        "secrets": key["secrets"],
        "created": instant(key["created_at"]).isoformat(timespec="seconds"),
    }


def _table(rows: Sequence[dict[str, object]]) -> str:
    if not rows:
        return "There is no key yet."
    cells = [[name.upper() for name in rows[0]], *([str(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells
    )


def _told(done: Rotation, chosen: Settings) -> str:
    lines = [f"Secrets put under key {done.current}: {done.rewrapped}."]
    if done.retired:
        lines.append(f"Dropped: {', '.join(done.retired)}.")
    if not done.unusable and not chosen.keys.passphrase:
        lines.append(f"Copy {chosen.key_file} to a safe place now: older copies do not open this database.")
    return "\n".join(lines)


def _damage(done: Rotation) -> str:
    ids = ", ".join(done.unusable[:10]) + (", …" if len(done.unusable) > 10 else "")
    return (
        f"The old key stays: damaged secrets could not be put under the new one ({ids}).\n"
        "hint: Restore or replace them, then run 'holdfast key rotate' again."
    )
