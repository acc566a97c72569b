"""`holdfast config show`: every setting, its value, and where that came from; secrets stay masked."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from holdfast.cli.everywhere import chosen
from holdfast.config import Described, Settings, ShownSetting, describe, load

app = typer.Typer(name="config", help="Show the settings in force, and where each came from.")


def settings() -> Settings:
    """Read the settings of this process: from --config, the environment and the defaults."""
    return load(chosen().config, os.environ, Path.read_bytes)


def environment(name: str) -> str | None:
    """A variable that a command was told to read, such as one with a credential."""
    return os.environ.get(name)


@app.command()
def show(
    output: Annotated[
        Literal["table", "json", "toml"], typer.Option("--output", "-o", help="How to write it.")
    ] = "table",
) -> None:
    """Show every setting, its value, and where that came from."""
    rows = describe(settings())
    match output:
        case "table":
            _print_table(rows)
        case "json":
            print(json.dumps([asdict(row) for row in rows], indent=2))
        case "toml":
            print("\n".join(toml_lines(rows)))


def toml_lines(rows: Iterable[Described]) -> Iterable[str]:
    """Write a file that load() accepts: defaults and secrets are commented out, with no space after the #."""
    section = ""
    for row in rows:
        before, (section, _, name) = section, row.key.partition(".")
        if section != before:
            yield from ([""] if before else [])
            yield f"[{section}]"
        # JSON's text is TOML's basic string, save for DEL, which no setting may hold.
        line = f"{name} = {json.dumps('' if row.value is None else row.value, ensure_ascii=False)}"
        yield f"# {row.doc}"
        if row.secret:
            yield f"#{line}  # a secret: set {row.variable}, or {row.key}_file"
        else:
            yield f"#{line}" if row.source == "default" else line


def _cell(value: ShownSetting) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return str(value).lower()
        case list():
            return ", ".join(value)
        case _:
            return str(value)


def _print_table(rows: Iterable[Described]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("SETTING", "VALUE", "FROM", "MEANING", box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        cells = (row.key, _cell(row.value), row.source, row.doc)
        table.add_row(*map(Text, cells))  # Text, because "[…]" in a value is not markup
    # A pipe has no width: give it one that wraps nothing but very long paths.
    Console(width=None if sys.stdout.isatty() else 200).print(table)
