"""`holdfast notify channel`: where people are told; each channel with what it wants to hear of."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from holdfast.cli import given
from holdfast.cli.calling import ServerOption, clock, connected
from holdfast.cli.config import ConfigOption
from holdfast.cli.following import DryRunOption, KeyOption, once
from holdfast.cli.given import NotGiven
from holdfast.cli.spans import span
from holdfast.cli.terminal import Column, FormatOption, asked_for, emit, emit_one, pairs, say, when

app = typer.Typer(name="channel", help="Add, change and remove the channels through which people are told.")
FAILED: Final = 1  # exit code
LONGEST: Final = 64 * 1024  # bytes of a credential
Kind = Literal["email", "webhook", "slack", "teams", "pagerduty", "opsgenie", "apprise"]
ChannelArgument = Annotated[str, typer.Argument(metavar="CHANNEL", help="Its name.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask back.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting, as text or JSON; may be repeated.")
]
CredentialOption = Annotated[
    list[str] | None,
    typer.Option("--credential", metavar="NAME=FILE", help="A credential, in a file; - is stdin. May be repeated."),
]
CredentialEnvOption = Annotated[
    list[str] | None,
    typer.Option("--credential-env", metavar="NAME=VARIABLE", help="A credential, in the environment."),
]
NewSecretOption = Annotated[bool, typer.Option("--new-secret", help="Make a signing secret, and print it this once.")]
SeverityOption = Annotated[
    list[str] | None,
    typer.Option("--severity", metavar="info|warning|critical", help="Of these only; may be repeated."),
]
OwnerOption = Annotated[list[str] | None, typer.Option("--owner", help="About certificates of this owner only.")]
LabelOption = Annotated[list[str] | None, typer.Option("--label", "-l", metavar="NAME=VALUE", help="With it only.")]
FallbackOption = Annotated[str | None, typer.Option("--fallback", help="The channel that is told while this is down.")]
DigestOption = Annotated[str | None, typer.Option("--digest", metavar="SPAN", help="All at once, every 1h, or never.")]
HeartbeatOption = Annotated[str | None, typer.Option("--heartbeat", metavar="SPAN", help="A sign of life, every 1d.")]
RateOption = Annotated[str | None, typer.Option("--rate", metavar="N/SPAN", help="At most so many, such as 30/1m.")]


def seen(text: str, limit: int = 600) -> str:
    """Names and errors are other people's text: nothing in them may reach a terminal as an order."""
    shown = "".join(char if char.isprintable() else " " if char.isspace() else f"\\x{ord(char):02x}" for char in text)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


# ── Looking ──


@app.command("ls")
def ls(config: ConfigOption = None, server: ServerOption = None, output: FormatOption = "table") -> None:
    """List the channels."""
    with connected(config, server) as client:
        rows = client.get("/channels")
    columns = [
        Column("NAME", lambda row: str(row["name"])),
        Column("KIND", lambda row: str(row["kind"])),
        Column("STATE", _state),
        Column("HEARS", _hears),
        Column("FALLBACK", lambda row: row["fallback"] or "-"),
        Column("ERROR", lambda row: seen(row["breaker_error"] or "-", 120), wide=True),
    ]
    emit(rows, columns, output, empty="Nobody is told anything. Add a channel: holdfast notify channel add --help")


def _state(row: Any) -> str:
    return "down" if row["down_since"] else "muted" if row["state"] == "paused" else "ok"


def _hears(row: Any) -> str:
    labels = [f"{name}={value}" for name, value in row["labels"].items()]
    return ", ".join(["/".join(row["severities"]), *(f"owner {each}" for each in row["owners"]), *labels])


@app.command("show")
def show(
    channel: ChannelArgument, config: ConfigOption = None, server: ServerOption = None, output: FormatOption = "table"
) -> None:
    """Show one channel, without its credentials."""
    with connected(config, server) as client:
        row = client.get(f"/channels/{channel}")
    now = clock().now()
    emit_one(row, output, text=lambda each: _text(each, now))


