"""Real daemons with one certificate each, which deployments swap: nginx, Apache, HAProxy, Postfix and Dovecot.

Each has its configuration in a folder of its own and listens on a free port of loopback; bundles are below `live`.
"""

from __future__ import annotations

import imaplib
import os
import pwd
import shutil
import smtplib
import socket
import ssl
import subprocess
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final

from tests.support.ports import free_port
from tests.support.reaper import until

HOST: Final = "127.0.0.1"
_PATH: Final = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def found(name: str) -> str:
    return shutil.which(name, path=_PATH) or name


@dataclass
class Daemon:
    """One that runs in the foreground. `name` is the certificate that it serves."""

    folder: Path
    live: Path
    name: str
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    program: ClassVar[str]
    package: ClassVar[str]
    kind: ClassVar[str] = "files"
    protocol: ClassVar[str] = "tls"

    @property
    @abstractmethod
    def argv(self) -> list[str]: ...
    @property
    @abstractmethod
    def test_argv(self) -> list[str]: ...
    @property
    @abstractmethod
    def reload_argv(self) -> list[str]: ...
    @abstractmethod
    def configure(self) -> None: ...

    @property
    def settings(self) -> dict[str, str]:
        return {"folder": str(self.live), "test": "test", "reload": "reload"}

    @property
    def quiet(self) -> dict[str, str]:
        """Before it runs."""
        return {"folder": str(self.live), "reload": "nothing"}

    @property
    def rules(self) -> str:
        """The local file of the host."""
        programs = {"test": self.test_argv, "reload": self.reload_argv, "nothing": ["/bin/true"]}
        tables = "".join(f"[programs.{name}]\nargv = {argv}\n" for name, argv in programs.items())
        return f'folders = ["{self.live}"]\n{self.sockets}{tables}'

    sockets: ClassVar[str] = ""

    @property
    def endpoint(self) -> str:
        return f"{self.protocol}://{HOST}:{self.port}"

    @property
    def current(self) -> Path:
        return self.live / self.name / "current"

    def pair(self) -> tuple[bytes, bytes, int]:
        """Certificate and key, both opened below one folder as a daemon finds it, and the mode of the key."""
        handle = os.open(self.current, os.O_RDONLY | os.O_DIRECTORY)
        try:
            chain, key = (_content(name, handle) for name in ("fullchain.pem", "privkey.pem"))
            return chain, key, os.stat("privkey.pem", dir_fd=handle).st_mode
        finally:
            os.close(handle)

    def shake(self, context: ssl.SSLContext) -> None:
        with (
            socket.create_connection((HOST, self.port), 10) as line,
            context.wrap_socket(line, server_hostname=self.name),
        ):
            pass

    def start(self) -> None:
        self.configure()
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(self.argv, stdout=log, stderr=log, cwd=self.folder)
        until(self._answers, self.program, every=0.05)

    def _answers(self) -> bool:
        if self.process is None or self.process.poll() is not None:
            raise AssertionError((self.folder / "log").read_text(errors="replace")[-2000:])
        try:
            self.shake(careless())
        except OSError:
            return False
        return True

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(20)
            self.process = None


def _content(name: str, folder: int) -> bytes:
    with os.fdopen(os.open(name, os.O_RDONLY, dir_fd=folder), "rb") as file:
        return file.read()


