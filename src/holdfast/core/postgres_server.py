"""What a PostgreSQL server has to be for a CA, and what it had better be: pure, over what it says of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.core.finding import Finding, bad, note, ok

LEAST_VERSION: Final = 14
LAG: Final = 16 * 1024 * 1024  # bytes of WAL: what a standby may be behind before it is told
READERS: Final = 3  # connections of a replica besides those that write
SETTINGS: Final = (
    "fsync", "full_page_writes", "synchronous_commit", "synchronous_standby_names", "archive_mode", "max_connections",
    "superuser_reserved_connections", "idle_in_transaction_session_timeout", "server_version_num",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Standby:
    name: str
    state: str  # of its replication: streaming, catchup, …
    sync: str  # async, potential, sync, quorum
    behind: int | None  # bytes; None: this user may not see it


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """As it answers now."""

    settings: Mapping[str, str]
    standbys: Sequence[Standby]
    timeline: int
    through_pooler: bool


def findings(server: Server, *, replicas: int, writers: int) -> list[Finding]:
    """`replicas` that are alive, each with so many connections that write."""
    return [
        _version(server.settings),
        *_durable(server.settings),
        _standbys(server),
        _archive(server.settings),
        _connections(server.settings, replicas, writers),
        ok("timeline", f"{server.timeline}; it grows with each promotion, and work is then compared with the CAs"),
        _idle(server.settings),
        _pooler(server),
    ]


def _version(settings: Mapping[str, str]) -> Finding:
    number = int(settings.get("server_version_num", 0)) // 10000
    if number < LEAST_VERSION:
        return bad("PostgreSQL", f"version {number}", f"Upgrade it: {LEAST_VERSION} or later is needed.")
    return ok("PostgreSQL", f"version {number}")


def _durable(settings: Mapping[str, str]) -> list[Finding]:
    """A certificate that was handed out must be known after a power cut: else it can never be revoked."""
    lost = "a power cut may lose or damage what was committed: certificates that nobody can revoke"
    off = [name for name in ("fsync", "full_page_writes") if settings.get(name) == "off"]
    if off:
        return [bad("durability", f"{' and '.join(off)} off: {lost}", f"Set {off[0]} = on, and restart PostgreSQL.")]
    if settings.get("synchronous_commit") == "off":
        fix = "Set synchronous_commit = on for this database."
        return [bad("durability", f"synchronous_commit is off: {lost}", fix)]
    return [ok("durability", "a commit is on the disk before it is acknowledged")]


def _standbys(server: Server) -> Finding:
    check, alive = "standbys", [each for each in server.standbys if each.state == "streaming"]
    if not alive:
        return note(check, "none follows this server", "Run one, or keep backups: this server is the only copy.")
    behind = [each for each in alive if each.behind is not None and each.behind > LAG]
    if behind:
        saw = f"{behind[0].name} is {(behind[0].behind or 0) / 1024**2:.0f} MiB behind"
        return bad(check, saw, "Look at its disk and its network: a failover now would lose that.")
    if not any(each.sync in ("sync", "quorum") for each in alive):
        saw = f"{len(alive)} follow asynchronously: a failover may lose the last commits"
        return note(check, saw, "Synchronous replication (synchronous_standby_names) loses none.")
    if server.settings.get("synchronous_commit") == "local":
        fix = "Set synchronous_commit = on: commits do not wait for the standby now."
        return note(check, "there is a synchronous one, and synchronous_commit is local", fix)
    return ok(check, f"{len(alive)} follow, and commits wait for one of them")


def _archive(settings: Mapping[str, str]) -> Finding:
    if settings.get("archive_mode", "off") == "off":
        fix = "Archive it (pgBackRest, Barman), or know that a restore loses what came after the last backup."
        return note("WAL archive", "the WAL is not archived", fix)
    return ok("WAL archive", "the WAL is archived")


def _connections(settings: Mapping[str, str], replicas: int, writers: int) -> Finding:
    room = int(settings.get("max_connections", 0)) - int(settings.get("superuser_reserved_connections", 0))
    needed = max(replicas, 1) * (writers + READERS)
    saw = f"{max(replicas, 1)} replicas use {needed} of {room} (max_connections)"
    if needed > room:
        return bad("connections", saw, "Raise max_connections, lower store.connections, or run fewer replicas.")
    if 2 * needed > room:
        return note("connections", saw, "An upgrade doubles it for a moment: raise max_connections.")
    return ok("connections", saw)


def _idle(settings: Mapping[str, str]) -> Finding:
    own = "Holdfast sets its own for each session (store.deadline)"
    value = settings.get("idle_in_transaction_session_timeout", "0")
    return ok("idle transactions", f"the server ends them after {value} ms (0: never); {own}")


def _pooler(server: Server) -> Finding:
    if server.through_pooler:
        fix = 'By session it needs no setting; by transaction: store.pooler = "transaction" and store.migrate_url.'
        return note("pooler", "a pooler stands between", fix)
    return ok("pooler", "none stands between")
