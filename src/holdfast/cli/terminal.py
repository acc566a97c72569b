"""How commands write: data to stdout in the format that was asked for, talk to stderr; times relative and exact."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, NamedTuple, TextIO

import typer

from holdfast.cli.everywhere import Row, chosen
from holdfast.errors import Usage

LimitOption = Annotated[int | None, typer.Option("--limit", min=1, help="At most so many; all, if left out.")]
BAR: Final = 30  # characters
_COLOURS: Final = {
    "ok": "green", "failing": "red", "expired": "red", "revoked": "red", "pending": "cyan", "renewing": "cyan",
    "waiting": "yellow", "awaiting_approval": "yellow", "paused": "yellow",
}  # fmt: skip


class Column(NamedTuple):
    title: str
    cell: Callable[[Row], str]
    wide: bool = False  # only in the wide table


# ── Data ──


class NoColumn(Usage):
    code = "no-such-column"


def let_go(stream: TextIO) -> None:
    """Drop the rest of the output: the reader is gone, and the flush at exit would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def emit(rows: Sequence[Row], columns: Sequence[Column], *, name: str = "name", empty: str = "") -> None:
    """Write rows as --output asks. For an empty table, `empty` is said on stderr; programs get an empty list."""
    output, shown = chosen().output, _shown(columns)
    if output == "jsonl":
        for row in rows:
            as_data(row)
    elif output == "name":
        for row in rows:
            print(tame(row[name]))
    elif output == "csv":
        as_csv([column.title for column in shown], ([column.cell(row) for column in shown] for row in rows))
    elif not as_data(list(rows)):
        print(as_table(tame(list(rows)), shown)) if rows else say(empty or "There is nothing.")


def as_data(value: object) -> bool:
    """Write it as JSON or YAML, if --output asks for that; returns whether it did."""
    match chosen().output:
        case "json":
            print(harmless(json.dumps(value, indent=2, ensure_ascii=False)))
        case "jsonl":
            print(harmless(json.dumps(value, ensure_ascii=False)))
        case "yaml":
            print("\n".join(_yaml(value)))
        case _:
            return False
    return True


