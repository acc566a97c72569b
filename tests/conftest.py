"""Fixtures for every test."""

import asyncio
import os
import re
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from holdfast.secret import Secret
from holdfast.store.database import Database, Engine
from holdfast.store.postgres import PostgresEngine
from holdfast.store.sqlite import SqliteEngine
from holdfast.world import SystemClock
from tests.support import secrets_watch
from tests.support.ports import free_port
from tests.support.postgres import Cluster, place
from tests.support.stores import migrated, open_store

# Whoever started us in the background may have had SIGINT ignored, which every child would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)
# What people, CI and proxies set for themselves is no part of a test, nor of the commands that it starts.
THEIRS = re.compile(
    r"(HTTPS?|ALL|NO|FTP)_PROXY|XDG_\w+|LC_\w+|PG[A-Z]+|OTEL_\w+|CI|GITHUB_ACTIONS|\w*COLOR|TTY_\w+|LINES|COLUMNS"
)
for name in [each for each in os.environ if THEIRS.fullmatch(each.upper())]:
    del os.environ[name]
os.environ |= {"LANG": "C.UTF-8", "TERM": "xterm", "TZ": "UTC"}
time.tzset()
os.umask(0o022)
free_port()  # the first one takes a file handle: not in the middle of a test that counts them

# The same examples in every run, and no clock: a red run means a change, not bad luck or a busy machine.
settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
# To go looking: HYPOTHESIS_PROFILE=explore pytest …
settings.register_profile("explore", settings.get_profile("repeatable"), derandomize=False, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_configure(config: pytest.Config) -> None:
    """No secret may be in any output of any test; and their files are in memory, if there is room."""
    config.pluginmanager.register(secrets_watch)
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(place(in_memory=True)))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run async tests on asyncio only: it is what we run on."""
    return "asyncio"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster]:
    """One PostgreSQL for each process that runs tests, started when the first test asks for it."""
    with Cluster(tmpfs=True) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def template(postgres: Cluster) -> str:
    """A database with the schema in it, to copy for each test: a copy is ten times quicker than a migration."""
    url = postgres.create_database()
    asyncio.run(_migrated(url))
    return url.rsplit("/", 1)[1]


async def _migrated(url: str) -> None:
    store = open_store(PostgresEngine(Secret(url), connections=1))
    await migrated(store)
    await store.close()


@pytest.fixture(scope="session")
def template_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Likewise for SQLite."""
    path = tmp_path_factory.mktemp("template") / "holdfast.sqlite"

    async def make() -> None:
        store = open_store(SqliteEngine(path, SystemClock()))
        await migrated(store)
        await store.close()

    asyncio.run(make())
    return path


@pytest.fixture(params=["sqlite", "postgresql"])
def make_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Engine]]:
    """Makes engines that share one empty, migrated database: call it twice for two replicas (PostgreSQL only)."""
    if request.param == "sqlite":
        path = tmp_path / "holdfast.sqlite"
        shutil.copyfile(request.getfixturevalue("template_file"), path)
        path.chmod(0o600)
        yield lambda: SqliteEngine(path, SystemClock())
        return
    cluster: Cluster = request.getfixturevalue("postgres")
    url = cluster.create_database(request.getfixturevalue("template"))
    yield lambda: PostgresEngine(Secret(url), connections=3)
    if secrets_watch.sampled(request.node.nodeid):
        secrets_watch.rows(url)
    cluster.drop_database(url)


@pytest.fixture
async def db(make_engine: Callable[[], Engine]) -> AsyncIterator[Database]:
    """The store, with its schema, empty; every test that asks for it runs on SQLite and on PostgreSQL."""
    store = open_store(make_engine())
    await migrated(store)
    yield store
    await store.close()
