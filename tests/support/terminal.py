"""Somebody at a terminal, in this process: commands as they are typed, what they print, and their exit codes."""

from __future__ import annotations

import asyncio
import io
import os
import re
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from holdfast.cli import main
from holdfast.errors import UserError
from holdfast.store.database import Database
from tests.support import commands
from tests.support.api import Desk, a_desk, on_a_socket
from tests.support.processes import environment
from tests.support.secrets_watch import look

INSTANT = r"20\d\d-\d\d-\d\dT\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?:Z|\+00:00)"
SPAN = r"\d+ (?:d|h|m|s)(?: \d+ (?:h|m|s))?"
HIDDEN = [
    (re.compile(rf"in {SPAN} \({INSTANT}\)"), "in <span> (<time>)"),
    (re.compile(rf"{SPAN} ago \({INSTANT}\)"), "<span> ago (<time>)"),
    (re.compile(INSTANT), "<time>"),
    (re.compile(rf"safe for {SPAN}"), "safe for <span>"),
    (re.compile(rf"Next in {SPAN}"), "Next in <span>"),
    (re.compile(r"\b(certificate|issuance|job|approval|version|req|token|replica|plan)_[0-9a-z_]+"), r"<\1>"),
    (re.compile(r"  +"), "  "),
]


class Said(commands.Said):
    @property
    def plain(self) -> str:
        """What it printed, without what differs from one time to the next: times, spans, ids, padding."""
        return plain(self.out)


def plain(text: str) -> str:
    for pattern, instead in HIDDEN:
        text = pattern.sub(instead, text)
    return "\n".join(line.rstrip() for line in text.splitlines())


class _Tty(io.StringIO):
    def __init__(self, *, tty: bool) -> None:
        super().__init__()
        self._tty = tty

    def isatty(self) -> bool:
        return self._tty


@dataclass
class Terminal:
    desk: Desk
    folder: Path

    async def __call__(
        self, *args: str, tty: bool = False, env: Mapping[str, str] | None = None, stdin: str = ""
    ) -> Said:
        """In a thread, because commands wait for the server, which runs in the loop of the test."""
        return await asyncio.to_thread(self._type, args, tty, env or {}, stdin)

    def _type(self, args: tuple[str, ...], tty: bool, env: Mapping[str, str], stdin: str) -> Said:
        out, err = _Tty(tty=tty), _Tty(tty=tty)
        whole = environment(self.folder, {}) | {"HOME": str(self.folder), "COLUMNS": "500"} | dict(env)
        with mock.patch.dict(os.environ, whole, clear=True), _streams(stdin, out, err):
            code = _run(args)
        for each in (out, err):
            look(f"holdfast {' '.join(args):.80}", each.getvalue(), hands_over=bool({"token", "export"} & {*args}))
        return Said(code, out.getvalue(), err.getvalue())

    async def ok(self, *args: str, **more: Any) -> Said:
        said = await self(*args, **more)
        assert said.code == 0, said.err
        return said


@contextmanager
def _streams(stdin: str, out: io.StringIO, err: io.StringIO) -> Iterator[None]:
    with (
        mock.patch.object(sys, "stdin", io.StringIO(stdin)),
        mock.patch.object(sys, "stdout", out),
        mock.patch.object(sys, "stderr", err),
    ):
        yield


def _run(args: tuple[str, ...]) -> int:
    try:
        main.app(list(args), prog_name="holdfast")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except UserError as error:
        print(f"error: {error}\nhint: {error.hint}", file=sys.stderr)
        return main.exit_code(error)
    return 0


@asynccontextmanager
async def a_terminal(db: Database, folder: Path, *, works: bool = True, **ca: Any) -> AsyncIterator[Terminal]:
    async with a_desk(db, folder, local=True, **ca) as desk, on_a_socket(desk, folder):
        if not works:
            yield Terminal(desk, folder)
            return
        async with desk.house.working():
            yield Terminal(desk, folder)
