"""Watches every output of the whole suite, at DEBUG, for secrets; one that is seen fails the test that let it out.

Looked for: the planted ones (`secrets_planted`) in every form, any private key, any API token, and whatever was put
into a `Secret` meanwhile. Looked at: what tests and the processes they start print and log, answers of our faces,
letters and messages that were sent, texts of our errors, and stores, whose sealed columns show nothing.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import re
import subprocess
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Final
from zlib import crc32

import httpx2
import psycopg
import pytest

from holdfast.errors import Refused, StoreError, TryLater, UserError
from holdfast.secret import Secret
from holdfast.telemetry import Log
from tests.support.secrets_planted import MARK, NAMES, forms

Item = pytest.Item
_MARKS: Final = forms(MARK)
_KEYS: Final = (  # how keys begin in PKCS #8 and SEC 1, as PEM has it and as octets
    b"PRIVATE KEY-----", b"AgEGCCqGSM49AwEHBG0wawIBAQQg", b"IBADANBgkqhkiG9w0BAQEFAAS", b"MC4CAQAwBQYDK2VwBCIEI",
    b"BSuBBAAiBIGeMIGbAgEBBD",
    bytes.fromhex("2a8648ce3d030107046d306b0201010420"), bytes.fromhex("020100300d06092a864886f70d01010105000482"),
)  # fmt: skip
_PEM: Final = re.compile(rb"-----BEGIN (?:EC |RSA )?PRIVATE KEY-----(?:\\?\\[nr]|\s)+[A-Za-z0-9+/]{24}")
_TOKEN: Final = re.compile(rb"hf_[0-9a-z]{1,40}_[A-Za-z0-9_-]{43}")
HANDS_OVER: Final = re.compile(
    r"POST .*/(tokens|certificates/[^/]+/export|people|people/[^/]+/(reset|recover))$"
)  # routes that show a new secret, once
_WRITTEN: Final = (".sqlite", ".sqlite-wal", ".jsonl", ".log")
ONE_IN: Final = 8  # stores are searched for all secrets of a test in this part of the tests
_LONG_ENOUGH, _MANY_ENOUGH = 16, 8  # octets, and different ones: what is shorter or plainer is found by accident


@dataclass
class Watch:
    """What was seen, and what it was searched for."""

    found: list[str] = field(default_factory=list)
    outputs: int = 0
    octets: int = 0
    spent: float = 0.0
    used: set[str] = field(default_factory=set)  # names of planted secrets that the product had in its hands
    _seen: list[tuple[str, bytes]] = field(default_factory=list)
    _made: set[bytes] = field(default_factory=set)

    def look(self, place: str, content: str | bytes | None, *, hands_over: bool = False) -> None:
        """Search an output. One that hands a new key or token over may have those in it, and nothing else."""
        if not content:
            return
        begun = perf_counter()
        raw = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else bytes(content)
        self.outputs += 1
        self.octets += len(raw)
        if any(each in raw for each in _MARKS):
            self.found += [f"{place}: {name}" for name in _named(raw)]
        if not hands_over:
            self.found += [f"{place}: {what}" for what in _generated(raw)]
            self._seen.append((place, raw))
        self.spent += perf_counter() - begun

    def file(self, path: Path) -> None:
        """Search what somebody wrote for people, or kept."""
        if path.is_file():
            self.look(path.name, path.read_bytes())

    def made(self, value: str | bytes) -> None:
        """Remember what was put into a Secret."""
        raw = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        if MARK.encode() in raw:
            self.used.update(name for text, name in NAMES.items() if text.encode() in raw)
        elif len(raw) >= _LONG_ENOUGH and len(set(raw)) >= _MANY_ENOUGH:
            self._made.add(raw)

    def settle(self) -> list[str]:
        """Search all outputs since the last time for all secrets since then; what was found in them."""
        begun = perf_counter()
        made, self._made = self._made, set()
        seen, self._seen = self._seen, []
        for raw in list(made):  # threads that a test left behind may still make some
            shown = (raw, raw.hex().encode())
            self.found += [f"{place}: a Secret" for place, text in list(seen) if any(each in text for each in shown)]
        found, self.found = list(dict.fromkeys(self.found)), []
        self.spent += perf_counter() - begun
        return found


def _named(raw: bytes) -> Iterator[str]:
    names = [name for text, name in NAMES.items() if any(each in raw for each in forms(text))]
    yield from names or ["a planted secret"]


def _generated(raw: bytes) -> Iterator[str]:
    for begin in _KEYS:
        if begin in raw and (begin != _KEYS[0] or _PEM.search(raw)):
            yield "a private key"
            break
    if b"hf_" in raw and _TOKEN.search(raw):
        yield "an API token"


WATCH: Final = Watch()
look: Final = WATCH.look


class WatchedLog(Log):
    """A log that nobody reads but the watch."""

    def __init__(self) -> None:
        super().__init__(None)

    def debug(self, event: str, **facts: Any) -> None:
        look(f"log line {event}", repr(facts))

    info = warning = error = debug


# ── Where the process lets anything out ──


def install() -> None:
    """Stand at every door of this process. Called once, before the first test."""
    logging.getLogger().setLevel(logging.DEBUG)  # pytest keeps the lines; they come with the test's report
    logging.getLogger("pkilint").setLevel(logging.INFO)  # thousands of lines about the fields of certificates
    logging.getLogger("mail.log").setLevel(logging.WARNING)  # the mail server of the tests: it writes passwords down
    _after(Secret, "__new__", lambda made, *_: WATCH.made(made.reveal()), static=True)
    _after(httpx2.Response, "read", lambda content, answer: _answered(answer, content))
    _after_waiting(httpx2.Response, "aread", lambda content, answer: _answered(answer, content))
    _after(subprocess.Popen, "communicate", lambda said, process, *_: _printed(str(process.args), said))
    ended = asyncio.subprocess.Process
    _after_waiting(ended, "communicate", lambda said, process, *_: _printed(_command(process), said))
    for kind in (UserError, TryLater, Refused, StoreError):
        _after(kind, "__init__", lambda _, error, *words: look(type(error).__name__, repr(words)))


def _after(owner: Any, name: str, then: Callable[..., None], *, static: bool = False) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def watched(*args: Any, **more: Any) -> Any:
        result = original(*args, **more)
        then(result, *args)
        return result

    setattr(owner, name, staticmethod(watched) if static else watched)


def _after_waiting(owner: Any, name: str, then: Callable[..., None]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    async def watched(*args: Any, **more: Any) -> Any:
        result = await original(*args, **more)
        then(result, *args)
        return result

    setattr(owner, name, watched)


def _answered(answer: httpx2.Response, content: bytes) -> None:
    request = answer._request
    if request is not None:
        asked = f"{request.method} {request.url.path}"
        look(f"answer to {asked}", content, hands_over=HANDS_OVER.fullmatch(asked) is not None)


def _command(process: asyncio.subprocess.Process) -> str:
    return str(process._transport.get_extra_info("subprocess").args)  # type: ignore[attr-defined]


def _printed(command: str, said: tuple[str | bytes | None, str | bytes | None]) -> None:
    """Other people's programs may print what they like."""
    if "holdfast" in command:
        for each in said:
            look(f"output of {command:.200}", each, hands_over="token" in command or "export" in command)


