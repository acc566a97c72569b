"""The tutorials do what they say: each command is typed, and prints what stands under it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from tests.support.foreign_layouts import SmallCa, certbot
from tests.support.grounds import ground
from tests.support.inboxes import mail_server
from tests.support.ports import free_port
from tests.support.postgres import Cluster
from tests.support.tutorial import Shell, environment, play

PAGES = Path(__file__).resolve().parents[2] / "docs" / "tutorials"


def listening(port: int, acme: int) -> dict[str, str]:
    return {
        "HOLDFAST_STORE_DATA_DIR": "data",
        "HOLDFAST_SERVER_LISTEN": f"127.0.0.1:{port}",
        "HOLDFAST_ACME_LISTEN": f"127.0.0.1:{acme}",
    }


def test_a_developer_gets_a_certificate_and_its_reasons(tmp_path: Path) -> None:
    port, acme = free_port(), free_port()
    ready = {"": f"http://127.0.0.1:{port}"}
    with Shell(tmp_path, environment(tmp_path, **listening(port, acme)), ready) as shell:
        play(PAGES / "developer.md", shell, {"8631": str(acme)})


def test_a_pki_team_keeps_its_root_offline_and_approves_by_two(tmp_path: Path) -> None:
    port, acme = free_port(), free_port()
    ready = {"": f"http://127.0.0.1:{port}"}
    with Shell(tmp_path, environment(tmp_path, **listening(port, acme)), ready) as shell:
        play(PAGES / "pki-team.md", shell, {"127.0.0.1:8630": f"127.0.0.1:{port}"})


def test_a_platform_team_runs_two_replicas_and_a_document(tmp_path: Path, postgres: Cluster) -> None:
    ports = [free_port() for _ in range(4)]
    names = {f":{given}": f":{port}" for given, port in zip((8630, 8631, 8640, 8641), ports, strict=True)}
    ready = {"=one": f"http://127.0.0.1:{ports[0]}", "=two": f"http://127.0.0.1:{ports[2]}"}
    with ground(tmp_path, postgres) as place, Shell(tmp_path, environment(tmp_path), ready) as shell:
        names |= {"postgresql://holdfast@db/holdfast": str(place.store)}
        play(PAGES / "platform-team.md", shell, names)


def test_a_small_team_takes_over_from_certbot_and_is_told(tmp_path: Path) -> None:
    port, acme, lineages = free_port(), free_port(), tmp_path / "letsencrypt"
    pair = SmallCa().issue("www.example.com", begins=timedelta(days=-30, hours=-6))
    certbot(lineages, "www.example.com", pair, account_key=ec.generate_private_key(ec.SECP256R1()))
    ready = {"": f"http://127.0.0.1:{port}"}
    with mail_server() as mail, Shell(tmp_path, environment(tmp_path, **listening(port, acme)), ready) as shell:
        names = {"/etc/letsencrypt": str(lineages), "host=localhost": "host=127.0.0.1", "port=25": f"port={mail.port}"}
        play(PAGES / "small-team.md", shell, names)
        assert [letter.recipients for letter in mail.letters] == [["you@example.com"]]
