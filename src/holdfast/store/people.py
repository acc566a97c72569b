"""People, the sessions of their browsers, what they log in with, and what may be used once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from holdfast.core.people import Failures, LoginSession, Passkey, Person, Ticket, TicketKind
from holdfast.store.rows import LABELS, Table, assignments
from holdfast.store.tx import Tx

PEOPLE: Final = Table(Person, "people", codecs={"labels": LABELS})
SESSIONS: Final = Table(LoginSession, "sessions")
TICKETS: Final = Table(Ticket, "tickets")
PASSKEYS: Final = Table(Passkey, "passkeys")
FAILURES: Final = Table(Failures, "login_failures")
PAGE: Final = 500

# ── People ──


def insert(tx: Tx, person: Person) -> bool:
    """False if a person has this name, or is this subject of the provider, already."""
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


# ── What people log in with ──


def use_totp_step(tx: Tx, person: str, step: int) -> bool:
    """False if the code of this step, or of a later one, was used before: of two at a time, one counts."""
    return tx.run("UPDATE people SET totp_step = :step WHERE id = :id AND totp_step < :step", id=person, step=step) == 1


def put_recovery_codes(tx: Tx, person: str, hashes: Sequence[str]) -> None:
    """In place of those that there were."""
    tx.run("DELETE FROM recovery_codes WHERE person = :person", person=person)
    for each in hashes:
        tx.run("INSERT INTO recovery_codes (hash, person) VALUES (:hash, :person)", hash=each, person=person)


def use_recovery_code(tx: Tx, person: str, digest: str) -> bool:
    return (
        tx.run(
            "UPDATE recovery_codes SET used_at = now_us() WHERE hash = :hash AND person = :person AND used_at IS NULL",
            hash=digest,
            person=person,
        )
        == 1
    )


def recovery_codes_left(tx: Tx, person: str) -> int:
    row = tx.row("SELECT count(*) AS n FROM recovery_codes WHERE person = :person AND used_at IS NULL", person=person)
    return 0 if row is None else int(row["n"])


def insert_passkey(tx: Tx, passkey: Passkey) -> bool:
    """False if the credential is known already."""
    return tx.run(f"{PASSKEYS.insert} ON CONFLICT DO NOTHING", **PASSKEYS.values(passkey)) == 1


def get_passkey(tx: Tx, passkey: str) -> Passkey | None:
    row = tx.row(f"SELECT {PASSKEYS.columns} FROM passkeys WHERE id = :id", id=passkey)
    return None if row is None else PASSKEYS.read(row)


def passkeys_of(tx: Tx, person: str) -> list[Passkey]:
    rows = tx.rows(f"SELECT {PASSKEYS.columns} FROM passkeys WHERE person = :person ORDER BY created_at", person=person)
    return [PASSKEYS.read(row) for row in rows]


def passkey_used(tx: Tx, passkey: Passkey, count: int) -> None:
    tx.run(
        "UPDATE passkeys SET sign_count = :count, last_used_at = now_us() WHERE id = :id", id=passkey.id, count=count
    )


def remove_passkeys(tx: Tx, person: str, passkey: str | None = None) -> int:
    """One of a person's, or all of them."""
    one = "" if passkey is None else "AND id = :id"
    more = {} if passkey is None else {"id": passkey}
    return tx.run(f"DELETE FROM passkeys WHERE person = :person {one}", person=person, **more)


# ── Failures ──


def failures_of(tx: Tx, key: str) -> Failures | None:
    row = tx.row(f"SELECT {FAILURES.columns} FROM login_failures WHERE key = :key", key=key)
    return None if row is None else FAILURES.read(row)


def save_failures(tx: Tx, now: Failures, before: Failures | None) -> bool:
    """False if another try was counted meanwhile."""
    if before is None:
        return tx.run(f"{FAILURES.insert} ON CONFLICT DO NOTHING", **FAILURES.values(now)) == 1
    return (
        tx.run(
            """UPDATE login_failures SET failures = :failures, counted_since = :counted_since,
                      refused_until = :refused_until
                WHERE key = :key AND failures = :before AND counted_since = :since""",
            **FAILURES.values(now),
            before=before.failures,
            since=before.counted_since,
        )
        == 1
    )


def forget_failures(tx: Tx, key: str) -> None:
    tx.run("DELETE FROM login_failures WHERE key = :key", key=key)


def uncount_failure(tx: Tx, key: str) -> None:
    tx.run("UPDATE login_failures SET failures = failures - 1 WHERE key = :key AND failures > 0", key=key)


# ── Sessions ──


def insert_session(tx: Tx, session: LoginSession) -> None:
    tx.run(SESSIONS.insert, **SESSIONS.values(session))


def session_by_hash(tx: Tx, digest: str) -> LoginSession | None:
    row = tx.row(f"SELECT {SESSIONS.columns} FROM sessions WHERE hash = :hash", hash=digest)
    return None if row is None else SESSIONS.read(row)


def get_session(tx: Tx, session: str) -> LoginSession | None:
    row = tx.row(f"SELECT {SESSIONS.columns} FROM sessions WHERE id = :id", id=session)
    return None if row is None else SESSIONS.read(row)


def session_lives(tx: Tx, session: str) -> bool:
    """Whether it was neither ended nor has expired, and its person may log in. It may be idle for too long."""
    row = tx.row(
        """SELECT sessions.id FROM sessions JOIN people ON people.id = sessions.person
            WHERE sessions.id = :id AND ended_at IS NULL AND expires_at > now_us() AND disabled_at IS NULL""",
        id=session,
    )
    return row is not None


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


def end_sessions_of(tx: Tx, person: str) -> int:
    return tx.run("UPDATE sessions SET ended_at = now_us() WHERE person = :person AND ended_at IS NULL", person=person)


def sessions_of_provider(tx: Tx, issuer: str, *, subject: str | None, sid: str | None) -> list[LoginSession]:
    """Those of a person, or those that the provider calls by one name; with both, of the person by that name."""
    given = {"subject": subject, "sid": sid}
    known = {name: value for name, value in given.items() if value is not None}
    columns = {"subject": "people.subject", "sid": "sessions.sid"}
    fits = " AND ".join(f"{columns[name]} = :{name}" for name in known)
    rows = tx.rows(
        f"""SELECT {SESSIONS.of("sessions")} FROM sessions JOIN people ON people.id = sessions.person
             WHERE people.issuer = :issuer AND sessions.ended_at IS NULL AND {fits} LIMIT :limit""",
        issuer=issuer,
        limit=PAGE,
        **known,
    )
    return [SESSIONS.read(row) for row in rows]


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


def drop_ticket(tx: Tx, digest: str) -> None:
    tx.run("DELETE FROM tickets WHERE hash = :hash", hash=digest)


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
    failures = tx.run(
        """DELETE FROM login_failures
            WHERE key IN (SELECT key FROM login_failures WHERE refused_until < :before LIMIT :limit)""",
        before=before,
        limit=limit,
    )
    return tickets + sessions + failures
