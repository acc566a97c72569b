"""Whether a database is the one that a replica knows: one table of cases."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.core.installation import Change, Installation, Mode, SeenDatabase, judge
from holdfast.core.witness import Head

AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
ROW = Installation(id="inst_1", place="here", mode=Mode.NORMAL, generation=3, since=AT)
HEAD = Head(installation="inst_1", generation=3, epoch=2, seq=100, hash="aa", at=AT)
SEEN = SeenDatabase(row=ROW, place="here", epoch=2, known_epoch=2, seq=100, at=AT, hash_there="aa")
BEFORE = AT - timedelta(seconds=40)
LONG_BEFORE = AT - timedelta(hours=1)


@pytest.mark.parametrize(
    ("seen", "head", "change", "missing"),
    [
        (SEEN, HEAD, Change.NONE, 0),
        (SEEN, None, Change.NONE, 0),
        (replace(SEEN, seq=140), HEAD, Change.NONE, 0),
        (replace(SEEN, seq=99, hash_there=None, at=BEFORE), HEAD, Change.OLDER, 40),
        (replace(SEEN, seq=120, hash_there="bb"), HEAD, Change.OLDER, 1),
        (replace(SEEN, seq=140, hash_there=None, archived=120), HEAD, Change.NONE, 0),
        (replace(SEEN, place="elsewhere"), None, Change.ELSEWHERE, 0),
        (replace(SEEN, place="elsewhere", seq=9, hash_there=None, at=BEFORE), HEAD, Change.ELSEWHERE, 40),
        (replace(SEEN, place=""), HEAD, Change.NONE, 0),
        (replace(SEEN, epoch=1, known_epoch=1), HEAD, Change.BEHIND, 0),
        (replace(SEEN, epoch=3), HEAD, Change.FAILED_OVER, 0),
        (replace(SEEN, epoch=3), None, Change.FAILED_OVER, 0),
        (replace(SEEN, epoch=3, known_epoch=3), HEAD, Change.FAILED_OVER, 0),
        (replace(SEEN, epoch=3, seq=90, hash_there=None, at=BEFORE), HEAD, Change.FAILED_OVER, 40),
        (replace(SEEN, epoch=3, seq=9, hash_there=None, at=LONG_BEFORE), HEAD, Change.OLDER, 3600),
        (replace(SEEN, row=replace(ROW, generation=4), seq=9, hash_there=None), HEAD, Change.LATE, 0),
        (SEEN, replace(HEAD, installation="inst_2", seq=900), Change.NONE, 0),
        (replace(SEEN, known_epoch=0, epoch=1, seq=0, hash_there=None), None, Change.NONE, 0),
    ],
)
def test_a_database_is_judged_by_what_the_witness_knows(
    seen: SeenDatabase, head: Head | None, change: Change, missing: int
) -> None:
    found = judge(seen, head)
    assert (found.change, int(found.missing.total_seconds())) == (change, missing)
    assert (found.why == "") == (change in (Change.NONE, Change.LATE))
