"""What a transaction function may be told to be: relaxed about its loss, apart, or brief. Any store may ignore it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.store.tx import Tx

T = TypeVar("T")


class NoFsync:
    """A write whose loss in a crash is no loss (a redeemed nonce, a hint): it does not wait for the disk by itself."""

    __slots__ = ("fn",)

    def __init__(self, fn: Callable[[Tx], object]) -> None:
        self.fn = fn

    def __call__(self, tx: Tx) -> Any:
        return self.fn(tx)


def no_fsync(fn: Callable[[Tx], T]) -> Callable[[Tx], T]:
    """Mark a function for write(): `await db.write(relaxed(fn))`."""
    return NoFsync(fn)


class Autocommit:
    """Statements that are each complete by themselves: PostgreSQL needs no transaction for them."""

    __slots__ = ("fn",)

    def __init__(self, fn: Callable[[Tx], object]) -> None:
        self.fn = fn

    def __call__(self, tx: Tx) -> Any:
        return self.fn(tx)


def autocommit(fn: Callable[[Tx], T]) -> Callable[[Tx], T]:
    """Mark a function for write(): `await db.write(apart(fn))`. It is not held up by what waits for the disk."""
    return Autocommit(fn)


class Inline(Autocommit):
    """A look at a few rows by their keys, one after the other. On SQLite it is sooner done than handed to a thread."""

    __slots__ = ()


def inline(fn: Callable[[Tx], T]) -> Callable[[Tx], T]:
    """Mark a function for read(): `await db.read(brief(fn))`."""
    return Inline(fn)
