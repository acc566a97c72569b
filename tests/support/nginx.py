"""A real nginx with one TLS server, in the foreground, on a free port."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.ports import free_port

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin")
needs_nginx = pytest.mark.skipif(NGINX is None, reason="nginx is not installed: apt install nginx")

CONFIG = """
daemon off; master_process on; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 64; }}
http {{
  access_log off; client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  {servers}
}}
"""
SERVER = """server {{ listen 127.0.0.1:{port} ssl; server_name {name};
  ssl_certificate {live}/{name}/current/fullchain.pem; ssl_certificate_key {live}/{name}/current/privkey.pem; }}
"""


@dataclass
class Nginx:
    folder: Path
    live: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def test_argv(self) -> tuple[str, ...]:
        return (NGINX or "nginx", "-t", "-c", str(self.folder / "nginx.conf"), "-e", str(self.folder / "error.log"))

    @property
    def reload_argv(self) -> tuple[str, ...]:
        return (NGINX or "nginx", "-s", "reload", *self.test_argv[2:])

    def configure(self, *names: str, more: str = "") -> None:
        servers = "".join(SERVER.format(port=self.port, name=name, live=self.live) for name in names)
        (self.folder / "nginx.conf").write_text(CONFIG.format(folder=self.folder, servers=servers + more))

    def start(self) -> None:
        assert self.process is None
        self.process = subprocess.Popen(
            [NGINX or "nginx", *self.test_argv[2:]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(20)
            self.process = None


@contextmanager
def an_nginx(folder: Path) -> Iterator[Nginx]:
    (folder / "nginx").mkdir()
    (folder / "live").mkdir()
    nginx = Nginx(folder=folder / "nginx", live=folder / "live", port=free_port())
    try:
        yield nginx
    finally:
        nginx.stop()
