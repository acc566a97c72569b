"""Whoever asks for something that is under way gets a moment's patience: most of it is over in a few milliseconds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from holdfast.operations.desk import Changes

PATIENCE: Final = 0.3  # seconds

T = TypeVar("T")


async def settled(changes: Changes, subject: str, look: Callable[[], Awaitable[T]], *, busy: Callable[[T], bool]) -> T:
    """What `look` finds; if that is busy, what it finds a little later, or as soon as the subject has moved on."""
    found = await look()
    if not busy(found):
        return found
    await changes.wait(subject, PATIENCE)
    return await look()  # in any case: another replica may have moved it on
