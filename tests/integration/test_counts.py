"""What is kept to count and search by: the same as counting and searching everything, after whatever was done."""

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from tests.support.ca import a_vault

from holdfast.core.certificate import Certificate, CertificateSpec, CertificateState, Failing, Version, VersionState
from holdfast.core.inventory import EXPIRING_WITHIN, Grid, InventoryFilter, grid_around
from holdfast.core.issuance import Issuance, IssuanceState
from holdfast.core.own_ca.acme import Identifier
from holdfast.core.reasons import Reason
from holdfast.core.status import HELD
from holdfast.operations.installation.secret_store import certificate_key
from holdfast.secret import Secret
from holdfast.store import certificates, inventory, issuances, standings, statistics, versions
from holdfast.store.database import Database
from holdfast.store.tx import Row, Tx, from_micros, to_micros

pytestmark = pytest.mark.anyio
DAY = timedelta(days=1)
EVERYTHING = InventoryFilter(whatever_state=True)
OWNERS = ("mine", "theirs")


# ── Doing whatever can be done ──


class Play:
    """Changes a store at random, through the functions that the product writes with, and as an older release would."""

    def __init__(self, seed: int, secret: str) -> None:
        self.random, self.secret = random.Random(seed), secret
        self.number = 0

    def step(self, tx: Tx) -> None:
        doings: list[Callable[[Tx], None]] = [
            self.make, self.make, self.adopt, self.renew, self.renew, self.rename, self.move, self.plan, self.fail,
            self.revoke, self.end, self.end, self.forget, self.as_before,
        ]  # fmt: skip
        self.random.choice(doings)(tx)

    def fresh(self) -> int:
        self.number += 1
        return self.number

    def some(self, tx: Tx) -> Certificate | None:
        rows = tx.rows("SELECT id FROM certificates ORDER BY id")
        return certificates.get(tx, self.random.choice(rows)["id"]) if rows else None

    def wanted(self) -> CertificateSpec:
        n = self.fresh()
        names = {f"{self.random.choice('abc')}{n + k}.example.com" for k in range(self.random.randint(1, 3))}
        name = self.random.choice((min(names), f"Own-{n}"))
        identifiers = tuple(Identifier("dns", each) for each in sorted(names))
        return CertificateSpec(name=name, identifiers=identifiers, issuers=("ca",), owner=self.random.choice(OWNERS))

    def at(self, tx: Tx) -> datetime:
        return tx.now() + timedelta(seconds=self.random.randint(-40 * 86400, 100 * 86400))

    def certificate(self, tx: Tx, **more: Any) -> Certificate:
        spec = self.wanted()
        return Certificate(
            id=f"certificate_{self.fresh():04d}", wanted=spec, state=CertificateState.ACTIVE, generation=1, version=1,
            fingerprint="f", changed_by="x", created_at=tx.now(), **more,
        )  # fmt: skip

    def version(self, tx: Tx, certificate: str, id_: str) -> Version:
        return Version(
            id=id_, certificate=certificate, generation=1, state=VersionState.ACTIVE, key_secret=self.secret,
            chain_pem="", serial=id_, not_before=tx.now() - 50 * DAY, not_after=self.at(tx), issuer="ca", account=None,
            spki_sha256="k", issued_at=tx.now(),
        )  # fmt: skip

    def make(self, tx: Tx) -> None:
        certificates.insert(tx, self.certificate(tx, next_action_at=self.at(tx), next_cause="FIRST"))

    def adopt(self, tx: Tx) -> None:
        """It names its version before that is there."""
        version = f"version_{self.fresh()}"
        new = self.certificate(tx, current_version=version)
        certificates.insert(tx, new)
        versions.insert(tx, self.version(tx, new.id, version))

    def renew(self, tx: Tx) -> None:
        if (found := self.some(tx)) is not None:
            new = self.version(tx, found.id, f"version_{self.fresh()}")
            versions.insert(tx, new)
            if found.current_version is not None:
                versions.supersede(tx, found.current_version)
            certificates.save(tx, found, current_version=new.id, failing=None)

    def rename(self, tx: Tx) -> None:
        if (found := self.some(tx)) is not None:
            certificates.save(tx, found, wanted=self.wanted())

    def move(self, tx: Tx) -> None:
        if (found := self.some(tx)) is not None:
            state = self.random.choice(list(CertificateState))
            certificates.save(tx, found, state=state, next_action_at=None, next_cause=None)

    def plan(self, tx: Tx) -> None:
        if (found := self.some(tx)) is not None and found.state is CertificateState.ACTIVE:
            cause = self.random.choice(["DUE_LIFETIME", "WINDOW", "ISSUER_PAUSED", "REVOKED"])
            certificates.save(tx, found, next_action_at=self.at(tx), next_cause=cause)

    def fail(self, tx: Tx) -> None:
        if (found := self.some(tx)) is not None:
            certificates.save(tx, found, failing=Failing(attempts=1, last_at=tx.now(), reason="CA_DOWN"))

    def revoke(self, tx: Tx) -> None:
        if (found := self.some(tx)) is not None and found.current_version is not None:
            versions.revoked(tx, found.current_version, tx.now())

    def end(self, tx: Tx) -> None:
        """An attempt, from its beginning to its end."""
        if (found := self.some(tx)) is None:
            return
        begun = tx.now() - timedelta(seconds=self.random.randint(60, 5 * 86400))
        new = Issuance(
            id=f"issuance_{self.fresh()}", certificate=found.id, generation=1, state=IssuanceState.REQUESTED, version=1,
            issuer=self.random.choice(("ca", "other")), cause="FIRST", identifiers=found.wanted.identifiers,
            requested_by="x", started_at=begun,
        )  # fmt: skip
        state = self.random.choice(
            (IssuanceState.ISSUED, IssuanceState.ISSUED, IssuanceState.FAILED, IssuanceState.CANCELLED, None)
        )
        if issuances.insert(tx, new) and state is not None:
            reason = self.random.choice(("CA_DOWN", "CA_REFUSED", None)) if state is IssuanceState.FAILED else None
            took = timedelta(seconds=self.random.randint(1, 50))
            issuances.save(tx, new, state=state, ended_at=begun + took, reason=reason)

    def forget(self, tx: Tx) -> None:
        issuances.forget_old(tx, tx.now() - 4 * DAY, limit=2)

    def as_before(self, tx: Tx) -> None:
        """As a release does that knows nothing of what is kept for counting, while another replica is newer."""
        tx.run("UPDATE certificates SET current_version = NULL WHERE id = (SELECT MAX(id) FROM certificates)")


