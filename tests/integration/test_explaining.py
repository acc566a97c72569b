"""`explain --at`: another time is answered for by what was in use then, and what is not kept is said."""

from datetime import datetime, timedelta
from pathlib import Path

import pytest
from tests.support.lifecycle import House, a_moving_house

from holdfast.operations.certificates.explain import ExplanationView, NotThen, explain

pytestmark = pytest.mark.anyio
NAME = "www.example.com"
DAY = timedelta(days=1)


async def _explained(house: House, at: datetime) -> ExplanationView:
    found: ExplanationView = await house.do(explain, ref=NAME, at=at.isoformat())
    return found


async def test_a_time_gone_by_is_explained_by_the_version_that_was_in_use(tmp_path: Path) -> None:
    async with a_moving_house(tmp_path) as (house, clock):
        first = (await house.ask(NAME)).certificate.created_at
        one = (await house.worked(NAME)).current
        clock.ahead += 61 * DAY
        two = (await house.attempt(NAME)).current
        assert one is not None
        assert two is not None
        clock.ahead += 20 * DAY
        await house.revoke(NAME, reason=4, actor="local:alice")

        then = await _explained(house, first + 30 * DAY)
        assert (then.blocking, then.verdict.split(".")[0]) == (
            "NOT_DUE", "It is valid, and its renewal is not due yet",
        )  # fmt: skip
        [due] = [each.verdict for each in then.checks if each.rule == "lifetime"]
        assert due < f"due at {two.not_before:%F}T99", "as planned for the first one"
        assert "holdfast events www.example.com" in then.of_today[1]
        assert then.would_change_it == "Nothing: that time is over."

        later = await _explained(house, two.issued_at + DAY)
        assert later.blocking == "NOT_DUE", "it was revoked after that"
        under_way = await _explained(house, two.issued_at - timedelta(microseconds=1))
        assert under_way.verdict.startswith("An issuance was under way; issued at ")


async def test_before_it_was_asked_for_there_is_nothing_to_explain(tmp_path: Path) -> None:
    async with a_moving_house(tmp_path) as (house, _):
        made = await house.ask(NAME)
        with pytest.raises(NotThen, match=r"'www\.example\.com' was not there then: it came at 20") as refused:
            await _explained(house, made.certificate.created_at - 15 * DAY)
        assert refused.value.hint.startswith("Ask about a time from then on")
        told = datetime.fromisoformat(refused.value.hint.rpartition(" ")[2])
        assert (await _explained(house, told)).at == told, "what is told to be asked is answered"


async def test_after_its_end_it_has_expired(tmp_path: Path) -> None:
    async with a_moving_house(tmp_path) as (house, _):
        await house.ask(NAME)
        held = (await house.worked(NAME)).current
        assert held is not None
        found = await _explained(house, held.not_after + DAY)
        assert found.verdict == "The certificate has expired. Due at once."
        assert (found.checks[-1].rule, found.checks[-1].verdict) == ("expired", "no longer valid")
        assert found.of_today == ["This assumes that nothing happens and nothing is changed until then."]
        before = await _explained(house, held.not_after - timedelta(hours=1))
        assert before.verdict == "Due: Less than 5 % of its lifetime is left."
