"""Processes under test, seen from outside: replicas that die where they are told to, and `holdfast serve` itself."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final, Self
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from tests.support import child
from tests.support.child import Strike
from tests.support.commands import started
from tests.support.forks import Forked, preload
from tests.support.grounds import Ground
from tests.support.reaper import PATIENCE, state, until
from tests.support.secrets_watch import WATCH

preload(child.__name__)
_numbers: Final = count(1)
STOPS_AFTER: Final = 900  # seconds; a server that a killed test run left behind ends by itself


# ── replicas ──


@dataclass(frozen=True, slots=True)
class Line:
    """Something a child reported; `at` is the machine's monotonic clock, the same for all processes."""

    at: float
    word: str
    about: str


class Child:
    """A replica in a process of its own."""

    def __init__(self, ground: Ground, ca: str, report: Path, *wishes: str, strike: Strike | None = None) -> None:
        options = (f"--offset={ground.offset}", f"--ca={ca}", *wishes)
        self._start(child.main, ground, report, report.name, *options, strike=strike)

    def _start(
        self,
        main: Callable[[Sequence[str]], None],
        ground: Ground,
        report: Path,
        name: str,
        *options: str,
        strike: Strike | None,
    ) -> None:
        self.report = report
        argv = [
            f"--store={ground.store}", f"--folder={ground.folder}", f"--report={report}", f"--name={name}",
            *([f"--strike={strike}"] if strike else []), *options,
        ]  # fmt: skip
        self._process = Forked(main, argv, name=name)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; -9 after SIGKILL."""
        return self._process.poll()

    def wait(self, seconds: float = PATIENCE) -> int:
        """Wait for its end; its exit code."""
        return self._process.wait(seconds)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self.wait()

    def wait_stopped(self) -> None:
        """Wait until a strike has frozen it."""
        until(lambda: state(self.pid) == "T", f"{self} to be frozen")

    def lines(self) -> list[Line]:
        try:
            text = self.report.read_text()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind("\n") + 1].splitlines()
        return [Line(float(at), word, about) for at, word, about in (line.split(" ", 2) for line in whole)]

    def said(self, word: str, about: str | None = None) -> list[Line]:
        return [line for line in self.lines() if line.word == word and about in (None, line.about)]

    def wait_for(self, word: str, about: str | None = None, *, times: int = 1, seconds: float = PATIENCE) -> Line:
        """Wait until it has said this; the line."""

        def enough() -> bool:
            if len(self.said(word, about)) >= times:
                return True
            if self.exit_code is not None and len(self.said(word, about)) < times:
                raise AssertionError(f"{self} ended without a word of {word} {about}\n{self.log()}")
            return False

        until(enough, f"{self} to say {word} {about}", seconds=seconds)
        return self.said(word, about)[times - 1]

    def passed(self) -> Counter[str]:
        return Counter(line.about for line in self.said("passed"))

    @property
    def holder(self) -> str:
        return self.wait_for("begun").about

    def log(self) -> str:
        """The end of what it wrote for people."""
        with suppress(FileNotFoundError):
            return Path(f"{self.report}.log").read_text(errors="replace")[-4000:]
        return "(no log)"

    def __str__(self) -> str:
        return f"replica {self.report.name} (pid {self.pid})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        WATCH.file(Path(f"{self.report}.log"))
        self._process.__exit__(None, None, None)


# ── the product ──


class Served:
    """`holdfast serve` with these settings, as an operator would start it."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str],
        *,
        room: int | None = None,
        open_files: int | None = None,
        fresh: bool = False,
        options: Sequence[str] = (),
    ) -> None:
        """`room` is how many KiB a file may have, until somebody allows more; `open_files` how many may be open.

        `fresh`: an interpreter of its own, for packages that only its environment names.
        """
        folder.mkdir(exist_ok=True)
        number = next(_numbers)
        self._err, self._out = folder / f"stderr{number}", folder / f"stdout{number}"
        for path in (self._err, self._out):
            path.touch()
        words, streams = ("serve", f"--stop-after={STOPS_AFTER}", *options), (Path(os.devnull), self._out, self._err)
        env = environment(folder, settings)
        self.process: Any
        if fresh:
            with self._err.open("ab") as err, self._out.open("ab") as out:
                command = [sys.executable, "-m", "holdfast.cli.main", *words]
                self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env)
        else:
            self.process = started(words, env, *streams, room=room, open_files=open_files)

    @property
    def pid(self) -> int:
        return self.process.pid

    def output(self) -> str:
        """All that it has written so far."""
        return self._err.read_text() + self._out.read_text()

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log lines of one event."""
        lines = (json.loads(line) for line in self._err.read_text().splitlines() if line.startswith("{"))
        return [line for line in lines if line["event"] == name]

    def wait_for_event(self, name: str, *, times: int = 1) -> dict[str, Any]:
        def seen() -> bool:
            if self.process.poll() is not None and len(self.events(name)) < times:
                raise AssertionError(f"it ended with {self.process.returncode} without {name}:\n{self.output()}")
            return len(self.events(name)) >= times

        until(seen, f"the log line {name}")
        return self.events(name)[times - 1]

    @property
    def url(self) -> str:
        """Where it answers: said before it has a store."""
        return str(self.wait_for_event("holdfast.starting")["probes"]).removesuffix("/health/ready")

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def get(self, path: str) -> tuple[int, str]:
        """Status and body; 0 when nobody answers."""
        try:
            with urlopen(self.url + path, timeout=PATIENCE) as answer:
                body = answer.read().decode()
                WATCH.look(path, body)
                return answer.status, body
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except (URLError, ConnectionError):
            return 0, ""

    def wait_until_ready(self) -> None:
        def ready() -> bool:
            if self.process.poll() is not None:
                raise AssertionError(f"it ended with {self.process.returncode}:\n{self.output()}")
            return self.get("/health/ready")[0] == 200

        until(ready, "ready", every=0.05)

    def wait_until_not_ready(self, saying: str = "") -> str:
        """The reason that it gives, once it says this."""
        reasons: list[str] = []

        def refused() -> bool:
            status, body = self.get("/health/ready")
            if status == 503 and saying in json.loads(body)["reason"]:
                reasons.append(json.loads(body)["reason"])
            return bool(reasons)

        until(refused, "not ready", every=0.05)
        return reasons[0]

    def wait(self, seconds: float = PATIENCE) -> int:
        """Wait for its end; its exit code."""
        return self.process.wait(seconds)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Tell it to stop; its exit code."""
        self.process.send_signal(number)
        return self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if isinstance(self.process, subprocess.Popen) and self.process.poll() is None:
            self.process.kill()
        self.process.__exit__(None, None, None)
        WATCH.file(self._err)
        WATCH.file(self._out)


def environment(folder: Path, settings: Mapping[str, str]) -> dict[str, str]:
    """Ours without what the machine has set for a Holdfast of its own; any free port, unless one is named."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    defaults = {"SERVER_LISTEN": "127.0.0.1:0", "ACME_LISTEN": "127.0.0.1:0", "STORE_DATA_DIR": str(folder)}
    defaults["LOG_LEVEL"] = "debug"  # what is let out is watched for secrets
    plain["HOME"] = str(folder)  # what commands remember of one test is not there in another
    return plain | {f"HOLDFAST_{name}": value for name, value in (defaults | dict(settings)).items()}
