"""Every malformed request of the corpus gets the right ACME error, soon, and changes nothing."""

import hashlib
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support import acme_corpus as envelopes
from tests.support import acme_corpus_content as contents_of
from tests.support.acme_client import flattened, problem
from tests.support.acme_corpus import Case, Ground, prepare
from tests.support.acme_face import open_front
from tests.support.jobs import ON_POSTGRES
from tests.support.stores import migrated, open_store

from holdfast.store.database import Database
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.tx import Tx
from holdfast.world import SystemClock

pytestmark = pytest.mark.anyio
NOT_STATE = ("acme_nonces", "acme_nonce_keys")  # what a request may use up
CASES = [
    *envelopes.http_cases(),
    *envelopes.json_cases(),
    *envelopes.envelope_cases(),
    *envelopes.header_cases(),
    *envelopes.key_cases(),
    *contents_of.account_cases(),
    *contents_of.order_cases(),
    *contents_of.csr_cases(),
    *contents_of.certificate_cases(),
]


@pytest.fixture(scope="module")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    folder: Path = tmp_path_factory.mktemp("corpus")
    db = await migrated(open_store(SqliteEngine(folder / "holdfast.sqlite", SystemClock())))
    async with open_front(db, folder) as front:
        yield await prepare(front)
    await db.close()


def contents(tx: Tx, engine: str) -> dict[str, str]:
    """A digest of every table."""
    listed = (
        "SELECT name FROM sqlite_master WHERE type = 'table'"
        if engine == "sqlite"
        else "SELECT table_name AS name FROM information_schema.tables WHERE table_schema = current_schema()"
    )
    names = [row["name"] for row in tx.rows(listed) if row["name"] not in NOT_STATE]
    return {name: _digest(tx, name) for name in names}


def _digest(tx: Tx, table: str) -> str:
    rows = sorted(
        repr([bytes(v) if isinstance(v, memoryview) else v for v in dict(row).values()])
        for row in tx.rows(f"SELECT * FROM {table}")
    )
    return f"{len(rows)}:{hashlib.sha256(''.join(rows).encode()).hexdigest()}"


async def check(ground: Ground, db: Database, case: Case) -> None:
    before = await db.read(lambda tx: contents(tx, db.engine.name))
    reply = await case.send(ground)
    assert problem(reply) == (case.status, case.error), reply.text
    assert await db.read(lambda tx: contents(tx, db.engine.name)) == before
    if reply.request.method == "POST":
        assert reply.headers["replay-nonce"]
    assert not ground.front.watch.log.told("acme.failed")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
async def test_a_malformed_request_gets_its_error_and_changes_nothing(ground: Ground, case: Case) -> None:
    await check(ground, ground.front.office.db, case)


@ON_POSTGRES
async def test_the_same_holds_on_postgresql(db: Database, tmp_path: Path) -> None:
    async with open_front(db, tmp_path) as front:
        ground = await prepare(front)
        for case in CASES[::4]:
            await check(ground, db, case)


async def test_a_request_with_any_byte_changed_is_refused_or_says_the_same(ground: Ground) -> None:
    draw = random.Random(8555)
    db, url = ground.front.office.db, ground.url
    before = await db.read(lambda tx: contents(tx, db.engine.name))
    for _ in range(400):
        header = {"alg": "ES256", "kid": url, "nonce": await ground.client.nonce(), "url": url}
        whole = flattened(ground.client.signer, header, {"contact": ["mailto:changed@example.com"]})
        body = changed(json.dumps(whole).encode(), draw)
        if _same(body, whole):
            continue
        status, error = problem(await ground.client.post(url, body=body))
        assert (status, error) in {
            (400, "malformed"), (400, "badNonce"), (400, "badSignatureAlgorithm"), (400, "accountDoesNotExist"),
            (403, "unauthorized"),
        }  # fmt: skip
    assert await db.read(lambda tx: contents(tx, db.engine.name)) == before
    assert not ground.front.watch.log.told("acme.failed")


def changed(body: bytes, draw: random.Random) -> bytes:
    """One to three bytes are other ones, missing, or too many."""
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(body))
        put = draw.choice(
            [b"", bytes([draw.randrange(256)]), draw.choice([b'"', b"{", b"}", b"\\", b"A", b"="]) + body[at : at + 1]]
        )
        body = body[:at] + put + body[at + 1 :]
    return body


def _same(body: bytes, whole: dict[str, object]) -> bool:
    try:
        found = json.loads(body)
    except ValueError:
        return False
    return isinstance(found, dict) and all(found.get(name) == value for name, value in whole.items())


async def test_after_all_that_the_client_is_still_served(ground: Ground) -> None:
    assert (await ground.client.get(ground.url)).status_code == 200
    assert (await ground.client.get(ground.ready["url"])).json()["status"] == "ready"


def test_the_corpus_is_large_and_its_cases_have_names_of_their_own() -> None:
    assert len(CASES) >= 150
    assert len({case.what for case in CASES}) == len(CASES)
