"""What the runner does for every operation: acts after the commit, keys, dry runs; on both stores."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.api import a_desk
from tests.support.jobs import Gate, opened
from tests.support.running import someone
from tests.support.stores import migrated

from holdfast.operations import runner
from holdfast.operations.catalog import named
from holdfast.operations.context import Context, Services, Transaction
from holdfast.operations.inputs import Nothing
from holdfast.operations.operation import Operation, OperationForm
from holdfast.operations.runner import KeyReused, Options
from holdfast.operations.scopes import INSTALLATION
from holdfast.store.database import Database, Engine
from holdfast.store.tx import Tx

pytestmark = pytest.mark.anyio


def an_operation(function: Callable[..., Any], form: OperationForm) -> Operation:
    """One that is in no catalogue."""
    return replace(
        named("ca.open"), function=function, form=form, input_model=Nothing, scope=INSTALLATION, waits=None, keyed=True
    )


async def run(services: Services, operation: Operation, **options: Any) -> Any:
    outcome = await runner.run(services, operation, someone("local:alice"), Nothing(), Options(**options))
    return outcome.result


@asynccontextmanager
async def one_writer(make_engine: Callable[[], Engine]) -> AsyncIterator[Database]:
    engine = make_engine()
    engine.writers = 1
    async with opened(engine) as db:
        await migrated(db)
        yield db


async def test_an_act_after_the_commit_is_not_doubled_when_the_transaction_runs_again(
    make_engine: Callable[[], Engine], tmp_path: Path
) -> None:
    done: list[str] = []
    runs: list[str] = []

    async def act() -> None:
        done.append("once")

    def change(tx: Tx, ctx: Context, asked: Nothing) -> str:
        runs.append(ctx.ids.new("thing"))
        ctx.after_commit(act)
        return runs[-1]

    def fails(tx: Tx) -> None:
        raise RuntimeError("this one's fault makes the store run the others of its group again")

    async with one_writer(make_engine) as db, a_desk(db, tmp_path) as desk:
        gate = Gate()
        first = asyncio.create_task(db.write(gate.wait))
        await gate.entered()
        asked = asyncio.create_task(run(desk.services, an_operation(change, OperationForm.TRANSACTION)))
        faulty = asyncio.create_task(db.write(fails))
        await asyncio.sleep(0)  # each hands its function over at its first step
        gate.open()
        await first
        with pytest.raises(RuntimeError):
            await faulty
        result = await asked
    assert len(runs) == 2
    assert runs == [result, result]
    assert done == ["once"]


async def test_a_prepared_operation_with_a_kept_result_is_not_prepared_again(db: Database, tmp_path: Path) -> None:
    prepared: list[int] = []

    async def prepares(ctx: Context, asked: Nothing) -> Transaction[int]:
        prepared.append(len(prepared) + 1)
        return lambda tx: len(prepared)

    async with a_desk(db, tmp_path) as desk:
        operation = an_operation(prepares, OperationForm.PREPARED)
        given: dict[str, Any] = {"key": "k1", "digest": "d"}
        assert [await run(desk.services, operation, **given) for _ in range(3)] == [1, 1, 1]
        assert prepared == [1]
        with pytest.raises(KeyReused):
            await run(desk.services, operation, key="k1", digest="another")
        assert prepared == [1]
        assert await run(desk.services, operation, **given, dry_run=True) == 2, "a dry run keeps and finds nothing"
        assert await run(desk.services, operation, key="k2", digest="d") == 3


async def test_two_dry_runs_show_the_same_ids(db: Database, tmp_path: Path) -> None:
    def change(tx: Tx, ctx: Context, asked: Nothing) -> list[str]:
        return [ctx.ids.new("thing"), ctx.ids.new("job")]

    async with a_desk(db, tmp_path) as desk:
        operation = an_operation(change, OperationForm.TRANSACTION)
        tried = [await run(desk.services, operation, dry_run=True) for _ in range(2)]
        assert tried[0] == tried[1] == ["thing_00000000000000000000000001", "job_00000000000000000000000002"]
        assert await run(desk.services, operation) != tried[0]
