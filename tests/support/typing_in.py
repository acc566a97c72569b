"""Commands typed in by tests, in this process: a process of its own takes half a second, and a hundred have to run."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from holdfast.cli import main
from tests.support.processes import environment
from tests.support.reaper import PATIENCE


@dataclass
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


async def typed_in(folder: Path, *args: str, stdin: str = "", env: Mapping[str, str] | None = None) -> Said:
    """On a thread: the server that it asks lives on this loop."""
    given = environment(folder, {}) | {"HOME": str(folder)} | dict(env or {})
    return await asyncio.wait_for(asyncio.to_thread(_run, args, stdin, given), PATIENCE)


def _run(args: tuple[str, ...], stdin: str, env: Mapping[str, str]) -> Said:
    out, err = io.StringIO(), io.StringIO()
    with (
        patch.dict(os.environ, env, clear=True),
        patch.object(sys, "argv", ["holdfast", *args]),
        patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()))),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main.main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
    return Said(code, out.getvalue(), err.getvalue())