def as_csv(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """RFC 4180, for spreadsheets: a text that one would take for a formula gets a quote in front."""
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    for line in ([each.lower().replace(" ", "_") for each in titles], *rows):
        writer.writerow([_csv_cell(tame(text)) for text in line])


def _csv_cell(text: str) -> str:
    if text == "-":  # how tables show that there is nothing
        return ""
    return f"'{text}" if text.startswith(("=", "+", "@", "-")) else text


def _shown(columns: Sequence[Column]) -> list[Column]:
    only = chosen().columns
    if only is None:
        return [column for column in columns if chosen().output in ("wide", "csv") or not column.wide]
    known = {column.title.lower().replace(" ", "_"): column for column in columns}
    try:
        return [known[each.strip().lower().replace(" ", "_")] for each in only.split(",")]
    except KeyError as missing:
        wrong = NoColumn(f"There is no column {missing.args[0]!r:.40}.")
        wrong.hint = f"There are: {', '.join(known)}."
        raise wrong from None


def emit_one(row: Row, *, text: Callable[[Row], str], name: str = "name") -> None:
    if chosen().output == "name":
        print(tame(row[name]))
    elif not as_data(row):
        print(text(tame(row)))


def as_table(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    if not rows:
        return ""
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


def _yaml(value: object, depth: int = 0) -> list[str]:
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


def _is_block(value: object) -> bool:
    return isinstance(value, Mapping | list) and bool(value)


def _scalar(value: Any) -> str:
    plain = isinstance(value, str) and value.replace("-", "a").replace("_", "a").isalnum() and value[0].isalpha()
    if plain and value.isascii() and value.lower() not in ("true", "false", "null", "yes", "no", "on", "off", "y", "n"):
        return str(value)
    return harmless(json.dumps(value, ensure_ascii=False), lambda char: f"\\U{ord(char):08x}")


# ── Other people's text ──


def tame(value: Any) -> Any:
    """The same with nothing in it that a terminal obeys: on one line, and all of it to be seen."""
    match value:
        case str():
            return value if value.isprintable() else "".join(map(_tamed, value))
        case Mapping():
            return {tame(name): tame(each) for name, each in value.items()}
        case list():
            return [tame(each) for each in value]
        case _:
            return value


def _tamed(char: str) -> str:
    return char if char.isprintable() else " " if char.isspace() else f"\\x{ord(char):02x}"


def tame_lines(text: str) -> str:
    """Of ours, with words of others in it."""
    return "\n".join(map(tame, text.split("\n")))


def harmless(text: str, written: Callable[[str], str] = lambda char: json.dumps(char)[1:-1]) -> str:
    """JSON that means the same to a program: it may be read on a screen, too, where bidi marks and C1 are orders."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else written(char) for char in text)


# ── Talk ──


def say(text: str) -> None:
    """Talk, which --quiet silences; errors are not talk."""
    if text and not asked("quiet"):
        print(tame_lines(text), file=sys.stderr)


def asked(option: str) -> bool:
    """Whether --quiet or --no-input was given."""
    return bool(getattr(chosen(), option))


def live() -> bool:
    """Whether a line may be written over: on a terminal, without --quiet."""
    return sys.stderr.isatty() and not asked("quiet") and os.environ.get("TERM") != "dumb"


def say_over(text: str) -> None:
    """In place of the line before; only where that can be: see live()."""
    width = shutil.get_terminal_size().columns - 1
    text = tame(text)
    cut = text if len(text) <= width else text[: max(1, width - 1)] + "…"
    print(f"\r\x1b[2K{cut}", end="", file=sys.stderr, flush=True)


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar for long work on a terminal. Call the function that it yields with the number of new results."""
    done = 0

    def step(more: int) -> None:
        nonlocal done
        done += more
        if live() and total > 1:
            filled = BAR * done // total
            say_over(f"{what}  [{'#' * filled}{'.' * (BAR - filled)}]  {done}/{total}")

    try:
        yield step
    finally:
        if done and live() and total > 1:
            print(file=sys.stderr)


def asked_for(question: str, *, word: str) -> bool:
    """Type the word to confirm it on a terminal; --yes anywhere else."""
    if chosen().yes:
        return True
    if not sys.stdin.isatty() or asked("no_input"):
        say(f"{question}\nThis needs --yes, because no question can be asked here.")
        return False
    question = tame_lines(question)
    try:
        typed = typer.prompt(f"{question}\nType {word!r} to go on", default="", show_default=False, err=True)
    except typer.Abort:
        say("\nYou left; nothing was changed.")
        raise typer.Exit(130) from None
    return bool(typed == word)


# ── Times ──


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


def exact(text: str) -> str:
    return instant(text).strftime("%Y-%m-%dT%H:%MZ")


def when(text: str | None, now: datetime) -> str:
    """Relative and exact, never one alone."""
    if text is None:
        return "-"
    if chosen().output == "csv":
        return exact(text)
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


# ── Rows of any shape ──


_EXACT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")  # as it is stored, to the microsecond


def show_rows(rows: Sequence[Row], *, empty: str) -> None:
    """Write rows as --output asks. The first value of a row is its name."""
    output = chosen().output
    if output == "jsonl":
        for row in rows:
            as_data(row)
    elif output == "name":
        for row in rows:
            print(tame(next(iter(row.values()))))
    elif output == "csv":
        as_csv(list(rows[0]) if rows else [], ([cell(value) for value in row.values()] for row in rows))
    elif not as_data(list(rows)):
        print(table(rows)) if rows else say(empty)


def show_one(row: Row) -> None:
    if chosen().output == "name":
        print(tame(next(iter(row.values()))))
    elif not as_data(row):
        _show_facts(row)


def _show_facts(row: Row) -> None:
    flat = {name: value for name, value in row.items() if not isinstance(value, Mapping)}
    flat |= {key: value for nested in row.values() if isinstance(nested, Mapping) for key, value in nested.items()}
    width = max(map(len, flat))
    for name, value in flat.items():
        print(f"{cell(name).replace('_', ' ').ljust(width)}  {cell(value)}".rstrip())


def table(rows: Sequence[Row]) -> str:
    cells = [[name.upper().replace("_", " ") for name in rows[0]]]
    cells += [[cell(value) for value in row.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in cells)
    return "\n".join(line.rstrip() for line in lines)


def cell(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case list() if value and all(isinstance(each, Mapping) for each in value):
            return "; ".join(", ".join(f"{name}={cell(inner)}" for name, inner in each.items()) for each in value)
        case str() if _EXACT.fullmatch(value):
            return exact(value)
        case list():
            return ", ".join(tame(str(each)) for each in value) or "-"
        case _:
            return str(tame(str(value)))