# ── Counting it all, the long way ──


class Naive:
    """Everything is read, and counted here."""

    def __init__(self, tx: Tx, owner: str | None) -> None:
        self.now = tx.now()
        rows = tx.rows(
            """SELECT c.id, c.name, c.identifiers, c.state, c.owner, c.next_action_at, c.last_failure_at,
                      c.current_version, c.ends_at, v.not_after
                 FROM certificates AS c LEFT JOIN certificate_versions AS v ON v.id = c.current_version"""
        )
        self.rows = [row for row in rows if owner in (None, row["owner"])]
        ids = {row["id"] for row in self.rows}
        columns = "certificate, state, issuer, reason, started_at, ended_at"
        self.attempts = [row for row in tx.rows(f"SELECT {columns} FROM issuances") if row["certificate"] in ids]

    def in_use(self) -> list[Row]:
        return [row for row in self.rows if row["state"] != "archived" and row["not_after"] is not None]

    def ending(self, start: datetime, end: datetime) -> int:
        return sum(to_micros(start) <= row["not_after"] < to_micros(end) for row in self.in_use())

    def planned(self, start: datetime, end: datetime) -> int:
        planned = [row["next_action_at"] for row in self.rows if row["state"] == "active" and row["next_action_at"]]
        return sum(to_micros(start) <= at < to_micros(end) for at in planned)

    def ended(self, start: datetime, end: datetime, state: str) -> list[Row]:
        over = [row for row in self.attempts if row["state"] == state]
        return [row for row in over if to_micros(start) <= row["ended_at"] < to_micros(end)]


def _agrees(tx: Tx, owner: str | None) -> None:
    seen, naive = replace(EVERYTHING, owners=() if owner is None else (owner,)), Naive(tx, owner)
    now = naive.now
    _agrees_now(statistics.summary(tx, seen), naive)
    ahead, back = grid_around(now, "day", 60, back=False), grid_around(now, "day", 6, back=True)
    ends = [(each.at, each.expiring, each.renewals) for each in statistics.expiry(tx, seen, ahead)]
    assert ends == [(at, naive.ending(at, to), naive.planned(at, to)) for at, to in _spans(ahead)]
    for found, (at, to) in zip(statistics.outcomes(tx, seen, back), _spans(back), strict=True):
        failed = naive.ended(at, to, "failed")
        assert (found.at, found.issued, found.failed, found.cancelled) == (
            at, len(naive.ended(at, to, "issued")), len(failed), len(naive.ended(at, to, "cancelled")),
        )  # fmt: skip
        assert found.reasons == Counter(row["reason"] or "" for row in failed)
    rates = [(each.at, each.issuer, each.issued, each.longest_s) for each in statistics.rates(tx, seen, back)]
    assert rates == list(_rates(naive, back))


def _agrees_now(found: Any, naive: Naive) -> None:
    active = [row for row in naive.rows if row["state"] == "active"]
    assert found.states == Counter(row["state"] for row in naive.rows)
    assert found.failing == sum(row["last_failure_at"] is not None for row in active)
    assert found.never_issued == sum(row["current_version"] is None for row in active)
    assert found.due == naive.planned(from_micros(0), naive.now + timedelta(microseconds=1))
    assert found.expired == naive.ending(from_micros(0), naive.now)
    within = {str(days): naive.ending(naive.now, naive.now + days * DAY) for days in EXPIRING_WITHIN}
    assert found.expiring == within


