"""`holdfast discover` and `holdfast finds` as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from holdfast.cli.calling import clock, connected
from holdfast.cli.everywhere import Displays, Row
from holdfast.cli.terminal import Column, emit, emit_one, pairs, say, when

if TYPE_CHECKING:
    from holdfast.host.looking import HostFind, HostLook
    from holdfast.this_host import ThisHost

app = typer.Typer(name="discover", help="Look for certificates, and count those that are not managed here.")


@app.callback(invoke_without_command=True)
def summary(ctx: typer.Context) -> None:
    """Show how many certificates are served and not managed here, the most urgent of them, and all discoveries."""
    if ctx.invoked_subcommand is None:
        with connected() as client:
            found = client.get("/discovery")
        now = clock().now()
        emit_one(found, text=lambda each: _summary(each, now), name="unmanaged")


Folders = Annotated[
    list[Path] | None,
    typer.Option("--folder", metavar="FOLDER", help="A folder to look into as well; may be repeated."),
]
Etc = Annotated[Path, typer.Option("--etc", metavar="FOLDER", help="Where daemons are configured; it is only read.")]
_PART: Final = 20  # finds of one request


@app.command("host")
def host(
    folder: Folders = None,
    etc: Etc = Path("/etc"),
    name: Annotated[
        str | None, typer.Option("--name", help="The name of this host; left out: what it calls itself.")
    ] = None,
    port: Annotated[
        list[int] | None,
        typer.Option("--port", metavar="PORT", help="Of what listens, only this port; may be repeated."),
    ] = None,
    no_sockets: Annotated[bool, typer.Option("--no-sockets", help="Leave out what listens on this host.")] = False,
) -> None:
    """Look for certificates on this host: what listens, what daemons are configured with, and folders.

    Private keys are never read: of a key file, mode and owner are reported. As root, programs of all users are known.
    """
    import asyncio

    from holdfast.this_host import NoSockets, ThisHost

    here = NoSockets() if no_sockets else ThisHost(port or ())
    found = asyncio.run(_looked(here, etc.absolute(), [each.absolute() for each in folder or ()]))
    for note in found.notes:
        say(f"note: {note}")
    told = _reported(name or _own_name(), found.finds)
    emit_one(told, text=_report, name="recorded")


def _own_name() -> str:
    from holdfast.this_host import own_name

    return own_name()


async def _looked(here: ThisHost, etc: Path, folders: Sequence[Path]) -> HostLook:
    from holdfast.endpoints import probe
    from holdfast.host import looking
    from holdfast.network import SystemNet
    from holdfast.this_host import KeylessTree
    from holdfast.world import SystemRandom

    local = [f"{each.endpoint.host}/{32 if '.' in each.endpoint.host else 128}" for each in here.listeners()]
    eye = probe.make(SystemNet(), SystemRandom(), resolvers=[], networks=local, each=3, only="this host")
    root = KeylessTree(Path("/"))
    return await looking.look(here, eye.look_whole, etc=KeylessTree(etc), root=root, folders=list(map(str, folders)))


def _reported(name: str, finds: Sequence[HostFind]) -> Row:
    """Part by part; the last one says that this was all."""
    from base64 import b64encode

    rows = [
        {
            "chain": [b64encode(each).decode() for each in find.chain], "place": find.place, "served": find.served,
            "program": find.program or None, "notes": find.notes,
        }
        for find in finds
    ]  # fmt: skip
    total: dict[str, Any] = {"host": name, "recorded": 0, "new": 0, "unmanaged": 0, "unreadable": 0}
    with connected() as client:
        begun = client.post("/discovery/host", {"host": name})["at"]
        for at in range(0, len(rows), _PART):
            answer = client.post("/discovery/host", {"host": name, "finds": rows[at : at + _PART]})
            total |= {key: total[key] + answer[key] for key in ("recorded", "new", "unmanaged", "unreadable")}
        while client.post("/discovery/host", {"host": name, "whole_since": begun})["more"]:
            pass
    return total


def _report(row: Row) -> str:
    return (
        f"{row['recorded']} certificates are seen on {row['host']}; {row['new']} of them are new, and "
        f"{row['unmanaged']} of these are served and not managed here.\nSee: holdfast finds ls --unmanaged"
    )


def _summary(found: Row, now: datetime) -> str:
    number = found["unmanaged"]
    what = "1 certificate is" if number == 1 else f"{number} certificates are"
    lines = [f"{what} served and not managed here."]
    lines += [f"  {_line(each, now)}" for each in found["first"]]
    counted = ", ".join(f"{number} {word}" for word, number in sorted(found["finds"].items()))
    lines += [f"Finds: {counted or 'none'}."]
    lines += [f"  {_progress(each, now)}" for each in found["discoveries"]]
    if not found["discoveries"]:
        lines.append("Nothing is looked for. Begin: holdfast discover network 10.1.2.0/24 --every 1d")
    return "\n".join(lines)


def _line(row: Row, now: datetime) -> str:
    return f"{row['id']}  {row['name']}  expires {when(row['not_after'], now)}  at {row['where'] or '-'}"


def _progress(row: Row, now: datetime) -> str:
    far = f"{row['done']} of {row['total']}" if row["total"] else f"{row['done']}"
    where = row["settings"].get("where") or [row["settings"].get("issuer") or row["settings"].get("log") or ""]
    found = f"{row['counts'].get('certificates', 0)} seen, {row['counts'].get('new', 0)} new"
    since = f"begun {when(row['begun_at'], now)}"
    return f"{row['id']}  {row['source']}  {' '.join(where[:3])}  {row['state']}  {far}  {found}  {since}"


def listed(rows: Sequence[Row]) -> None:
    now = clock().now()
    columns = [
        Column("ID", lambda row: str(row["id"])),
        Column("NAME", lambda row: str(row["name"])),
        Column("EXPIRES", lambda row: when(row["not_after"], now)),
        Column("STATE", lambda row: str(row["state"])),
        Column("MANAGER", lambda row: str(row["manager"])),
        Column("WHERE", lambda row: str(row["where"] or "-")),
        Column("ISSUER", lambda row: str(row["issuer"]), wide=True),
        Column("SHA-256", lambda row: str(row["fingerprint"][:16] or "-"), wide=True),
        Column("NEXT", lambda row: str(row["adopt"] or "-"), wide=True),
    ]
    emit(rows, columns, name="id", empty="There are no such finds. Look for some: holdfast discover --help")


def one(row: Row) -> None:
    now = clock().now()
    emit_one(row, text=lambda each: _shown(each, now), name="id")


def _shown(row: Row, now: datetime) -> str:
    facts = [
        ("find", f"{row['id']}   {row['name']} {row['says']}"),
        ("sha-256", row["fingerprint"] or "not known: only its precertificate was seen"),
        ("serial", row["serial"]),
        ("issuer", row["issuer"]),
        ("names", ", ".join(row["names"][:20])),
        ("expires", f"{when(row['not_after'], now)} ({row['days_left']} d left)"),
        ("chain", f"{len(row['chain'])} shown{': ' + row['chain_problem'] if row['chain_problem'] else ''}"),
        ("manager", row["manager"]),
        ("certificate", row["certificate"] or ""),
        ("state", f"{row['state']}{_decision(row)}"),
        ("adopt", row["adopt"] or row["cannot_adopt"]),
        ("ignore", row["ignore"]),
    ]
    return "\n".join([pairs([fact for fact in facts if fact[1]]), *(_place(each, now) for each in row["seen"])])


def _decision(row: Row) -> str:
    if not row["decided_by"]:
        return ""
    return f" by {row['decided_by']}{': ' + row['why'] if row['why'] else ''}"


def _place(row: Row, now: datetime) -> str:
    state = f"gone {when(row['gone_at'], now)}" if row["gone_at"] else f"seen {when(row['last_seen_at'], now)}"
    more = "  ".join(each for each in (row["program"], row["notes"]) if each)
    return f"  {row['source']}  {row['place']}  {state}  {more}".rstrip()


def discoveries(rows: Sequence[Row]) -> None:
    now = clock().now()
    columns = [
        Column("ID", lambda row: str(row["id"])),
        Column("SOURCE", lambda row: str(row["source"])),
        Column("STATE", lambda row: str(row["state"])),
        Column("DONE", lambda row: f"{row['done']}/{row['total'] or '?'}"),
        Column("SEEN", lambda row: str(row["counts"].get("certificates", 0))),
        Column("NEW", lambda row: str(row["counts"].get("new", 0))),
        Column("BEGUN", lambda row: when(row["begun_at"], now)),
        Column("PROBLEM", lambda row: str(row["problem"] or "-"), wide=True),
    ]
    emit(rows, columns, name="id", empty="Nothing is looked for. Begin: holdfast discover network 10.1.2.0/24")


def discovery(row: Row) -> None:
    now = clock().now()
    emit_one(row, text=lambda each: _discovery(each, now), name="id")


def _discovery(row: Row, now: datetime) -> str:
    counts = ", ".join(f"{number} {word}" for word, number in row["counts"].items())
    facts = [
        ("discovery", f"{row['id']}   {row['source']}"),
        ("looks at", "  ".join(f"{name}={value}" for name, value in row["settings"].items())),
        ("state", row["state"]),
        ("done", f"{row['done']} of {row['total']}" if row["total"] else str(row["done"])),
        ("met", counts),
        ("problem", row["problem"]),
        ("begun", f"{when(row['begun_at'], now)} by {row['created_by']}"),
        ("finished", when(row["finished_at"], now) if row["finished_at"] else ""),
        ("next", when(row["next_at"], now) if row["next_at"] else ""),
    ]
    return pairs([fact for fact in facts if fact[1]])


SHOWN: Final[Displays] = {
    "discovery.list": discoveries,
    "discovery.get": discovery,
    "discovery.network": discovery,
    "discovery.stop": discovery,
    "discovery.again": discovery,
    "finds.list": listed,
    "finds.get": one,
    "finds.adopt": one,
    "finds.ignore": one,
    "finds.reconsider": one,
}
