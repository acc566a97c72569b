"""What the other tests stand on stands: the PostgreSQL we start ourselves, and the proxy that breaks it."""

import os
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from tests.support import postgres as support
from tests.support.postgres import Cluster, PostgresError
from tests.support.proxy import FaultProxy
from tests.support.reaper import PATIENCE, descendants, state, until

ROOT = Path(__file__).parents[2]
MOMENT = 0.2  # seconds in which a loopback connection would long have answered


@pytest.fixture(scope="module")
def victim() -> Iterator[Cluster]:
    """A cluster that a test may stop and kill; it runs again when the test is over."""
    with Cluster(tmpfs=True) as cluster:
        yield cluster


@pytest.fixture
def database(postgres: Cluster) -> Iterator[str]:
    """The URL of a database with a table `notes`."""
    url = postgres.create_database()
    query(url, "CREATE TABLE notes (text text)")
    yield url
    postgres.drop_database(url)


@pytest.fixture
def proxy(postgres: Cluster) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", postgres.port) as proxy:
        yield proxy


@pytest.fixture
def detour(postgres: Cluster, proxy: FaultProxy, database: str) -> str:
    """The URL of the same database by way of the proxy."""
    return postgres.url(database, through=proxy.port)


@pytest.fixture
def echo() -> Iterator[FaultProxy]:
    """A proxy to a server that says in capitals whatever it is told."""

    class Shout(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(ConnectionResetError):
                while data := self.request.recv(65536):
                    self.request.sendall(data.upper())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Shout) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        with FaultProxy(*server.server_address) as proxy:
            yield proxy
        server.shutdown()


def query(url: str, statement: str) -> list[tuple[object, ...]]:
    """Run one statement in a transaction of its own; return its rows, if it has any."""
    with psycopg.connect(url) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def notes(url: str) -> list[object]:
    return [text for (text,) in query(url, "SELECT text FROM notes ORDER BY text")]


def connected(proxy: FaultProxy) -> socket.socket:
    return socket.create_connection((proxy.host, proxy.port), timeout=PATIENCE)


def says(peer: socket.socket, size: int) -> bytes:
    """Read exactly so much."""
    return peer.makefile("rb").read(size)


def is_silent(peer: socket.socket) -> bool:
    peer.settimeout(MOMENT)
    try:
        peer.recv(1, socket.MSG_PEEK)
    except TimeoutError:
        return True
    finally:
        peer.settimeout(PATIENCE)
    return False


# The cluster


def test_a_cluster_answers_at_its_port_and_at_its_socket(postgres: Cluster) -> None:
    assert query(postgres.url(), "SELECT 1") == [(1,)]
    assert query(postgres.socket_url(), "SELECT inet_client_addr()") == [(None,)]
    assert query(postgres.url(), "SELECT current_setting('server_version_num')::int >= 180000") == [(True,)]


def test_two_databases_know_nothing_of_each_other(postgres: Cluster, database: str) -> None:
    other = postgres.create_database()
    query(other, "CREATE TABLE notes (text text)")
    query(other, "INSERT INTO notes VALUES ('theirs')")
    query(database, "INSERT INTO notes VALUES ('ours')")
    assert (notes(database), notes(other)) == (["ours"], ["theirs"])
    postgres.drop_database(other)


def test_a_database_starts_as_a_copy_of_its_template(postgres: Cluster, database: str) -> None:
    query(database, "INSERT INTO notes VALUES ('from the template')")
    copy = postgres.create_database(template=database)
    assert notes(copy) == ["from the template"]
    postgres.drop_database(copy)


def test_a_database_can_be_dropped_while_somebody_is_connected(postgres: Cluster) -> None:
    url = postgres.create_database()
    with psycopg.connect(url, autocommit=True) as left_behind:
        postgres.drop_database(url)
        with pytest.raises(psycopg.OperationalError):
            left_behind.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(url)


def test_a_restart_keeps_the_port_and_the_data(victim: Cluster) -> None:
    url = victim.create_database()
    query(url, "CREATE TABLE notes AS SELECT 'kept' AS text")
    before = victim.pid
    victim.restart()
    assert victim.pid != before
    assert notes(url) == ["kept"]


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_stopped_cluster_answers_nobody_until_it_is_restarted(victim: Cluster, mode: support.StopMode) -> None:
    victim.stop(mode)
    assert not victim.running
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(victim.url())
    victim.restart()
    assert query(victim.url(), "SELECT 1") == [(1,)]


