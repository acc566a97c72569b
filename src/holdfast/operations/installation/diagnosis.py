"""The checks of `holdfast doctor`: store, clock, disk, keys, issuers and channels, and the CRLs of our CAs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from cryptography import x509

from holdfast import plugins
from holdfast.core import postgres_server
from holdfast.core.certificate import ANY_CHALLENGE
from holdfast.core.finding import Finding, bad, note, ok
from holdfast.core.kind import Trait
from holdfast.core.own_ca import ca
from holdfast.errors import StoreError, StoreRefused, StoreUnavailable, TryLater
from holdfast.operations import kinds
from holdfast.operations.installation import observe, upgrading
from holdfast.plugins import PluginsClash
from holdfast.ports import Clock, Files, Net, NetProblem, Request, Tls, Transport
from holdfast.store import server_facts
from holdfast.store.database import Database, Store
from holdfast.store.sqlite import FROM_BACKUP, damaged_page

PAGES_WITHIN: Final = 20.0  # seconds
SKEW: Final = timedelta(seconds=5)
ROOM: Final = 1024**3  # bytes; below it a busy store is near its end
SHARE: Final = 0.05  # of the disk
SOUND_SQLITE: Final = (3, 51, 3)  # before it, a WAL that is reset while another connection writes may be lost
PRIVATE: Final = 0o077
ANY_HOST: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  (where it is reached, not where we listen)
_NOBODY: Final = Tls(server_name="doctor.invalid", alpn=("acme-tls/1",))
IN_THE_CLEAR: Final = (
    "Tokens of the API cross the network unencrypted. Put a proxy with TLS in front: on this machine, with "
    "server.listen at 127.0.0.1, or on another that server.trusted_proxies names."
)
DiskSpace = Callable[[Path], tuple[int, int]]  # free bytes and all of them


async def store(db: Store) -> Finding:
    problem = await observe.store_problem(db)
    if problem:
        return bad("store", problem, "Start the database, check store.url, then: holdfast serve (it migrates)")
    return ok("store", "it answers, and its schema is this version's")


async def postgres(db: Database, *, writers: int, lease_ttl: timedelta) -> list[Finding]:
    """How the server is set up; nothing while it cannot be asked, which the finding about the store says."""
    try:
        async with asyncio.timeout(observe.PROBE_DEADLINE):
            server = await server_facts.of(db)
            alive = await db.read(lambda tx: len(upgrading.as_it_is(tx, lease_ttl).replicas))
    except (StoreError, TimeoutError):
        return []
    return [] if server is None else postgres_server.findings(server, replicas=alive, writers=writers)


def sqlite_pages(path: Path, own: Clock) -> Finding:
    """Reads the whole file, beside the server that uses it, for a while at most: pages that are damaged show nowhere
    until a request asks for what lies on them."""
    end = own.monotonic() + PAGES_WITHIN
    try:
        problem = damaged_page(path, own, give_up=lambda: own.monotonic() > end)
    except StoreRefused:
        return ok("database file", "there is none yet")
    except StoreUnavailable:
        saw = f"not all of {path} could be read in {PAGES_WITHIN:g} s"
        return note("database file", saw, "Look again when the machine has less to do.")
    if problem:
        return bad("database file", f"{path} is damaged: {problem}", f"Stop the server. {FROM_BACKUP}.")
    return ok("database file", "every page can be read")


async def clock(db: Store, own: Clock) -> Finding:
    """Against the database's: leases live by that one, certificates by ours."""
    began = own.monotonic()
    try:
        async with asyncio.timeout(observe.PROBE_DEADLINE):
            theirs = await db.read(lambda tx: tx.now())
    except (StoreError, TimeoutError) as error:
        return bad("clock", f"the database's clock cannot be read: {error}", "See the finding about the store first.")
    return apart("the database's", abs((own.now() - theirs).total_seconds()) - (own.monotonic() - began))


def apart(whose: str, off: float) -> Finding:
    """`off`: seconds between two clocks, at least."""
    if off > SKEW.total_seconds():
        return bad("clock", f"{off:.0f} s away from {whose}", "Keep time on both machines: chrony, systemd-timesyncd")
    return ok("clock", f"within {SKEW.total_seconds():g} s of {whose}")


