"""The only doors to the world: Clock, Random, Transport, Net, Files/Exec (one more, Store, is store/database.py).

Nothing else in the product reads a clock, draws a random number, opens a socket or starts a process; a test
refuses it. That is what lets the whole product run inside the simulator. The real adapters are in world.py, and for
Net in network.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final, Literal, Protocol

from holdfast.secret import Secret


class Clock(Protocol):
    """This process's idea of time. Leases never use it: they live by the database's clock."""

    def now(self) -> datetime:
        """Wall-clock time, aware, UTC."""

    def monotonic(self) -> float:
        """Seconds that only grow; for measuring how long something took or may still take."""

    async def sleep(self, seconds: float) -> None:
        """Let that much time pass."""


class Random(Protocol):
    """Every random number and every new id."""

    def uniform(self, low: float, high: float) -> float: ...

    def token(self, size: int) -> bytes:
        """Unpredictable bytes, fit for keys and nonces."""

    def new_id(self, prefix: str) -> str:
        """A new id such as `job_01k8…`, sorted by the time it was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who we are to a remote that asks for a client certificate."""

    chain: bytes  # PEM, leaf first
    key: Secret[bytes]  # PEM, not encrypted


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request to a remote. `deadline_for` bounds the whole exchange, not each read."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    deadline_for: float = 30.0
    max_body: int = 1024 * 1024  # of the decoded answer; more is refused
    roots: bytes = b""  # PEM: who is believed to be the remote, in place of the system's roots
    identity: Identity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """What the remote answered: any status is an answer, only the lack of one is an error."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes


class Transport(Protocol):
    """HTTP to remotes. Raises TryLater when there is no usable answer; never retries, never follows redirects."""

    async def request(self, request: Request) -> Response: ...


NetKind = Literal["refused", "reset", "timeout", "tls", "unreachable"]


class NetProblem(Exception):
    """A connection, or an answer, that did not come about."""

    def __init__(self, kind: NetKind, why: str, *, shown: tuple[bytes, ...] = ()) -> None:
        super().__init__(why)
        self.kind: Final = kind
        self.shown: Final = shown  # what a peer showed that refused us afterwards, because it asks for our certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """A handshake of TLS 1.2 or later that trusts anybody: the certificate is what we want to see, not a proof."""

    server_name: str | None  # None sends no SNI, as for an address
    alpn: tuple[str, ...] = ()
    key: Literal["rsa", "ecdsa"] | None = None  # ask for the certificate with this kind of key, by TLS 1.2
    any_version: bool = False  # TLS 1.0 and 1.1 will do as well: to look at a server, not to talk to it


class Stream(Protocol):
    """One open connection. Raises NetProblem; its holder closes it."""

    @property
    def certificate(self) -> bytes | None:
        """What the peer showed in its handshake, as DER."""

    @property
    def chain(self) -> tuple[bytes, ...]:
        """All that it showed, that certificate first."""

    @property
    def version(self) -> str:
        """Of TLS, such as TLSv1.3; empty without it."""

    @property
    def alpn(self) -> str | None:
        """The protocol that the peer chose, if it chose one."""

    async def read(self, limit: int) -> bytes:
        """Some bytes, as soon as there are any and at most so many; none at the end."""

    async def write(self, data: bytes) -> None: ...

    async def upgrade(self, tls: Tls, *, deadline_for: float) -> Stream:
        """TLS on this connection, from here on (STARTTLS). Who holds this stream holds the new one instead."""

    def close(self) -> None: ...


class Net(Protocol):
    """Connections to any address, for checking other people's claims. It does as it is told: SafeDialer is who asks."""

    async def connect(self, address: str, port: int, *, tls: Tls | None = None, deadline_for: float) -> Stream:
        """A connection, with its handshake done; NetProblem if there is none in time."""

    async def connect_local(self, path: str, *, deadline_for: float) -> Stream:
        """A connection to a daemon of this machine, by the path of its Unix socket."""

    async def ask(
        self, server: str, port: int, query: bytes, *, tcp: bool, deadline_for: float, fits: Callable[[bytes], bool]
    ) -> bytes:
        """One question to a name server, from a port of its own. Answers that do not fit are ignored."""


