"""Several processes for one server: each is a replica, and all of them answer at the same addresses.

The supervisor starts them as copies of itself, starts another where one has ended or fallen silent, and drains them
together. It opens no store and answers no client. A process hears from it by a line of its own, and not by signals: a
service manager and a terminal send theirs to all of them, and a second signal would cut off the drain.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final

from holdfast.config import SOCKET_NAME, Settings
from holdfast.core.work.processes import Ended, GiveUp, after
from holdfast.system_clock import SystemClock
from holdfast.telemetry import Log
from holdfast.web.serve import ListeningSocket, bind_local, hold
from holdfast.world import ServiceManager

SILENT_FOR: Final = timedelta(seconds=60)  # where no service manager says another: its loops do not tick any more
TO_END: Final = 1.0  # second beyond the drain, before what is left is killed
STOP: Final = b"stop"
NOW: Final = b"now"
MESSAGE: Final = 4096  # bytes of one message at most
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which of the processes this one is, what they share, and its line to the supervisor."""

    number: int
    count: int
    again: bool  # another was here before: clients are not kept waiting while this one starts
    settings: Settings  # with the ports that port 0 became
    commands: ListeningSocket | None  # of this machine; all processes answer them
    watchdog: timedelta
    line: socket.socket

    def fileno(self) -> int:
        return self.line.fileno()

    def orders(self) -> bytes:
        """What the supervisor says; empty: it is gone."""
        try:
            return self.line.recv(MESSAGE)
        except OSError:
            return b""

    def manager(self) -> ServiceManager:
        return ServiceManager(line=self.line, watchdog=self.watchdog)


@dataclass(slots=True, kw_only=True)
class _Slot:
    number: int
    start_at: float = 0.0
    failures: int = 0
    pid: int = 0  # 0: none runs here now
    line: socket.socket | None = None
    started: int = 0  # processes, so far
    ready_at: float | None = None
    heard_at: float = 0.0


