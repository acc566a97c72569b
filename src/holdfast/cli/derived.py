"""Commands made of declared operations: options from the input, one request, the result written as it was asked for.

`commands.json` is written from the declarations when the product is built, so that a command starts without the
server's code. A command that a module writes by hand replaces the derived one of the same name.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Protocol

import typer
from typer.main import get_command_name

from holdfast.cli.everywhere import FAILED, PLAIN, Display, Displays, Row, chosen
from holdfast.errors import Usage


class Client(Protocol):
    """A line to the API, as cli/client.py has it: named here, so that help pages do not load it."""

    def ask(self, method: str, path: str, body: object, headers: Mapping[str, str], query: Row) -> object: ...
    def pages(self, path: str, *, most: int | None = None, **query: object) -> list[object]: ...
    def lines(self, path: str, **query: object) -> Iterable[str]: ...


TABLE: Final = Path(__file__).with_name("commands.json")
# Where results are shown by hand, by the first part of an operation's name.
DISPLAYS: Final = {
    "approvals": "holdfast.cli.installation.display",
    "audit": "holdfast.cli.installation.display",
    "channels": "holdfast.cli.notifications",
    "deployments": "holdfast.cli.deployments",
    "discovery": "holdfast.cli.discovery",
    "drill": "holdfast.cli.drill",
    "endpoints": "holdfast.cli.endpoints",
    "finds": "holdfast.cli.discovery",
    "issuers": "holdfast.cli.issuers",
    "jobs": "holdfast.cli.installation.display",
    "notifications": "holdfast.cli.notifications",
    "people": "holdfast.cli.installation.display",
    "sessions": "holdfast.cli.installation.display",
    "targets": "holdfast.cli.deployments",
    "tokens": "holdfast.cli.installation.display",
}


@cache
def rows() -> list[Row]:
    """Every operation that has a command."""
    found: list[Row] = json.loads(TABLE.read_text())
    return found


def commands() -> dict[tuple[str, ...], list[Row]]:
    """By the words after `holdfast`; several operations may share a command."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows():
        found.setdefault(tuple(row["command"].split()), []).append(row)
    return found


def options_of(path: Sequence[str]) -> frozenset[str]:
    """Which of the options that all commands share a command has."""
    found = set(PLAIN)
    for row in commands().get(tuple(path), ()):
        found |= {name for name, flag in _SHARED.items() if row.get(flag)}
    return frozenset(found | ({"yes"} if tuple(path) in ASK_ABOUT_MANY else set()))


ASK_ABOUT_MANY: Final = {("renew",)}  # written by hand; its operation changes one thing
_SHARED: Final = {"dry_run": "dry_runs", "idempotency_key": "keyed", "yes": "destructive"}


# ── From a row to a command ──


def command_of(row: Row) -> Callable[..., None]:
    """A function that Typer reads like one written by hand."""

    def run(**given: object) -> None:
        carry_out(row, given)

    parameters = [_parameter(each) for each in row.get("params", ())]
    if row["shows"] == "page":
        parameters.append(_LIMIT)
    required = [each for each in parameters if each.default is inspect.Parameter.empty]
    rest = [each for each in parameters if each.default is not inspect.Parameter.empty]
    run.__signature__ = inspect.Signature([*required, *rest])  # type: ignore[attr-defined]
    run.__doc__ = "\n\n".join(each for each in (row["summary"], row.get("details", "")) if each)
    return run


def example_of(path: Sequence[str]) -> str:
    """A command line that a person can paste; empty if no operation of this command has one."""
    return next((str(row["example"]) for row in commands().get(tuple(path), ()) if row.get("example")), "")


_LIMIT: Final = inspect.Parameter(
    "limit",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[int | None, typer.Option("--limit", min=1, help="At most so many; all, if left out.")],
)
_TYPES: Final[Row] = {"int": int, "float": float, "flag": bool}


