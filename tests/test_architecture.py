"""What may import what, and where the world may be touched: read from the source, so that no habit can wear it off."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from holdfast.ports import POINTS

SRC: Final = Path(__file__).parent.parent / "src" / "holdfast"
MODULES: Final = sorted(SRC.rglob("*.py"))
LONGEST_MODULE: Final = 500  # lines

# ── who may import whom ──

# Besides `errors`, the version and itself. A folder's line covers every file in it.
MAY_IMPORT: Final = {
    "errors": "",
    "ports": "secret",
    "secret": "",
    "telemetry": "",
    "traced": "ports telemetry",
    "tracing": "telemetry",
    "config": "secret setting_kinds",
    "setting_kinds": "secret",
    "world": "ports system_clock",
    "system_clock": "",
    "network": "ports",
    "sinks": "ports",
    "keyring": "ports secret",
    "keyfile": "keyring ports secret",
    "listening": "telemetry",
    "listener_bounds": "config listening telemetry",
    "core": "",
    "pki": "core ports secret",
    "validators": "core pki ports",
    "importing": "core pki ports secret",
    "issuers": "core operations pki ports secret",
    "notifiers": "core ports secret",
    "solvers": "core issuers listening pki ports secret validators",
    "store": "core keyring ports secret",
    "operations": "config core keyfile keyring pki ports secret store telemetry",
    "engine": "core issuers notifiers operations pki ports secret solvers store telemetry validators",
    "acme": "core operations pki ports secret telemetry",
    "api": "core operations pki secret telemetry",
    "web": "core listening operations secret telemetry",
    "mcp": "core",
    "ca_server": "acme config core engine listening network operations pki ports store telemetry validators web",
    "certificate_keeper": "ca_server config core engine listening network operations ports secret "
    "solvers store telemetry traced world",
    "stores": "config ports store",
    "app": "api ca_server certificate_keeper config core engine listener_bounds listening operations ports secret "
    "sinks store stores telemetry tracing web world",
    "cli": "api app config core importing listener_bounds mcp network operations pki ports secret "
    "setting_kinds solvers store stores system_clock validators web world",
    "simulation": "config core engine issuers keyring operations pki ports secret solvers store telemetry world",
}


class Import(NamedTuple):
    """One name that a module fetches, as `holdfast.store.jobs`; not `at_load` if a function fetches it when it runs."""

    target: str
    line: int
    at_load: bool


def unit(module: str) -> str:
    """The folder, or the file beside the folders, that a dotted module belongs to; empty for the package itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and (parts[1] in MAY_IMPORT or _exists(parts[1])) else ""


def _exists(name: str) -> bool:
    return (SRC / name).is_dir() or (SRC / f"{name}.py").is_file()


def imports(source: str) -> Iterator[Import]:
    tree = ast.parse(source)
    inside = {id(node) for f in ast.walk(tree) if _is_function(f) for node in ast.walk(f)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, id(node) not in inside)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                yield Import(f"{node.module}.{alias.name}", node.lineno, id(node) not in inside)


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


def strangers(source: str, importer: str) -> list[str]:
    """Imports of ours that this unit has no business with."""
    allowed = {importer, "errors", "", *MAY_IMPORT[importer].split()}
    ours = [found for found in imports(source) if found.target.split(".")[0] == "holdfast"]
    return [f"line {found.line}: {found.target}" for found in ours if unit(found.target) not in allowed]


def _name(path: Path) -> str:
    return path.relative_to(SRC).as_posix()


