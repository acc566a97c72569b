"""Options are read quickly, and just as Typer reads them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer._click.exceptions import BadParameter
from typer._coercion import build_runtime_param

from holdfast.cli import main
from holdfast.cli.quick import NotPlain, Plain, plain

SAMPLES: tuple[Any, ...] = (
    None, "", "x", "5", "-5", "0", "1e3", "0.5", "99999999", " 7", "7_0", "٣", "true", True, False, 3, 3.5, "json",
    "JSON", "ready", "/tmp/x", Path("/tmp/x"), ("a", "b"), ["1"], (), "-", "nan", "inf",
)  # fmt: skip


def parameters() -> Iterator[Any]:
    for name in main.COMMANDS:
        yield from _of(main.load(name), name)


def _of(command: Any, path: str) -> Iterator[Any]:
    yield from (pytest.param(each, id=f"{path} {each.name}") for each in command.params if each.name != "help")
    for name, each in getattr(command, "commands", {}).items():
        yield from _of(each, f"{path} {name}")


def _tried(convert: Any, value: Any, param: Any) -> Any:
    try:
        return convert(value, param)
    except NotPlain:
        return NotPlain
    except BadParameter:
        return BadParameter


def test_what_is_plain_reads_as_typer_reads_it_and_the_rest_is_left_to_it() -> None:
    seen, known = {NotPlain: 0, "plain": 0}, set[Any]()
    for each in parameters():
        [param] = each.values
        info = param.type_descriptor.parameter_info
        alike = (str(param.type_descriptor.annotation), info.min, info.max, param.multiple, param.nargs)
        if alike in known:
            continue
        known.add(alike)
        typers = build_runtime_param(param.type_descriptor)
        for value in SAMPLES:
            mine = _tried(plain, value, param)
            seen["plain" if mine is not NotPlain else NotPlain] += 1
            theirs = _tried(partial(typers.coerce, ctx=None), value, param)
            if mine is not NotPlain:
                same = mine == theirs and type(mine) is type(theirs)
                assert same, f"{each.id} {value!r}: {mine!r}, and Typer reads {theirs!r}"
    assert min(seen.values()) > 100, seen


def test_every_parameter_of_every_command_is_read_so() -> None:
    assert all(isinstance(param._runtime_param, Plain) for each in parameters() for param in each.values)


def test_a_common_command_with_options_loads_neither_pydantic_nor_the_engine() -> None:
    """Without a server: all that comes before the first request is loaded by then."""
    program = (
        "import json, sys\nfrom holdfast.cli import main\n"
        "sys.argv = ['holdfast', 'jobs', 'ls', '--state', 'ready', '--limit', '5', '-o', 'json']\n"
        "try:\n    main.main()\nexcept SystemExit as end:\n    code = end.code\n"
        "print(json.dumps([code, sorted(sys.modules)]))\n"
    )
    nowhere = {"HOLDFAST_STORE_DATA_DIR": "/nonexistent/holdfast", "HOME": "/nonexistent", "PATH": "/usr/bin:/bin"}
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=nowhere, check=True)
    code, loaded = json.loads(ran.stdout)
    assert (code, "No Holdfast runs" in ran.stderr) == (1, True)
    assert {"pydantic", "holdfast.app", "cryptography", "rich", "fastapi", "sqlite3"} & set(loaded) == set()