def _parameter(param: Row) -> inspect.Parameter:
    kind: Any = _TYPES.get(param["kind"], str)
    if param.get("repeated"):
        kind = list[kind]
    elif param.get("choices"):
        kind = Literal[tuple(param["choices"])]
    if not param.get("required"):
        kind = kind | None
    choices = "|".join(param["choices"]) if param.get("repeated") and param.get("choices") else None
    named = str(param.get("flag", "")).strip("-").upper() if param["kind"] == "list" else None
    metavar = param.get("metavar") or choices or _METAVARS.get(param["kind"]) or named
    said = {"help": param.get("help", ""), "metavar": metavar}
    if param.get("argument"):
        info: Any = typer.Argument(**said)
    else:
        flags = [param["flag"]] if param["kind"] != "flag" or not param.get("nullable") else [_both(param["flag"])]
        flags += [param["short"]] if param.get("short") else []
        info = typer.Option(*flags, **said)
    default = inspect.Parameter.empty if param.get("required") else None
    name = str(param["field"])
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def _both(flag: str) -> str:
    return f"{flag}/--no-{flag.removeprefix('--')}"


_METAVARS: Final = {
    "duration": "SPAN", "instant": "TIME", "past": "TIME", "pairs": "NAME=VALUE", "setting": "NAME=VALUE",
    "credential": "NAME=FILE", "secret": "FILE", "file": "FILE", "files": "FILE", "profile": "FILE", "rate": "N/SPAN",
}  # fmt: skip


# ── From arguments to a request ──


def carry_out(row: Row, given: Row) -> None:
    """One request, asked back about where it can hurt; then its result."""
    from holdfast.cli.calling import connected
    from holdfast.cli.terminal import say

    said = {each["field"]: _read(each, given[each["field"]]) for each in _given(row, given)}
    with connected(offline=bool(row.get("offline"))) as client:
        if row["shows"] == "lines":
            _print_lines(client, row, said)
            return
        if row.get("destructive") and not (chosen().dry_run or chosen().yes):
            _ask_back(row, said, client)
        result = request(client, row, said, dry_run=chosen().dry_run, most=given.get("limit"))
    show(row, result)
    if chosen().dry_run:
        say(f"{_asks(row, said, result)} Nothing was changed: this is how it would be.".lstrip())
    elif row.get("done"):
        say(_filled(row["done"], said, result))


def _given(row: Row, given: Row) -> list[Row]:
    return [each for each in row.get("params", ()) if given.get(each["field"]) not in (None, (), [])]


def request(client: Client, row: Row, said: Row, *, dry_run: bool = False, most: int | None = None) -> object:
    """Ask the API for an operation; `said` has its input by field."""
    places = {each["field"]: each["in"] for each in row.get("params", ())}
    inside = {where: {name: value for name, value in said.items() if places[name] == where} for where in _PLACES}
    path = row["path"].format(**{name: _segment(str(value)) for name, value in inside["path"].items()})
    query = {**inside["query"], **({"dry_run": True} if dry_run else {})}
    if row["shows"] == "page":
        return client.pages(path, most=most, **query)
    headers = {"If-Match": "*"} if row.get("if_match") else {}
    if row.get("keyed") and chosen().idempotency_key and not dry_run:
        headers["Idempotency-Key"] = str(chosen().idempotency_key)
    return client.ask(row["method"], path, inside["body"] or None, headers, query)


_PLACES: Final = ("path", "query", "body", "header")


def _segment(text: str) -> str:
    """A name in an address. A server takes %2F for a slash, so a name with one would lead to another operation."""
    from urllib.parse import quote

    if "/" in text or text in ("", ".", ".."):
        raise NotAName(f"{text!r:.60} is no name and no id.")
    return quote(text, safe="")


class NotAName(Usage):
    code = "not-a-name"
    hint = "See what there is with the command ls of the same group."


def _print_lines(client: Client, row: Row, said: Row) -> None:
    from holdfast.cli.terminal import harmless

    for line in client.lines(row["path"], **said):
        print(harmless(line))


def _ask_back(row: Row, said: Row, client: Client) -> None:
    """Ask the user to type the name. The operation is tried first, so that mistakes are told before the question."""
    from holdfast.cli.terminal import asked_for

    tried = request(client, row, said, dry_run=True) if row.get("dry_runs") else None
    names = [
        str(said[each["field"]]) for each in row.get("params", ()) if each.get("argument") and each["field"] in said
    ]
    question = f"{row['summary']} ({', '.join(names)})" if names else row["summary"]
    if not asked_for(_asks(row, said, tried) or question, word=names[0] if names else "yes"):
        raise typer.Exit(FAILED)


def _asks(row: Row, said: Row, tried: object) -> str:
    return _filled(row["asks"], said, tried) if row.get("asks") else ""


