"""`holdfast notify`: what people were told or are still owed; send it again, settle it, try a channel out."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from holdfast.cli import notify_channels
from holdfast.cli.calling import ServerOption, clock, connected
from holdfast.cli.config import ConfigOption
from holdfast.cli.following import DryRunOption, KeyOption, once
from holdfast.cli.notify_channels import FAILED, ChannelArgument, YesOption, seen
from holdfast.cli.terminal import Column, FormatOption, asked_for, emit, emit_one, pairs, say, when

if TYPE_CHECKING:
    from holdfast.cli.client import Client

app = typer.Typer(name="notify", help="See and requeue what people are told; add and test the channels for it.")
app.add_typer(notify_channels.app)
FINDINGS: Final = 10  # exit code
State = Literal["pending", "sent", "failed", "dead", "resolved"]
Severity = Literal["info", "warning", "critical"]
IdArgument = Annotated[str, typer.Argument(metavar="NOTICE", help="Its id, as 'notify ls' shows it.")]
StateOption = Annotated[State | None, typer.Option("--state", help="In this state.")]
DeadOption = Annotated[bool, typer.Option("--dead", help="Nobody tries them any more: --state dead.")]
ChannelOption = Annotated[str | None, typer.Option("--channel", help="Owed to this channel.")]
SeverityOption = Annotated[Severity | None, typer.Option("--severity", help="Of this severity.")]
EventOption = Annotated[str | None, typer.Option("--event", help="Such as issuance.failed.")]
AboutOption = Annotated[str | None, typer.Option("--about", metavar="NAME", help="A certificate, CA or channel.")]


# ── Looking ──


@app.command("ls")
def ls(
    dead: DeadOption = False,
    state: StateOption = None,
    channel: ChannelOption = None,
    severity: SeverityOption = None,
    event: EventOption = None,
    about: AboutOption = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many, the newest first.")] = 100,
    check: Annotated[bool, typer.Option("--check", help="Exit with 10 if there are any.")] = False,
    config: ConfigOption = None,
    server: ServerOption = None,
    output: FormatOption = "table",
) -> None:
    """List what people were told, or are still owed."""
    query = _filter(dead, state, channel, severity, event, about) | {"limit": min(limit, 500)}
    with connected(config, server) as client:
        rows = client.pages("/notifications", most=limit, **query)
    emit(rows, _columns(clock().now()), output, name="id", empty="There are no such notices.")
    if check and rows:
        raise typer.Exit(FINDINGS)


def _filter(
    dead: bool,
    state: State | None,
    channel: str | None,
    severity: Severity | None,
    event: str | None,
    about: str | None,
) -> dict[str, Any]:
    if dead and state not in (None, "dead"):
        raise typer.BadParameter("--dead and --state say two things")
    given = {"state": "dead" if dead else state, "channel": channel, "severity": severity, "event": event}
    return {name: value for name, value in (given | {"subject": about}).items() if value is not None}


def _columns(now: datetime) -> list[Column]:
    return [
        Column("ID", lambda row: str(row["id"])),
        Column("STATE", lambda row: str(row["state"])),
        Column("SEVERITY", lambda row: str(row["severity"])),
        Column("CHANNEL", lambda row: row["channel"] or "-"),
        Column("TOLD", lambda row: seen(row["title"], 60)),
        Column("TRIED", lambda row: f"{row['attempt']}/{row['max_attempts']}"),
        Column("NEXT", lambda row: when(row["next_attempt_at"], now)),
        Column("MADE", lambda row: when(row["created_at"], now), wide=True),
        Column("EVENT", lambda row: str(row["event"]), wide=True),
        Column("ABOUT", lambda row: seen(row["name"], 60), wide=True),
        Column("ERROR", lambda row: seen(row["last_error"] or "-", 120), wide=True),
    ]


@app.command("show")
def show(
    notice: IdArgument, config: ConfigOption = None, server: ServerOption = None, output: FormatOption = "table"
) -> None:
    """Show one in full, with everything that was done about it."""
    with connected(config, server) as client:
        row = client.get(f"/notifications/{notice}")
    now = clock().now()
    emit_one(row, output, text=lambda each: _full(each, now), name="id")


def _full(row: Any, now: datetime) -> str:
    because = f" ({row['dead_because']})" if row["dead_because"] else ""
    facts = [
        ("id", row["id"]),
        ("state", f"{row['state']}{because}"),
        ("severity", row["severity"] + (", all-clear" if row["all_clear"] else "")),
        ("channel", row["channel"] or "none wanted to hear of it"),
        ("told", seen(row["title"])),
        ("text", seen(row["text"])),
        ("event", row["event"]),
        ("about", seen(row["name"])),
        ("reason", row["reason_code"]),
        *((name, seen(value)) for name, value in row["facts"].items()),
        ("made", when(row["created_at"], now)),
        ("attempts", f"{row['attempt']} of {row['max_attempts']} failed"),
        ("error", seen(row["last_error"] or "")),
        ("next", when(row["next_attempt_at"], now) if row["next_attempt_at"] else ""),
        (
            "delivered",
            f"{when(row['sent_at'], now)} on attempt {row['delivered_on_attempt']}" if row["sent_at"] else "",
        ),
        ("note", seen(f"{row['note']} ({row['settled_by']})") if row["note"] else ""),
        ("now", _advice(row)),
    ]
    history = [f"  {when(each['at'], now)}  {each['name']}{_detail(each['details'])}" for each in row["history"]]
    return "\n".join([pairs(facts), *(["history", *history] if history else [])])


def _detail(details: Any) -> str:
    told = [
        f"{name}: {seen(str(details[name]), 160)}" for name in ("by", "error", "reason", "note") if details.get(name)
    ]
    return f"  {', '.join(told)}" if told else ""


def _advice(row: Any) -> str:
    if row["state"] == "dead" and row["channel"]:
        return f"holdfast notify test {row['channel']}   |   holdfast notify requeue {row['id']}"
    return seen(row["next"])


# ── Acting ──


@app.command("requeue")
def requeue(
    notices: Annotated[list[str] | None, typer.Argument(metavar="[NOTICE]...", help="Their ids.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that are dead.")] = False,
    dead: DeadOption = False,
    state: StateOption = None,
    channel: ChannelOption = None,
    severity: SeverityOption = None,
    event: EventOption = None,
    about: AboutOption = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    idempotency_key: KeyOption = None,
    config: ConfigOption = None,
    server: ServerOption = None,
) -> None:
    """Send again: these, those of a filter, or all that are dead. Their attempts begin anew; their history stays."""
    which = _filter(dead, state, channel, severity, event, about)
    _one_way(notices, which, everything=everything)
    with connected(config, server) as client:
        for notice in notices or ():
            client.post(f"/notifications/{notice}/requeue", headers=once(idempotency_key, notice), dry_run=dry_run)
        number = len(notices or ())
        if not notices:
            number = client.post("/notifications/requeue", which | {"all": everything}, dry_run=True)["number"]
        if not notices and number and not dry_run:
            if everything and not asked_for(f"This sends {_many(number)} again.", yes=yes, word="all"):
                raise typer.Exit(FAILED)
            headers = once(idempotency_key)
            number = client.post("/notifications/requeue", which | {"all": everything}, headers=headers)["number"]
        unwanted = 0 if number or not (everything or which == {"state": "dead"}) else _without_channel(client)
    _say_requeued(number, dry_run=dry_run, unwanted=unwanted)


def _one_way(notices: list[str] | None, which: dict[str, Any], *, everything: bool) -> None:
    if bool(notices) + (bool(which) or everything) != 1:
        raise typer.BadParameter("name notices by their ids, or a filter (--dead, --channel, …), or --all")


def _many(number: int) -> str:
    return "1 message" if number == 1 else f"{number} messages"


def _without_channel(client: Client) -> int:
    """Dead ones that no channel wanted when they were told, and none wants now."""
    return int(client.get("/notifications/summary")["by_channel"].get("", {}).get("dead", 0))


def _say_requeued(number: int, *, dry_run: bool, unwanted: int) -> None:
    if unwanted:
        has = f"{_many(unwanted)} that {'is' if unwanted == 1 else 'are'} dead cannot be sent again: no channel wants"
        say(f"{has} {'it' if unwanted == 1 else 'them'}. Add one, or widen one: holdfast notify channel add --help")
    elif dry_run:
        say(f"{_many(number)} would be sent again.")
    elif number:
        say(f"{_many(number)} will be sent again. See how it goes: holdfast notify ls")
    else:
        say("There is nothing to send again.")


@app.command("resolve")
def resolve(
    notices: Annotated[list[str] | None, typer.Argument(metavar="[NOTICE]...", help="Their ids.")] = None,
    note: Annotated[str, typer.Option("--note", help="What was done about it; kept, and shown.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="All that are dead.")] = False,
    dead: DeadOption = False,
    state: StateOption = None,
    channel: ChannelOption = None,
    severity: SeverityOption = None,
    event: EventOption = None,
    about: AboutOption = None,
    dry_run: DryRunOption = False,
    idempotency_key: KeyOption = None,
    config: ConfigOption = None,
    server: ServerOption = None,
) -> None:
    """Settle with a note what need not be sent any more."""
    which = _filter(dead, state, channel, severity, event, about)
    _one_way(notices, which, everything=everything)
    if not note.strip():
        raise typer.BadParameter("say what was done about it: --note")
    with connected(config, server) as client:
        for notice in notices or ():
            headers = once(idempotency_key, notice)
            client.post(f"/notifications/{notice}/resolve", {"note": note}, headers=headers, dry_run=dry_run)
        number = len(notices or ())
        if not notices:
            body = which | {"all": everything, "note": note}
            headers = once(idempotency_key)
            number = client.post("/notifications/resolve", body, headers=headers, dry_run=dry_run)["number"]
    say(f"{'Would be resolved' if dry_run else 'Resolved'}: {number}.")


@app.command("test")
def probe(channel: ChannelArgument, config: ConfigOption = None, server: ServerOption = None) -> None:
    """Send a message through a channel now, by the way that all take, and say what happened."""
    with connected(config, server) as client:
        found = client.post(f"/channels/{channel}/test")
    print(seen(found["detail"], 1000))
    if not found["ok"]:
        raise typer.Exit(FAILED)


@app.command("mute")
def mute(
    channel: ChannelArgument,
    dry_run: DryRunOption = False,
    idempotency_key: KeyOption = None,
    config: ConfigOption = None,
    server: ServerOption = None,
) -> None:
    """Say nothing through a channel until it is unmuted. What it is owed waits, and none of it dies."""
    with connected(config, server) as client:
        client.post(f"/channels/{channel}/pause", headers=once(idempotency_key), dry_run=dry_run)
    said = "Nothing would be said" if dry_run else "Nothing is said"
    say(f"{said} through {channel} until: holdfast notify unmute {channel}")


@app.command("unmute")
def unmute(
    channel: ChannelArgument,
    dry_run: DryRunOption = False,
    idempotency_key: KeyOption = None,
    config: ConfigOption = None,
    server: ServerOption = None,
) -> None:
    """Let a muted channel speak again; what waited for it is sent now."""
    with connected(config, server) as client:
        client.post(f"/channels/{channel}/resume", headers=once(idempotency_key), dry_run=dry_run)
    say(f"{channel} {'would speak' if dry_run else 'speaks'} again.")