def careless() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class Nginx(Daemon):
    program, package = "nginx", "nginx-light"

    @property
    def _at(self) -> list[str]:
        return ["-c", str(self.folder / "nginx.conf"), "-e", str(self.folder / "error.log")]

    @property
    def argv(self) -> list[str]:
        return [found("nginx"), *self._at]

    @property
    def test_argv(self) -> list[str]:
        return [found("nginx"), "-t", *self._at]

    @property
    def reload_argv(self) -> list[str]:
        return [found("nginx"), "-s", "reload", *self._at]

    def configure(self) -> None:
        paths = "".join(
            f"{each}_temp_path {self.folder}/{each}; " for each in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        (self.folder / "nginx.conf").write_text(
            f"""daemon off; worker_processes 1; pid {self.folder}/pid; error_log {self.folder}/error.log;
events {{ worker_connections 64; }}
http {{
  access_log off; {paths}
  server {{
    listen {HOST}:{self.port} ssl; server_name {self.name};
    ssl_certificate {self.current}/fullchain.pem; ssl_certificate_key {self.current}/privkey.pem; return 204;
  }}
}}
"""
        )


class Apache(Daemon):
    program, package = "apache2", "apache2"

    def _do(self, *words: str) -> list[str]:
        return [found("apache2"), "-f", str(self.folder / "apache.conf"), *words]

    @property
    def argv(self) -> list[str]:
        return self._do("-D", "FOREGROUND")

    @property
    def test_argv(self) -> list[str]:
        return self._do("-t")

    @property
    def reload_argv(self) -> list[str]:
        return self._do("-k", "graceful")

    def configure(self) -> None:
        modules = "".join(
            f"LoadModule {each}_module /usr/lib/apache2/modules/mod_{each}.so\n"
            for each in ("mpm_event", "authz_core", "socache_shmcb", "ssl")
        )
        (self.folder / "apache.conf").write_text(
            f"""{modules}ServerRoot {self.folder}
ServerName {self.name}
PidFile {self.folder}/pid
ErrorLog {self.folder}/error.log
Listen {HOST}:{self.port}
User www-data
Group www-data
StartServers 1
SSLEngine on
SSLCertificateFile {self.current}/fullchain.pem
SSLCertificateKeyFile {self.current}/privkey.pem
"""
        )


class Haproxy(Daemon):
    """Changed by its runtime API, without a reload; the pair is one file."""

    program, package, kind = "haproxy", "haproxy", "haproxy"

    @property
    def argv(self) -> list[str]:
        return [found("haproxy"), "-db", "-f", str(self.folder / "haproxy.cfg")]

    @property
    def test_argv(self) -> list[str]:
        return [found("haproxy"), "-c", "-f", str(self.folder / "haproxy.cfg")]

    @property
    def reload_argv(self) -> list[str]:
        return ["/bin/false"]

    @property
    def _certificates(self) -> Path:
        return self.live / "certs"

    @property
    def quiet(self) -> dict[str, str]:
        self._certificates.mkdir(exist_ok=True)
        return {"folder": str(self.live), "certificates": str(self._certificates), "reload": "nothing"}

    @property
    def settings(self) -> dict[str, str]:
        return {**self.quiet, "reload": "", "test": "test", "socket": str(self.folder / "admin.sock")}

    @property
    def rules(self) -> str:
        return f'sockets = ["{self.folder}/admin.sock"]\n{super().rules}'

    def pair(self) -> tuple[bytes, bytes, int]:
        with (self._certificates / f"{self.name}.pem").open("rb") as file:
            both = file.read()
            return both, both, os.fstat(file.fileno()).st_mode

    def configure(self) -> None:
        (self.folder / "haproxy.cfg").write_text(
            f"""global
  stats socket {self.folder}/admin.sock level admin mode 600
  log /dev/null local0
defaults
  mode http
  timeout client 10s
  timeout server 10s
  timeout connect 10s
frontend web
  bind {HOST}:{self.port} ssl crt {self._certificates}/
  http-request return status 204
"""
        )


class Postfix(Daemon):
    """SMTP with STARTTLS; the pair is one file."""

    program, package, protocol = "postfix", "postfix", "smtp"

    def _do(self, *words: str) -> list[str]:
        return [found("postfix"), "-c", str(self.folder / "etc"), *words]

    @property
    def argv(self) -> list[str]:
        return self._do("start-fg")

    @property
    def test_argv(self) -> list[str]:
        return self._do("check")

    @property
    def reload_argv(self) -> list[str]:
        return self._do("reload")

    def shake(self, context: ssl.SSLContext) -> None:
        try:
            with smtplib.SMTP(HOST, self.port, local_hostname="reader.example.com", timeout=10) as line:
                line.starttls(context=context)
        except smtplib.SMTPException as why:
            raise OSError(str(why)) from None

    def configure(self) -> None:
        etc, data, queue = (self.folder / each for each in ("etc", "data", "queue"))
        for each in (etc, data, queue):
            each.mkdir(exist_ok=True)
        shutil.chown(data, "postfix", pwd.getpwnam("postfix").pw_gid)
        (etc / "main.cf").write_text(
            f"""compatibility_level = 3.6
queue_directory = {queue}
data_directory = {data}
command_directory = /usr/sbin
daemon_directory = /usr/lib/postfix/sbin
mail_owner = postfix
setgid_group = postdrop
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
mydestination =
myhostname = {self.name}
smtpd_tls_chain_files = {self.current}/combined.pem
smtpd_tls_security_level = may
smtpd_relay_restrictions = reject
smtpd_client_connection_rate_limit = 0
smtpd_client_new_tls_session_rate_limit = 0
maillog_file = {self.folder}/postfix.log
maillog_file_prefixes = {self.folder}
"""
        )
        (etc / "master.cf").write_text(
            f"""{HOST}:{self.port} inet n - n - - smtpd
postlog unix-dgram n - n - 1 postlogd
rewrite unix - - n - - trivial-rewrite
proxymap unix - - n - - proxymap
anvil unix - - n - 1 anvil
tlsmgr unix - - n 1000? 1 tlsmgr
"""
        )


class Dovecot(Daemon):
    """IMAP with STARTTLS."""

    program, package, protocol = "dovecot", "dovecot-imapd", "imap"

    @property
    def _config(self) -> str:
        return str(self.folder / "dovecot.conf")

    @property
    def argv(self) -> list[str]:
        return [found("dovecot"), "-F", "-c", self._config]

    @property
    def test_argv(self) -> list[str]:
        return [found("doveconf"), "-n", "-c", self._config]

    @property
    def reload_argv(self) -> list[str]:
        return [found("doveadm"), "-c", self._config, "reload"]

    def shake(self, context: ssl.SSLContext) -> None:
        try:
            line = imaplib.IMAP4(HOST, self.port, timeout=10)
            line.starttls(context)
            line.shutdown()
        except imaplib.IMAP4.error as why:
            raise OSError(str(why)) from None

    def configure(self) -> None:
        Path(self._config).write_text(
            f"""protocols = imap
base_dir = {self.folder}/run
log_path = {self.folder}/dovecot.log
ssl = yes
ssl_cert = <{self.current}/fullchain.pem
ssl_key = <{self.current}/privkey.pem
listen = {HOST}
passdb {{
  driver = static
  args = nopassword=y
}}
userdb {{
  driver = static
  args = uid=nobody gid=nogroup home={self.folder}
}}
service imap-login {{
  process_min_avail = 2
  inet_listener imap {{
    port = {self.port}
  }}
  inet_listener imaps {{
    port = 0
  }}
}}
"""
        )


DAEMONS: Final[dict[str, Callable[..., Daemon]]] = {
    "nginx": Nginx, "apache": Apache, "haproxy": Haproxy, "postfix": Postfix, "dovecot": Dovecot,
}  # fmt: skip


def missing(name: str) -> str | None:
    """Why a daemon cannot be started here, and what to type; None: it can."""
    made = DAEMONS[name]
    program, package = made.program, made.package  # type: ignore[attr-defined]
    if shutil.which(program, path=_PATH) is None:
        return f"{program} is not installed: apt install --no-install-recommends {package}"
    return None if os.geteuid() == 0 or name in ("nginx", "haproxy") else f"{program} is started by root only"


@contextmanager
def a_daemon(name: str, folder: Path, certificate: str) -> Iterator[Daemon]:
    """Not started yet: it needs a certificate first. Daemons that drop privileges must be able to pass the folder."""
    place, live = folder / name, folder / "live"
    for each in (place, live):
        each.mkdir()
    for each in (folder, place):
        each.chmod(0o755)
    daemon = DAEMONS[name](folder=place, live=live, name=certificate)
    try:
        yield daemon
    finally:
        daemon.stop()
