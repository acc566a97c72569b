"""`holdfast key`: show or rotate the key that encrypts what the store keeps secret."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from holdfast.cli.config import ConfigOption, settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.config import Settings
    from holdfast.operations.keys import Standing
    from holdfast.operations.rotation import Rotation

app = typer.Typer(name="key", help="Show or rotate the key that encrypts what the store keeps secret.")

FINDINGS = 10  # exit code: see main.py


@app.command()
def status(
    config: ConfigOption = None,
    output: Annotated[Literal["table", "json"], typer.Option("--output", "-o", help="How to write it.")] = "table",
) -> None:
    """Show which keys the database uses, and whether they are here. On SQLite, stop Holdfast first."""
    import asyncio

    asyncio.run(_status(settings(config), as_json=output == "json"))


@app.command()
def rotate(config: ConfigOption = None) -> None:
    """Make a new key, put every secret under it, and drop the old one.

    It may be interrupted at any moment: run it again to end it. On SQLite, stop Holdfast first. With a
    passphrase, set HOLDFAST_KEYS_PASSPHRASE to the new one and HOLDFAST_KEYS_PREVIOUS_PASSPHRASE to the one
    in use. Backups made before need the old key: keep a copy of the key file (or the passphrase) for them.
    """
    import asyncio

    chosen = settings(config)
    done = asyncio.run(_rotate(chosen))
    print(_told(done, chosen))
    if done.unusable:
        print(f"error: {_damage(done)}", file=sys.stderr)
        raise typer.Exit(FINDINGS)


async def _status(chosen: Settings, *, as_json: bool) -> None:
    from holdfast.cli.opening import opened
    from holdfast.operations import keys
    from holdfast.world import LocalFiles, SystemRandom

    files = LocalFiles()
    async with opened(chosen) as db:
        rows = [_row(each) for each in await keys.standing(db, chosen, files)]
        print(json.dumps(rows, indent=2) if as_json else _table(rows))
        keyring = await keys.unlock(db, chosen, files, SystemRandom(), create=False)  # or says what is wrong
        if note := keys.owed(chosen, keyring):
            print(note, file=sys.stderr)


async def _rotate(chosen: Settings) -> Rotation:
    from holdfast.cli.opening import opened
    from holdfast.operations import keys, rotation
    from holdfast.ports import no_points
    from holdfast.world import LocalFiles, SystemClock, SystemRandom

    files, random, clock = LocalFiles(), SystemRandom(), SystemClock()
    async with opened(chosen) as db:
        keyring = await keys.unlock(db, chosen, files, random, create=False)
        return await rotation.rotate(db, keyring, chosen, files, random=random, clock=clock, points=no_points)


def _row(key: Standing) -> dict[str, Any]:
    return {
        "key": key.id,
        "use": key.use,
        "from": key.kind,
        "here": "yes" if key.held else "no",
        "secrets": key.secrets,
        "created": key.created_at.isoformat(timespec="seconds"),
    }


def _table(rows: Sequence[dict[str, Any]]) -> str:
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
