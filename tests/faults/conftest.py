"""What the fault tests stand on: stores to hurt, a CA that outlives everybody, and ways to start the product."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.support.ca_server import Ca, CaServer
from tests.support.grounds import Ground, ground
from tests.support.postgres import Cluster
from tests.support.processes import Served

Serve = Callable[..., Served]


@pytest.fixture(scope="session")
def ca_server() -> Iterator[CaServer]:
    with CaServer() as server:
        yield server


@pytest.fixture
def ca(ca_server: CaServer) -> Ca:
    """A CA that nobody has asked anything yet."""
    return ca_server.open()


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ground]:
    """An empty store; every test that asks for it runs on SQLite and on PostgreSQL."""
    cluster = request.getfixturevalue("postgres") if request.param == "postgresql" else None
    with ground(tmp_path, cluster) as where:
        yield where


@pytest.fixture
def shared(postgres: Cluster, tmp_path: Path) -> Iterator[Ground]:
    """An empty store that several replicas can share."""
    with ground(tmp_path, postgres) as where:
        yield where


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts `holdfast serve` with these settings; whatever is still running at the end of the test is killed."""
    with ExitStack() as stack:

        def start(
            folder: Path | None = None, *, room: int | None = None, open_files: int | None = None, **settings: str
        ) -> Served:
            return stack.enter_context(Served(folder or tmp_path / "data", settings, room=room, open_files=open_files))

        yield start


@pytest.fixture(scope="module")
def victim() -> Iterator[Cluster]:
    """A PostgreSQL that a test may stop; it runs again when the test is over."""
    with Cluster(tmpfs=True) as cluster:
        yield cluster
