"""`holdfast doctor`: looks at this machine and asks the server; one fix for each finding."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from holdfast.cli.everywhere import FINDINGS, Row, chosen
from holdfast.cli.installation.config import settings
from holdfast.cli.terminal import Column, emit, instant, say
from holdfast.errors import UserError

if TYPE_CHECKING:
    from holdfast.cli.client import Client
    from holdfast.config import Settings
    from holdfast.core.finding import Finding
    from holdfast.ports import Clock
    from holdfast.store.database import Database

app = typer.Typer()
Found = list[tuple[str, "Finding"]]
KNOWN_NAME: Final = "acme-v02.api.letsencrypt.org"  # asked for in DNS only, to see whether DNS works


@app.command("doctor")
def doctor(
    name: Annotated[str, typer.Option("--name", help="A name that DNS should know, to test DNS with.")] = KNOWN_NAME,
) -> None:
    """Find problems of store, clock, disk, keys, DNS, issuers, CAs and channels. Exit code 10: there are some."""
    import asyncio

    from holdfast.cli import client as calling
    from holdfast.world import SystemClock

    here = settings()
    there = chosen().server or calling.away(here)
    found: Found = [] if there else asyncio.run(_here(here, name))
    try:
        with calling.elsewhere(there) if there else calling.here(here) as client:
            found += [("server", each) for each in of_server(client, SystemClock())]
            if client.local:
                found += [("server", each) for each in _own_cas(client, here)]
    except UserError as why:
        from holdfast.core.finding import bad

        if why.status in (401, 403):
            raise
        found.append(("server", bad("server", str(why), why.hint or "Start it: holdfast serve")))
    say(f"The server at {there} was asked, and nothing here was looked at." if there else "")
    if show(found):
        raise typer.Exit(FINDINGS)
    say("Nothing is wrong.")


# ── This machine ──


async def _here(chosen: Settings, name: str) -> Found:
    from holdfast.operations.installation import diagnosis
    from holdfast.world import LocalFiles, SystemClock, room_on_disk

    files, folder = LocalFiles(), chosen.store.data_dir
    file = chosen.store.sqlite_file
    found = [
        diagnosis.disk(folder, room_on_disk),
        diagnosis.sqlite(sqlite3.sqlite_version_info[:3], used=file is not None),
        *([] if file is None else [diagnosis.sqlite_pages(file, SystemClock())]),
        diagnosis.private_file(files, "data folder", folder, needed=False),
        diagnosis.listening(chosen.server.listen, in_the_clear=chosen.server.in_the_clear),
        *diagnosis.publishing(chosen.acme.base_url, chosen.acme.publish_url, here_only=chosen.acme.published_here_only),
        *diagnosis.plugin_packages(),
    ]
    if chosen.keys.passphrase is None:
        found.append(diagnosis.private_file(files, "key file", chosen.key_file, needed=_begun(chosen)))
    async with _opened(chosen) as db:
        if db is not None:
            found += [await diagnosis.store(db), await diagnosis.clock(db, SystemClock())]
            found += await diagnosis.postgres(db, writers=chosen.store.connections, lease_ttl=chosen.engine.lease_ttl)
    found += [await _dns(chosen, name), *await _tls_alpn(chosen)]
    return [("this machine", each) for each in found]


def _begun(chosen: Settings) -> bool:
    """Whether there is a store whose secrets need a key."""
    from holdfast.world import LocalFiles

    file = chosen.store.sqlite_file
    try:
        return file is None or bool(LocalFiles().mode(file))
    except OSError:
        return False


@asynccontextmanager
async def _opened(chosen: Settings) -> AsyncIterator[Database | None]:
    """On PostgreSQL, beside the server. A SQLite file is the server's alone: it is asked about it instead."""
    from holdfast.from_settings import open_store
    from holdfast.ports import no_points
    from holdfast.world import SystemClock

    if chosen.store.sqlite_file is not None:
        yield None
        return
    db = open_store(chosen, SystemClock(), no_points)
    try:
        yield db
    finally:
        await db.close()


async def _dns(chosen: Settings, name: str) -> Finding:
    from holdfast.core.finding import bad, ok
    from holdfast.network import SystemNet
    from holdfast.validators.resolver import DnsProblem, Resolver
    from holdfast.world import SystemRandom

    servers = resolvers(chosen)
    try:
        await Resolver(SystemNet(), SystemRandom(), servers, try_for=1.0).addresses(name)
    except DnsProblem as why:
        if why.kind == "nxdomain":
            return ok("DNS", f"{', '.join(servers)} answers")
        return bad("DNS", str(why), "Let this machine ask its name servers, or name others: acme.resolvers")
    return ok("DNS", f"{', '.join(servers)} knows {name}")


