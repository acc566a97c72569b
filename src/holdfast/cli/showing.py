"""How commands write rows of any shape: a table for people, data for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.cli.terminal import Format, FormatOption, as_data, say, tame

OutputOption = FormatOption  # the same for every command


def show_rows(rows: Sequence[Mapping[str, Any]], output: Format, *, empty: str) -> None:
    """What names one of them comes first in it."""
    if output == "jsonl":
        for row in rows:
            as_data(row, output)
    elif output == "name":
        for row in rows:
            print(tame(next(iter(row.values()))))
    elif not as_data(list(rows), output):
        print(table(rows)) if rows else say(empty)


def show_one(row: Mapping[str, Any], output: Format) -> None:
    if output == "name":
        print(tame(next(iter(row.values()))))
    elif not as_data(row, output):
        _show_facts(row)


def _show_facts(row: Mapping[str, Any]) -> None:
    flat = {name: value for name, value in row.items() if not isinstance(value, Mapping)}
    flat |= {key: value for nested in row.values() if isinstance(nested, Mapping) for key, value in nested.items()}
    width = max(map(len, flat))
    for name, value in flat.items():
        print(f"{cell(name).replace('_', ' ').ljust(width)}  {cell(value)}".rstrip())


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
            return ", ".join(tame(str(each)) for each in value) or "-"
        case _:
            return str(tame(str(value)))
