"""The audit chain: what a walk over it notices."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.journal import AuditRow, ChainVerdict, canonical, chain_verdict, link

TEXTS = st.text(max_size=20)
ROWS = st.lists(
    st.tuples(st.integers(0, 2**62), TEXTS, TEXTS, TEXTS, st.dictionaries(TEXTS, TEXTS, max_size=3)),
    min_size=1,
    max_size=8,
)
FIELDS = ["at", "actor", "action", "subject", "details", "hash"]


def chained(rows: list[tuple[int, str, str, str, dict[str, str]]]) -> list[AuditRow]:
    entries, previous = [], ""
    for seq, (at, actor, action, subject, details) in enumerate(rows, 1):
        text = canonical(details)
        previous = link(previous, seq, at, actor, action, subject, text)
        entries.append(
            AuditRow(seq=seq, at=at, actor=actor, action=action, subject=subject, details=text, hash=previous)
        )
    return entries


def chain_of(size: int) -> list[AuditRow]:
    return chained([(n, "system", "did", f"s{n}", {"n": str(n)}) for n in range(size)])


def walk(entries: list[AuditRow], *, written: list[AuditRow]) -> ChainVerdict:
    """Check what is there against the head that was kept when all was written."""
    return chain_verdict(entries, newest_seq=written[-1].seq, newest_hash=written[-1].hash)


def test_details_have_one_text_for_one_meaning() -> None:
    assert canonical({"b": 1, "a": [1, None, "ü"]}) == canonical({"a": [1, None, "ü"], "b": 1})
    assert canonical({"b": 1, "a": [1, None, "ü"]}) == '{"a":[1,null,"\\u00fc"],"b":1}'


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_details_that_are_not_json_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical({"x": value})


def test_the_hash_of_a_row_never_changes_from_one_release_to_the_next() -> None:
    first = link("", 1, 1_900_000_000_000_000, "system", "job_retry", "s", '{"a":1}')
    assert first == "25735557cb8458dbd14f9c169f83742526fb0e71763bcb94efa4639c5e6d3add"
    second = link(first, 2, 0, "ü", "", "", "{}")
    assert second == "c1e94bc607efcd11764d5c98faaa3ffe9168f218420de12aab4feaacea248430"


def test_neighbouring_fields_cannot_be_shifted_into_each_other() -> None:
    one = link("", 1, 0, "a", "b,c", "d", "{}")
    assert one != link("", 1, 0, "a,b", "c", "d", "{}")
    assert one != link("", 1, 0, 'a","b', "c", "d", "{}")
    assert link("a", 1, 0, "", "", "", "") != link("", 1, 0, "a", "", "", "")
    assert link("", 1, 12, "", "", "", "") != link("", 11, 2, "", "", "", "")


@given(ROWS)
def test_a_chain_as_written_holds(rows: list[Any]) -> None:
    entries = chained(rows)
    verdict = walk(entries, written=entries)
    assert verdict == ChainVerdict(verified=len(entries), last_hash=entries[-1].hash)
    assert verdict.ok


def test_an_empty_chain_holds_if_nothing_was_written() -> None:
    assert chain_verdict([], newest_seq=0, newest_hash="") == ChainVerdict(verified=0)
    lost = chain_verdict([], newest_seq=3, newest_hash="x")
    assert (lost.bad_seq, lost.problem) == (1, "row 1 is missing: 3 were written")


@given(ROWS, st.data())
def test_one_altered_field_is_named(rows: list[Any], data: st.DataObject) -> None:
    written = chained(rows)
    victim = data.draw(st.sampled_from(written))
    field = data.draw(st.sampled_from(FIELDS))
    old = getattr(victim, field)
    new = data.draw((st.integers(0, 2**62) if field == "at" else TEXTS).filter(lambda value: value != old))
    entries = [replace(each, **{field: new}) if each is victim else each for each in written]
    verdict = walk(entries, written=written)
    assert (verdict.verified, verdict.bad_seq) == (victim.seq - 1, victim.seq)
    assert verdict.problem == f"row {victim.seq} was altered"
    assert not verdict.ok


def test_an_altered_row_that_was_hashed_anew_betrays_the_next() -> None:
    written = chain_of(5)
    before, old = written[1], written[2]
    forged = link(before.hash, 3, old.at, "nobody", old.action, old.subject, old.details)
    entries = [*written[:2], replace(old, actor="nobody", hash=forged), *written[3:]]
    assert walk(entries, written=written).bad_seq == 4


def test_an_altered_last_row_that_was_hashed_anew_is_not_the_one_that_was_written() -> None:
    written = chain_of(3)
    before, old = written[1], written[2]
    forged = link(before.hash, 3, old.at, "nobody", old.action, old.subject, old.details)
    verdict = walk([*written[:2], replace(old, actor="nobody", hash=forged)], written=written)
    assert (verdict.bad_seq, verdict.problem) == (3, "row 3 is not the row that was written last")


@pytest.mark.parametrize("gone", range(5))
def test_a_deleted_row_is_named(gone: int) -> None:
    written = chain_of(5)
    verdict = walk(written[:gone] + written[gone + 1 :], written=written)
    assert (verdict.verified, verdict.bad_seq) == (gone, gone + 1)
    assert verdict.problem.startswith(f"row {gone + 1} is missing")


def test_a_deleted_row_whose_followers_were_renumbered_is_named_all_the_same() -> None:
    written = chain_of(5)
    moved = [replace(each, seq=each.seq - 1) for each in written[3:]]
    assert walk([*written[:2], *moved], written=written).bad_seq == 3


@pytest.mark.parametrize("keep", range(5))
def test_a_cut_off_tail_is_noticed(keep: int) -> None:
    verdict = walk(chain_of(5)[:keep], written=chain_of(5))
    assert (verdict.verified, verdict.bad_seq) == (keep, keep + 1)
    assert "5 were written" in verdict.problem


def test_a_row_added_at_the_end_is_noticed() -> None:
    written = chain_of(5)
    longer = chain_of(6)
    assert walk(longer, written=written).bad_seq == 7  # the head knows of no sixth row


def test_a_row_put_in_between_is_named() -> None:
    written = chain_of(4)
    entries = [
        *written[:2],
        replace(written[1], seq=3),
        *(replace(each, seq=each.seq + 1) for each in written[2:]),
    ]
    assert walk(entries, written=written).bad_seq == 3
    assert walk([*written[:2], written[1], *written[2:]], written=written).bad_seq == 3  # a number twice


def test_two_rows_that_changed_places_are_noticed() -> None:
    written = chain_of(4)
    assert walk([written[0], written[2], written[1], written[3]], written=written).bad_seq == 2
    renumbered = [written[0], replace(written[2], seq=2), replace(written[1], seq=3), written[3]]
    assert walk(renumbered, written=written).bad_seq == 2


def test_a_walk_can_go_on_after_a_row_that_held() -> None:
    written = chain_of(5)
    for good, following in pairwise(range(len(written) + 1)):
        seq, last = (written[good - 1].seq, written[good - 1].hash) if good else (0, "")
        rest = written[following - 1 :]
        verdict = chain_verdict(rest, newest_seq=5, newest_hash=written[-1].hash, after_seq=seq, after_hash=last)
        assert (verdict.ok, verdict.verified) == (True, 5)
    wrong = chain_verdict(written[2:], newest_seq=5, newest_hash=written[-1].hash, after_seq=2, after_hash="other")
    assert wrong.bad_seq == 3