@dataclass(slots=True, kw_only=True)
class Supervisor:
    """`run` returns in every process that it starts, and ends the program in the one that it was called in."""

    settings: Settings
    count: int
    stops_within: float  # seconds
    log: Log
    stop_after: float | None = None
    clock: SystemClock = field(default_factory=SystemClock)
    manager: ServiceManager = field(default_factory=ServiceManager)
    _slots: list[_Slot] = field(init=False)
    _commands: ListeningSocket | None = field(init=False, default=None)
    _stop_at: float | None = field(init=False, default=None)  # when it was told to
    _code: int = field(init=False, default=0)
    _all_served: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._slots = [_Slot(number=number) for number in range(1, self.count + 1)]

    def run(self) -> Place:
        held = self._take_addresses()
        ends_at = None if self.stop_after is None else self.clock.monotonic() + self.stop_after
        gc.freeze()  # what is loaded by now is shared with every process, as long as the collector leaves it alone
        with _signals() as told:
            while True:
                for slot in self._slots:
                    if self._is_due(slot) and (place := self._start(slot)) is not None:
                        told.leave()
                        for each in held:
                            each.close()
                        return place
                self._wait(told, ends_at)
                if ends_at is not None and self.clock.monotonic() >= ends_at:
                    ends_at = None
                    self._stop(STOP)
                for number in told.numbers():
                    if number in (signal.SIGTERM, signal.SIGINT):
                        self._stop(STOP if self._stop_at is None else NOW)
                self._listen()
                self._reap()
                self._end_silent()
                self.manager.feed()
                if self._stop_at is not None and not any(slot.pid for slot in self._slots):
                    self.log.info("supervisor.stopped", code=self._code)
                    raise SystemExit(self._code)

    # ── addresses ──

    def _take_addresses(self) -> list[ListeningSocket]:
        """Held, and not listened to, for as long as we run: no other program gets one between two processes."""
        chosen = self.settings
        server = hold(*chosen.server.address, setting="server.listen")
        acme = hold(*chosen.acme.address, setting="acme.listen")
        self.settings = replace(
            chosen,
            server=replace(chosen.server, listen=_with_port(chosen.server.listen, server)),
            acme=replace(chosen.acme, listen=_with_port(chosen.acme.listen, acme)),
        )
        held = [server, acme]
        if (at := chosen.keeping.tls_alpn_address) is not None:
            proofs = hold(*at, setting="keeping.tls_alpn_listen")
            listen = _with_port(chosen.keeping.tls_alpn_listen, proofs)
            self.settings = replace(self.settings, keeping=replace(chosen.keeping, tls_alpn_listen=listen))
            held.append(proofs)
        path = chosen.store.data_dir / SOCKET_NAME
        try:
            self._commands = bind_local(path)
        except OSError as error:
            self.log.warning("local.not_listening", path=str(path), error=str(error))
        return held

    # ── processes ──

    def _is_due(self, slot: _Slot) -> bool:
        return not slot.pid and self._stop_at is None and self.clock.monotonic() >= slot.start_at

    def _start(self, slot: _Slot) -> Place | None:
        """None here; in the new process, its place."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            ours.close()
            for each in self._slots:
                if each.line is not None:
                    each.line.close()  # else it would not be told that the supervisor is gone
            return self._place(slot, theirs)
        theirs.close()
        ours.setblocking(False)
        again = slot.started > 0
        slot.pid, slot.line, slot.ready_at, slot.started = pid, ours, None, slot.started + 1
        self.log.info("process.started", process=slot.number, pid=pid, again=again)
        return None

    def _place(self, slot: _Slot, line: socket.socket) -> Place:
        return Place(
            number=slot.number,
            count=self.count,
            again=slot.started > 0,
            settings=self.settings,
            commands=self._commands,
            watchdog=self.manager.watchdog or SILENT_FOR,
            line=line,
        )

    def _reap(self) -> None:
        for slot in self._slots:
            if slot.pid and (ended := os.waitpid(slot.pid, os.WNOHANG))[0]:
                self._ended(slot, os.waitstatus_to_exitcode(ended[1]))

    def _ended(self, slot: _Slot, code: int) -> None:
        now, served_for = self.clock.monotonic(), None
        if slot.ready_at is not None:
            served_for = timedelta(seconds=now - slot.ready_at)
        if slot.line is not None:
            slot.line.close()
        slot.pid, slot.line, slot.ready_at = 0, None, None
        if self._stop_at is not None:
            self._code = self._code or (1 if code < 0 else code)
            return
        decided = after(
            Ended(
                number=slot.number,
                code=code,
                served_for=served_for,
                others_served=served_for is not None or self._all_served or any(s.ready_at for s in self._slots),
                failures=slot.failures,
            )
        )
        if isinstance(decided, GiveUp):
            self.log.error("process.ended", process=slot.number, code=code, next="all processes stop")
            self._code = decided.code
            self._stop(STOP)
            return
        slot.failures, slot.start_at = decided.failures, now + decided.after.total_seconds()
        again_in = round(decided.after.total_seconds(), 1)
        self.log.error("process.ended", process=slot.number, code=code, starts_again_in_seconds=again_in)

    def _end_silent(self) -> None:
        """One whose loops do not tick takes its share of the connections all the same."""
        now, allowed = self.clock.monotonic(), (self.manager.watchdog or SILENT_FOR).total_seconds()
        for slot in self._slots:
            if slot.pid and slot.ready_at is not None and now - slot.heard_at > allowed:
                self.log.error("process.silent", process=slot.number, pid=slot.pid, seconds=round(now - slot.heard_at))
                slot.ready_at = None
                _kill(slot.pid)
        if self._stop_at is not None and now > self._stop_at + self.stops_within + TO_END:
            for slot in self._slots:
                if slot.pid:
                    self.log.error("process.killed", process=slot.number, pid=slot.pid, problem="it did not drain")
                    _kill(slot.pid)

    def _stop(self, order: bytes) -> None:
        if self._stop_at is None:
            self._stop_at = self.clock.monotonic()
            self.manager.stopping()
            self.log.info("supervisor.draining", processes=sum(1 for slot in self._slots if slot.pid))
        for slot in self._slots:
            if slot.line is not None:
                with contextlib.suppress(OSError):
                    slot.line.send(order)

    # ── what they say ──

    def _listen(self) -> None:
        for slot in self._slots:
            while slot.line is not None and (said := _said(slot.line)):
                self._hear(slot, said)

    def _hear(self, slot: _Slot, said: str) -> None:
        slot.heard_at = self.clock.monotonic()
        if "READY=1" in said.splitlines() and slot.ready_at is None:
            slot.ready_at = slot.heard_at
            self.log.info("process.serving", process=slot.number, pid=slot.pid)
            if not self._all_served and all(each.ready_at is not None for each in self._slots):
                self._all_served = True
                self.manager.ready()
                self.log.info("supervisor.serving", processes=self.count)
        elif said.startswith("STATUS="):
            self.manager.waiting(f"process {slot.number}: {said.removeprefix('STATUS=')}")

    def _wait(self, told: _Told, ends_at: float | None) -> None:
        now, every = self.clock.monotonic(), (self.manager.watchdog or SILENT_FOR).total_seconds() / 3
        starts = [slot.start_at for slot in self._slots if not slot.pid and self._stop_at is None]
        if self._stop_at is not None:
            starts.append(self._stop_at + self.stops_within + TO_END)
        until = min([now + every, *starts, *([ends_at] if ends_at is not None else [])])
        lines = [slot.line for slot in self._slots if slot.line is not None]
        select.select([told.line, *lines], [], [], max(0.01, until - now))


@dataclass(frozen=True, slots=True)
class _Told:
    """Signals, as bytes on a socket that can be waited for beside the others."""

    line: socket.socket
    far: socket.socket

    def numbers(self) -> list[int]:
        try:
            return list(self.line.recv(MESSAGE))
        except BlockingIOError:
            return []

    def leave(self) -> None:
        """In a new process: signals are its own again."""
        signal.set_wakeup_fd(-1)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        self.line.close()
        self.far.close()


@contextlib.contextmanager
def _signals() -> Iterator[_Told]:
    near, far = socket.socketpair()
    near.setblocking(False)
    far.setblocking(False)
    signal.set_wakeup_fd(far.fileno(), warn_on_full_buffer=False)
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)
    yield _Told(near, far)


def _said(line: socket.socket) -> str:
    try:
        return line.recv(MESSAGE).decode(errors="replace")
    except OSError:
        return ""


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _with_port(listen: str, line: ListeningSocket) -> str:
    return f"{listen.rpartition(':')[0]}:{line.getsockname()[1]}"
