"""A tutorial as a program: every `$ command` of its console blocks is typed into one shell, and its output is compared.

Under a command stands what it prints; `…` stands for whatever is left out, "(exit code 10)" for an end that is not 0.
A command that ends with `&` is a server: the next one is typed when it is ready.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.support.reaper import PATIENCE, until
from tests.support.secrets_watch import look

BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^```\w+ title=\"([a-z.]+)\"\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXIT = re.compile(r"^\(exit code (\d+)\)$")
END = "-- end of the command --"


@dataclass(frozen=True, slots=True)
class Step:
    command: str
    expected: str
    code: int

    @property
    def serves(self) -> bool:
        return self.command.endswith("&")

    def matches(self, output: str) -> bool:
        parts = [re.escape(" ".join(part.split())) for part in self.expected.split("…")]
        return re.fullmatch(".*".join(parts) if self.expected.strip() else ".*", " ".join(output.split())) is not None


def files(page: str) -> dict[str, str]:
    """What the reader is told to write, by name."""
    return dict(FILE.findall(page))


def steps(page: str) -> Iterator[Step]:
    for block in BLOCK.findall(page):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, rest = re.sub(r"\\\n\s*", "", part).partition("\n")
            lines = rest.splitlines()
            codes = [int(found[1]) for line in lines if (found := EXIT.match(line))]
            expected = "\n".join(line for line in lines if not EXIT.match(line))
            yield Step(command.strip(), expected, codes[0] if codes else 0)


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Nothing of the machine's but its programs."""
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"PATH": programs, "HOME": str(folder), "LANG": "C.UTF-8", **more}


class Shell:
    """One bash for the whole page: what is exported or put in the background stays."""

    def __init__(
        self, folder: Path, environment: Mapping[str, str], ready: Mapping[str, str], *, within: Sequence[str] = ()
    ) -> None:
        self.folder = folder
        self._ready = ready  # the address of a server, by a word of the command that starts it; "" for any other
        self._process = subprocess.Popen(  # `within` starts the shell in a network of its own
            [*within, "bash", "--noprofile", "--norc"], cwd=folder, env=dict(environment), text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=PATIENCE)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def run(self, step: Step) -> tuple[str, int]:
        """Everything that it printed, and its exit code."""
        typed = self._typed(step)
        if step.serves:
            self._wait_for(step)
        return typed

    def _typed(self, step: Step) -> tuple[str, int]:
        if self._process.stdin is None or self._process.stdout is None:
            raise AssertionError("both are pipes")
        self._process.stdin.write(f"{step.command}\ncode=$?; echo; echo '{END}' $code\n")
        output: list[str] = []
        for line in self._process.stdout:
            if line.startswith(END):
                look(f"$ {step.command}", "".join(output), hands_over="token" in step.command)
                return "".join(output), int(line.removeprefix(END))
            output.append(line)
        raise AssertionError(f"the shell ended: {''.join(output)}")

    def _wait_for(self, step: Step) -> None:
        """Asked from within the shell, whose network may be its own."""
        address = next(url for word, url in self._ready.items() if word in step.command)
        ask = f"import urllib.request; urllib.request.urlopen('{address}/health/ready', timeout=5)"
        ready = Step(f'{sys.executable} -c "{ask}" 2> /dev/null', "", 0)
        until(lambda: self._typed(ready)[1] == 0, f"{step.command} to be ready", every=0.1)


def play(page: Path, shell: Shell, names: Mapping[str, str]) -> None:
    """Go through a page; `names` are put in place of what readers would have of their own."""
    text = page.read_text(encoding="utf-8")
    for name, value in names.items():
        text = text.replace(name, value)
    for file, content in files(text).items():
        (shell.folder / file).write_text(content, encoding="utf-8")
    for step in steps(text):
        output, code = shell.run(step)
        told = f"$ {step.command}\n{output}\nexpected, with code {step.code}:\n{step.expected}"
        assert code == step.code, told
        assert step.serves or step.matches(output), told
