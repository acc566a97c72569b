"""Jobs on both stores."""

from datetime import timedelta

import pytest

from holdfast.core.job import Done, Spec
from holdfast.errors import LeaseLost
from holdfast.store import jobs
from holdfast.store.database import Database

pytestmark = pytest.mark.anyio
TTL = timedelta(seconds=30)


async def test_a_finished_job_leaves_the_queue_for_the_history(db: Database) -> None:
    await db.write(lambda tx: jobs.enqueue(tx, Spec(id="job_1", kind="k", subject="s")))
    [claim] = await db.write(lambda tx: jobs.claim(tx, holder="a", free={"k": 5}, ttl=TTL))
    assert claim.attempt == 1
    await db.write(lambda tx: jobs.settle(tx, claim, Done()))
    assert await db.read(lambda tx: jobs.counts(tx)) == {}
    with pytest.raises(LeaseLost):
        await db.write(lambda tx: jobs.settle(tx, claim, Done()))
