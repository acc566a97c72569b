"""People, the sessions of their browsers, what they log in with, and what may be used once."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from holdfast.core.people import LoginSession, Person, Ticket, TicketKind
from holdfast.store.rows import LABELS, Table, assignments
from holdfast.store.tx import Tx

PEOPLE: Final = Table(Person, "people", codecs={"labels": LABELS})
SESSIONS: Final = Table(LoginSession, "sessions")
TICKETS: Final = Table(Ticket, "tickets")
PAGE: Final = 500

# ── People ──


def insert(tx: Tx, person: Person) -> bool:
    """False if somebody has this name, or is this subject of the provider, already."""
    return tx.run(f"{PEOPLE.insert} ON CONFLICT DO NOTHING", **PEOPLE.values(person)) == 1


def get(tx: Tx, person: str) -> Person | None:
    row = tx.row(f"SELECT {PEOPLE.columns} FROM people WHERE id = :id", id=person)
    return None if row is None else PEOPLE.read(row)


def by_name(tx: Tx, name: str) -> Person | None:
    row = tx.row(f"SELECT {PEOPLE.columns} FROM people WHERE name = :name", name=name)
    return None if row is None else PEOPLE.read(row)


def by_subject(tx: Tx, issuer: str, subject: str) -> Person | None:
    row = tx.row(
        f"SELECT {PEOPLE.columns} FROM people WHERE issuer = :issuer AND subject = :subject",
        issuer=issuer,
        subject=subject,
    )
    return None if row is None else PEOPLE.read(row)


def page(tx: Tx, *, after: str = "", limit: int = PAGE) -> list[Person]:
    rows = tx.rows(
        f"SELECT {PEOPLE.columns} FROM people WHERE name > :after ORDER BY name LIMIT :limit", after=after, limit=limit
    )
    return [PEOPLE.read(row) for row in rows]


def change(tx: Tx, person: str, changed: Mapping[str, object], *, version: int | None = None) -> bool:
    """False if the row is at another version than the one that is expected."""
    columns = PEOPLE.changes(changed)
    expected = "" if version is None else "AND version = :expected"
    more = {} if version is None else {"expected": version}
    return (
        tx.run(
            f"UPDATE people SET {assignments(columns)}, version = version + 1 WHERE id = :id {expected}",
            id=person,
            **columns,
            **more,
        )
        == 1
    )


def remove(tx: Tx, person: str) -> bool:
    return tx.run("DELETE FROM people WHERE id = :id", id=person) == 1


def note_login(tx: Tx, person: str) -> None:
    tx.run("UPDATE people SET last_login_at = now_us() WHERE id = :id", id=person)


# ── Sessions ──


def insert_session(tx: Tx, session: LoginSession) -> None:
    tx.run(SESSIONS.insert, **SESSIONS.values(session))


def session_by_hash(tx: Tx, digest: str) -> LoginSession | None:
    row = tx.row(f"SELECT {SESSIONS.columns} FROM sessions WHERE hash = :hash", hash=digest)
    return None if row is None else SESSIONS.read(row)


def get_session(tx: Tx, session: str) -> LoginSession | None:
    row = tx.row(f"SELECT {SESSIONS.columns} FROM sessions WHERE id = :id", id=session)
    return None if row is None else SESSIONS.read(row)


def session_used(tx: Tx, session: str, at: datetime) -> None:
    tx.run("UPDATE sessions SET used_at = :at WHERE id = :id AND used_at < :at", id=session, at=at)


def sessions_of(tx: Tx, person: str) -> list[LoginSession]:
    """Those that were not ended, the newest first; some may be too old or idle for too long."""
    rows = tx.rows(
        f"""SELECT {SESSIONS.columns} FROM sessions WHERE person = :person AND ended_at IS NULL
             AND expires_at > now_us() ORDER BY id DESC LIMIT :limit""",
        person=person,
        limit=PAGE,
    )
    return [SESSIONS.read(row) for row in rows]


def end_session(tx: Tx, session: str) -> bool:
    """False if it was ended before."""
    return tx.run("UPDATE sessions SET ended_at = now_us() WHERE id = :id AND ended_at IS NULL", id=session) == 1


def end_sessions_of(tx: Tx, person: str, *, but: str = "", sid: str | None = None) -> int:
    """All sessions of a person, but one; or those that the provider calls by one name."""
    known = "" if sid is None else "AND sid = :sid"
    return tx.run(
        f"""UPDATE sessions SET ended_at = now_us()
             WHERE person = :person AND id <> :but AND ended_at IS NULL {known}""",
        person=person,
        but=but,
        **({} if sid is None else {"sid": sid}),
    )


# ── Tickets ──


def put_ticket(tx: Tx, ticket: Ticket) -> bool:
    """False if there is the same one already."""
    return tx.run(f"{TICKETS.insert} ON CONFLICT DO NOTHING", **TICKETS.values(ticket)) == 1


def look_at_ticket(tx: Tx, digest: str, *kinds: TicketKind) -> Ticket | None:
    """One that is still good; it stays."""
    row = tx.row(f"SELECT {TICKETS.columns} FROM tickets WHERE hash = :hash AND expires_at > now_us()", hash=digest)
    ticket = None if row is None else TICKETS.read(row)
    return ticket if ticket is not None and ticket.kind in kinds else None


def take_ticket(tx: Tx, digest: str, kind: TicketKind) -> Ticket | None:
    """Use it up: of several that try at a time, one gets it."""
    row = tx.row(
        f"""DELETE FROM tickets WHERE hash = :hash AND kind = :kind AND expires_at > now_us()
             RETURNING {TICKETS.columns}""",
        hash=digest,
        kind=kind,
    )
    return None if row is None else TICKETS.read(row)


def drop_tickets_of(tx: Tx, person: str) -> int:
    return tx.run("DELETE FROM tickets WHERE person = :person", person=person)


# ── What is not needed any more ──


def forget(tx: Tx, before: datetime, limit: int = 1000) -> int:
    """Sessions and tickets that have expired before then; a page at a time."""
    tickets = tx.run(
        "DELETE FROM tickets WHERE hash IN (SELECT hash FROM tickets WHERE expires_at < now_us() LIMIT :limit)",
        limit=limit,
    )
    sessions = tx.run(
        "DELETE FROM sessions WHERE id IN (SELECT id FROM sessions WHERE expires_at < :before LIMIT :limit)",
        before=before,
        limit=limit,
    )
    return tickets + sessions
