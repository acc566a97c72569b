"""How a change is asked for: whether the asker may is checked in the same transaction, and with a key it happens once.

A verb runs unchanged on a store of this kind. A dry run goes all the way, and is rolled back instead of committed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, TypeVar, cast

from holdfast.errors import UserError
from holdfast.operations.issuing import Keeper
from holdfast.operations.vault import Vault
from holdfast.store import journal
from holdfast.store.database import Store, Wake
from holdfast.store.tx import Tx

T = TypeVar("T")
R = TypeVar("R")
Check = Callable[[Tx], None]  # raises what the asker is to be told


class KeyReused(UserError):
    status, code = 422, "idempotency-key-reused"
    hint = "Use a new Idempotency-Key for another request."

    def __init__(self) -> None:
        super().__init__("This Idempotency-Key came with another request before.")


class _Undone(Exception):
    """Carries the answer of a dry run out of its transaction, which is rolled back."""

    def __init__(self, reply: Any) -> None:
        super().__init__()
        self.reply = reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """What the request says about how it is to be done."""

    key: str | None = None  # unique among all askers and routes
    digest: str = ""  # of the request: the same key with another one is a mistake
    dry_run: bool = False
    origin: Mapping[str, str] = field(default_factory=dict)  # for the audit log: face, address, request, token


AT_ONCE: Final = Manner()


class Asked(Generic[T, R]):
    """A store for one verb: its one transaction is checked, rendered and, if so asked, remembered or undone."""

    def __init__(
        self, db: Store, check: Check, render: Callable[[Tx, T], R], manner: Manner, after: Callable[[T], None]
    ) -> None:
        self._db, self._check, self._render, self._manner, self._after = db, check, render, manner, after
        self.wake: Wake = db.wake
        self.reply: R | None = None

    async def read(self, fn: Callable[[Tx], Any]) -> Any:
        def checked(tx: Tx) -> Any:
            self._check(tx)
            return fn(tx)

        return await self._db.read(checked)

    async def write(self, fn: Callable[[Tx], Any], *, key: str | None = None) -> Any:
        def done(tx: Tx) -> tuple[T, R]:
            self._check(tx)
            with journal.coming_from(tx, self._manner.origin or tx.origin):
                result = fn(tx)
            self._after(result)
            return result, self._render(tx, result)

        def undone(tx: Tx) -> None:
            raise _Undone(done(tx))

        if self._manner.dry_run:
            try:
                await self._db.write(undone)
            except _Undone as end:
                result, self.reply = end.reply
                return result
        if self._manner.key is None:
            result, self.reply = await (self._db.write(done) if key is None else self._db.write(done, key=key))
            return result
        kept = await self._db.write(lambda tx: [self._manner.digest, done(tx)[1]], key=self._manner.key)
        if kept[0] != self._manner.digest:
            raise KeyReused
        self.reply = cast(R, kept[1])
        return None  # a verb only hands on what its transaction gave; the answer is in `reply`


def _nothing(result: object) -> None:
    """What came of it may be as it is."""


async def carry_out(
    keeper: Keeper,
    verb: Callable[[Keeper], Awaitable[Any]],
    *,
    check: Check,
    render: Callable[[Tx, Any], R],
    manner: Manner,
    after: Callable[[Any], None] = _nothing,
) -> R:
    """Do it as asked; `render` makes the answer, of plain values, inside the transaction."""
    store: Asked[Any, R] = Asked(keeper.db, check, render, manner, after)
    await verb(replace(keeper, db=store, vault=replace(keeper.vault, db=store)))
    return cast(R, store.reply)


def coming_from(vault: Vault, origin: Mapping[str, str]) -> Vault:
    """A vault for whoever may do anything: what is written through it says where the wish came from."""
    store: Asked[Any, None] = Asked(vault.db, _anybody, lambda tx, result: None, Manner(origin=origin), _nothing)
    return replace(vault, db=store)


def _anybody(tx: Tx) -> None:
    """Whoever may use the socket in the data folder holds the database anyway."""


def checked(keeper: Keeper, check: Check, manner: Manner = AT_ONCE) -> Keeper:
    """A keeper for looking, or for verbs of several transactions: each of them checks first."""
    store: Asked[Any, None] = Asked(keeper.db, check, lambda tx, result: None, manner, _nothing)
    return replace(keeper, db=store, vault=replace(keeper.vault, db=store))
