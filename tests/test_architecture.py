"""What may import what, and where the world may be touched: read from the source, so that no habit can wear it off."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from holdfast import plugins
from holdfast.ports import POINTS

SRC: Final = Path(__file__).parent.parent / "src" / "holdfast"
MODULES: Final = sorted(SRC.rglob("*.py"))

# ── who may import whom ──

# Besides `errors`, the version and itself. A folder's line covers every file in it.
MAY_IMPORT: Final = {
    "errors": "",
    "ports": "secret",
    "secret": "",
    "telemetry": "",
    "tracing": "telemetry",
    "config": "config_values core secret",
    "config_values": "core secret",
    "job_kinds": "engine operations",
    "supervisor": "config core system_clock telemetry web world",
    "witness_file": "core",
    "backup_file": "core secret",
    "backups": "backup_file config core keyring operations ports secret store witness_file",
    "world": "machine ports system_clock telemetry",
    "machine": "",
    "agent": "core deployers endpoints kind_settings local_bundles machine network pki plugins ports secret "
    "system_clock undumpable validators",
    "agent_face": "core operations pki ports telemetry",
    "local_bundles": "ports secret",
    "system_clock": "",
    "this_host": "core ports world",
    "host": "core endpoints importing pki ports",
    "network": "ports",
    "undumpable": "",
    "webhook_signature": "secret",
    "keyring": "ports secret",
    "listening": "telemetry",
    "core": "",
    "kind_settings": "core",
    "plugins": "core",
    "pki": "core ports secret",
    "validators": "core pki ports",
    "importing": "core pki ports secret",
    "deployers": "core kind_settings pki ports secret webhook_signature",
    "receiver": "deployers local_bundles network world",
    "issuers": "core kind_settings pki ports secret",
    "notifiers": "core kind_settings ports secret webhook_signature",
    "solvers": "core issuers kind_settings listening pki plugins ports secret validators",
    "ct": "core ports",
    "endpoints": "core pki ports validators",
    "store": "core keyring ports secret",
    "operations": "config core ct keyring pki plugins ports secret store telemetry",
    "engine": "core ct deployers endpoints issuers kind_settings notifiers operations pki plugins ports secret solvers "
    "store telemetry validators",
    "acme": "core operations pki ports secret telemetry",
    "demo": "core operations secret store",
    "api": "core operations pki secret telemetry",
    "web": "core listening operations secret telemetry",
    "pages": "core operations secret telemetry web",
    "mcp": "core",
    "compose_ca": "acme agent_face config core engine listening network operations pki ports store telemetry "
    "validators web",
    "compose_certificates": "compose_ca config core ct deployers endpoints engine listening local_bundles network "
    "operations ports secret solvers store telemetry world",
    "from_settings": "config core listening operations ports store telemetry witness_file",
    "app": "api backups compose_ca compose_certificates config core demo engine from_settings job_kinds keyring "
    "listening operations pages pki plugins ports secret store supervisor telemetry tracing undumpable web world",
    "cli": "agent api app backups config config_values core endpoints from_settings host importing job_kinds keyring "
    "machine mcp network operations pki ports secret solvers store system_clock telemetry this_host validators web "
    "world",
}


class Import(NamedTuple):
    """One name that a module fetches, as `holdfast.store.work.jobs`; not `at_load` if a function fetches it when it
    runs."""

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
    ours = [found for found in imports(source) if found.target.split(".")[0] in ("holdfast", "tests")]
    return [
        f"line {found.line}: {found.target}"
        for found in ours
        if _of_tests(found.target) or unit(found.target) not in allowed
    ]


def _of_tests(module: str) -> bool:
    """The product never imports its tests, nor the simulator among them."""
    return module.split(".")[0] == "tests"


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
        ("core", "from holdfast.store.work import jobs"),
        ("core", "from holdfast.ports import Clock"),
        ("store", "from holdfast.engine.worker import Work"),
        ("engine", "from holdfast.web.sites import plain_site"),
        ("engine", "from holdfast import world"),
        ("engine", "def f():\n    from tests.simulation import run"),
        ("web", "import holdfast.store.work.jobs"),
        ("app", "from tests.simulation.run import play"),
        ("cli", "from tests.simulation import errands"),
    ],
)
def test_an_import_in_the_wrong_direction_is_noticed(importer: str, line: str) -> None:
    assert len(strangers(line, importer)) == 1


# What a module of core may import if commands load it: all of it is loaded by typer anyway.
LIGHT: Final = frozenset(
    {"__future__", "collections", "dataclasses", "datetime", "enum", "functools", "hashlib", "itertools", "json",
     "math", "operator", "re", "typing"}
)  # fmt: skip


def loaded_by(start: str, *units: str) -> set[str]:
    """The modules of ours that are imported when this one is; through these units alone, if any are named."""
    reached, to_read = set[str](), [start]
    while to_read:
        module = to_read.pop()
        path = SRC.parent / f"{module.replace('.', '/')}.py"
        if module not in reached and path.is_file() and (not units or unit(module) in units):
            reached.add(module)
            found = [entry.target for entry in imports(path.read_text()) if entry.at_load]
            to_read += [name for target in found for name in (target, target.rpartition(".")[0])]
    return reached


def test_the_command_line_loads_the_product_only_when_a_command_needs_it() -> None:
    assert {unit(module) for module in loaded_by("holdfast.cli.main")} == {"cli", "errors"}


def test_commands_load_only_light_modules_of_core() -> None:
    """Closed lists and durations come from core, which a command may load at once: it costs next to nothing."""
    paths = (SRC / "cli").rglob("*.py")
    commands = [".".join(path.relative_to(SRC.parent).with_suffix("").parts) for path in paths]
    reached = {module for start in commands for module in loaded_by(start, "cli", "core") if unit(module) == "core"}
    files = [path for module in reached if (path := SRC.parent / f"{module.replace('.', '/')}.py").is_file()]
    outside = {entry.target.split(".")[0] for path in files for entry in imports(path.read_text()) if entry.at_load}
    assert "holdfast.core.key_kind" in reached
    assert outside - {"holdfast"} <= LIGHT


# ── kinds are asked for their traits ──

PLUGINS: Final = ("deployers", "issuers", "notifiers", "solvers")
INSTALLED: Final = {name for group in plugins.GROUPS for name in plugins.kinds(group)}


def asks_for_a_kind(source: str) -> list[int]:
    """Lines that compare the kind of an issuer, channel or solver with the name of one."""
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Compare)]
    return [node.lineno for node in found if _is_kind(node.left) and any(map(_names_a_kind, node.comparators))]


def _is_kind(node: ast.expr) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id="principal"), attr="kind"):
            return False  # who asks: a person, a robot, a user of this machine
        case ast.Attribute(attr="kind") | ast.Subscript(slice=ast.Constant(value="kind")):
            return True
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value="kind"), *_]):
            return True
        case ast.Name(id="kind"):
            return True
    return False


def _names_a_kind(node: ast.expr) -> bool:
    constants = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
    return bool(INSTALLED.intersection(each for each in constants if isinstance(each, str)))


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_no_kind_is_asked_for_by_its_name_outside_of_plugins(path: Path) -> None:
    assert _unit_of(path) in PLUGINS or asks_for_a_kind(path.read_text()) == []


@pytest.mark.parametrize(
    "line", ['row.kind == "acme"', 'row["kind"] != "local"', 'row.get("kind") == "vault"', 'kind in ("slack", "teams")']
)
def test_a_question_for_a_kind_is_noticed(line: str) -> None:
    assert asks_for_a_kind(line) == [1]


# ── where the world may be touched ──

# Names that reach out of the process, or past its ports: a whole module, or one name of it. asyncio.timeout is not
# among them: it lives by the loop's clock, which the simulator owns.
BANNED: Final = {
    "time": "Clock", "datetime.datetime.now": "Clock", "datetime.datetime.utcnow": "Clock",
    "datetime.datetime.today": "Clock", "datetime.date.today": "Clock", "asyncio.sleep": "Clock",
    "random": "Random", "secrets": "Random", "uuid": "Random", "os.urandom": "Random",
    "socket": "Transport", "ssl": "Transport", "httpx2": "Transport", "http": "Transport",
    "urllib.request": "Transport", "asyncio.open_connection": "Transport", "asyncio.start_server": "Transport",
    "uvicorn": "Transport", "aiosmtplib": "Transport", "apprise": "Transport", "asyncssh": "Transport",
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
        "os socket ssl httpx2 http asyncio.to_thread .create_connection",
        "It is the adapter of Transport, Tree and Sink.",
    ),
    "machine.py": Door(
        "time secrets os signal asyncio.subprocess .subprocess_exec .open .read_bytes .mkdir .rename .hardlink_to "
        ".unlink .stat",
        "It is the adapter of Random and Files.",
    ),
    "agent/line.py": Door("ssl asyncio.open_connection", "It is the adapter of Transport in an agent."),
    "agent/__main__.py": Door("signal", "It turns signals into a stop."),
    "cli/agents.py": Door("os", "It reads the environment, and becomes the agent's process."),
    "this_host.py": Door("os open .stat", "It is the adapter of Host: sockets of /proc, and files without their keys."),
    "local_bundles.py": Door(
        "os fcntl shutil secrets asyncio.to_thread .mkdir .rename .stat .unlink",
        "It is the adapter of BundleFolders: files with their owners and locks.",
    ),
    "witness_file.py": Door(
        "os fcntl threading .iterdir .read_bytes .rename",
        "It is the adapter of Witness: writers of several threads share its file.",
    ),
    "store/witness.py": Door("threading", "Writers of several threads tell it how far they came."),
    "backup_file.py": Door("os .open .iterdir .rename .unlink", "It is the file of a backup, synced and whole."),
    "backups.py": Door(
        "tempfile .exists .mkdir .rename .stat .unlink",
        "It makes a database file, under another name until it is whole.",
    ),
    "system_clock.py": Door("time datetime.datetime.now asyncio.sleep", "It is the adapter of Clock."),
    "network.py": Door("socket ssl", "It is the adapter of Net."),
    "store/sqlite.py": Door(
        "sqlite3 os fcntl .exists .stat .open .read_bytes .rename .unlink",
        "It is half of the Store: the file, its lock and its recovery.",
    ),
    "store/postgres.py": Door(
        "psycopg os socket threading",
        "It is the other half: statements without psycopg's cursors; it cuts lines that hang, and listens on a thread.",
    ),
    "store/database.py": Door("threading asyncio.to_thread", "Connections are blocking: each has a thread."),
    "store/migrate.py": Door(".iterdir .read_text", "The schema steps are files of this package."),
    "tracing.py": Door("asyncio.to_thread", "Sending what is left at the end waits for a remote."),
    "from_settings.py": Door(".mkdir", "It makes the data folder."),
    "app.py": Door("signal platform", "It turns signals into a stop, and knows the name of the machine."),
    "supervisor.py": Door(
        "os select signal socket", "It starts and ends processes, and hears signals: it is no part of the engine."
    ),
    "web/siblings.py": Door("os", "It asks the other processes of this server, by sockets in the data folder."),
    "web/serve.py": Door(
        "socket ssl os uvicorn .mkdir .unlink", "It listens, with TLS or without: there is no port for being asked."
    ),
    "web/bounded.py": Door(
        "http uvicorn", "It is the protocol of that listener, and knows the phrases of HTTP statuses."
    ),
    "listening/accepting.py": Door("socket ssl", "It accepts, for all listeners: there is no port for being asked."),
    "listening/bounds.py": Door("resource", "It asks how many descriptors this process may have."),
    "pages/assets.py": Door(".read_bytes", "The static files are files of this package."),
    "cli/main.py": Door("importlib.import_module", "It loads only the command that is asked for."),
    "cli/derived.py": Door(
        "importlib.import_module .read_text", "It reads the table of commands, and loads only what shows a result."
    ),
    "cli/installation/config.py": Door("os", "The environment is read here, and handed on as a value."),
    "cli/offline.py": Door("httpx2", "It answers for the server of this machine while none runs."),
    "undumpable.py": Door("resource", "It asks the kernel to keep the memory of this process to itself."),
    "cli/client.py": Door("os httpx2 .exists .stat", "It asks the server of this machine, or the one that is named."),
    "cli/installation/doctor.py": Door("sqlite3", "It says which version of the library this Python has."),
    "cli/installation/mcp.py": Door(
        "httpx2 signal", "It asks the server for whoever uses its tools, until it is told to stop."
    ),
    "cli/terminal.py": Door("os shutil", "Whether colours are wanted, and how wide a line is, the terminal says."),
    "cli/opening.py": Door(".exists", "A command must not make a new database by mistake."),
    "cli/own_ca/pki.py": Door("os", "Passphrases come from the environment."),
    "pki/in_thread.py": Door(
        "asyncio.to_thread threading concurrent .run_in_executor",
        "Arithmetic that would hold the loop up, such as making an RSA key; and forecasts, on a thread of their own.",
    ),
    "pki/hsm.py": Door("threading", "A PKCS#11 session is for one thread at a time."),
    "notifiers/email.py": Door("aiosmtplib ssl", "It speaks SMTP, which the Transport does not."),
    "deployers/ssh_line.py": Door("asyncssh", "It speaks SSH, which the Transport does not."),
    "deployers/sftp_folders.py": Door(
        "asyncssh .chmod .mkdir .lstat .stat", "It speaks SFTP; these files are of another machine."
    ),
    "notifiers/apprise.py": Door("apprise threading", "It asks a blocking library, on a thread of its own."),
    "solvers/tls_alpn.py": Door(
        "ssl os socket", "It makes the TLS context that shows a challenge response, listens, and shakes hands."
    ),
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


# ── the named points ──


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
