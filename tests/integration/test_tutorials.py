"""The tutorials do what they say: each command is typed, and prints what stands under it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from tests.support.foreign_layouts import SmallCa, certbot, put
from tests.support.grounds import ground
from tests.support.inboxes import mail_server
from tests.support.nginx import NGINX, an_nginx, needs_nginx
from tests.support.pebble import Pebble
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


SITE = """server {{ listen 127.0.0.1:{http}; root {www}; }}
server {{
    listen 127.0.0.1:{https} ssl;
    server_name www.example.com;
    ssl_certificate     {lineages}/live/www.example.com/fullchain.pem;
    ssl_certificate_key {lineages}/live/www.example.com/privkey.pem;
}}
"""


@needs_nginx
def test_a_web_server_goes_from_certbot_to_holdfast(tmp_path: Path) -> None:
    """nginx and the CA are real; only folders, ports and names are those of this test."""
    port, lineages, www = free_port(), tmp_path / "letsencrypt", tmp_path / "www"
    sites = tmp_path / "nginx/sites-enabled"
    www.mkdir()
    with an_nginx(tmp_path) as nginx, Pebble(tmp_path, nonces=0, sleep=0) as ca:
        certbot(lineages, "www.example.com", SmallCa().issue("www.example.com"), server=ca.place.directory)
        put(sites / "www.example.com", SITE.format(http=ca.http_port, https=nginx.port, www=www, lineages=lineages))
        nginx.configure(more=f"include {sites}/*;")
        config = nginx.folder / "nginx.conf"
        put(config, f"user root;\n{config.read_text()}")  # who may look into the folder of this test
        nginx.start()
        program = put(tmp_path / "bin/nginx", f'#!/bin/sh\nexec {NGINX} {" ".join(nginx.test_argv[2:])} "$@"\n')
        program.chmod(0o755)
        own = {
            "import certbot /etc/letsencrypt": f"import certbot {lineages} --used-in {tmp_path} --roots tls.pem",
            'allow = ["nginx"]': f'programs.nginx-test.argv = ["{program}", "-t"]\n'
            f'programs.nginx-reload.argv = ["{program}", "-s", "reload"]',
            "-connect www.example.com:443": f"-connect 127.0.0.1:{nginx.port}",
            "www.example.com:443": f"www.example.com:{nginx.port}",
            "/etc/letsencrypt": str(lineages), "/etc/holdfast": str(tmp_path / "holdfast"),
            "/etc/nginx": str(tmp_path / "nginx"), "/var/www/html": str(www),
        }  # fmt: skip
        mine = environment(tmp_path, **listening(port, free_port()), HOLDFAST_ENDPOINTS_RESOLVERS=ca.dns)
        mine["PATH"] = f"{program.parent}:{mine['PATH']}"
        with Shell(tmp_path, mine, {"": f"http://127.0.0.1:{port}"}) as shell:
            play(PAGES / "from-certbot.md", shell, own)
