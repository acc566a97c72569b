"""`holdfast serve` under connections that want nothing: it answers probes, and the engine keeps its descriptors."""

import os
import resource
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.faults.conftest import Serve
from tests.support.postgres import free_port
from tests.support.processes import Served
from tests.support.reaper import PATIENCE, until

from holdfast.listening.bounds import divided

LIVE: Final = b"GET /health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def connected(address: tuple[str, int], source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(address, timeout=PATIENCE, source_address=(source, 0))


def answered(connection: socket.socket, request: bytes) -> bytes:
    """What the server says to it, until it ends the connection."""
    said = b""
    with connection:
        connection.settimeout(PATIENCE)
        connection.sendall(request)
        while piece := connection.recv(65536):
            said += piece
    return said


def descriptors(served: Served) -> int:
    return len(os.listdir(f"/proc/{served.pid}/fd"))


def refusals(served: Served, listener: str, reason: str) -> float:
    name = f'holdfast_connections_refused_total{{listener="{listener}",reason="{reason}"}} '
    [line] = [line for line in served.get("/metrics")[1].splitlines() if line.startswith(name)]
    return float(line.removeprefix(name))


def limited(served: Served, most: int) -> None:
    _, hard = resource.prlimit(served.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(served.pid, resource.RLIMIT_NOFILE, (most, hard))


def test_silent_connections_from_everywhere_leave_probes_and_descriptors(serve: Serve) -> None:
    served = serve(LISTENERS_CONNECTIONS="40", LISTENERS_CONNECTIONS_PER_ADDRESS="10", LISTENERS_HEAD_TIMEOUT="5m")
    served.wait_until_ready()
    before = descriptors(served)
    with ExitStack() as stack:
        for number in range(300):
            stack.enter_context(connected(served.address, f"127.0.0.{2 + number % 30}"))
        assert answered(connected(served.address), LIVE).startswith(b"HTTP/1.1 200 ")
        until(lambda: descriptors(served) <= before + 40 + 32 + 10, "refused connections to be closed")
        assert refusals(served, "server", "displaced") > 0
    assert len(served.events("listener.refused")) <= 3  # a line for each reason, and none for each connection


def test_an_address_full_of_silent_connections_is_no_harm_to_acme_clients_elsewhere(serve: Serve) -> None:
    served = serve(LISTENERS_CONNECTIONS="40", LISTENERS_CONNECTIONS_PER_ADDRESS="10", LISTENERS_HEAD_TIMEOUT="5m")
    served.wait_until_ready()
    port = int(str(served.wait_for_event("acme.serving")["url"]).rpartition(":")[2])
    with ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(connected(("127.0.0.1", port), "127.0.0.2"))
        until(lambda: refusals(served, "acme", "address-full") > 0, "a refusal")
        held = [line for line in served.get("/metrics")[1].splitlines() if 'connections{listener="acme"}' in line]
        assert float(held[0].rpartition(" ")[2]) <= 10


def test_the_socket_for_commands_is_bounded_like_the_others(serve: Serve, tmp_path: Path) -> None:
    served = serve(LISTENERS_HEAD_SIZE="4096")
    served.wait_until_ready()
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.connect(str(tmp_path / "data" / "holdfast.sock"))
    assert answered(line, b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000).startswith(b"HTTP/1.1 431 ")
    assert refusals(served, "local", "head-size") == 1


def test_the_listener_of_tls_alpn_counts_addresses_too(serve: Serve) -> None:
    port = free_port()
    served = serve(KEEPING_TLS_ALPN_LISTEN=f"127.0.0.1:{port}", LISTENERS_CONNECTIONS_PER_ADDRESS="5")
    served.wait_until_ready()
    with ExitStack() as stack:
        lines = [stack.enter_context(connected(("127.0.0.1", port))) for _ in range(8)]
        assert lines[0].recv(1) == b""  # the oldest of that address made room
        until(lambda: refusals(served, "tls_alpn", "displaced") == 3, "three to be displaced")


def test_without_descriptors_it_accepts_again_as_soon_as_there_are_some(serve: Serve) -> None:
    served = serve()
    served.wait_until_ready()
    allowed = resource.prlimit(served.pid, resource.RLIMIT_NOFILE)[0]
    limited(served, descriptors(served))
    with ExitStack() as stack:
        lines = [stack.enter_context(connected(served.address)) for _ in range(5)]
        until(lambda: served.events("listener.refused"), "a line in the log")
        assert served.events("listener.refused")[0]["reason"] == "descriptors"
        limited(served, allowed)
        for line in lines:
            assert answered(line, LIVE).startswith(b"HTTP/1.1 200 ")
    assert served.stop() == 0


def test_a_small_limit_of_the_system_leaves_the_engine_its_share(serve: Serve) -> None:
    served = serve(open_files=256)
    served.wait_until_ready()
    told = served.wait_for_event("listeners.fewer_connections")
    assert (told["descriptors"], told["connections"]) == (256, divided(256, 1032, listeners=3, reserved=512) - 32)
    with ExitStack() as stack:
        for number in range(600):
            stack.enter_context(connected(served.address, f"127.0.0.{2 + number % 30}"))
        assert answered(connected(served.address), LIVE).startswith(b"HTTP/1.1 200 ")
        assert served.get("/health/ready")[0] == 200  # which asks the store
        assert descriptors(served) < 256 - 60
    assert "Too many open files" not in served.output()