# ── Stores ──


def _files(folder: Path, *, thoroughly: bool) -> None:
    for where, _, names in os.walk(folder):
        for name in names:
            if name.endswith(_WRITTEN) or name.startswith(("stderr", "stdout")):
                with suppress(FileNotFoundError):  # the log of a store that is being closed
                    look(name, Path(where, name).read_bytes(), hands_over=not thoroughly and ".sqlite" in name)


def rows(url: str) -> None:
    """Search every row of a PostgreSQL store."""
    with psycopg.connect(url, autocommit=True) as line:
        tables = [name for (name,) in line.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")]
        for name in tables:
            kept = line.execute(f'SELECT string_agg(t::text, chr(10)) FROM "{name}" t').fetchone()
            look(f"table {name}", kept[0] if kept else None)


def sampled(name: str) -> bool:
    return crc32(name.encode()) % ONE_IN == 0


# ── pytest ──


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "shows_secrets(why): a test that prints one itself, on purpose")
    install()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, Any]:
    report = yield
    if report.failed:
        look("the report of the failure", report.longreprtext, hands_over=True)  # a test's own variables are in it
    if call.when == "teardown":
        for title, text in report.sections:
            look(title, text)
        if isinstance(folder := (getattr(item, "funcargs", None) or {}).get("tmp_path"), Path):
            _files(folder, thoroughly=sampled(item.nodeid))
        found = WATCH.settle()
        if found and not item.get_closest_marker("shows_secrets"):
            report.outcome = "failed"
            report.longrepr = "A secret was let out:\n" + "\n".join(f"  {each}" for each in found)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    tally = {"found": WATCH.settle(), "outputs": WATCH.outputs, "octets": WATCH.octets, "spent": WATCH.spent}
    tally["used"] = sorted(WATCH.used)
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["secrets_watch"] = tally
        return
    _TALLIES.append(tally)
    if any(each["found"] for each in _TALLIES):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


_TALLIES: Final[list[dict[str, Any]]] = []  # of the processes that ran tests


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    if told := getattr(node, "workeroutput", {}).get("secrets_watch"):
        _TALLIES.append(told)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    total = {name: sum(each[name] for each in _TALLIES) for name in ("outputs", "octets", "spent")}
    used = {name for each in _TALLIES for name in each["used"]}
    for late in (each for tally in _TALLIES for each in tally["found"]):
        terminalreporter.write_line(f"A secret was let out after the last test: {late}", red=True)
    terminalreporter.write_line(
        f"watched for secrets: {len(used)} of {len(NAMES)} planted ones in use; {total['outputs']:,} outputs, "
        f"{total['octets'] / 1e6:,.0f} MB, searched in {total['spent']:.1f} s"
    )