async def _tls_alpn(chosen: Settings) -> list[Finding]:
    from holdfast.network import SystemNet
    from holdfast.operations.installation import diagnosis

    address = chosen.keeping.tls_alpn_address
    return [] if address is None else [await diagnosis.tls_alpn(SystemNet(), chosen.keeping.tls_alpn_listen, *address)]


# ── The server ──


def of_server(client: Client, clock: Clock) -> list[Finding]:
    from holdfast import __version__
    from holdfast.core.finding import ok
    from holdfast.operations.installation import diagnosis

    began = clock.monotonic()
    cluster = client.maybe("/cluster")
    answered, took = clock.now(), clock.monotonic() - began  # before the probes, which take their time
    me = client.get("/self")
    rows = client.pages("/issuers", limit=500)
    probed = {row["name"]: answer for row in rows if (answer := _probe(client, row, me)) is not None}
    notifications = client.maybe("/notifications/summary")
    there = [] if cluster is None else [diagnosis.apart("the server's", _apart(answered, cluster["at"]) - took)]
    return [
        ok("server", f"it answers, from its store, to {me['actor']} ({me['role']})"),
        *there,
        *diagnosis.replicas(cluster, __version__),
        *diagnosis.issuers(rows, probed),
        *diagnosis.own_cas(cluster),
        *diagnosis.solver_gaps(client.maybe("/solvers/gaps")),
        *diagnosis.channels(client.maybe("/channels"), None if notifications is None else int(notifications["dead"])),
    ]


def _own_cas(client: Client, chosen: Settings) -> list[Finding]:
    """Whether our own CAs can sign, and whether their CRLs can be fetched from this machine."""
    import asyncio

    from holdfast.operations.installation.diagnosis import signing

    names = [str(row["name"]) for row in (client.maybe("/cluster") or {}).get("own_cas", ())]
    problems = {name: (client.maybe(f"/cas/{name}") or {}).get("problem") for name in names}
    troubles = [each for name, problem in problems.items() for each in signing(name, problem)]
    return [*troubles, *asyncio.run(_own_lists(names, chosen))]


async def _own_lists(names: list[str], chosen: Settings) -> list[Finding]:
    """As others fetch them: over plain HTTP, from where the certificates say."""
    from holdfast.operations.installation.diagnosis import own_lists
    from holdfast.world import HttpTransport, SystemClock

    port = chosen.server.listen.rpartition(":")[2]
    place = chosen.acme.publish_url or ("" if port == "0" else f"http://127.0.0.1:{port}")
    if not place or not names:
        return []
    transport = HttpTransport()
    try:
        return await own_lists(transport, place, names, SystemClock().now(), chosen=bool(chosen.acme.publish_url))
    finally:
        await transport.close()


def _apart(here: datetime, there: str) -> float:
    return abs((here - instant(there)).total_seconds())


def _probe(client: Client, row: Row, me: Row) -> Any | None:
    if row["state"] != "active" or me["role"] != "admin":
        return None
    return client.post(f"/issuers/{row['name']}/test")


# ── Findings ──


_WORDS: Final = {"ok": "ok", "note": "note", "bad": "WRONG"}


def show(rows: Sequence[tuple[str, Finding]]) -> bool:
    """Write them, by what they are about; whether any of them is bad."""
    plain = [
        {"about": about, "check": each.check, "level": each.level.value, "saw": each.saw, "fix": each.fix}
        for about, each in rows
    ]
    columns = [
        Column("ABOUT", lambda row: str(row["about"])),
        Column("CHECK", lambda row: str(row["check"])),
        Column("", lambda row: _WORDS[row["level"]]),
        Column("SAW", lambda row: str(row["saw"]) + (f"\n    fix: {row['fix']}" if row["fix"] else "")),
    ]
    emit(plain, columns, name="check")
    return any(row["level"] == "bad" for row in plain)


# ── Name servers ──


RESOLV_CONF: Final = Path("/etc/resolv.conf")


def resolvers(chosen: Settings) -> tuple[str, ...]:
    from holdfast.world import LocalFiles

    lines = [line.split() for line in (LocalFiles().read(RESOLV_CONF) or b"").decode(errors="replace").splitlines()]
    found = [words[1] for words in lines if len(words) > 1 and words[0] == "nameserver" and "%" not in words[1]]
    return chosen.acme.resolvers or tuple(found) or ("127.0.0.1",)
