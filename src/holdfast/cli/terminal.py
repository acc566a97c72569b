"""How commands write: data to stdout in the format that was asked for, talk to stderr; times relative and exact."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal, NamedTuple

import typer

Format = Literal["table", "wide", "json", "yaml", "jsonl", "name"]
FormatOption = Annotated[Format, typer.Option("--output", "-o", help="How to write it.")]
Row = Mapping[str, Any]
_COLOURS: Final = {
    "ok": "green", "failing": "red", "expired": "red", "revoked": "red", "pending": "cyan", "renewing": "cyan",
    "waiting": "yellow", "awaiting_approval": "yellow", "paused": "yellow",
}  # fmt: skip


class Column(NamedTuple):
    title: str
    cell: Callable[[Row], str]
    wide: bool = False  # only in the wide table


# ── Data ──


def emit(
    rows: Sequence[Row], columns: Sequence[Column], output: Format, *, name: str = "name", empty: str = ""
) -> None:
    """Many things. Where there are none, people are told so on stderr, and programs get an empty list."""
    match output:
        case "json":
            print(json.dumps(list(rows), indent=2, ensure_ascii=False))
        case "jsonl":
            for row in rows:
                print(json.dumps(row, ensure_ascii=False))
        case "yaml":
            print("\n".join(_yaml(list(rows))))
        case "name":
            for row in rows:
                print(row[name])
        case _:
            chosen = [column for column in columns if output == "wide" or not column.wide]
            print(_table(rows, chosen)) if rows else say(empty or "There is nothing.")


def emit_one(row: Row, output: Format, *, text: Callable[[Row], str], name: str = "name") -> None:
    match output:
        case "json":
            print(json.dumps(row, indent=2, ensure_ascii=False))
        case "jsonl":
            print(json.dumps(row, ensure_ascii=False))
        case "yaml":
            print("\n".join(_yaml(row)))
        case "name":
            print(row[name])
        case _:
            print(text(row))


def _table(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    cells = [[column.title for column in columns], *([column.cell(row) for column in columns] for row in rows)]
    widths = [max(map(len, line)) for line in zip(*cells, strict=True)]
    lines = []
    for number, line in enumerate(cells):
        padded = "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        lines.append(padded if number == 0 else painted_words(padded, rows[number - 1]))
    return "\n".join(lines)


def painted_words(text: str, row: Row) -> str:
    """The phase of a certificate in its colour, wherever colours are wanted."""
    phase = (row.get("status") or {}).get("phase", "") if isinstance(row.get("status"), Mapping) else ""
    return text.replace(phase.upper(), painted(phase.upper(), phase), 1) if phase in _COLOURS else text


def painted(text: str, phase: str) -> str:
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or phase not in _COLOURS:
        return text
    return typer.style(text, fg=_COLOURS[phase], bold=phase in ("failing", "expired", "revoked"))


def pairs(facts: Iterable[tuple[str, str]]) -> str:
    """One fact a line, for one thing in full."""
    shown = [(name, value) for name, value in facts if value]
    width = max((len(name) for name, _ in shown), default=0)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in shown)


def _yaml(value: Any, depth: int = 0) -> list[str]:
    """Blocks of mappings and lists; scalars are JSON, which is YAML."""
    pad = "  " * depth
    if isinstance(value, Mapping) and value:
        lines = []
        for key, each in value.items():
            if _is_block(each):
                lines += [f"{pad}{_scalar(str(key))}:", *_yaml(each, depth + 1)]
            else:
                lines.append(f"{pad}{_scalar(str(key))}: {_scalar(each)}")
        return lines
    if isinstance(value, list) and value:
        lines = []
        for each in value:
            first, *rest = _yaml(each, depth + 1) if _is_block(each) else [f"{pad}  {_scalar(each)}"]
            lines += [f"{pad}- {first.lstrip()}", *rest]
        return lines
    return [f"{pad}{_scalar(value)}"]


def _is_block(value: Any) -> bool:
    return isinstance(value, Mapping | list) and bool(value)


def _scalar(value: Any) -> str:
    plain = isinstance(value, str) and value.replace("-", "a").replace("_", "a").isalnum() and value[0].isalpha()
    if plain and value.isascii() and value.lower() not in ("true", "false", "null", "yes", "no", "on", "off", "y", "n"):
        return str(value)
    return json.dumps(value, ensure_ascii=False)


# ── Talk ──


def say(text: str) -> None:
    if text:
        print(text, file=sys.stderr)


def asked_for(question: str, *, yes: bool, word: str) -> bool:
    """Type the word to confirm it on a terminal; --yes anywhere else."""
    if yes:
        return True
    if not sys.stdin.isatty():
        say(f"{question}\nThis needs --yes where nobody can be asked.")
        return False
    return bool(typer.prompt(f"{question}\nType {word!r} to go on", default="", show_default=False, err=True) == word)


# ── Times ──


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


def exact(text: str) -> str:
    return instant(text).strftime("%Y-%m-%dT%H:%MZ")


def when(text: str | None, now: datetime) -> str:
    """Relative and exact, never one alone."""
    if text is None:
        return "-"
    span = instant(text) - now
    around = f"in {duration(span)}" if span > timedelta(0) else f"{duration(-span)} ago"
    return f"{around} ({exact(text)})"


def duration(span: timedelta) -> str:
    seconds = int(span.total_seconds())
    for size, unit, small_size, small_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if seconds >= size:
            rest = seconds % size // small_size
            return f"{seconds // size} {unit} {rest} {small_unit}" if rest else f"{seconds // size} {unit}"
    return f"{seconds} s"