def _filled(sentence: str, said: Row, result: object) -> str:
    facts = {**(result if isinstance(result, Mapping) else {}), **said}
    return sentence.format(**{name: _in_words(each) for name, each in facts.items()})


def _in_words(value: object) -> object:
    if isinstance(value, Mapping):
        return ", ".join(f"{name.replace('_', ' ')} {_in_words(each)}" for name, each in value.items())
    return "; ".join(map(str, map(_in_words, value))) or "none" if isinstance(value, list) else value


JOINED: Final = frozenset({"files"})  # readers of several texts that are one


def _read(param: Row, value: Any) -> Any:
    reader = READERS.get(param["kind"])
    if reader is None:
        return _listed(param, value) if param.get("repeated") else _or_null(param, value)
    if param["kind"] in ("pairs", "setting", "credential"):
        return dict(reader(param, each) for each in value)
    if param["kind"] in JOINED:
        return "".join(reader(param, each) for each in value)
    return [reader(param, each) for each in value] if param.get("repeated") else _or_null(param, value, reader)


def _or_null(param: Row, value: Any, reader: Callable[[Row, str], Any] | None = None) -> Any:
    """'none' and '' take away what may be absent."""
    if param.get("nullable") and param["in"] == "body" and value in ("none", ""):
        return None
    return value if reader is None else reader(param, value)


def _listed(param: Row, values: Sequence[str]) -> list[str]:
    """'none' and '' empty a list that a change would leave alone otherwise."""
    return [each for each in values if not param.get("nullable") or each not in ("none", "")]