PUBLISHED_HERE: Final = (
    "Certificates name a CRL that only this machine can fetch: others never see what is revoked. Set acme.publish_url "
    "to an address that they reach, such as http://ca.example.org, and issue again what was issued so far."
)


def publishing(base_url: str, publish_url: str, *, here_only: bool) -> list[Finding]:
    """What certificates say of their CRLs; nothing where all is on this machine anyway."""
    if here_only:
        found = f"acme.base_url is {base_url}, and certificates name {publish_url or 'http://127.0.0.1'} for their CRLs"
        return [bad("acme.publish_url", found, PUBLISHED_HERE)]
    return [ok("acme.publish_url", f"certificates name {publish_url} for their CRLs")] if publish_url else []


def listening(listen: str, *, in_the_clear: bool) -> Finding:
    if in_the_clear:
        return note("server.listen", f"{listen} is reached by others over plain HTTP", IN_THE_CLEAR)
    return ok("server.listen", f"the API answers on {listen}: this machine only, or behind a named proxy")


def disk(folder: Path, room: DiskSpace) -> Finding:
    try:
        free, total = room(folder)
    except FileNotFoundError:  # it is made at the first start, in the nearest folder above that exists
        return disk(folder.absolute().parent, room)
    except OSError as error:
        return bad("disk", f"{folder} cannot be looked at: {error.strerror}", "Check store.data_dir and its rights.")
    saw = f"{free / 1024**3:.1f} GiB free at {folder}"
    if free < ROOM and free < total * SHARE:
        return bad("disk", saw, "Make room, or move store.data_dir: a store that cannot write stops renewing.")
    return ok("disk", saw)


def private_file(files: Files, check: str, path: Path, *, needed: bool) -> Finding:
    """A file that only our user may read; `needed`: without it nothing works."""
    try:
        mode = files.mode(path)
    except FileNotFoundError:
        if needed:
            return bad(
                check, f"there is no {path}", "Restore it from where its copy is kept; without it secrets are lost."
            )
        return ok(check, f"there is no {path}, and none is needed")
    except OSError as error:
        return bad(
            check, f"{path} cannot be looked at: {error.strerror}", f"Run doctor as the user of Holdfast: {path}"
        )
    if mode & PRIVATE:
        fix = f"chmod {'700' if mode & 0o100 else '600'} {path}   and, if others may have read it: holdfast key rotate"
        return bad(check, f"{path} is open to others (mode {mode:04o})", fix)
    return ok(check, f"{path} is for its owner alone (mode {mode:04o})")


def sqlite(version: tuple[int, int, int], *, used: bool) -> Finding:
    """Ours has one writer, which is also the only one to checkpoint: the old fault does not meet it."""
    shown = ".".join(map(str, version))
    if not used:
        return ok("sqlite", f"not used: the store is PostgreSQL (library {shown})")
    if version < SOUND_SQLITE:
        sound = ".".join(map(str, SOUND_SQLITE))
        fix = f"Nothing has to be done; a Python built with SQLite {sound} or later, or PostgreSQL, is safer."
        return note("sqlite", f"library {shown} is older than {sound}: let no other program open the file", fix)
    return ok("sqlite", f"library {shown}")


async def tls_alpn(net: Net, listen: str, host: str, port: int) -> Finding:
    """Whether our listener is there: a name without a challenge must be refused in the handshake."""
    check, near = "tls-alpn", ANY_HOST.get(host, host)
    fix = "Start the server: holdfast serve. If it runs, another one's settings are in force: keeping.tls_alpn_listen"
    try:
        line = await net.connect(near, port, tls=_NOBODY, deadline_for=observe.PROBE_DEADLINE)
    except NetProblem as why:
        if why.kind == "tls" and "UNRECOGNIZED_NAME" in str(why).upper():
            return ok(check, f"{listen} refuses names that are not being proved, as it should")
        return bad(check, str(why), fix)
    line.close()
    return bad(check, f"something else answers at {listen}", fix)


# ── What the server itself says ──


