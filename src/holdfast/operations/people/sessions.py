"""Sessions: one for each browser in which a person is logged in; known by a hash, ended by time or by hand."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from holdfast.core import base64url
from holdfast.core.people import LoginMethod, LoginSession, Person, Ticket, TicketKind
from holdfast.operations.access import Principal
from holdfast.operations.context import PeopleServices
from holdfast.operations.installation import tokens
from holdfast.operations.installation.tokens import USED_EVERY
from holdfast.ports import Random
from holdfast.secret import Secret
from holdfast.store import journal, people, personal
from holdfast.store.database import Store
from holdfast.store.marks import inline, no_fsync
from holdfast.store.tx import Tx

FORGOTTEN_AFTER: Final = timedelta(days=1)
LONGEST: Final = 100  # characters of a cookie, a link or a code that are looked at


def hashed(token: Secret[str]) -> str:
    """A plain hash is enough for 256 random bits: there is nothing to guess."""
    return digest(token.reveal())


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def drawn(random: Random) -> Secret[str]:
    """256 random bits, for a cookie or a link: drawn outside the transaction, which may run more than once."""
    return Secret(base64url.encode(random.token(32)))


class NewSession(NamedTuple):
    """A session before it is kept."""

    id: str
    token: Secret[str]  # for the cookie


def new_session(random: Random) -> NewSession:
    return NewSession(random.new_id("session"), drawn(random))


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A request of a browser in which a person is logged in."""

    principal: Principal
    person: Person
    session: LoginSession


def principal_of(person: Person, session: str) -> Principal:
    """A person has the same name, role and limits here as with a token of the same name."""
    return Principal(
        id=session,
        name=person.name,
        kind="human",
        role=person.role,
        rights=person.rights,
        owners=person.owners,
        labels=person.labels,
        by_session=True,
    )


def begin(
    tx: Tx,
    new: NewSession,
    person: Person,
    method: LoginMethod,
    *,
    services: PeopleServices,
    sid: str | None = None,
) -> LoginSession:
    """Each log-in makes a session of its own: no session that a stranger gave to the browser ever becomes good."""
    now = tx.now()
    session = LoginSession(
        id=new.id,
        hash=hashed(new.token),
        person=person.id,
        method=method,
        address=tx.origin.get("address", ""),
        client=tx.origin.get("client", ""),
        sid=sid,
        created_at=now,
        used_at=now,
        expires_at=now + services.lives_for,
    )
    people.insert_session(tx, session)
    people.note_login(tx, person.id)
    journal.audit(tx, "person_logged_in", person.id, actor=_actor(person), name=person.name, method=method,
                  session=session.id)  # fmt: skip
    return session


def _actor(person: Person) -> str:
    return f"human:{person.name}"


async def visit(db: Store, token: Secret[str], services: PeopleServices, *, counts: bool = True) -> Visit | None:
    """Whose browser it is; None if its session is unknown, ended, too old, idle for too long, or of a disabled person.

    What a page asks for by itself does not count as use: an open tab would keep a session alive for ever.
    """
    known = hashed(token)

    def read(tx: Tx) -> tuple[Visit | None, bool]:
        session, now = people.session_by_hash(tx, known), tx.now()
        person = None if session is None else _person_of(tx, session, services)
        if session is None or person is None:
            return None, False
        found = Visit(principal=principal_of(person, session.id), person=person, session=session)
        return found, counts and now - session.used_at > USED_EVERY

    found, stale = await db.read(inline(read)) if len(token.reveal()) <= LONGEST else (None, False)
    if found is not None and stale:
        await db.write(no_fsync(lambda tx: people.session_used(tx, found.session.id, tx.now())))
    return found


def _person_of(tx: Tx, session: LoginSession, services: PeopleServices) -> Person | None:
    if not session.good_at(tx.now(), services.idle_for):
        return None
    person = people.get(tx, session.person)
    return None if person is None or person.disabled_at is not None else person


def is_good(tx: Tx, session: str, services: PeopleServices) -> bool:
    found = people.get_session(tx, session)
    return found is not None and _person_of(tx, found, services) is not None


