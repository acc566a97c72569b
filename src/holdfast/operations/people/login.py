"""Logging in with a password and a second factor: a code of an app, or a recovery code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast.core import totp
from holdfast.core.people import LONGEST_PASSWORD, LoginMethod, Person, TicketKind
from holdfast.errors import UserError
from holdfast.operations.context import Services
from holdfast.operations.installation.secret_store import totp_key
from holdfast.operations.people import sessions, throttle
from holdfast.operations.people.sessions import NewSession
from holdfast.secret import Secret
from holdfast.store import journal, people
from holdfast.store.tx import Tx

SECOND: Final = "second factor"
LONGEST_NAME: Final = 80


class LoginFailed(UserError):
    """It does not say what was wrong: whether a name exists is no stranger's business."""

    status, code = 401, "login-failed"
    hint = "Try again. An admin can make you a new set-up link: holdfast people reset NAME"

    def __init__(self, problem: str = "The name or the password is wrong.") -> None:
        super().__init__(problem)


class LoginExpired(UserError):
    status, code = 401, "login-expired"
    hint = "Begin again."

    def __init__(self) -> None:
        super().__init__("The log-in took too long, or was begun in another browser.")


async def check_password(
    services: Services, browser: Secret[str], name: str, password: Secret[str], origin: Mapping[str, str]
) -> None:
    """The first step. The second one is then possible in this browser. Raises LoginFailed or TooManyTries."""
    db, known = services.certificate_context.db, services.people
    name, too_long = name[:LONGEST_NAME], len(password.reveal()) > LONGEST_PASSWORD

    def begin(tx: Tx) -> Person | None:
        throttle.count(tx, name, origin.get("address", ""))
        return people.by_name(tx, name)

    person = await db.write(begin)
    able = person is not None and person.disabled_at is None and person.totp is not None
    fits = await known.passwords.fits(
        person.password if able and person else None, Secret("") if too_long else password
    )
    await db.write(lambda tx: _judged(tx, services, browser, person if fits else None, name, origin))
    if not fits:
        raise LoginFailed


def _judged(
    tx: Tx, services: Services, browser: Secret[str], person: Person | None, name: str, origin: Mapping[str, str]
) -> None:
    if person is None:
        failed(tx, name, "password", origin)
        return
    ticket = sessions.hashed(sessions.bound(browser, SECOND))
    people.drop_ticket(tx, ticket)
    sessions.put(tx, ticket, TicketKind.SECOND_FACTOR, person=person.id, services=services.people)


def failed(tx: Tx, name: str, step: str, origin: Mapping[str, str]) -> None:
    """The name as it was typed is kept only if a person has it: it may be a password in the wrong field."""
    person = people.by_name(tx, name)
    with journal.coming_from(tx, origin):
        subject = "nobody" if person is None else person.id
        journal.audit(tx, "person_login_failed", subject, name="" if person is None else name, step=step)


async def check_code(
    services: Services, browser: Secret[str], code: str, new: NewSession, origin: Mapping[str, str]
) -> None:
    """The second step: a code of the app, or a recovery code. Raises LoginExpired, LoginFailed or TooManyTries."""
    context, ticket = services.certificate_context, sessions.hashed(sessions.bound(browser, SECOND))

    def begin(tx: Tx) -> Person:
        found = people.look_at_ticket(tx, ticket, TicketKind.SECOND_FACTOR)
        person = None if found is None or found.person is None else people.get(tx, found.person)
        if person is None or person.totp is None:
            raise LoginExpired
        throttle.count(tx, person.name, origin.get("address", ""))
        return person

    person = await context.db.write(begin)
    secret = await context.secret_store.reveal(person.totp or "", totp_key(person.id))
    given = "".join(code.split()).upper()

    def judge(tx: Tx) -> bool:
        if not _second(tx, person, secret, given):
            failed(tx, person.name, "code", origin)
            return False
        if people.take_ticket(tx, ticket, TicketKind.SECOND_FACTOR) is None:
            raise LoginExpired  # another request of this browser was quicker
        throttle.forget(tx, person.name, origin.get("address", ""))
        with journal.coming_from(tx, origin):
            sessions.begin(tx, new, person, LoginMethod.PASSWORD, services=services.people)
        return True

    if not await context.db.write(judge):
        raise LoginFailed("The code is wrong, or was used before.")


def _second(tx: Tx, person: Person, secret: Secret[bytes], given: str) -> bool:
    step = totp.matching_step(secret.reveal(), given, tx.now(), after=person.totp_step)
    if step is not None:
        return people.use_totp_step(tx, person.id, step)
    used = people.use_recovery_code(tx, person.id, sessions.hashed(Secret(given)))
    if used:
        left = people.recovery_codes_left(tx, person.id)
        journal.audit(tx, "recovery_code_used", person.id, actor=f"human:{person.name}", left=left)
    return used
