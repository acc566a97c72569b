"""`holdfast serve --processes N`: replicas at one address, started again when they end, and drained together."""

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.commands import holdfast
from tests.support.postgres import Cluster
from tests.support.processes import Served, environment
from tests.support.reaper import PATIENCE, state, until

from holdfast.web.siblings import merged


@pytest.fixture
def settings(postgres: Cluster, template: str) -> Iterator[dict[str, str]]:
    url = postgres.create_database(template)
    yield {"STORE_URL": url, "REPLICA_NAME": "alpha"}
    postgres.drop_database(url)


def several(folder: Path, settings: dict[str, str], count: int = 2) -> Served:
    return Served(folder, settings, options=[f"--processes={count}"])


def pid_of(served: Served, number: int) -> int:
    """Of the newest process in that place."""
    return [each["pid"] for each in served.events("process.started") if each["process"] == number][-1]


def serves_again(served: Served, number: int, before: int) -> bool:
    return any(each["process"] == number and each["pid"] != before for each in served.events("process.serving"))


def test_several_replicas_answer_at_one_address_and_a_scrape_shows_them_all(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    with several(tmp_path, settings, 3) as served:
        served.wait_for_event("supervisor.serving")
        assert {each["acme"] for each in served.events("holdfast.serving")} == {
            served.events("holdfast.serving")[0]["acme"]
        }, "port 0 became one port for all"
        env = environment(tmp_path, settings)
        replicas = holdfast("cluster", "-o", "json", env=env)
        assert all(f'"alpha-{number}"' in replicas.stdout for number in (1, 2, 3)), replicas.stdout + replicas.stderr
        issued = holdfast("issue", "one.internal", "--wait", env=env)
        assert issued.returncode == 0, issued.stderr
        with urlopen(f"{served.url}/metrics", timeout=PATIENCE) as answer:
            found = {each.name: each for each in text_string_to_metric_families(answer.read().decode())}
        up = {each.labels["process"]: each.value for each in found["holdfast_process_up"].samples}
        assert up == {"1": 1.0, "2": 1.0, "3": 1.0}
        assert {each.labels["process"] for each in found["holdfast_store_commits"].samples} == {"1", "2", "3"}
        assert served.stop() == 0


def test_a_killed_process_and_a_frozen_one_are_replaced_while_the_other_serves(
    tmp_path: Path, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "6000000")
    with several(tmp_path, settings) as served:
        served.wait_for_event("supervisor.serving")
        killed = pid_of(served, 1)
        os.kill(killed, signal.SIGKILL)
        until(lambda: serves_again(served, 1, killed), "another process in the first place")
        assert served.events("process.ended")[0]["code"] == -signal.SIGKILL
        frozen = pid_of(served, 2)
        os.kill(frozen, signal.SIGSTOP)
        served.wait_for_event("process.silent")
        until(lambda: serves_again(served, 2, frozen), "another process in the second place")
        assert state(frozen) == ""
        assert served.stop() == 0


def test_a_stop_drains_all_and_further_signals_to_the_processes_do_not_cut_it_off(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    with several(tmp_path, settings) as served:
        served.wait_for_event("supervisor.serving")
        pids = [pid_of(served, 1), pid_of(served, 2)]
        for _ in range(2):
            for pid in pids:  # as a terminal or a service manager does that signals all of them
                os.kill(pid, signal.SIGTERM)
            if not served.events("supervisor.draining"):
                served.process.send_signal(signal.SIGTERM)
                served.wait_for_event("supervisor.draining")
        assert served.wait() == 0
        assert len(served.events("holdfast.stopped")) == 2, "each of them ended what it had"
        assert [state(pid) for pid in pids] == ["", ""]
        assert len(served.events("process.started")) == 2


def test_processes_whose_supervisor_is_gone_drain_and_end(tmp_path: Path, settings: dict[str, str]) -> None:
    with several(tmp_path, settings) as served:
        served.wait_for_event("supervisor.serving")
        pids = [pid_of(served, 1), pid_of(served, 2)]
        served.process.send_signal(signal.SIGKILL)
        until(lambda: all(state(pid) in ("", "Z") for pid in pids), "the end of the processes")
        assert len(served.events("holdfast.stopped")) == 2


def test_the_service_manager_hears_of_all_processes_from_their_supervisor_alone(
    tmp_path: Path, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    heard.bind(str(tmp_path / "notify"))
    heard.settimeout(PATIENCE)
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    said = list[str]()

    def hear(word: str) -> None:
        while not any(word in each for each in said):
            said.append(heard.recv(4096).decode())

    with heard, several(tmp_path / "data", settings) as served:
        hear("READY=1")
        assert {each["process"] for each in served.events("process.serving")} == {1, 2}, "not before both serve"
        hear("WATCHDOG=1")
        served.process.send_signal(signal.SIGTERM)
        hear("STOPPING=1")
        assert served.wait() == 0
    assert sum("READY=1" in each for each in said) == 1


def test_a_second_server_at_the_same_address_is_refused(tmp_path: Path, settings: dict[str, str]) -> None:
    with several(tmp_path / "a", settings) as served:
        port = served.address[1]
        taken = settings | {"SERVER_LISTEN": f"127.0.0.1:{port}"}
        with several(tmp_path / "b", taken) as second:
            assert second.wait() == 1
            assert "cannot listen on" in second.output()
        assert served.stop() == 0


def test_what_a_person_must_solve_ends_all_processes_at_their_first_start(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    with Served(tmp_path / "a", settings | {"KEYS_PASSPHRASE": "a long passphrase of one"}) as first:
        first.wait_for_event("holdfast.serving")
        assert first.stop() == 0
    with several(tmp_path / "b", settings | {"KEYS_PASSPHRASE": "a long passphrase of another"}) as served:
        assert served.wait() == 1
        assert served.events("process.ended")[0]["next"] == "all processes stop"
        assert "passphrase" in served.output()


def test_sqlite_belongs_to_one_process(tmp_path: Path) -> None:
    refused = holdfast("serve", "--processes", "2", env=environment(tmp_path, {}))
    assert refused.returncode == 2
    assert "a SQLite database belongs to one process" in refused.stderr
    assert "store.url" in refused.stderr


def test_metrics_of_several_processes_keep_one_heading_and_their_own_numbers() -> None:
    one = b'# HELP a About a.\n# TYPE a gauge\na 1.0\n# HELP b B\n# TYPE b gauge\nb{x="{ y"} 2.0\n'
    text = merged({1: one, 2: one.replace(b"1.0", b"3.0"), 3: None}).decode()
    found = {family.name: family.samples for family in text_string_to_metric_families(text)}
    assert [(each.labels, each.value) for each in found["a"]] == [({"process": "1"}, 1.0), ({"process": "2"}, 3.0)]
    assert found["b"][0].labels == {"process": "1", "x": "{ y"}
    assert [each.value for each in found["holdfast_process_up"]] == [1.0, 1.0, 0.0]
    assert text.count("# TYPE a gauge") == 1