def _pair(param: Row, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise NotAPair(f"{text!r:.60} is nothing for {param['flag']}: it is written NAME=VALUE.")
    return name, value


class NotAPair(Usage):
    code = "not-a-pair"
    hint = "For example: --label team=web, --set host=mail.example.com, --credential url=/run/secrets/url"


def _setting(param: Row, text: str) -> tuple[str, object]:
    name, value = _pair(param, text)
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


LONGEST: Final = 64 * 1024  # bytes of a credential


def _credential(param: Row, text: str) -> tuple[str, str | None]:
    """Never on the command line: it is in the history of the shell, and every user sees it while it runs."""
    name, file = _pair(param, text)
    return name, None if file == "none" and param.get("nullable") else _secret(param, file)


def named_secret(text: str) -> tuple[str, str]:
    """NAME=FILE, NAME=- or NAME=env:VARIABLE, for commands written by hand."""
    name, found = _credential({"flag": "--credential"}, text)
    return name, found or ""


def _secret(param: Row, text: str) -> str:
    """A file, - for stdin, env:VARIABLE, or new: for one that is made here and printed this once."""
    if text == "new:":
        return _made()
    from holdfast.cli import input_files
    from holdfast.cli.installation.config import environment

    if text.startswith("env:"):
        found = environment(text.removeprefix("env:"))
        if not found:
            raise input_files.NotGiven(
                f"The environment has no {text[4:]}.", "Set it, or give the credential in a file."
            )
        return found.strip()
    found = input_files.content(Path(text), LONGEST).decode("utf-8", "replace").strip()
    if not found:
        raise input_files.NotGiven(f"The credential in {text} is empty.")
    return found


def _made() -> str:
    import base64

    from holdfast.world import SystemRandom

    made = "whsec_" + base64.b64encode(SystemRandom().token(32)).decode()
    print(f"secret  {made}   (shown this once: the receiver needs it)")
    return made


def _file(param: Row, text: str) -> str:
    from holdfast.cli import input_files

    found = input_files.content(Path(text), 1 << 20).decode("utf-8", "replace")
    if not found:
        raise input_files.NotGiven(f"There is nothing in {text}.")
    return found


def _profile(param: Row, text: str) -> object:
    import tomllib

    found = _file(param, text)
    try:
        fields = json.loads(found) if found.lstrip().startswith("{") else tomllib.loads(found)
    except ValueError as error:
        raise NotAPair(f"{text} is neither JSON nor TOML: {error}.") from None
    return dict(_field(*each) for each in fields.items()) if isinstance(fields, dict) else fields


def _field(name: str, value: object) -> tuple[str, object]:
    """A duration of a profile is written as everywhere, 90d; the API takes seconds."""
    from holdfast.cli.durations import span

    spans = name in ("lifetime", "max_lifetime", "backdate")
    return (f"{name}_s", int(span(str(value)).total_seconds())) if spans else (name, value)


def _duration(param: Row, text: str) -> float | None:
    from holdfast.cli.durations import span

    if text == "never" and param.get("nullable"):
        return None
    seconds = span(text).total_seconds()
    return int(seconds) if seconds.is_integer() else seconds


def _instant(param: Row, text: str) -> str:
    from holdfast.cli.durations import moment

    return moment(text).isoformat()


def _past(param: Row, text: str) -> str:
    from holdfast.cli.durations import ago

    return ago(text).isoformat()


def _rate(param: Row, text: str) -> dict[str, object]:
    from holdfast.cli.durations import span

    number, slash, per = text.partition("/")
    if not slash or not number.isdecimal() or not int(number):
        raise NotARate(f"{text!r:.40} is no rate.")
    return {"burst": int(number), "every_s": span(per).total_seconds() / int(number)}


def _key(param: Row, text: str) -> str:
    """The SHA-256 of a public key in hex, or a file with the key in PEM."""
    is_hash = len(text) == 64 and all(char in "0123456789abcdefABCDEF" for char in text)
    return text if is_hash else _file(param, text)


class NotARate(Usage):
    code = "not-a-rate"
    hint = "For example: --rate 30/1m"


def _window(param: Row, text: str) -> object:
    from holdfast.cli.certificates.options import window

    return window(text)


def _json(param: Row, text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        raise NotAPair(f"{text!r:.60} is no JSON, which {param.get('flag', param['field'])} takes.") from None


READERS: Final[Mapping[str, Callable[[Row, str], Any]]] = {
    "pairs": _pair, "setting": _setting, "credential": _credential, "secret": _secret, "file": _file,
    "duration": _duration, "instant": _instant, "past": _past, "rate": _rate, "window": _window, "json": _json,
    "key": _key, "files": _file, "profile": _profile,
}  # fmt: skip


# ── The result ──


def show(row: Row, result: object) -> None:
    """As it is shown by hand, or plainly."""
    from holdfast.cli.terminal import tame

    shown = _by_hand(row["operation"])
    if shown is not None:
        shown(result)
    elif isinstance(result, Mapping) and set(result) == {"ok", "detail"}:
        print(tame(result["detail"]))
        if not result["ok"]:
            raise typer.Exit(FAILED)
    else:
        _plainly(row, result)


def _by_hand(operation: str) -> Display | None:
    module = DISPLAYS.get(operation.partition(".")[0])
    found: Displays = {} if module is None else import_module(module).SHOWN
    return found.get(operation)


def _plainly(row: Row, result: object) -> None:
    from holdfast.cli.terminal import show_one, show_rows

    if isinstance(result, list):
        show_rows(result, empty=EMPTY.get(row["operation"], "There is nothing to list."))
    elif isinstance(result, Mapping):
        show_one(result)
    elif isinstance(result, str):
        print(result, end="" if result.endswith("\n") else "\n")


def fill(group: Any, path: tuple[str, ...]) -> None:
    """Add to a Typer group the derived commands below this path that it does not have by hand."""
    have = {each.name or get_command_name(each.callback.__name__) for each in group.registered_commands}
    groups = {each.name or each.typer_instance.info.name: each.typer_instance for each in group.registered_groups}
    for words, found in sorted(commands().items()):
        if words[: len(path)] != path or len(words) == len(path):
            continue
        name, deeper = words[len(path)], len(words) > len(path) + 1
        if deeper and name not in groups:
            groups[name] = typer.Typer(name=name, help=GROUPS.get(" ".join(words[:-1]), ""))
            group.add_typer(groups[name])
        if not deeper and name not in have:
            group.command(name)(command_of(found[0]))
    for name, inner in groups.items():
        fill(inner, (*path, str(name)))


EMPTY: Final = {
    "accounts.list": "There are no accounts.",
    "ca.list": "There is no CA. Create one: holdfast ca create NAME",
    "eab.list": "There are no EAB keys. Create one: holdfast ca eab create CA",
    "issuances.list": "There are no such issuances.",
    "issued.list": "This CA has issued no certificates.",
    "orders.list": "There are no such orders.",
    "pauses.list": "Nothing is paused.",
}
GROUPS: Final = {
    "notify channel": "Add, change and delete channels: where notifications go.",
    "ca eab": "Keys for external account binding: each lets one ACME account in.",
}
