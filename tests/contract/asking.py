"""One run of schemathesis: every check it has, a fixed seed, and what it found as values."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.contract.server import Served

ROOT = Path(__file__).resolve().parents[2]
# All checks are on. What no schema can say (a CA that is not there, a cursor of another list, a version that was read)
# is refused with a documented 400, 412 or 428 and a code of its own; which 422 are right is for a check of our hooks.
CONFIG = """
hooks = "tests.contract.hooks"

[checks.positive_data_acceptance]
expected-statuses = ["2xx", "400", "401", "403", "404", "409", "412", "422", "428", "429"]

[parameters]
{bound}

{dictionaries}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    operations: int  # that the document has, and that end
    tested: int
    cases: int  # requests that were judged
    failures: tuple[str, ...]
    text: str  # as schemathesis told it


async def asked(
    served: Served, folder: Path, *, examples: int, seed: int, phases: str, workers: int = 1, most_s: int = 0
) -> Found:
    """Ask what the document allows and what it does not; `examples` of each operation."""
    config, report = folder / "schemathesis.toml", folder / "report.json"
    config.write_text(_config(served), encoding="utf-8")
    command = [
        sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run", f"{served.url}/openapi.json",
        "--header", f"Authorization: Bearer {served.token}", "--checks", "all", "--phases", phases,
        "--max-examples", str(examples), "--seed", str(seed), "--workers", str(workers), "--no-shrink",
        "--continue-on-failure", "--no-color", "--report", "json", "--report-json-path", str(report),
        "--suppress-health-check", "all", "--request-timeout", "30", "--warnings", "off",
        "--exclude-path", "/events/stream",  # its answer has no end
        *(["--max-time", str(most_s)] if most_s else []),
    ]  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    text = (await process.communicate())[0].decode(errors="replace")
    if not report.exists():
        raise AssertionError(text)
    return _found(json.loads(report.read_text(encoding="utf-8")), text)


def _config(served: Served) -> str:
    """Half of the names in addresses are names of something that is there."""
    bound = [f'"path.{name}" = {{ dictionary = "{name}", probability = 0.5 }}' for name in served.places]
    known = [f"[dictionaries.{name}]\nvalues = {json.dumps(values)}\n" for name, values in served.places.items()]
    return CONFIG.format(bound="\n".join(bound), dictionaries="\n".join(known))


def _found(report: Any, text: str) -> Found:
    failures = [f"{each['title']}: {operation}" for each in report["failures"] for operation in each["operations"]]
    errors = [f"error: {json.dumps(each)[:300]}" for each in report["errors"]]
    return Found(
        operations=report["operations"]["selected"],
        tested=report["operations"]["tested"],
        cases=report["test_cases"]["generated"],
        failures=(*failures, *errors),
        text=text,
    )
