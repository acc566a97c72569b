"""Adapters of Random and Files: random numbers, files and programs of this machine. Agents load no more than this."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, cast

from holdfast.errors import TryLater

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's: no i, l, o, u
_PAIRS: Final = tuple(first + second for first in _ALPHABET for second in _ALPHABET)  # two characters at a time
_OUTPUT_LIMIT: Final = 64 * 1024
_REAPED_WITHIN: Final = 2.0  # seconds; a killed program is gone in milliseconds, unless its disk hangs


class SystemRandom:
    def __init__(self) -> None:
        self._source = secrets.SystemRandom()

    def uniform(self, low: float, high: float) -> float:
        return self._source.uniform(low, high)

    def token(self, size: int) -> bytes:
        return secrets.token_bytes(size)

    def new_id(self, prefix: str) -> str:
        return f"{prefix}_{sortable(time.time_ns() // 1_000_000, secrets.randbits(80))}"


def sortable(millis: int, noise: int) -> str:
    """26 characters: 48 bits of time, then 80 of noise; sorted as text they are sorted by time."""
    number = (millis << 80) | noise
    return "".join([_PAIRS[(number >> shift) & 1023] for shift in range(120, -1, -10)])


class LocalFiles:
    def read(self, path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None

    def lines(self, path: Path) -> Iterator[bytes]:
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return
        with file:
            yield from file

    def write_private(self, path: Path, content: bytes, *, replace: bool) -> None:
        """Through a temporary file that is 0600 before it has content; linked into place, then the folder is synced."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if replace:
                temporary.rename(path)
            else:
                path.hardlink_to(temporary)  # fails if the name is taken: two first starts cannot both win
            sync_folder(path.parent)
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()

    def put_within(self, folder: Path, name: str, content: bytes) -> None:
        *above, last = _parts(name)
        with _opened(folder, above, make=True) as within:
            temporary = f".{last}.{secrets.token_hex(8)}"
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=within)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(content)
                    os.fchmod(file.fileno(), 0o644)  # whatever the umask: a web server has another user
                os.rename(temporary, last, src_dir_fd=within, dst_dir_fd=within)
            except BaseException:
                os.unlink(temporary, dir_fd=within)
                raise

    def remove_within(self, folder: Path, name: str) -> None:
        *above, last = _parts(name)
        with contextlib.suppress(FileNotFoundError), _opened(folder, above, make=False) as within:
            os.unlink(last, dir_fd=within)

    def mode(self, path: Path) -> int:
        return path.stat().st_mode & 0o777

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float = 60.0,
        env: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes]:
        """No shell, a fixed PATH, an own process group that dies as a whole when the time is up."""
        program, output = await asyncio.get_running_loop().subprocess_exec(
            _Output,
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**(env or {}), "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
            start_new_session=True,
        )
        try:
            _feed(program, stdin)
            async with asyncio.timeout(timeout):
                await output.ended.wait()
            return program.get_returncode() or 0, bytes(output.text)
        except TimeoutError:
            raise TryLater(f"{argv[0]} did not end in {timeout:g} s", reason="TIMEOUT") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.get_pid(), signal.SIGKILL)
            program.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_REAPED_WITHIN):
                    await output.ended.wait()


def _parts(name: str) -> list[str]:
    parts = name.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise ValueError("a name within a folder leads nowhere else")
    return parts


@contextlib.contextmanager
def _opened(folder: Path, below: Sequence[str], *, make: bool) -> Iterator[int]:
    """A handle of folder/below…, opened step by step: a symbolic link ends the walk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in below:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=handle)
            deeper = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=handle)
            os.close(handle)
            handle = deeper
        yield handle
    finally:
        os.close(handle)


class _Output(asyncio.SubprocessProtocol):
    """What a program says, on both lines, up to the limit. The rest is read and dropped, so as not to block it."""

    def __init__(self) -> None:
        self.text = bytearray()
        self.ended = asyncio.Event()  # it has exited, and nobody else holds its lines open

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self.text += data[: max(0, _OUTPUT_LIMIT - len(self.text))]

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()


def _feed(program: asyncio.SubprocessTransport, stdin: bytes) -> None:
    """Hand over the input. It flows while the output does, so that neither side waits for the other."""
    line = cast(asyncio.WriteTransport, program.get_pipe_transport(0))  # uvloop's is one only by its methods
    with contextlib.suppress(RuntimeError):  # as uvloop says of a program that has ended by now, without reading it
        line.write(stdin)
        line.write_eof()


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
