"""The CAs that certificates come from: `holdfast ca add, ls, test, …`, and the same as `holdfast issuer …`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.calling import ServerOption, connected
from holdfast.cli.config import ConfigOption, environment
from holdfast.cli.following import DryRunOption, KeyOption, once
from holdfast.cli.given import NotGiven, content
from holdfast.cli.given import label as label_of
from holdfast.cli.issue import YesOption
from holdfast.cli.terminal import (
    Column,
    Format,
    FormatOption,
    LimitOption,
    asked_for,
    emit,
    emit_one,
    exact,
    pairs,
    say,
    tame,
)

app = typer.Typer(name="issuer", help="Add, test and pause the CAs that certificates come from.")
NameArgument = Annotated[str, typer.Argument(metavar="CA", help="Its name.")]
DirectoryOption = Annotated[
    str | None, typer.Option("--directory", help="Of one that speaks ACME: the address of its directory.")
]
SettingOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=JSON", help="A setting; may be repeated.")
]
EabOption = Annotated[str | None, typer.Option("--eab-kid", help="Of the external account binding.")]
StdinOption = Annotated[
    str | None, typer.Option("--credential-stdin", metavar="NAME", help="Read this credential from stdin.")
]
FileOption = Annotated[
    list[str] | None,
    typer.Option("--credential-file", metavar="NAME=FILE", help="Read a credential from a file; may be repeated."),
]
EnvOption = Annotated[
    list[str] | None,
    typer.Option("--credential-env", metavar="NAME=VARIABLE", help="Or from the environment; may be repeated."),
]
FAILED = 1  # exit code
UNCHANGED = "Nothing was changed: it was only tried."
MOST = 64 * 1024  # bytes of a credential
TERMS = {  # by the host of its directory; "ca test" shows what the directory itself names
    "letsencrypt.org": "https://letsencrypt.org/repository/",
    "zerossl.com": "https://zerossl.com/terms/",
    "pki.goog": "https://pki.goog/GTS-SA.pdf",
    "digicert.com": "https://www.digicert.com/legal-repository",
}


@app.command("ls")
def ls(
    limit: LimitOption = None,
    config: ConfigOption = None,
    server: ServerOption = None,
    output: FormatOption = "table",
) -> None:
    """List the CAs that certificates may come from."""
    with connected(config, server) as client:
        rows = client.pages("/issuers", most=limit, limit=min(limit or 500, 500))
    columns = [
        Column("NAME", lambda row: str(row["name"])),
        Column("KIND", lambda row: str(row["kind"])),
        Column("STATE", lambda row: "down" if row["breaker_open"] else str(row["state"])),
        Column("DIRECTORY", lambda row: str(row["settings"].get("directory") or row["settings"].get("ca") or "-")),
        Column("ERROR", lambda row: row["breaker_error"] or "-", wide=True),
    ]
    emit(rows, columns, output, empty="There is no CA. Add one: holdfast ca add letsencrypt NAME")


@app.command("add")
def add_named(
    name: NameArgument,
    preset: Annotated[str | None, typer.Option("--preset", help="letsencrypt, letsencrypt-staging, zerossl, …")] = None,
    directory: DirectoryOption = None,
    kind: Annotated[str, typer.Option("--kind", help="How it is spoken to.")] = "acme",
    setting: SettingOption = None,
    eab_kid: EabOption = None,
    eab_key_stdin: Annotated[bool, typer.Option("--eab-key-stdin", help="Read the key of it from stdin.")] = False,
    stdin: StdinOption = None,
    file: FileOption = None,
    env: EnvOption = None,
    dry_run: DryRunOption = False,
    idempotency_key: KeyOption = None,
    config: ConfigOption = None,
    server: ServerOption = None,
    output: FormatOption = "table",
) -> None:
    """Add a CA."""
    secrets = credentials("eab_key" if eab_key_stdin else stdin, file, env)
    settings = _settings(setting, directory, eab_kid)
    asked = {"name": name, "kind": kind, "preset": preset, "settings": settings, "credentials": secrets}
    with connected(config, server) as client:
        made = client.post("/issuers", asked, headers=once(idempotency_key), dry_run=dry_run)
    _added(made, output, dry_run=dry_run)


def add(
    kind: Annotated[str, typer.Argument(help="digicert, sectigo, entrust, globalsign, vault, acme, or letsencrypt, …")],
    name: NameArgument,
    directory: DirectoryOption = None,
    setting: SettingOption = None,
    eab_kid: EabOption = None,
    stdin: StdinOption = None,
    file: FileOption = None,
    env: EnvOption = None,
    dry_run: DryRunOption = False,
    idempotency_key: KeyOption = None,
    config: ConfigOption = None,
    server: ServerOption = None,
    output: FormatOption = "table",
) -> None:
    """Add a CA that certificates come from. What it needs, and is not given, is told by name."""
    settings = _settings(setting, directory, eab_kid)
    asked = {"name": name, "kind": kind, "settings": settings, "credentials": credentials(stdin, file, env)}
    with connected(config, server) as client:
        made = client.post("/issuers", asked, headers=once(idempotency_key), dry_run=dry_run)
    _added(made, output, dry_run=dry_run)


def _settings(given: list[str] | None, directory: str | None, eab_kid: str | None) -> dict[str, Any]:
    named = {key: value for key, value in (("directory", directory), ("eab_kid", eab_kid)) if value is not None}
    return dict(map(_setting, given or ())) | named


def _added(row: Any, output: Format, *, dry_run: bool) -> None:
    emit_one(row, output, text=_text)
    if row["kind"] == "acme" and row["settings"].get("terms_agreed", True):
        say(_terms(str(row["settings"].get("directory") or "")))
    say(UNCHANGED if dry_run else f"Added. See that it answers: holdfast ca test {row['name']}")


def _terms(directory: str) -> str:
    """Whoever makes an account agrees to them (RFC 8555 §7.3): they should know, and know where they are."""
    host = directory.partition("://")[2].partition("/")[0]
    where = next((address for known, address in TERMS.items() if known in host), None)
    where = where or f"those that its directory names as termsOfService ({directory})"
    return f"With our account there you agree to the CA's terms: {where}"


@app.command("credentials")
def replace_credentials(
    name: NameArgument,
    stdin: StdinOption = None,
    file: FileOption = None,
    env: EnvOption = None,
    dry_run: DryRunOption = False,
    idempotency_key: KeyOption = None,
    config: ConfigOption = None,
    server: ServerOption = None,
) -> None:
    """Give a CA new credentials, such as another API key, in place of those of the same names."""
    given = credentials(stdin, file, env)
    if not given:
        raise NotGiven("No credential is given.", "For example: --credential-stdin api_key")
    with connected(config, server) as client:
        headers = once(idempotency_key)
        client.post(f"/issuers/{name}/credentials", {"credentials": given}, headers=headers, dry_run=dry_run)
    say(UNCHANGED if dry_run else f"Set: {', '.join(sorted(given))}. See that they are right: holdfast ca test {name}")


def credentials(stdin: str | None, files: list[str] | None, env: list[str] | None) -> dict[str, str]:
    """Never from the command line itself, which other users of the machine can read."""
    given = {stdin: sys.stdin.readline().strip()} if stdin else {}
    for name, path in map(_pair, files or ()):
        given[name] = content(Path(path), MOST).decode("utf-8", "replace").strip()
    for name, variable in map(_pair, env or ()):
        value = environment(variable)
        if value is None:
            raise NotGiven(f"There is no variable {variable} in the environment.", "Set it, or read from a file.")
        given[name] = value
    if empty := [name for name, value in given.items() if not value]:
        raise NotGiven(f"The credential {empty[0]} is empty.")
    return given


def _pair(text: str) -> tuple[str, str]:
    name, equals, rest = text.partition("=")
    if not name or not equals or not rest:
        raise NotGiven(f"{text!r:.60} names no credential and its place.", "For example: api_key=/run/secrets/key")
    return name, rest


def _setting(text: str) -> tuple[str, Any]:
    name, value = label_of(text)
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _text(row: Any) -> str:
    facts = [("name", row["name"]), ("kind", row["kind"]), ("state", row["state"])]
    facts += [("approval", "a second person must approve each attempt")] * bool(
        row["settings"].get("approval_required")
    )
    return pairs([*facts, *((name, json.dumps(value)) for name, value in row["settings"].items())])


@app.command("show")
def show(
    name: NameArgument, config: ConfigOption = None, server: ServerOption = None, output: FormatOption = "table"
) -> None:
    """Show a CA that certificates come from, with its settings."""
    with connected(config, server) as client:
        emit_one(client.get(f"/issuers/{name}"), output, text=_text)


@app.command("test")
def probe(name: NameArgument, config: ConfigOption = None, server: ServerOption = None) -> None:
    """See whether a CA answers and knows us. Nothing is ordered."""
    with connected(config, server) as client:
        found = client.post(f"/issuers/{name}/test")
    print(tame(found["detail"]))
    if not found["ok"]:
        raise typer.Exit(FAILED)


@app.command("pause")
def pause(
    name: NameArgument,
    dry_run: DryRunOption = False,
    idempotency_key: KeyOption = None,
    config: ConfigOption = None,
    server: ServerOption = None,
) -> None:
    """Begin nothing new there; what is under way goes on."""
    with connected(config, server) as client:
        client.post(f"/issuers/{name}/pause", headers=once(idempotency_key), dry_run=dry_run)
    say(f"{'It would be paused' if dry_run else 'Paused'}: {name}.")


@app.command("resume")
def resume(
    name: NameArgument,
    dry_run: DryRunOption = False,
    idempotency_key: KeyOption = None,
    config: ConfigOption = None,
    server: ServerOption = None,
) -> None:
    """Ask it again."""
    with connected(config, server) as client:
        client.post(f"/issuers/{name}/resume", headers=once(idempotency_key), dry_run=dry_run)
    say(f"{'It would be resumed' if dry_run else 'Resumed'}: {name}.")


@app.command("budget")
def budget(
    name: NameArgument, config: ConfigOption = None, server: ServerOption = None, output: FormatOption = "table"
) -> None:
    """Show what the limits of a CA leave for now."""
    with connected(config, server) as client:
        rows = client.get(f"/issuers/{name}/budget")
    columns = [
        Column("BUDGET", lambda row: str(row["key"])),
        Column("LEFT", lambda row: f"{row['left']}/{row['burst']}"),
        Column("ONE MORE EVERY", lambda row: f"{row['every_s']:g} s"),
        Column("HELD UNTIL", lambda row: "-" if row["held_until"] is None else exact(row["held_until"])),
    ]
    emit(rows, columns, output, name="key", empty="Nothing was asked of it yet, so no budget was used.")


# ── Changing ──


@app.command("set")
def change_settings(
    name: NameArgument,
    setting: SettingOption = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", metavar="NAME", help="A setting to forget; may be repeated.")
    ] = None,
    dry_run: DryRunOption = False,
    idempotency_key: KeyOption = None,
    config: ConfigOption = None,
    server: ServerOption = None,
    output: FormatOption = "table",
) -> None:
    """Change settings of a CA; those that are not named stay. They hold from the next step of what is under way."""
    if not setting and not unset:
        raise NotGiven("No setting is given.", "For example: --set poll_max_wait_seconds=3600")
    with connected(config, server) as client:
        row = client.get(f"/issuers/{name}")
        if unknown := [each for each in unset or () if each not in row["settings"]]:
            raise NotGiven(f"{name} has no setting {unknown[0]!r:.40}.", "See which it has: holdfast issuer ls -o json")
        settings = {key: value for key, value in row["settings"].items() if key not in (unset or ())}
        headers = once(idempotency_key) | {"If-Match": f'"{row["version"]}"'}
        asked = {"settings": settings | dict(map(_setting, setting or ()))}
        emit_one(client.put(f"/issuers/{name}/settings", asked, headers=headers, dry_run=dry_run), output, text=_text)
    say(UNCHANGED if dry_run else f"Changed. Try it: holdfast ca test {name}")


@app.command("rm")
def remove(
    name: NameArgument,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    idempotency_key: KeyOption = None,
    config: ConfigOption = None,
    server: ServerOption = None,
) -> None:
    """Remove a CA that no certificate needs, with its credentials and the key of our account there."""
    with connected(config, server) as client:
        if not dry_run:
            question = f"{name} is forgotten here, with its credentials and the key of our account there."
            if not asked_for(question, yes=yes, word=name):
                raise typer.Exit(FAILED)
        client.delete(f"/issuers/{name}", headers=once(idempotency_key), dry_run=dry_run)
    say(f"{'It would be removed' if dry_run else 'Removed'}: {name}.")


@app.command("rotate-account-key")
def rotate_account_key(
    name: NameArgument,
    dry_run: DryRunOption = False,
    idempotency_key: KeyOption = None,
    config: ConfigOption = None,
    server: ServerOption = None,
) -> None:
    """Give our account at an ACME CA a new key. Its orders and certificates stay as they are."""
    with connected(config, server) as client:
        headers = once(idempotency_key)
        job = client.post(f"/issuers/{name}/account-key", headers=headers, dry_run=dry_run)
    if dry_run:
        say(f"Our account at {name} would get a new key.")
    else:
        say(f"Our account at {name} gets a new key: {job['id']}. Under way while listed by: holdfast jobs ls")


@app.command("new-account")
def new_account(
    name: NameArgument,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    idempotency_key: KeyOption = None,
    config: ConfigOption = None,
    server: ServerOption = None,
) -> None:
    """Have the next order make another account at an ACME CA, for one that is closed there or barred."""
    with connected(config, server) as client:
        if not dry_run:
            question = f"Our account at {name} is not used any more; orders that are under way there are begun anew."
            if not asked_for(question, yes=yes, word=name):
                raise typer.Exit(FAILED)
        client.post(f"/issuers/{name}/new-account", headers=once(idempotency_key), dry_run=dry_run)
    if dry_run:
        say(f"The next order at {name} would make a new account.")
    else:
        say(f"The next order at {name} makes a new account. Make it now: holdfast ca test {name}")


def put_into(group: typer.Typer) -> None:
    """The same commands under another name."""
    for name, command in (
        ("add", add), ("ls", ls), ("test", probe), ("budget", budget), ("pause", pause), ("resume", resume),
        ("credentials", replace_credentials), ("rm", remove), ("rotate-account-key", rotate_account_key),
        ("new-account", new_account),
    ):  # fmt: skip
        group.command(name)(command)
