"""The first token where nobody watches the start: in a file for whoever may read the data folder, until it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from holdfast.operations import tokens
from holdfast.ports import Files, Random
from holdfast.secret import Secret
from holdfast.store.database import Store

FILE: Final = "first-token"


async def leave(db: Store, random: Random, files: Files, folder: Path) -> Path | None:
    """Where it was written; None if somebody was let in already. OSError if the folder cannot be written to."""
    first = await tokens.first(db, random)
    if first is None:
        return None
    files.write_private(folder / FILE, f"{first.reveal()}\n".encode(), replace=True)
    return folder / FILE


async def tidy(db: Store, files: Files, folder: Path) -> int:
    """Take the file away once its token is used, too old, or replaced by that of another replica."""
    kept = files.read(folder / FILE)
    if kept is None or await tokens.is_good(db, Secret(kept.decode(errors="replace").strip())):
        return 0
    files.remove_within(folder, FILE)
    return 1
