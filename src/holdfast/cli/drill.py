"""`holdfast drill` as people read it: what would be safe when, what would not, and what of it was really done."""

from __future__ import annotations

from typing import Final

import typer

from holdfast.cli.everywhere import FINDINGS, Displays, Row
from holdfast.cli.terminal import emit_one


def shown(row: Row) -> None:
    """The exit code says whether all would make it."""
    emit_one(row, text=_text, name="certificates")
    if row["makes_it"] < row["certificates"]:
        raise typer.Exit(FINDINGS)


def _text(row: Row) -> str:
    safe = row["safe_after_s"]
    lines = [
        f"{row['makes_it']} of {row['certificates']} certificates would be replaced within {span(row['within_s'])}.",
        f"Time to safe: {'never, without a person' if safe is None else span(safe)}."
        + (
            ""
            if row["served_after_s"] is None or safe is not None
            else f" Of the others: {span(row['served_after_s'])}."
        ),
        f"Too late: {row['too_late']}. Blocked: {row['blocked']}.",
    ]
    for title, name in (("Really issued", "issued"), ("Issuers tested", "issuers"), ("Targets tested", "targets")):
        lines += [f"{title}:", *(f"  {_tried(each)}" for each in row[name])] if row[name] else []
    if row["failing"]:
        lines += [
            "Would not make it:",
            *(f"  {each['turn']}. {each['name']}: {' '.join(each['why'])}" for each in row["failing"]),
        ]
    return "\n".join([*lines, *row["computed"]])


def span(seconds: float) -> str:
    """As people say it: 45 s, 12 min, 7 h, 3 d."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"


def _tried(row: Row) -> str:
    return f"{'ok  ' if row['ok'] else 'FAIL'} {row['name']} ({row['took_s']:.1f} s): {row['said']}"


SHOWN: Final[Displays] = {"drill.run": shown}
