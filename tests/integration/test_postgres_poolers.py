"""PgBouncer before PostgreSQL, and a server that becomes a standby behind a connection that lives on."""

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.interop.packages import Debian
from tests.support.commands import holdfast
from tests.support.jobs import enqueue, found, opened, putting
from tests.support.packages import tool
from tests.support.ports import free_port
from tests.support.postgres import Cluster
from tests.support.processes import environment
from tests.support.reaper import PATIENCE
from tests.support.reaper import until as wait_until
from tests.support.stores import open_store

from holdfast.errors import StoreUnavailable, StoreUnfit
from holdfast.secret import Secret
from holdfast.store.postgres import PREPARE_AFTER, PostgresEngine

pytestmark = pytest.mark.anyio


@contextmanager
def pgbouncer(cluster: Cluster, folder: Path, mode: str) -> Iterator[int]:
    """A pooler of a few server connections on a port of its own."""
    program, port = tool(Debian(("pgbouncer",)), "pgbouncer"), free_port()
    users, settings = folder / "users.txt", folder / "pgbouncer.ini"
    users.write_text('"holdfast" ""\n')
    settings.write_text(
        f"""[databases]
* = host=127.0.0.1 port={cluster.port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
pool_mode = {mode}
default_pool_size = 8
{"user = nobody" if os.geteuid() == 0 else ""}
"""
    )
    for each in (folder, users, settings):
        each.chmod(0o755)
    process = subprocess.Popen(
        [program.program("pgbouncer"), "-q", str(settings)], env={**os.environ, **program.environment}
    )
    try:
        wait_until(lambda: _answers(port), f"PgBouncer does not listen on {port}")
        yield port
    finally:
        process.kill()
        process.wait(PATIENCE)


def _answers(port: int) -> bool:
    with closing(socket.socket()) as line:
        return line.connect_ex(("127.0.0.1", port)) == 0


def behind(port: int, url: str, **more: bool) -> PostgresEngine:
    return PostgresEngine(
        Secret(f"postgresql://holdfast@127.0.0.1:{port}/{url.rsplit('/', 1)[1]}"), connections=2, **more
    )


@pytest.fixture
def url(postgres: Cluster, template: str) -> Iterator[str]:
    url = postgres.create_database(template)
    yield url
    postgres.drop_database(url)


async def test_sessions_that_are_pooled_whole_are_like_the_servers_own(
    postgres: Cluster, url: str, tmp_path: Path
) -> None:
    with pgbouncer(postgres, tmp_path, "session") as port:
        async with opened(behind(port, url)) as db:
            for n in range(2 * PREPARE_AFTER):
                await db.write(putting(f"w{n}"))
            assert len(await db.read(found)) == 2 * PREPARE_AFTER


async def test_sessions_that_change_hands_are_refused_with_the_setting_that_allows_them(
    postgres: Cluster, url: str, tmp_path: Path
) -> None:
    with pgbouncer(postgres, tmp_path, "transaction") as port:
        async with opened(behind(port, url)) as db:
            with pytest.raises(StoreUnfit, match="gives each transaction another session") as refused:
                await db.write(putting("x"))
            assert 'store.pooler to "transaction"' in refused.value.hint


async def test_with_the_setting_transactions_of_many_clients_share_a_few_sessions(
    postgres: Cluster, url: str, tmp_path: Path
) -> None:
    with pgbouncer(postgres, tmp_path, "transaction") as port:
        async with opened(behind(port, url, pooled=True)) as one, opened(behind(port, url, pooled=True)) as other:
            for n in range(2 * PREPARE_AFTER):
                await one.write(putting(f"a{n}"))
                await other.write(putting(f"b{n}"))
            await enqueue(one, "s")
            assert len(await other.read(found)) == 4 * PREPARE_AFTER
            limits = await one.write(lambda tx: tx.rows("SELECT current_setting('statement_timeout') AS most")[0])
            assert limits["most"] == f"{int(PATIENCE) // 60}min", "each transaction says how long it may take"


async def test_a_server_that_takes_no_writes_any_more_ends_the_connection(postgres: Cluster, url: str) -> None:
    """As after a switchover behind a pooler or a proxy: the client's line lives on, and leads to a standby."""
    name = url.rsplit("/", 1)[1]
    async with opened(PostgresEngine(Secret(url), connections=1)) as db:
        before = await db.write(lambda tx: tx.rows("SELECT pg_backend_pid() AS pid")[0]["pid"])
        await db.write(lambda tx: tx.run(f"ALTER DATABASE {name} SET default_transaction_read_only = on"))
        await db.write(lambda tx: tx.run("SET default_transaction_read_only = on"))
        with pytest.raises(StoreUnavailable, match="takes no writes any more"):
            await db.write(putting("on a standby"))
        with pytest.raises(StoreUnavailable, match="read-only"):
            await db.write(putting("every new connection is looked at, too"))
        postgres.run(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        await db.write(putting("promoted"))
        assert await db.write(lambda tx: tx.rows("SELECT pg_backend_pid() AS pid")[0]["pid"]) != before
        assert await db.read(found) == ["promoted"]


async def test_of_several_hosts_the_one_that_takes_writes_is_used(postgres: Cluster, url: str) -> None:
    dead, name = free_port(), url.rsplit("/", 1)[1]
    hosts = f"postgresql://holdfast@127.0.0.1:{dead},127.0.0.1:{postgres.port}/{name}"
    async with opened(PostgresEngine(Secret(hosts), connections=1)) as db:
        await db.write(putting("here"))
        assert await db.read(found) == ["here"]


async def test_a_standby_as_the_only_host_is_told_in_a_sentence(postgres: Cluster, url: str) -> None:
    """A session that takes no writes looks the same, whether it is a standby's or was made so."""
    name = url.rsplit("/", 1)[1]
    postgres.run(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    store = open_store(PostgresEngine(Secret(url), connections=1))
    try:
        with pytest.raises(StoreUnavailable, match="takes no writes: it is a standby, or read-only"):
            await store.read(lambda tx: tx.rows("SELECT 1"))
    finally:
        await store.close()


def test_doctor_says_how_the_server_is_set_up(url: str, tmp_path: Path) -> None:
    said = holdfast("doctor", "-o", "json", env=environment(tmp_path, {"STORE_URL": url}))
    found = {each["check"]: each for each in json.loads(said.stdout) if each["about"] == "this machine"}
    assert found["durability"]["level"] == "bad", "these tests run without fsync"
    assert "fsync" in found["durability"]["saw"]
    assert found["standbys"]["level"] == "note"
    assert "max_connections" in found["connections"]["saw"]
    assert {"PostgreSQL", "WAL archive", "timeline", "idle transactions", "pooler"} <= found.keys()
