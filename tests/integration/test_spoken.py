"""The log says what was committed: how issuances end and wait, and which CAs are down; once, and never too early."""

from pathlib import Path

import pytest
from tests.support.engine import Memory
from tests.support.lifecycle import a_house

from holdfast.engine.commit_log import Spoken
from holdfast.engine.issuance import writes
from holdfast.errors import TxConflict
from holdfast.issuers.base import Failed
from holdfast.store import issuers, journal
from holdfast.store.database import Database
from holdfast.store.tx import Tx

pytestmark = pytest.mark.anyio
NAME = "www.example.com"


@pytest.fixture
def log(db: Database) -> Memory:
    """The lines of a store that tells what it commits."""
    log = Memory()
    db._committed = Spoken(log, lambda: None)
    return log


async def test_an_attempt_that_fails_is_said_with_its_reason_and_the_time_of_the_next(
    db: Database, tmp_path: Path, log: Memory
) -> None:
    house = await a_house(db, tmp_path)
    house.cas["ca"].troubles["look"] = [Failed(why="403 at /.well-known", reason="VALIDATION_FAILED")]
    async with house.working():
        await house.ask(NAME)
        view = await house.settled(NAME)
    [line] = log.told("issuance.failed")
    told = (line["certificate"], line["ca"], line["reason"], line["error"])
    assert told == (view.certificate.id, "ca", "VALIDATION_FAILED", "403 at /.well-known")
    assert line["attempts"] == 1
    assert view.status.next_attempt_at is not None
    assert line["next"] == view.status.next_attempt_at.isoformat()


async def test_a_transaction_that_is_undone_says_nothing_and_one_that_ran_twice_says_it_once(
    db: Database, log: Memory
) -> None:
    ran = 0

    def twice(tx: Tx) -> None:
        nonlocal ran
        ran += 1
        journal.event(tx, "issuer.unknown_word", "ca", word="strange")
        if ran == 1:
            raise TxConflict("somebody was faster")

    def undone(tx: Tx) -> None:
        journal.event(tx, "issuer.down", "ca", error="away")
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        await db.write(undone)
    await db.write(twice)
    assert ran == 2
    assert log.lines == [("warning", "issuer.unknown_word", {"ca": "ca", "word": "strange"})]


async def test_what_a_certificate_waits_for_is_said_when_it_changes(db: Database, log: Memory) -> None:
    async def waits(why: str, certificate: str = "c1") -> None:
        await db.write(lambda tx: journal.event(tx, "issuance.waits", certificate, why=why, until="then", error=""))

    for why in ("UNDER_WAY", "CA_DOWN", "CA_DOWN", "CA_RATE_LIMITED", "CA_DOWN"):
        await waits(why)
    await waits("CA_DOWN", "c2")
    await db.write(lambda tx: journal.event(tx, "certificate.activated", "c1", issuer="ca", next="later"))
    await waits("CA_DOWN")
    said = [f"{facts['certificate']} {facts['reason']}" for facts in log.told("issuance.waits")]
    assert said == ["c1 CA_DOWN", "c1 CA_RATE_LIMITED", "c1 CA_DOWN", "c2 CA_DOWN", "c1 CA_DOWN"]
    assert log.told("certificate.activated") == [{"certificate": "c1", "ca": "ca", "next": "later"}]


async def test_a_line_that_cannot_be_said_is_no_failure_of_what_was_committed(db: Database) -> None:
    class Broken(Memory):
        def warning(self, event: str, **facts: object) -> None:
            raise OSError("no room")

    db._committed = Spoken(Broken(), lambda: None)
    await db.write(lambda tx: journal.event(tx, "issuer.down", "ca", error="away"))


async def test_a_ca_that_goes_away_and_comes_back_is_said_and_audited(
    db: Database, tmp_path: Path, log: Memory
) -> None:
    house = await a_house(db, tmp_path)
    for _ in range(10):
        await db.write(lambda tx: writes.issuer_failed(tx, "ca", "away"))
    row = await db.read(lambda tx: issuers.get(tx, "ca"))
    assert row is not None
    await db.write(lambda tx: writes.issuer_succeeded(tx, row))
    assert [(name, facts) for _, name, facts in log.lines if name.startswith("ca.")] == [
        ("ca.down", {"ca": "ca", "error": "away"}),
        ("ca.up", {"ca": "ca"}),
    ]
    audited = await house.db.read(lambda tx: [each.action for each in journal.audit_page(tx, 0)])
    assert [each for each in audited if each in ("issuer_down", "issuer_up")] == ["issuer_down", "issuer_up"]
