"""Many that wait for one CA: the turns are dealt by risk, and questions for renewal windows rest when it wants less."""

from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.lifecycle import a_house

from holdfast.core.certificate import RenewalPolicy
from holdfast.engine.issuance import issuer_fallback, renewals
from holdfast.errors import TryLater
from holdfast.store.database import Database
from holdfast.store.tx import Tx

pytestmark = pytest.mark.anyio
DAY = timedelta(days=1)
NUMBER = 6


def _promised(tx: Tx) -> list[str]:
    """Names, by the turn of their attempt."""
    rows = tx.rows(
        """SELECT certificates.name FROM jobs JOIN issuances ON issuances.id = jobs.subject
             JOIN certificates ON certificates.id = issuances.certificate
            WHERE jobs.kind = 'issue' ORDER BY jobs.due_at"""
    )
    return [row["name"] for row in rows]


async def test_whoever_has_the_least_time_left_gets_the_next_turn(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    names = [f"n{n}.example.com" for n in range(4)]
    async with house.working():
        for name in names:
            await house.ask(name)
            await house.settled(name)
    for name in names:
        await house.renew(name, actor="local:test")

    def wait(tx: Tx) -> None:
        for n, name in enumerate(names):
            given = {"name": name, "left": tx.now() + (4 - n) * DAY, "at": tx.now() + timedelta(hours=n + 1)}
            tx.run(
                """UPDATE certificate_versions SET not_after = :left WHERE id =
                   (SELECT current_version FROM certificates WHERE name = :name)""",
                name=name,
                left=given["left"],
            )
            tx.run(
                """UPDATE jobs SET due_at = :at, reason = 'BUDGET' WHERE kind = 'issue' AND subject =
                   (SELECT id FROM issuances WHERE state = 'requested' AND certificate =
                           (SELECT id FROM certificates WHERE name = :name))""",
                name=name,
                at=given["at"],
            )

    await db.write(wait)
    assert await db.read(_promised) == names
    assert await issuer_fallback.deal(house.certificate_context) == 4
    assert await db.read(_promised) == names[::-1]
    assert await issuer_fallback.deal(house.certificate_context) == 0


@pytest.mark.parametrize("reason", ["CA_RATE_LIMITED", "CA_DOWN"])
async def test_when_a_ca_does_not_answer_one_question_the_others_are_not_asked(
    db: Database, tmp_path: Path, reason: str
) -> None:
    house = await a_house(db, tmp_path)
    ca = house.cas["ca"]
    ca.always["renewal_window"] = TryLater("not now", reason=reason)
    async with house.working(slots=1):
        for n in range(NUMBER):
            await house.ask(f"n{n}.example.com", rule=RenewalPolicy(ari=True))
            await house.settled(f"n{n}.example.com")
        assert await renewals.sweep_ari(house.certificate_context) == NUMBER
        await house.until(lambda: "renewal_window" in ca.calls)

        async def all_looked_at() -> bool:
            rows = await db.read(lambda tx: tx.rows("SELECT reason FROM jobs WHERE kind = 'ari'"))
            return bool(rows) and all(row["reason"] == "NOT_BEFORE" for row in rows)

        await house.until(all_looked_at)
    assert ca.calls.count("renewal_window") < NUMBER  # one more may be claimed while the first answer is written