def issuers(rows: Sequence[Mapping[str, Any]], probed: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """Each CA as the server reached it just now."""
    if not rows:
        return [note("CAs", "there is none", "Add one: holdfast issuer add letsencrypt NAME")]
    return [_issuer(row, probed.get(row["name"])) for row in rows]


def _issuer(row: Mapping[str, object], probe: Mapping[str, object] | None) -> Finding:
    check = f"CA {row['name']}"
    if row["state"] != "active":
        return note(check, "it is paused", f"To use it again: holdfast issuer resume {row['name']}")
    if probe is None:
        return note(
            check, "you may not test it", "Ask with a token that may change issuers: holdfast token create --help"
        )
    if not probe["ok"]:
        return bad(check, str(probe["detail"]), _way_back(row))
    return ok(check, str(probe["detail"]))


def plugin_packages() -> list[Finding]:
    """Whether the kinds of issuers, channels and solvers that are installed here can be used."""
    try:
        broken = plugins.broken()
    except PluginsClash as why:
        return [bad("plugins", str(why), why.hint)]
    fix = "Update or uninstall that package; until then its kind is not there"
    found = sum(len(plugins.kinds(group)) for group in plugins.GROUPS)
    return [bad("plugins", str(each), fix) for each in broken] or [ok("plugins", f"all {found} kinds can be used")]


def own_cas(cluster: Mapping[str, Any] | None) -> list[Finding]:
    """Whether the issuers of our own CAs live long enough for what they sign; a server of before does not tell."""
    return [] if cluster is None else [_own_ca(row, cluster["at"]) for row in cluster.get("own_cas", ())]


def _own_ca(row: Mapping[str, Any], at: str) -> Finding:
    left = datetime.fromisoformat(row["not_after"]) - datetime.fromisoformat(at)
    check, saw = f"own CA {row['name']}", f"its signing certificate expires on {row['not_after'][:10]}"
    if left.total_seconds() >= row["needs_s"]:
        return ok(check, saw)
    fix = f"Give it a later end: {ca.expiry_remedy(row['name'], root_here=row['root_here'])}"
    return bad(check, f"{saw}, and what it signs is cut to that" if left > timedelta(0) else f"{saw}: it is over", fix)


def _way_back(row: Mapping[str, Any]) -> str:
    if kinds.issuer_has(str(row.get("kind")), Trait.OURS):
        own = row["settings"].get("ca") or row["name"]
        return f"If it is closed: holdfast ca open {own}. Otherwise see why it cannot sign: holdfast ca show {own}"
    return f"Check its address, our way to it and its credentials; then: holdfast issuer test {row['name']}"


def channels(rows: Sequence[Mapping[str, object]] | None, dead: int | None) -> list[Finding]:
    """Where alerts go. They are not tested here: a test sends a message."""
    if rows is None:
        return []
    if not rows:
        fix = "Add one, then test it: holdfast notify --help"
        return [note("channels", "there is none: no person is told of a failure", fix)]
    found = [_channel(row) for row in rows]
    if dead:
        saw = f"{dead} message{' was' if dead == 1 else 's were'} given up"
        found.append(bad("dead letters", saw, "See and requeue them: holdfast notify ls --dead"))
    return found


def _channel(row: Mapping[str, object]) -> Finding:
    check = f"channel {row['name']}"
    if row.get("state", "active") != "active":
        return note(check, "it is paused", f"To use it again: holdfast notify channel resume {row['name']}")
    if row.get("breaker_open"):
        saw = f"it does not answer: {row.get('breaker_error') or 'no reason was kept'}"
        return bad(check, saw, f"Put it right, then: holdfast notify test {row['name']}")
    if row.get("health") == "failing":
        saw = f"the last message was not delivered: {row.get('breaker_error')}"
        return bad(check, saw, f"Put it right, then: holdfast notify test {row['name']}")
    if row.get("health") == "untested":
        return note(check, "nothing was delivered through it yet", f"Test it: holdfast notify test {row['name']}")
    return ok(check, "it delivered its last message")


def by_challenge(challenge: str) -> str:
    return "" if challenge == ANY_CHALLENGE else f" by {challenge}"


def solver_gaps(rows: Sequence[Mapping[str, Any]] | None) -> list[Finding]:
    """Certificates that are well, and whose renewal must fail."""
    return [
        bad(
            f"renewal of {row['certificate']}",
            f"no solver can prove {', '.join(row['names'])}{by_challenge(row['challenge'])}, as {row['issuer']} asks",
            "Add one for it: holdfast solver add --help",
        )
        for row in rows or ()
    ]


def replicas(found: Mapping[str, Any] | None, version: str) -> list[Finding]:
    if found is None:
        return []
    if found["replicas"] and all(row.get("draining") for row in found["replicas"]):
        name = found["replicas"][0].get("name", "NAME")
        return [bad("replicas", "none takes work: all were drained", f"Let one go on: holdfast cluster resume {name}")]
    others = sorted({str(row["version"]) for row in found["replicas"]} - {version})
    if others:
        fix = "Upgrade the older of them; during an upgrade this passes by itself."
        return [note("versions", f"this program is {version}, replicas are {', '.join(others)}", fix)]
    failing = [row for row in found.get("loops", ()) if row.get("error")]
    if failing:
        first = failing[0]
        return [
            bad("loops", f"{first['name']}: {first['error']}", "Look into the log of that replica for the whole error.")
        ]
    return [ok("replicas", f"{len(found['replicas'])} seen, all of version {version}")]


WITHIN: Final = 5.0  # seconds
LARGEST: Final = 64 * 1024 * 1024
MISSING: Final = "there is none"
AHEAD: Final = timedelta(seconds=30)  # a client that checks a certificate has a clock of its own
MOST: Final = 128  # shards


async def own_lists(
    transport: Transport, place: str, cas: Sequence[str], now: datetime, *, chosen: bool
) -> list[Finding]:
    """One finding for each CA; `place` is acme.publish_url, `chosen` says that the setting was given."""
    return [await _lists_of(transport, place, ca, now, chosen=chosen) for ca in cas]


async def _lists_of(transport: Transport, place: str, ca: str, now: datetime, *, chosen: bool) -> Finding:
    check, base = f"CRLs of CA {ca}", f"{place}/pki/{ca}"
    try:
        for shard in range(MOST):  # how many there are, only the first that is missing tells
            seen = await _look(transport, f"{base}/{shard}.crl", now)
            if seen == MISSING:
                break
            if seen is not None:
                return _bad(check, seen, ca)
        if shard == 0:
            return _none(check, f"{base}/0.crl", chosen=chosen)
        seen = await _look(transport, f"{base}/root.crl", now)
    except TryLater as why:
        return bad(check, f"{base}/ does not answer: {why}", _where(chosen=chosen))
    return _bad(check, seen, ca) if seen not in (None, MISSING) else ok(check, f"reachable and current at {base}/")


def _bad(check: str, saw: str | None, ca: str) -> Finding:
    return bad(check, saw or "", f"Look at this machine's clock, and why the CA does not sign: holdfast ca show {ca}")


async def _look(transport: Transport, url: str, now: datetime) -> str | None:
    """The problem with the CRL at this address; None if there is none."""
    answer = await transport.request(Request(method="GET", url=url, deadline_for=WITHIN, max_body=LARGEST))
    if answer.status == 404:
        return MISSING
    problem = _problem(answer.status, answer.body, now)
    return None if problem is None else f"{url}: {problem}"


def signing(ca: str, problem: str | None) -> list[Finding]:
    """Nothing, if this replica can sign for the CA, and could when it was last asked to."""
    return [bad(f"own CA {ca}", problem, f"See all about it: holdfast ca show {ca}")] if problem else []


def _none(check: str, url: str, *, chosen: bool) -> Finding:
    if chosen:
        return bad(check, f"there is none at {url}", _where(chosen=True))
    return note(check, f"there is none at {url} yet", "It is signed a moment after the CA is made: look again.")


def _where(*, chosen: bool) -> str:
    if chosen:
        return "Let a proxy lead acme.publish_url to server.listen, which serves /pki/, or let server.listen be there"
    return "Start the server: holdfast serve. For others than this machine, set acme.publish_url"


def _problem(status: int, body: bytes, now: datetime) -> str | None:
    if status != 200:
        return f"it answers with status {status}"
    try:
        found = x509.load_der_x509_crl(body)
    except ValueError:
        return "the answer is no CRL"
    if found.last_update_utc > now + AHEAD:
        return f"it begins only at {found.last_update_utc:%F %T}Z"
    if found.next_update_utc is not None and found.next_update_utc <= now:
        return f"it ended at {found.next_update_utc:%F %T}Z"
    return None