def test_a_killed_cluster_recovers_what_was_committed_and_nothing_else(victim: Cluster) -> None:
    url = victim.create_database()
    query(url, "CREATE TABLE notes (text text)")
    with psycopg.connect(url) as open_transaction:
        open_transaction.execute("INSERT INTO notes VALUES ('not committed')")
        query(url, "INSERT INTO notes VALUES ('committed')")
        family = [victim.pid, *descendants(victim.pid)]
        victim.kill()
        assert {state(pid) for pid in family} <= {"", "Z"}
        with pytest.raises(psycopg.OperationalError):
            open_transaction.execute("SELECT 1")
    victim.restart()
    assert "automatic recovery in progress" in victim.log()
    assert notes(url) == ["committed"]


def test_a_paused_cluster_accepts_connections_and_answers_once_resumed(victim: Cluster) -> None:
    request_for_tls = bytes.fromhex("0000000804d2162f")
    victim.pause()
    with socket.create_connection(("127.0.0.1", victim.port), timeout=PATIENCE) as peer:
        peer.sendall(request_for_tls)
        assert is_silent(peer)
        assert {state(pid) for pid in [victim.pid, *descendants(victim.pid)]} == {"T"}
        victim.resume()
        assert says(peer, 1) == b"N"


def test_a_paused_cluster_can_be_stopped_and_killed(victim: Cluster) -> None:
    victim.pause()
    victim.restart()
    victim.pause()
    victim.kill()
    victim.restart()
    assert query(victim.url(), "SELECT 1") == [(1,)]


def test_an_older_version_runs_with_the_wished_settings_in_the_wished_place() -> None:
    place = support.unused(support.place())
    support.make_folder(place)
    try:
        wished = {"max_connections": 17, "autovacuum": False}
        with Cluster(version=16, durable=True).start(place, settings=wished) as cluster:
            [(version,)] = query(cluster.url(), "SHOW server_version_num")
            shown = [query(cluster.url(), f"SHOW {name}") for name in ("fsync", *wished)]
            assert cluster.folder.parent == place
        assert 160000 <= int(str(version)) < 170000
        assert shown == [[("on",)], [("17",)], [("off",)]]
        assert not list(place.iterdir())
    finally:
        shutil.rmtree(place)


def test_a_setting_that_does_not_exist_is_reported_in_the_words_of_postgresql() -> None:
    with pytest.raises(PostgresError, match="no_such_setting"):
        Cluster(tmpfs=True).start(settings={"no_such_setting": 1})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to step down")
def test_a_folder_that_the_server_could_not_reach_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PostgresError, match="cannot reach"):
        Cluster().start(tmp_path)


def test_programs_out_of_reach_are_run_from_a_copy_within_reach() -> None:
    original = support.programs().parent
    copy = support.copied(original)
    assert copy != original
    assert support.runs(copy)
    assert (copy / "share/postgresql/postgres.bki").stat().st_mode & 0o004


