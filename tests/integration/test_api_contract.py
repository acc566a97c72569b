"""The API keeps to its own document: no answer that it does not name, and none that begins with a 5."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.contract.asking import asked
from tests.contract.server import served

from holdfast.store.database import Database, Engine
from holdfast.store.sqlite import SqliteEngine
from holdfast.world import SystemClock

pytestmark = pytest.mark.anyio


@pytest.fixture
def make_engine(tmp_path: Path) -> Callable[[], Engine]:
    """One store is enough here: what is asked is the face."""
    return lambda: SqliteEngine(tmp_path / "holdfast.sqlite", SystemClock())


async def test_a_few_of_all_possible_requests_are_answered_as_the_document_says(db: Database, tmp_path: Path) -> None:
    """`make contract` asks many more of them."""
    async with served(db, tmp_path) as server:
        found = await asked(server, tmp_path, examples=1, seed=20, phases="fuzzing")
    assert found.failures == (), found.text
    assert found.tested >= found.operations - 1  # with so few examples, one may have nothing new to ask
    assert found.cases > 50