def _unit_of(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_a_module_imports_only_what_its_folder_may(path: Path) -> None:
    if _unit_of(path) != "__init__":
        assert strangers(path.read_text(), _unit_of(path)) == []


def test_every_folder_and_top_level_module_has_its_line_in_the_table() -> None:
    assert {_unit_of(path) for path in MODULES} - {"__init__"} == set(MAY_IMPORT)


@pytest.mark.parametrize(
    ("importer", "line"),
    [
        ("core", "from holdfast.store import jobs"),
        ("core", "from holdfast.ports import Clock"),
        ("store", "from holdfast.engine.worker import Work"),
        ("engine", "from holdfast.web.health import site"),
        ("engine", "from holdfast import world"),
        ("engine", "def f():\n    from holdfast.simulation import run"),
        ("web", "import holdfast.store.jobs"),
        ("app", "from holdfast.simulation.run import play"),
        ("cli", "from holdfast.simulation import errands"),
    ],
)
def test_an_import_in_the_wrong_direction_is_noticed(importer: str, line: str) -> None:
    assert len(strangers(line, importer)) == 1


def test_nobody_imports_the_simulator() -> None:
    assert [name for name, allowed in MAY_IMPORT.items() if "simulation" in allowed.split()] == []


def test_the_command_line_loads_the_product_only_when_a_command_needs_it() -> None:
    reached, to_read = set[str](), ["holdfast.cli.main"]
    while to_read:
        module = to_read.pop()
        path = SRC.parent / f"{module.replace('.', '/')}.py"
        if module not in reached and path.is_file():
            reached.add(module)
            found = [entry.target for entry in imports(path.read_text()) if entry.at_load]
            to_read += [name for target in found for name in (target, target.rpartition(".")[0])]
    assert {unit(module) for module in reached} == {"cli", "errors"}


# ── where the world may be touched ──

# Names that reach out of the process, or past its ports: a whole module, or one name of it. asyncio.timeout is not
# among them: it lives by the loop's clock, which the simulator owns.
BANNED: Final = {
    "time": "Clock", "datetime.datetime.now": "Clock", "datetime.datetime.utcnow": "Clock",
    "datetime.datetime.today": "Clock", "datetime.date.today": "Clock", "asyncio.sleep": "Clock",
    "random": "Random", "secrets": "Random", "uuid": "Random", "os.urandom": "Random",
    "socket": "Transport", "ssl": "Transport", "httpx2": "Transport", "http": "Transport",
    "urllib.request": "Transport", "asyncio.open_connection": "Transport", "asyncio.start_server": "Transport",
    "uvicorn": "Transport", "aiosmtplib": "Transport", "apprise": "Transport",
    "os": "Files", "io.open": "Files", "shutil": "Files", "tempfile": "Files", "glob": "Files", "fcntl": "Files",
    "resource": "Files", "subprocess": "Files", "multiprocessing": "Files", "signal": "Files", "platform": "Files",
    "asyncio.create_subprocess_exec": "Files", "asyncio.create_subprocess_shell": "Files",
    "asyncio.subprocess": "Files", "open": "Files", "input": "Files",
    "sqlite3": "Store", "psycopg": "Store",
    "threading": "Store", "concurrent": "Store", "asyncio.to_thread": "Store", "select": "Store", "selectors": "Store",
    "importlib.import_module": "an import that can be read", "__import__": "an import that can be read",
    "eval": "code that can be read", "exec": "code that can be read",
}  # fmt: skip

BUILTINS: Final = frozenset({"open", "input", "__import__", "eval", "exec"})  # banned without being imported

# Methods of pathlib.Path, and of a loop, that do the same; whatever the object is called.
BANNED_METHODS: Final = frozenset(
    {
        "read_text", "read_bytes", "write_text", "write_bytes", "unlink", "mkdir", "rename", "touch", "chmod",
        "hardlink_to", "symlink_to", "iterdir", "rglob", "stat", "lstat", "exists", "is_file", "is_dir",
        "run_in_executor", "create_connection", "create_server", "subprocess_exec", "subprocess_shell",
    }
)  # fmt: skip


class Door(NamedTuple):
    """What one file may use, and why."""

    names: str
    because: str


DOORS: Final = {
    "world.py": Door(
        "time secrets os signal ssl httpx2 http "
        "asyncio.subprocess .subprocess_exec .read_bytes .mkdir .rename .hardlink_to .unlink .stat",
        "It is the adapter of Clock, Random, Transport and Files.",
    ),
    "system_clock.py": Door("time datetime.datetime.now asyncio.sleep", "It is the adapter of Clock."),
    "network.py": Door("socket ssl", "It is the adapter of Net."),
    "sinks.py": Door(
        "os socket asyncio.to_thread .create_connection",
        "It is the adapter of Sink: a file that is synced, a line to syslog.",
    ),
    "store/sqlite.py": Door(
        "sqlite3 os fcntl .exists .stat .open .rename .unlink",
        "It is half of the Store: the file, its lock and its recovery.",
    ),
    "store/postgres.py": Door(
        "psycopg os socket threading", "It is the other half: it cuts lines that hang and listens on a thread."
    ),
    "store/libpq.py": Door("psycopg", "It is how that half speaks: statements, without psycopg's cursors."),
    "store/database.py": Door("threading asyncio.to_thread", "Connections are blocking: each has a thread."),
    "store/migrate.py": Door(".iterdir .read_text", "The schema steps are files of this package."),
    "tracing.py": Door("asyncio.to_thread", "Sending what is left at the end waits for a remote."),
    "stores.py": Door(".mkdir", "It makes the data folder."),
    "app.py": Door("signal platform", "It turns signals into a stop, and knows the name of the machine."),
    "web/serve.py": Door(
        "socket ssl os uvicorn .mkdir .unlink", "It listens, with TLS or without: there is no port for being asked."
    ),
    "web/gathering.py": Door("uvicorn", "It is the line of that listener, with fewer writes."),
    "web/bounded.py": Door("http", "It knows the phrases of HTTP's statuses."),
    "listening/accepting.py": Door("socket ssl", "It accepts, for all listeners: there is no port for being asked."),
    "listening/descriptors.py": Door("resource", "It asks how many descriptors this process may have."),
    "cli/main.py": Door("importlib.import_module", "It loads only the command that is asked for."),
    "cli/config.py": Door("os", "The environment is read here, and handed on as a value."),
    "cli/reaching.py": Door(
        "os httpx2 .exists", "It asks the server of this machine, by a socket in its data folder, as this user."
    ),
    "cli/client.py": Door("os httpx2 .exists", "It asks the server of this machine, or the one that is named."),
    "cli/doctor.py": Door("sqlite3", "It says which version of the library this Python has."),
    "cli/mcp.py": Door("httpx2 signal", "It asks the server for whoever uses its tools, until it is told to stop."),
    "cli/terminal.py": Door("os shutil", "Whether colours are wanted, and how wide a line is, the terminal says."),
    "cli/opening.py": Door(".exists", "A command must not make a new database by mistake."),
    "cli/pki.py": Door("os", "Passphrases come from the environment."),
    "cli/notify_channels.py": Door("os", "Credentials may come from the environment."),
    "pki/aside.py": Door("asyncio.to_thread", "Arithmetic that would hold the loop up, such as making an RSA key."),
    "pki/hsm.py": Door("threading", "A PKCS#11 session is for one thread at a time."),
    "notifiers/email.py": Door("aiosmtplib ssl", "It speaks SMTP, which the Transport does not."),
    "notifiers/apprise.py": Door("apprise threading", "It asks a blocking library, on a thread of its own."),
    "solvers/tls_alpn.py": Door("ssl os", "It makes the TLS context that shows a proof, from memory."),
    "solvers/tls_alpn_listener.py": Door(
        "ssl socket", "It listens, and shakes hands: there is no port for being asked."
    ),
    "simulation/clockwork.py": Door("selectors", "It replaces the waiting of asyncio."),
    "simulation/ground.py": Door("random", "Its dice have a seed."),
    "simulation/stage.py": Door("asyncio.sleep sqlite3", "Virtual time, and the errors of the database within."),
    "simulation/life_stage.py": Door("random", "Its dice have a seed."),
    "simulation/life_run.py": Door("asyncio.sleep", "Virtual time."),
    "simulation/door.py": Door("asyncio.sleep", "Virtual time."),
    "simulation/node.py": Door("asyncio.sleep random", "The ports of a simulated replica: virtual time, seeded dice."),
    "simulation/truth.py": Door("asyncio.sleep", "Virtual time."),
    "simulation/witness.py": Door("sqlite3", "It watches the simulated database from within, by a trigger."),
    "simulation/run.py": Door("asyncio.sleep", "Virtual time."),
    "simulation/faults.py": Door("asyncio.sleep", "Virtual time."),
    "simulation/__main__.py": Door("time os concurrent", "It measures real time and uses every core."),
}


def touches(source: str) -> Iterator[tuple[str, int]]:
    """The banned names that a text uses, under whatever alias, with their lines."""
    tree = ast.parse(source)
    aliases = _aliases(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found = [_banned(alias.name) for alias in names]
            case ast.ImportFrom(module=str(module), names=names):
                found = [_banned(f"{module}.{alias.name}") for alias in names]
            case ast.Name() | ast.Attribute():
                found = [_banned(_dotted(node, aliases))]
            case ast.Call(func=ast.Attribute(attr=method)) if method in BANNED_METHODS or _opens_a_file(method, node):
                found = [f".{method}"]
            case _:
                continue
        yield from ((name, node.lineno) for name in found if name is not None)


def _opens_a_file(method: str, call: ast.Call) -> bool:
    """`path.open()`, `path.open("rb", encoding=…)`; others have things to open, too, and take other arguments."""
    modes = [arg.value if isinstance(arg, ast.Constant) else None for arg in call.args]
    names = {keyword.arg for keyword in call.keywords}
    plain = all(isinstance(mode, str) and set(mode) <= set("rwxabt+") for mode in modes)
    return method == "open" and plain and names <= {"mode", "encoding", "errors", "newline", "buffering"}


def _aliases(tree: ast.Module) -> dict[str, str]:
    """What each imported name stands for: `dt` for `datetime`, `now` for `time.time`."""
    known = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.name.split(".")[0]  # `import urllib.request` binds urllib
                known[alias.asname or bound] = alias.name if alias.asname else bound
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            known |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return known


def _dotted(node: ast.expr, aliases: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id if node.id in BUILTINS else "")
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value, aliases)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


def _banned(name: str) -> str | None:
    parts = name.split(".")
    heads = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
    return next((head for head in heads if head in BANNED), None)


def forbidden(source: str, door: Door | None = None) -> list[str]:
    allowed = door.names.split() if door else []
    return [
        f"line {line}: {name} (use the port: {BANNED.get(name, 'Files')})"
        for name, line in touches(source)
        if name not in allowed
    ]


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_the_world_is_touched_only_in_its_adapters(path: Path) -> None:
    assert forbidden(path.read_text(), DOORS.get(_name(path))) == []


@pytest.mark.parametrize("name", DOORS)
def test_no_door_is_wider_than_its_file_needs(name: str) -> None:
    used = {found for found, _ in touches((SRC / name).read_text())}
    assert set(DOORS[name].names.split()) - used == set()


@pytest.mark.parametrize(
    "line",
    [
        "import time; time.time()",
        "import time as clock; clock.monotonic()",
        "from time import monotonic",
        "from datetime import datetime; at = datetime.now()",
        "import datetime as dt; at = dt.datetime.now(dt.UTC)",
        "from datetime import datetime as when; at = when.utcnow()",
        "from datetime import date; date.today()",
        "import random",
        "from random import uniform as draw",
        "import secrets; secrets.token_bytes(8)",
        "import uuid; uuid.uuid4()",
        "import os; os.environ['HOME']",
        "from os import environ",
        "import os; os.kill(1, 9)",
        "import os; os.fork()",
        "import socket",
        "import subprocess; subprocess.run(['true'])",
        "import asyncio\nasync def f(): await asyncio.sleep(1)",
        "from asyncio import sleep",
        "import asyncio\nasync def f(): await asyncio.open_connection('a', 1)",
        "import asyncio\nasync def f(): await asyncio.create_subprocess_exec('true')",
        "open('/etc/passwd')",
        "from pathlib import Path; Path('a').read_text()",
        "def f(path): path.write_bytes(b'')",
        "def f(path): path.open('rb')",
        "def f(folder): (folder / 'a').unlink()",
        "import threading; threading.Thread(target=print).start()",
        "from threading import Event",
        "from concurrent.futures import ThreadPoolExecutor",
        "async def f(loop): await loop.run_in_executor(None, print)",
        "async def f(loop): await loop.subprocess_exec(object, 'true')",
        "import httpx2",
        "import urllib.request",
        "import sqlite3",
        "from psycopg import connect",
        "import importlib; importlib.import_module('time').time()",
        "__import__('time').time()",
        "eval('1')",
        "def f():\n    import time\n    return time.time_ns()",
    ],
)
def test_a_line_that_reaches_past_the_ports_is_noticed(line: str) -> None:
    """In core or engine, whose files have no door, each of these turns the test above red."""
    assert forbidden(line) != []


@pytest.mark.parametrize(
    "line",
    [
        "import asyncio\nasync def f():\n    async with asyncio.timeout(1): pass",
        "from datetime import UTC, datetime, timedelta; at = datetime(2030, 1, 1, tzinfo=UTC) + timedelta(days=1)",
        "async def f(clock): await clock.sleep(clock.monotonic())",
        "def f(random, files, path): return random.uniform(0, 1), files.read(path)",
        "from pathlib import Path; name = Path('a').name",
        "def f(time): return time.at",
        "def f(keyring, secret): return keyring.open(secret)",
    ],
)
def test_a_line_that_uses_the_ports_is_let_through(line: str) -> None:
    assert forbidden(line) == []


def test_rules_and_engine_have_no_door_at_all() -> None:
    assert [name for name in DOORS if name.startswith(("core/", "engine/", "operations/"))] == []


def test_every_ladder_of_waits_stands_in_one_module() -> None:
    """So that a wait can be looked up, and changed, without a search."""
    built = {_name(path) for path in MODULES if "Ladder(" in path.read_text()}
    assert built == {"core/backoff.py"}


# ── sizes, and the named points ──


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_a_module_is_short_enough_to_be_read_at_once(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LONGEST_MODULE


def test_every_named_point_is_passed_and_every_passed_point_is_named() -> None:
    assert {name for path in MODULES for name in _points_passed(path.read_text())} == POINTS


def _points_passed(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(
                func=ast.Name(id="points" | "point") | ast.Attribute(attr="points" | "_points" | "point"),
                args=[ast.Constant(value=str(name))],
            ):
                yield name
