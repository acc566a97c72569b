"""`holdfast notify`: notifications; requeue and resolve them; add and test channels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from holdfast.cli.calling import clock, connected
from holdfast.cli.certificates.progress import once
from holdfast.cli.everywhere import FAILED, FINDINGS, Displays, Row, chosen
from holdfast.cli.terminal import Column, asked_for, emit, emit_one, pairs, say, when
from holdfast.core.notifications.notification import NotificationState, Severity

if TYPE_CHECKING:
    from holdfast.cli.client import Client

app = typer.Typer(name="notify", help="List and resend notifications; add and test channels.")
IdArgument = Annotated[str, typer.Argument(metavar="NOTIFICATION", help="Its id, as 'notify ls' shows it.")]
StateOption = Annotated[NotificationState | None, typer.Option("--state", help="In this state.")]
DeadOption = Annotated[bool, typer.Option("--dead", help="Dead letters only: the same as --state dead.")]
ChannelOption = Annotated[str | None, typer.Option("--channel", help="For this channel.")]
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
) -> None:
    """List notifications: sent, waiting and dead, the newest first."""
    query = _filter(dead, state, channel, severity, event, about) | {"limit": min(limit, 500)}
    with connected() as client:
        rows = client.pages("/notifications", most=limit, **query)
    emit(rows, _columns(clock().now()), name="id", empty="There are no such notifications.")
    if check and rows:
        raise typer.Exit(FINDINGS)


def _filter(
    dead: bool,
    state: NotificationState | None,
    channel: str | None,
    severity: Severity | None,
    event: str | None,
    about: str | None,
) -> dict[str, object]:
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
        Column("FAILED ATTEMPTS", lambda row: f"{row['attempt']}/{row['max_attempts']}"),
        Column("NEXT", lambda row: when(row["next_attempt_at"], now)),
        Column("MADE", lambda row: when(row["created_at"], now), wide=True),
        Column("EVENT", lambda row: str(row["event"]), wide=True),
        Column("ABOUT", lambda row: seen(row["name"], 60), wide=True),
        Column("ERROR", lambda row: seen(row["last_error"] or "-", 120), wide=True),
    ]


def notification(row: Row) -> None:
    now = clock().now()
    emit_one(row, text=lambda each: _full(each, now), name="id")


def _full(row: Row, now: datetime) -> str:
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


def _detail(details: Row) -> str:
    told = [
        f"{name}: {seen(str(details[name]), 160)}" for name in ("by", "error", "reason", "note") if details.get(name)
    ]
    return f"  {', '.join(told)}" if told else ""


def _advice(row: Row) -> str:
    if row["state"] == "dead" and row["channel"]:
        return f"holdfast notify test {row['channel']}   |   holdfast notify requeue {row['id']}"
    return seen(row["next"])


# ── Acting ──


@app.command("requeue")
def requeue(
    notifications: Annotated[list[str] | None, typer.Argument(metavar="[NOTIFICATION]...", help="Their ids.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters.")] = False,
    dead: DeadOption = False,
    state: StateOption = None,
    channel: ChannelOption = None,
    severity: SeverityOption = None,
    event: EventOption = None,
    about: AboutOption = None,
) -> None:
    """Send notifications again: by id, by filter, or all dead letters. Attempts are counted anew; the history stays."""
    which = _filter(dead, state, channel, severity, event, about)
    with connected() as client:
        number = _settle(client, "requeue", notifications, which, everything=everything)
        unwanted = 0 if number or not (everything or which == {"state": "dead"}) else _without_channel(client)
    _say_requeued(number, unwanted=unwanted)


def _settle(
    client: Client,
    verb: Literal["requeue", "resolve"],
    notifications: list[str] | None,
    which: dict[str, object],
    *,
    everything: bool,
    **note: str,
) -> int:
    """Requeue or resolve those that are named, or those of a filter; asked back about all of them. How many it were."""
    if bool(notifications) + (bool(which) or everything) != 1:
        raise typer.BadParameter("name notifications by their ids, or a filter (--dead, --channel, …), or --all")
    for each in notifications or ():
        client.post(f"/notifications/{each}/{verb}", note or None, headers=once(each), dry_run=chosen().dry_run)
    if notifications:
        return len(notifications)
    path, body = f"/dead-letters/{verb}", {**which, **note, "all": everything}
    number = int(client.post(path, body, dry_run=True)["number"])
    if not number or chosen().dry_run:
        return number
    if everything and not asked_for(f"This {_DOES[verb].format(_many(number))}.", word="all"):
        raise typer.Exit(FAILED)
    return int(client.post(path, body, headers=once())["number"])


_DOES: Final = {"requeue": "sends {} again", "resolve": "resolves {}: they are not sent any more"}


def _many(number: int) -> str:
    return "1 message" if number == 1 else f"{number} messages"


def _without_channel(client: Client) -> int:
    """Dead ones that no channel wanted when they were told, and none wants now."""
    return int(client.get("/notifications/summary")["by_channel"].get("", {}).get("dead", 0))


def _say_requeued(number: int, *, unwanted: int) -> None:
    if unwanted:
        has = f"{_many(unwanted)} that {'is' if unwanted == 1 else 'are'} dead cannot be sent again: no channel wants"
        say(f"{has} {'it' if unwanted == 1 else 'them'}. Add one, or widen one: holdfast notify channel add --help")
    elif chosen().dry_run:
        say(f"{_many(number)} would be sent again.")
    elif number:
        say(f"{_many(number)} will be sent again. See how it goes: holdfast notify ls")
    else:
        say("There is nothing to send again.")


@app.command("resolve")
def resolve(
    notifications: Annotated[list[str] | None, typer.Argument(metavar="[NOTIFICATION]...", help="Their ids.")] = None,
    note: Annotated[str, typer.Option("--note", help="What was done about it; kept, and shown.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="All dead letters.")] = False,
    dead: DeadOption = False,
    state: StateOption = None,
    channel: ChannelOption = None,
    severity: SeverityOption = None,
    event: EventOption = None,
    about: AboutOption = None,
) -> None:
    """Resolve notifications with a note: they are not sent any more."""
    if not note.strip():
        raise typer.BadParameter("say what was done about it: --note")
    which = _filter(dead, state, channel, severity, event, about)
    with connected() as client:
        number = _settle(client, "resolve", notifications, which, everything=everything, note=note)
    say(f"{'Would be resolved' if chosen().dry_run else 'Resolved'}: {number}.")


# ── How channels and notifications are shown ──


def seen(text: str, limit: int = 600) -> str:
    """Names and errors are other people's text: nothing in them may reach a terminal as an order."""
    shown = "".join(char if char.isprintable() else " " if char.isspace() else f"\\x{ord(char):02x}" for char in text)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def channels(rows: Sequence[Row]) -> None:
    columns = [
        Column("NAME", lambda row: str(row["name"])),
        Column("KIND", lambda row: str(row["kind"])),
        Column("STATE", lambda row: str(row["health"])),
        Column("HEARS", _hears),
        Column("FALLBACK", lambda row: row["fallback"] or "-"),
        Column("ERROR", lambda row: seen(row["breaker_error"] or "-", 120), wide=True),
    ]
    empty = "There is no channel, so people are told nothing. Add one: holdfast notify channel add --help"
    emit(rows, columns, empty=empty)


def channel(row: Row) -> None:
    now = clock().now()
    emit_one(row, text=lambda each: _text(each, now))


def _hears(row: Row) -> str:
    labels = [f"{name}={value}" for name, value in row["labels"].items()]
    return ", ".join(["/".join(row["severities"]), *(f"owner {each}" for each in row["owners"]), *labels])


def _text(row: Row, now: datetime) -> str:
    every = {name: f"every {row[name]:g} s" if row[name] else "" for name in ("digest_every_s", "heartbeat_every_s")}
    facts = [
        ("name", row["name"]),
        ("kind", row["kind"]),
        ("state", str(row["health"])),
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


SHOWN: Final[Displays] = {
    "notifications.get": notification,
    "channels.list": channels,
    "channels.get": channel,
    "channels.add": channel,
    "channels.change": channel,
    "channels.pause": lambda row: None,
    "channels.resume": lambda row: None,
    "channels.delete": lambda row: None,
}