class Files(Protocol):
    """Files and programs of this machine."""

    def read(self, path: Path) -> bytes | None:
        """The content, or None if there is no such file."""

    def lines(self, path: Path) -> Iterator[bytes]:
        """One after the other, of a file of any length; none if there is no such file."""

    def write_private(self, path: Path, content: bytes, *, replace: bool) -> None:
        """Write 0600, whole or not at all, durable on return; FileExistsError if it exists and replace is off."""

    def put_within(self, folder: Path, name: str, content: bytes) -> None:
        """Write folder/name for all to read, whole or not at all. Below the folder no link is followed."""

    def remove_within(self, folder: Path, name: str) -> None:
        """Remove it again, if it is there; again following no link."""

    def mode(self, path: Path) -> int:
        """The permission bits, such as 0o600."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float = 60.0,
        env: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes]:
        """Run a program without a shell; its exit code and its output, capped at 64 KiB. `env`: besides PATH."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A folder of this machine that deployments may write to: below a root that its host allows."""

    root: Path
    below: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileAccess:
    """Who may read the files of a bundle. What they replace is never made readable to more than before."""

    owner: str = ""  # a user of this machine; empty: as before, else the user that we run as
    group: str = ""  # a group that may read keys; empty: as before, else nobody but the owner

    def mode(self, before: int | None, *, public: bool) -> int:
        """The mode of a new file: as the file before, never wider; a group reads a key only if a person says so."""
        usual = 0o644 if public else 0o640 if self.group else 0o600
        return usual if before is None else before & (0o755 if public else 0o750)


FileContent = bytes | Secret[bytes]  # certificates are for everybody, keys are not


class BundleFolders(Protocol):
    """Folders of files of which one is current. Raises OSError; Unreadable if a folder cannot be trusted.

    Below the root no link is followed, but for `current` itself.
    """

    async def current(self, place: Place) -> str | None:
        """The name that the link `current` leads to; None if there is none."""

    async def names(self, place: Place) -> list[str]:
        """The bundles that are there."""

    async def read(self, place: Place, name: str) -> bytes | None:
        """A file in the folder; None if there is none."""

    async def put(self, place: Place, name: str, files: Mapping[str, FileContent], access: FileAccess) -> None:
        """Write a bundle: durable, read again and compared. One that is there with the same files is kept."""

    async def switch(self, place: Place, name: str) -> None:
        """Let `current` lead to this bundle, by one rename; durable."""

    async def prune(self, place: Place, keep: Collection[str]) -> None:
        """Remove all other bundles, and what a crash left behind."""

    async def replace(self, files: Sequence[tuple[Place, str, FileContent]], access: FileAccess) -> None:
        """Write all of these beside the old ones, durable, and then rename one after the other, in this order."""


class Unreadable(Exception):
    """A file or folder of another program that cannot be read, or must not be; the text says why."""


class Tree(Protocol):
    """A folder of another program, to be read only. Paths are relative to it; nothing outside it is ever opened."""

    def shown(self, path: str) -> str:
        """The path as its owner knows it, for messages."""

    def names(self, folder: str) -> list[str] | None:
        """The names in a folder, sorted; None if there is no such folder. Unreadable if it may not be looked at."""

    def read(self, path: str, limit: int) -> bytes | None:
        """A file; None if there is none. Unreadable: no permission, no plain file, a link that leads out, too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLine:
    """One audit entry to export: one line of JSON, with its number and time."""

    seq: int
    at: datetime
    text: str


class Sink(Protocol):
    """A second place for audit rows. Raises OSError; then all of these lines come again."""

    name: str  # stable: how far it came is remembered under it

    async def write(self, lines: Sequence[AuditLine]) -> None:
        """In this order; on return they are as safe as they can be there."""


class Witness(Protocol):
    """A file of this machine that tells what a database may forget. Raises OSError; then nothing of it was written."""

    folder: Path

    def append(self, lines: Sequence[bytes]) -> None:
        """Add lines; they are durable on return. The oldest go when it would become too long."""

    def note(self, head: bytes, turn: int) -> None:
        """Remember how far the database came: in one of two places, in turns. Durable with the next lines."""

    def heads(self) -> list[bytes]:
        """What is in those two places."""

    def contents(self) -> list[bytes]:
        """All lines of all files of this folder, also of processes that are gone: file by file, the oldest first."""

    def close(self) -> None: ...


class Points(Protocol):
    """Named places where a crash is interesting. A no-op in production; harnesses kill or fail there."""

    def __call__(self, name: str) -> None: ...


POINTS: Final = frozenset(
    {
        "store.before-commit",
        "store.after-commit",
        "witness.written",
        "recovery.entered",
        "recovery.replayed",
        "backup.writing",
        "restore.table",
        "restore.loaded",
        "store.migrating",
        "job.claimed",
        "job.effect-done",
        "job.settling",
        "job.settled",
        "job.beaten",
        "lease.taken",
        "lease.released",
        "sweep.retried",
        "sweep.reconciled",
        "key.rewrapped",
        "http.asking",
        "http.answered",
        "bundle.written",
        "bundle.switched",
        "bundle.replacing",
        "deployment.committed",
    }
)


def no_points(name: str) -> None:
    """The production Points: nothing happens."""