def _spans(grid: Grid) -> list[tuple[datetime, datetime]]:
    return [(grid.begins(n), grid.begins(n + 1)) for n in range(grid.number)]


def _rates(naive: Naive, grid: Grid) -> Any:
    for at, to in _spans(grid):
        issued = naive.ended(at, to, "issued")
        for issuer in sorted({row["issuer"] for row in issued}):
            took = [row["ended_at"] - row["started_at"] for row in issued if row["issuer"] == issuer]
            yield at, issuer, len(took), round(max(took) / 1e6, 3)


def _kept_as_it_is(tx: Tx) -> None:
    naive = Naive(tx, None)
    assert [row["ends_at"] for row in naive.rows] == [row["not_after"] for row in naive.rows]
    kept = {(row["certificate"], row["name"], row["text"]) for row in tx.rows("SELECT * FROM certificate_names")}
    assert kept == {
        (row["id"], row["name"], text.lower())
        for row in naive.rows
        for text in (row["name"], *(value for _, value in json.loads(row["identifiers"])))
    }
    phases = statistics.phases(tx, statistics.all_states(tx))
    assert sum(phases.values()) == len(naive.rows)
    assert min(phases.values(), default=1) > 0


@pytest.mark.parametrize("seed", [1, 2])
async def test_whatever_was_done_the_numbers_are_those_of_counting_everything(
    db: Database, tmp_path: Path, seed: int
) -> None:
    secret_store = await a_vault(db, tmp_path)
    secret = await secret_store.keep(Secret(b"no key"), certificate_key("any"), lambda tx, secret: secret)
    play = Play(seed, secret)

    def some(tx: Tx) -> None:
        for _ in range(12):
            play.step(tx)

    def check(tx: Tx) -> None:
        _kept_as_it_is(tx)
        for owner in (None, "mine"):
            _agrees(tx, owner)

    for _ in range(12):
        await db.write(some)
        await db.read(check)
    assert play.number > 60


async def test_what_waits_is_named_alike_in_the_rules_the_index_and_the_statement() -> None:
    text = (resources.files("holdfast.store") / "migrations" / "0001_schema.sql").read_text(encoding="utf-8")
    assert f"WHERE next_cause IN {standings.WAITING};" in text
    assert set(json.loads(standings.WAITING.replace("'", '"').replace("(", "[").replace(")", "]"))) == {
        each.value for each in HELD | {Reason.WINDOW, Reason.BACKOFF, Reason.REVOKED}
    }


# ── Searching ──


def _named(tx: Tx, id_: str, name: str, *names: str) -> None:
    spec = CertificateSpec(name=name, identifiers=tuple(Identifier("dns", each) for each in names), issuers=("ca",))
    made = Certificate(
        id=id_, wanted=spec, state=CertificateState.ACTIVE, generation=1, version=1, fingerprint="f", changed_by="x",
        created_at=tx.now(),
    )  # fmt: skip
    assert certificates.insert(tx, made)


async def test_a_search_finds_any_part_of_any_name_and_each_certificate_once(db: Database) -> None:
    def fill(tx: Tx) -> None:
        _named(tx, "c1", "Shop", "www.shop.example.com", "shop.example.com")
        _named(tx, "c2", "b.example.com", "b.example.com")
        _named(tx, "c3", "a.example.org", "a.example.org", "100%.example.org", "x_y.example.org")

    def found(tx: Tx, text: str, **more: Any) -> list[str]:
        return [each.id for each in inventory.find(tx, InventoryFilter(text=text), limit=10, **more)]

    def read(tx: Tx) -> None:
        assert found(tx, "example") == ["c1", "c3", "c2"]  # by their own names
        assert found(tx, "SHOP") == found(tx, "shop.ex") == found(tx, "w.shop") == ["c1"]
        assert found(tx, "example.org") == ["c3"]
        assert found(tx, "example.com", after=("Shop", "c1")) == ["c2"]
        assert found(tx, "0%") == found(tx, "x_y") == ["c3"]
        assert found(tx, "_.") == found(tx, "dns") == found(tx, '"') == []
        assert inventory.count(tx, InventoryFilter(text="example")) == 3

    await db.write(fill)
    await db.read(read)
    before = await db.read(lambda tx: certificates.get(tx, "c2"))
    assert before is not None
    other = replace(before.wanted, name="z.example.net", identifiers=(Identifier("dns", "z.example.net"),))
    await db.write(lambda tx: certificates.save(tx, before, wanted=other))
    assert await db.read(lambda tx: (found(tx, "b.example"), found(tx, "z.exam"))) == ([], ["c2"])
    await db.write(lambda tx: tx.run("UPDATE certificates SET state = 'archived' WHERE id = 'c2'"))
    assert await db.read(lambda tx: found(tx, "z.exam")) == []
    archived = InventoryFilter(text="z.exam", state="archived")
    assert await db.read(lambda tx: [each.id for each in inventory.find(tx, archived, limit=10)]) == ["c2"]