def _text(row: Any, now: datetime) -> str:
    every = {name: f"every {row[name]:g} s" if row[name] else "" for name in ("digest_every_s", "heartbeat_every_s")}
    facts = [
        ("name", row["name"]),
        ("kind", row["kind"]),
        ("state", _state(row)),
        ("down", when(row["down_since"], now) if row["down_since"] else ""),
        ("error", seen(row["breaker_error"] or "")),
        ("hears", _hears(row)),
        ("fallback", row["fallback"] or ""),
        ("digest", every["digest_every_s"]),
        ("heartbeat", every["heartbeat_every_s"]),
        ("rate", f"{row['rate']['burst']}, and one more every {row['rate']['every_s']:g} s"),
        ("credentials", ", ".join(row["credentials"])),
        *((name, seen(json.dumps(value, ensure_ascii=False))) for name, value in row["settings"].items()),
    ]
    return pairs(facts)


# ── Adding, changing, removing ──


@app.command("add")
def add(
    channel: ChannelArgument,
    kind: Annotated[Kind, typer.Option("--kind", help="What it is.")],
    setting: SetOption = None,
    credential: CredentialOption = None,
    credential_env: CredentialEnvOption = None,
    new_secret: NewSecretOption = False,
    severity: SeverityOption = None,
    owner: OwnerOption = None,
    label: LabelOption = None,
    fallback: FallbackOption = None,
    digest: DigestOption = None,
    heartbeat: HeartbeatOption = None,
    rate: RateOption = None,
    dry_run: DryRunOption = False,
    idempotency_key: KeyOption = None,
    config: ConfigOption = None,
    server: ServerOption = None,
    output: FormatOption = "table",
) -> None:
    """Add a channel. Its settings are checked first; its credentials are sealed, and never shown again."""
    credentials = _credentials(credential, credential_env)
    secret = _secret() if new_secret else None
    asked = {
        "name": channel, "kind": kind, "settings": dict(map(_setting, setting or ())),
        "credentials": credentials | ({} if secret is None else {"secret": secret}),
        **_routed(severity, owner, label, fallback, digest, heartbeat, rate),
    }  # fmt: skip
    with connected(config, server) as client:
        row = client.post("/channels", asked, headers=once(idempotency_key), dry_run=dry_run)
    _finish(row, output, secret, dry_run=dry_run, said=f"Added. See that it arrives: holdfast notify test {channel}")


@app.command("set")
def change(
    channel: ChannelArgument,
    setting: SetOption = None,
    unset: Annotated[list[str] | None, typer.Option("--unset", metavar="NAME", help="Take a setting away.")] = None,
    credential: CredentialOption = None,
    credential_env: CredentialEnvOption = None,
    new_secret: NewSecretOption = False,
    forget: Annotated[list[str] | None, typer.Option("--forget", metavar="NAME", help="A credential.")] = None,
    severity: SeverityOption = None,
    owner: OwnerOption = None,
    label: LabelOption = None,
    fallback: FallbackOption = None,
    digest: DigestOption = None,
    heartbeat: HeartbeatOption = None,
    rate: RateOption = None,
    dry_run: DryRunOption = False,
    idempotency_key: KeyOption = None,
    config: ConfigOption = None,
    server: ServerOption = None,
    output: FormatOption = "table",
) -> None:
    """Change what is given. A webhook with a new secret is signed with both, until --forget old_secret."""
    secret = _secret() if new_secret else None
    credentials: dict[str, Any] = _credentials(credential, credential_env)
    credentials |= dict.fromkeys(forget or ()) | ({} if secret is None else {"secret": secret})
    asked = _routed(severity, owner, label, fallback, digest, heartbeat, rate)
    settings = dict(map(_setting, setting or ())) | dict.fromkeys(unset or ())
    asked |= {name: each for name, each in (("settings", settings), ("credentials", credentials)) if each}
    with connected(config, server) as client:
        headers = once(idempotency_key) | {"If-Match": "*"}
        row = client.patch(f"/channels/{channel}", asked, headers=headers, dry_run=dry_run)
    _finish(row, output, secret, dry_run=dry_run, said=f"Changed. See that it arrives: holdfast notify test {channel}")


