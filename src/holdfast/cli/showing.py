"""How commands write what they were told: a table for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import typer

OutputOption = Annotated[Literal["table", "json"], typer.Option("--output", "-o", help="How to write it.")]


def show_rows(rows: Sequence[Mapping[str, Any]], output: str, *, empty: str) -> None:
    if output == "json":
        print(json.dumps(list(rows), indent=2))
    elif not rows:
        print(empty)
    else:
        print(table(rows))


def show_one(row: Mapping[str, Any], output: str) -> None:
    if output == "json":
        print(json.dumps(row, indent=2))
        return
    flat = {name: value for name, value in row.items() if not isinstance(value, Mapping)}
    flat |= {key: value for nested in row.values() if isinstance(nested, Mapping) for key, value in nested.items()}
    width = max(map(len, flat))
    for name, value in flat.items():
        print(f"{name.replace('_', ' ').ljust(width)}  {cell(value)}".rstrip())


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    cells = [[name.upper().replace("_", " ") for name in rows[0]]]
    cells += [[cell(value) for value in row.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in cells)
    return "\n".join(line.rstrip() for line in lines)


def cell(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case list() if value and all(isinstance(each, Mapping) for each in value):
            return "; ".join(", ".join(f"{name}={cell(inner)}" for name, inner in each.items()) for each in value)
        case list():
            return ", ".join(map(str, value)) or "-"
        case _:
            return str(value)
