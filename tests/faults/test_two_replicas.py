"""Two replicas on one PostgreSQL keep certificates together: what one publishes, the other answers."""

import json
from pathlib import Path

import pytest
from tests.faults.conftest import Serve
from tests.support import commands
from tests.support.grounds import Ground, PostgresGround, look
from tests.support.pebble import Pebble
from tests.support.processes import environment
from tests.support.reaper import PATIENCE

from holdfast.store.tx import Tx


@pytest.fixture(scope="module")
def pebble(tmp_path_factory: pytest.TempPathFactory) -> object:
    with Pebble(tmp_path_factory.mktemp("pebble"), nonces=0, sleep=1) as pebble:
        yield pebble


def test_a_proof_that_one_replica_made_is_answered_by_the_other(shared: Ground, serve: Serve, pebble: Pebble) -> None:
    assert isinstance(shared, PostgresGround)
    solvers = shared.folder / "solvers.toml"
    solvers.write_text('[[solver]]\nkind = "tls-alpn"\nnames = ["*.tls.holdfast.test"]\n')  # the others: by http-01
    settings = {
        "STORE_URL": shared.store,
        "KEYS_FILE": str(shared.folder / "holdfast.key"),
        "KEEPING_SOLVERS_FILE": str(solvers),
        "KEEPING_TLS_ALPN_LISTEN": "127.0.0.1:0",
    }
    works, answers = shared.folder / "works", shared.folder / "answers"
    first = serve(works, **settings)
    first.wait_until_ready()
    maker = look(shared, holders)
    # The CA looks for proofs at the second one only.
    looked_at = {
        "SERVER_LISTEN": f"127.0.0.1:{pebble.http_port}",
        "KEEPING_TLS_ALPN_LISTEN": f"127.0.0.1:{pebble.tls_port}",
    }
    second = serve(answers, **settings | looked_at)
    second.wait_until_ready()
    place = pebble.place
    roots = f"roots={json.dumps(place.roots.decode())}"
    holdfast(works, settings, "issuer", "add", "acme", "pebble", "--directory", place.directory, "--set", roots)
    for domain in ("holdfast.test", "tls.holdfast.test"):
        names = [f"n{number}.{domain}" for number in range(20)]
        assert any(made_by(shared, works, settings, name) in maker for name in names), "the first one got none"
    assert look(shared, proved_by) == {"http-01", "tls-alpn-01"}
    assert look(shared, holders) != maker
    assert look(shared, lambda tx: tx.rows("SELECT token FROM challenge_responses")) == []
    assert look(shared, leaders) == 1


def made_by(shared: Ground, folder: Path, settings: dict[str, str], name: str) -> str:
    """Get a certificate; who did."""
    holdfast(folder, settings, "issue", name, "--issuer", "pebble", "--wait")

    def holder(tx: Tx) -> str:
        row = tx.row("SELECT holder FROM job_history WHERE kind = 'issue' ORDER BY finished_at DESC LIMIT 1")
        return "" if row is None else str(row["holder"])

    return look(shared, holder)


def proved_by(tx: Tx) -> set[str]:
    """The kinds of all proofs that were ever asked for."""
    told = [json.loads(row["details"]) for row in tx.rows("SELECT details FROM events WHERE name = 'issuance.proving'")]
    return {proof.split()[0] for each in told for proof in each["proofs"]}


def holders(tx: Tx) -> set[str]:
    return {row["holder"] for row in tx.rows("SELECT holder FROM replicas")}


def leaders(tx: Tx) -> int:
    """Who ticks: one lease for the whole cluster."""
    return len(tx.rows("SELECT holder FROM leases WHERE holder <> '' AND until > now_us()"))


def holdfast(folder: Path, settings: dict[str, str], *words: str) -> str:
    done = commands.holdfast(*words, env=environment(folder, settings), timeout=3 * PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