def _finish(row: Any, output: Any, secret: str | None, *, dry_run: bool, said: str) -> None:
    now = clock().now()
    shown = row if secret is None or dry_run else {**row, "secret": secret}
    emit_one(shown, output, text=lambda each: "\n".join([_text(each, now), *_only(secret, dry_run=dry_run)]))
    say("Nothing was changed: this is how it would be." if dry_run else said)


def _only(secret: str | None, *, dry_run: bool) -> list[str]:
    return [] if secret is None or dry_run else [f"secret  {secret}   (shown this once: the receiver needs it)"]


@app.command("rm")
def remove(
    channel: ChannelArgument,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    server: ServerOption = None,
) -> None:
    """Remove a channel, for good. What it is still owed is dead, and stays visible."""
    with connected(config, server) as client:
        owed = client.delete(f"/channels/{channel}", dry_run=True)["number"]
        question = f"Nobody is told through {channel} any more; {owed} notices that it is owed will be dead."
        if dry_run:
            say(question)
            return
        if not asked_for(question, yes=yes, word=channel):
            raise typer.Exit(FAILED)
        number = client.delete(f"/channels/{channel}")["number"]
    say(f"Removed: {channel}." + (f" See what is dead: holdfast notify ls --channel {channel}" if number else ""))


# ── What was given ──


def _routed(
    severity: Iterable[str] | None,
    owner: Iterable[str] | None,
    label: Iterable[str] | None,
    fallback: str | None,
    digest: str | None,
    heartbeat: str | None,
    rate: str | None,
) -> dict[str, Any]:
    """Only what is given; 'never' and 'none' take away."""
    found: dict[str, Any] = {}
    if severity:
        found["severities"] = list(severity)
    if owner:
        found["owners"] = list(owner)
    if label:
        found["labels"] = dict(map(given.label, label))
    if fallback is not None:
        found["fallback"] = None if fallback == "none" else fallback
    for name, text in (("digest_every_s", digest), ("heartbeat_every_s", heartbeat)):
        if text is not None:
            found[name] = None if text == "never" else span(text).total_seconds()
    if rate is not None:
        found["rate"] = _rate(rate)
    return found


def _rate(text: str) -> dict[str, Any]:
    number, slash, per = text.partition("/")
    if not slash or not number.isdecimal() or not int(number):
        raise NotGiven(f"{text!r:.40} is no rate.", "For example: --rate 30/1m")
    return {"burst": int(number), "every_s": span(per).total_seconds() / int(number)}


def _pair(text: str, option: str, example: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise NotGiven(f"{text!r:.60} is nothing for {option}.", f"For example: {option} {example}")
    return name, value


def _setting(text: str) -> tuple[str, Any]:
    name, value = _pair(text, "--set", "host=mail.example.com")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _credentials(files: Iterable[str] | None, variables: Iterable[str] | None) -> dict[str, Any]:
    """Never on the command line: it is in the history of the shell, and every user sees it while it runs."""
    found = {}
    for text in files or ():
        name, path = _pair(text, "--credential", "url=/run/secrets/slack-url")
        found[name] = given.content(Path(path), LONGEST).decode("utf-8", "replace").strip()
    for text in variables or ():
        name, variable = _pair(text, "--credential-env", "url=SLACK_URL")
        if not os.environ.get(variable):
            raise NotGiven(f"The environment has no {variable}.", "Set it, or give the credential in a file.")
        found[name] = os.environ[variable].strip()
    return found


def _secret() -> str:
    from holdfast.world import SystemRandom

    return "whsec_" + base64.b64encode(SystemRandom().token(32)).decode()