def test_a_closed_cluster_leaves_neither_process_nor_folder_nor_shared_memory() -> None:
    cluster = Cluster(tmpfs=True).start()
    family = [cluster.pid, *descendants(cluster.pid)]
    shmid = (cluster.folder / "data/postmaster.pid").read_text().splitlines()[6].split()[1]
    cluster.kill()
    cluster.close()
    cluster.close()
    assert {state(pid) for pid in family} <= {"", "Z"}
    assert not cluster.folder.exists()
    assert shmid not in [line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()]


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_script_that_is_killed_leaves_neither_process_nor_folder(end: signal.Signals) -> None:
    script = (
        "import signal, time; from tests.support.postgres import Cluster\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it\n"
        "c = Cluster(tmpfs=True).start(); print(c.pid, c.folder, flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as owner:
        assert owner.stdout
        pid, folder = owner.stdout.readline().split()
        assert state(int(pid))
        owner.send_signal(end)
    until(lambda: not Path(folder).exists(), f"{folder} to be removed")
    assert state(int(pid)) in ("", "Z")


# The proxy


def test_a_proxy_passes_everything_on(echo: FaultProxy) -> None:
    text = b"holdfast" * 100_000
    with connected(echo) as peer:
        sending = threading.Thread(target=peer.sendall, args=(text,))
        sending.start()
        assert says(peer, len(text)) == text.upper()
        sending.join()
        assert (echo.accepted, echo.connections) == (1, 1)
    until(lambda: echo.connections == 0, "the proxy to see the client leave")


def test_a_refusing_proxy_hangs_up_on_new_clients_and_keeps_the_old(proxy: FaultProxy, detour: str) -> None:
    with psycopg.connect(detour, autocommit=True) as old:
        proxy.refuse()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(detour)
        assert old.execute("SELECT 1").fetchone() == (1,)
        proxy.pass_through()
        assert notes(detour) == []


def test_a_hanging_proxy_holds_old_and_new_connections_until_it_passes_again(echo: FaultProxy) -> None:
    with connected(echo) as old:
        old.sendall(b"one")
        assert says(old, 3) == b"ONE"
        echo.hang()
        with connected(echo) as new:
            old.sendall(b"two")
            new.sendall(b"three")
            assert is_silent(old)
            assert is_silent(new)
            echo.pass_through()
            assert says(old, 3) == b"TWO"
            assert says(new, 5) == b"THREE"


def test_a_reset_ends_every_connection_there_is_and_no_later_one(echo: FaultProxy) -> None:
    with connected(echo) as first, connected(echo) as second:
        for peer in (first, second):
            peer.sendall(b"a")
            assert says(peer, 1) == b"A"
        echo.reset_all()
        for peer in (first, second):
            with pytest.raises(ConnectionResetError):
                peer.recv(1)
        assert echo.connections == 0
    with connected(echo) as third:
        third.sendall(b"b")
        assert says(third, 1) == b"B"


def test_a_delay_applies_in_each_direction(echo: FaultProxy) -> None:
    with connected(echo) as peer:
        echo.delay(0.1)
        before = time.monotonic()
        peer.sendall(b"slow")
        assert says(peer, 4) == b"SLOW"
        assert time.monotonic() - before > 0.19  # timers may be a tick early


def test_a_proxy_whose_server_is_down_hangs_up() -> None:
    with FaultProxy("127.0.0.1", support.free_port()) as proxy, connected(proxy) as peer:
        assert peer.recv(1) == b""


def test_a_commit_whose_reply_is_lost_has_happened(proxy: FaultProxy, detour: str, database: str) -> None:
    proxy.drop_replies_after(b"COMMIT")
    with pytest.raises(psycopg.OperationalError), psycopg.connect(detour) as connection:
        connection.execute("INSERT INTO notes VALUES ('did it happen?')")
    assert connection.closed
    assert proxy.cuts == 1
    assert notes(database) == ["did it happen?"]


def test_a_commit_that_was_cut_off_has_not_happened_and_holds_no_lock(
    proxy: FaultProxy, detour: str, database: str
) -> None:
    query(database, "INSERT INTO notes VALUES ('before')")
    proxy.cut_before(b"COMMIT")
    with pytest.raises(psycopg.OperationalError), psycopg.connect(detour) as connection:
        connection.execute("UPDATE notes SET text = 'after'")
    assert connection.closed
    assert proxy.cuts == 1
    assert query(database, "SELECT text FROM notes FOR UPDATE NOWAIT") == [("before",)]


def test_a_marker_strikes_once_unless_told_otherwise(proxy: FaultProxy, detour: str) -> None:
    proxy.cut_before(b"INSERT")
    for text in ("first", "second"):
        try:
            query(detour, f"INSERT INTO notes VALUES ('{text}')")
        except psycopg.OperationalError:
            assert text == "first"
    proxy.cut_before(b"INSERT", times=None)
    for _ in range(3):
        with pytest.raises(psycopg.OperationalError):
            query(detour, "INSERT INTO notes VALUES ('never')")
    assert notes(detour) == ["second"]
    assert proxy.cuts == 4


def test_a_message_larger_than_any_buffer_reaches_the_server_whole(
    proxy: FaultProxy, detour: str, database: str
) -> None:
    proxy.drop_replies_after(b"marker")
    with (
        psycopg.connect(detour, autocommit=True) as connection,
        pytest.raises(psycopg.OperationalError),
    ):
        connection.execute("INSERT INTO notes VALUES (%s)", ["marker" + "x" * 3_000_000])
    assert query(database, "SELECT length(text) FROM notes") == [(3_000_006,)]


def test_in_another_protocol_a_marker_is_found_across_two_packets(echo: FaultProxy) -> None:
    echo.cut_before(b"marker")
    with connected(echo) as peer:
        peer.sendall(b"a mar")
        assert says(peer, 5) == b"A MAR"
        peer.sendall(b"ker")
        assert peer.recv(1) == b""
    assert echo.cuts == 1


def test_a_commit_sent_as_part_of_a_pipeline_is_lost_in_the_same_two_ways(
    proxy: FaultProxy, detour: str, database: str
) -> None:
    for text, fault in (("happened", proxy.drop_replies_after), ("did not", proxy.cut_before)):
        fault(b"COMMIT")
        with psycopg.connect(detour) as connection, suppress(psycopg.OperationalError):
            with connection.pipeline():
                connection.execute("INSERT INTO notes VALUES (%s)", [text])
                connection.commit()
            pytest.fail("the connection was not cut")
    assert proxy.cuts == 2
    assert notes(database) == ["happened"]


@pytest.mark.anyio
async def test_async_tests_use_the_same_proxy(proxy: FaultProxy, detour: str, database: str) -> None:
    proxy.drop_replies_after(b"COMMIT")
    connection = await psycopg.AsyncConnection.connect(detour)
    await connection.execute("INSERT INTO notes VALUES ('async')")
    with pytest.raises(psycopg.OperationalError):
        await connection.commit()
    await connection.close()
    assert notes(database) == ["async"]
