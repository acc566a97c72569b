"""How findings are written: each with what was seen, and the one thing to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from holdfast.cli.terminal import Column, Format, emit

if TYPE_CHECKING:
    from holdfast.core.finding import Finding

FINDINGS: Final = 10  # exit code
_WORDS: Final = {"ok": "ok", "note": "note", "bad": "WRONG"}


def show(rows: Sequence[tuple[str, Finding]], output: Format) -> bool:
    """Write them, by what they are about; whether any of them is bad."""
    plain = [
        {"about": about, "check": each.check, "level": each.level.value, "saw": each.saw, "fix": each.fix}
        for about, each in rows
    ]
    columns = [
        Column("ABOUT", lambda row: str(row["about"])),
        Column("CHECK", lambda row: str(row["check"])),
        Column("", lambda row: _WORDS[row["level"]]),
        Column("SAW", lambda row: str(row["saw"]) + (f"\n    fix: {row['fix']}" if row["fix"] else "")),
    ]
    emit(plain, columns, output, name="check")
    return any(row["level"] == "bad" for row in plain)
