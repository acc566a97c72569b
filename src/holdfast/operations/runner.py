"""Carries out one operation for one asker: authorises, sets the audit origin, runs, keeps keys, tries out, waits.

There is no other way from a face to an operation. A dry run goes all the way, and is rolled back instead of committed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from holdfast.errors import UserError
from holdfast.operations.access import Principal
from holdfast.operations.context import Context, IdPool, Services, Steps, placeholders
from holdfast.operations.issuance.issuances import until_over
from holdfast.operations.operation import AfterWait, Operation, OperationForm
from holdfast.store import journal
from holdfast.store.database import Database, Store, kept_result
from holdfast.store.tx import Tx

R = TypeVar("R")


class KeyReused(UserError):
    status, code = 422, "idempotency-key-reused"
    hint = "Use a new Idempotency-Key for another request."

    def __init__(self) -> None:
        super().__init__("This Idempotency-Key came with another request before.")


class InQuarantine(UserError):
    status, code = 503, "quarantine"
    hint = "Look at what differs with holdfast restore show, then let it act again with holdfast restore release."

    def __init__(self, why: str) -> None:
        super().__init__(f"Nothing can be changed now: {why}.")


class _DryRun(Exception):
    """Carries the result of a dry run out of its transaction, which is rolled back."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the request says about how it is to be done."""

    key: str | None = None  # unique among all askers and routes
    digest: str = ""  # of the request: the same key with another request is a mistake
    dry_run: bool = False
    origin: Mapping[str, str] = field(default_factory=dict)  # for the audit log: face, address, request, token
    expected_version: int | None = None
    wait: float = 0.0  # seconds that the asker is ready to wait


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    result: Any  # a model; repeated with the same key, the plain values that were kept of the first time
    issuance: str | None = None  # under way because of this, where an operation can be waited for
    over: bool = False  # and its end was waited for


PLAINLY: Final = Options()


async def run(
    services: Services, operation: Operation, principal: Principal, asked: BaseModel, options: Options = PLAINLY
) -> RunOutcome:
    db = services.certificate_context.db
    if operation.changes and not operation.in_quarantine and isinstance(db, Database) and (why := db.closed()):
        raise InQuarantine(why)
    guarded = _Guarded(services.certificate_context.db, operation, principal, asked, options)
    ids = IdPool(placeholders() if options.dry_run else services.certificate_context.random.new_id)
    ctx = Context(
        principal=principal,
        services=services,
        ids=ids,
        steps=guarded,
        dry_run=options.dry_run,
        wait=options.wait,
        expected_version=options.expected_version,
        origin=options.origin,
    )
    function = operation.function
    match operation.form:
        case OperationForm.READ:
            return RunOutcome(result=await guarded.read(lambda tx: function(tx, ctx, asked)))
        case OperationForm.TRANSACTION:
            result = await guarded.once(lambda tx: function(tx, ctx, asked), ctx)
        case OperationForm.PREPARED:
            kept = await guarded.kept()
            result = kept[0] if kept else await guarded.once(await function(ctx, asked), ctx)
        case _:
            await guarded.authorise()
            result = await function(ctx, asked)
    if not options.dry_run:
        for act in ctx.after:
            await act()
    return RunOutcome(result=result) if operation.waits is None else await _waited(ctx, operation.waits, result)


async def _waited(ctx: Context, show: AfterWait, result: Any) -> RunOutcome:
    plain = result if isinstance(result, dict) else result.model_dump(include={"id", "operation"})
    under_way = plain["operation"]
    if ctx.dry_run or under_way is None:
        return RunOutcome(result=result)
    if not ctx.wait:
        return RunOutcome(result=result, issuance=under_way["id"])
    found = await until_over(ctx.services, ctx.principal, under_way["id"], ctx.wait)
    shown = await ctx.certificate_context.db.read(lambda tx: show(tx, plain["id"], found))
    return RunOutcome(result=shown, issuance=found.id, over=found.state.over)


class _Guarded(Steps):
    """The transactions of one request: each checks first whether the asker may."""

    def __init__(
        self, db: Store, operation: Operation, principal: Principal, asked: BaseModel, options: Options
    ) -> None:
        self._db, self._operation, self._principal, self._asked = db, operation, principal, asked
        self._options = options

    def _check(self, tx: Tx) -> None:
        self._operation.scope.check(tx, self._principal, self._operation.action, self._asked)

    async def authorise(self) -> None:
        await self._db.read(self._check)

    async def read(self, fn: Callable[[Tx], R]) -> R:
        def checked(tx: Tx) -> R:
            self._check(tx)
            return fn(tx)

        return await self._db.read(checked)

    async def write(self, fn: Callable[[Tx], R]) -> R:
        if self._options.dry_run:
            return await self._undone(self._checked(fn))
        return await self._db.write(self._checked(fn))

    def _checked(self, fn: Callable[[Tx], R]) -> Callable[[Tx], R]:
        def checked(tx: Tx) -> R:
            self._check(tx)
            with journal.coming_from(tx, self._options.origin or tx.origin):
                return fn(tx)

        return checked

    async def once(self, fn: Callable[[Tx], R], ctx: Context) -> object:
        """The one transaction of an operation; with a key it happens once, and its result is kept as plain values."""

        prepared = len(ctx.after)

        def whole(tx: Tx) -> R:
            ctx.ids.rewind()  # the store may run it again
            del ctx.after[prepared:]
            return fn(tx)

        key, digest = self._key, self._options.digest
        if key is None:
            return await self.write(whole)
        checked = self._checked(whole)
        return self._of_this_request(
            await self._db.write(lambda tx: [digest, to_jsonable_python(checked(tx))], key=key)
        )

    async def kept(self) -> list[object]:
        """The result of the same request with the same key, if it was made before; the asker is authorised first."""
        key = self._key
        found = await self.read(lambda tx: None if key is None else kept_result(tx, key))
        return [] if found is None else [self._of_this_request(json.loads(found))]

    @property
    def _key(self) -> str | None:
        return self._options.key if self._operation.keyed and not self._options.dry_run else None

    def _of_this_request(self, kept: list[object]) -> object:
        digest, result = kept
        if digest != self._options.digest:
            raise KeyReused
        return result

    async def _undone(self, fn: Callable[[Tx], R]) -> R:
        def undone(tx: Tx) -> None:
            raise _DryRun(fn(tx))

        try:
            await self._db.write(undone)
        except _DryRun as end:
            result: R = end.result
            return result
        raise AssertionError("a dry run is always rolled back")