def check_still_good(tx: Tx, principal: Principal, services: PeopleServices) -> None:
    """Raise Unauthenticated if the principal's token or session is no longer good."""
    if not principal.by_session:
        tokens.check_still_good(tx, principal)
    elif not is_good(tx, principal.id, services):
        raise tokens.Unauthenticated


def end(tx: Tx, session: LoginSession, *, actor: str, why: str) -> None:
    if people.end_session(tx, session.id):
        journal.audit(tx, "session_ended", session.id, actor=actor, person=session.person, why=why)


def end_all(tx: Tx, person: Person, *, actor: str, why: str) -> int:
    ended = people.end_sessions_of(tx, person.id)
    if ended:
        journal.audit(tx, "sessions_ended", person.id, actor=actor, name=person.name, number=ended, why=why)
    return ended


async def forget_old(db: Store) -> int:
    """Sessions stay listed nowhere once they are over; the audit log has them. The rest is of no use any more."""
    done = 0
    while page := await db.write(lambda tx: people.forget(tx, tx.now() - FORGOTTEN_AFTER)):
        done += page
    while page := await db.write(personal.forget_snoozes):
        done += page
    return done


# ── Links and other things that may be used once ──


def put(
    tx: Tx,
    hash_: str,
    ticket: TicketKind,
    *,
    services: PeopleServices,
    person: str | None = None,
    details: Mapping[str, Any] | None = None,
) -> bool:
    """False if it is there already."""
    life = services.link_for if ticket in (TicketKind.LOGIN, TicketKind.SETUP) else services.step_for
    expires_at = tx.now() + life
    return people.put_ticket(
        tx, Ticket(hash=hash_, kind=ticket, person=person, details=details or {}, expires_at=expires_at)
    )


def bound(browser: Secret[str], purpose: str) -> Secret[str]:
    """A secret for one purpose that only this browser, which has the cookie, and we can make."""
    return Secret(hmac.new(browser.reveal().encode(), purpose.encode(), hashlib.sha256).hexdigest())


def link(services: PeopleServices, token: Secret[str]) -> str:
    return f"{services.address.url}/login/link/{token.reveal()}"


def stamp(browser: Secret[str], purpose: str, now: datetime) -> str:
    """A challenge for this browser that says when it was made: strangers may ask for any number, so none is kept."""
    at = str(int(now.timestamp()))
    return f"{at}-{bound(browser, f'{purpose} {at}').reveal()}"


def stamped(browser: Secret[str], purpose: str, given: str, now: datetime, services: PeopleServices) -> bool:
    """Whether a challenge was made for this browser and this purpose, and not too long ago."""
    at, _, _ = given.partition("-")
    if not re.fullmatch(r"[0-9]{1,12}", at):
        return False
    good = hmac.compare_digest(bound(browser, f"{purpose} {at}").reveal().encode(), given[len(at) + 1 :].encode())
    return good and 0 <= now.timestamp() - int(at) <= services.step_for.total_seconds()


def first_use(tx: Tx, challenge: str, services: PeopleServices) -> bool:
    """Of those who come with one challenge, one is the first."""
    return put(tx, digest(challenge), TicketKind.SEEN, services=services)


async def follow_link(
    db: Store, token: Secret[str], new: NewSession, services: PeopleServices, origin: Mapping[str, str]
) -> LoginSession | None:
    """Log in by a link, which is used up; None if it is no good."""
    known = hashed(token)

    def write(tx: Tx) -> LoginSession | None:
        ticket = people.look_at_ticket(tx, known, TicketKind.LOGIN, TicketKind.SETUP)
        taken = None if ticket is None else people.take_ticket(tx, known, ticket.kind)
        person = None if taken is None or taken.person is None else people.get(tx, taken.person)
        if taken is None or person is None or person.disabled_at is not None:
            return None
        method = LoginMethod.LINK if taken.kind is TicketKind.LOGIN else LoginMethod.SETUP
        with journal.coming_from(tx, origin):
            return begin(tx, new, person, method, services=services)

    return await db.write(write) if len(token.reveal()) <= LONGEST else None
