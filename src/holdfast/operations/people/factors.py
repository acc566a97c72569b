"""What a person logs in with: a password with codes of an app, recovery codes, and passkeys."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from holdfast.core import totp
from holdfast.core.people import LoginMethod, Passkey, Person, password_problem
from holdfast.errors import UserError
from holdfast.operations.context import Services
from holdfast.operations.installation.secret_store import totp_key
from holdfast.operations.people import sessions
from holdfast.operations.people.sessions import NewSession, Visit
from holdfast.ports import Random
from holdfast.secret import Secret
from holdfast.store import journal, people, secrets
from holdfast.store.tx import Tx

RECOVERY_CODES: Final = 10
FRESH_FOR: Final = timedelta(minutes=10)  # after a log-in, what one logs in with may be changed


class LogInAgain(UserError):
    status, code = 403, "log-in-again"
    hint = "Log out and in again, then repeat it."

    def __init__(self) -> None:
        super().__init__("Your log-in is too long ago to change how you log in.")


class FactorRefused(UserError):
    """`field` says beside which field of the form the sentence belongs."""

    status, code = 422, "factor-refused"

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(problem)
        self.field = field


class ByProvider(UserError):
    status, code = 403, "by-provider"
    hint = "Change your password and your second factor there."

    def __init__(self) -> None:
        super().__init__("You log in by the OpenID provider, and by nothing else.")


def demand_fresh(tx: Tx, visit: Visit) -> None:
    """A browser that was left open must not be enough to take an account over.

    Who comes by the provider has nothing of their own: with it, they could come back after they were removed there.
    """
    if visit.person.issuer is not None:
        raise ByProvider
    if tx.now() > visit.session.created_at + FRESH_FOR:
        raise LogInAgain


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """What a person has to log in with."""

    password: bool
    passkeys: list[Passkey]
    recovery_codes: int


def factors_of(tx: Tx, person: Person) -> Factors:
    return Factors(
        password=person.password is not None,
        passkeys=people.passkeys_of(tx, person.id),
        recovery_codes=people.recovery_codes_left(tx, person.id),
    )


# ── A password, and codes of an app ──


def new_totp_secret(random: Random) -> str:
    return totp.as_text(random.token(20))


async def set_password(
    services: Services, visit: Visit, password: Secret[str], secret: str, code: str, origin: Mapping[str, str]
) -> tuple[NewSession, list[str]]:
    """Set password and app together. Every other browser is logged out, and this one gets a new session.

    Returns the session and the recovery codes, which are shown this once.
    """
    context, person = services.certificate_context, visit.person
    if problem := password_problem(password.reveal(), person.name):
        raise FactorRefused("password", problem)
    key = totp.of_text(secret)
    if key is None:
        raise FactorRefused("code", "The form has lost its key. Load the page again.")
    kept = await services.people.passwords.hash(password)
    sealed = await context.secret_store.seal(Secret(key), totp_key(person.id))
    new, codes = sessions.new_session(context.random), _new_codes(context.random)

    def write(tx: Tx) -> None:
        demand_fresh(tx, visit)
        step = totp.matching_step(key, "".join(code.split()), tx.now())
        if step is None:
            raise FactorRefused("code", "The code is not the one that the app shows now. Is the phone's clock right?")
        before = people.get(tx, person.id) or person
        secrets.put(tx, sealed)
        people.change(tx, person.id, {"password": kept, "totp": sealed.id, "totp_step": step})
        if before.totp is not None:
            secrets.delete(tx, before.totp)
        people.put_recovery_codes(tx, person.id, [sessions.hashed(Secret(each)) for each in codes])
        renewed(tx, services, visit, new, LoginMethod.PASSWORD, "person_password_set", origin)

    await context.db.write(write)
    return new, [f"{each[:4]} {each[4:8]} {each[8:12]} {each[12:]}" for each in codes]


def renewed(
    tx: Tx,
    services: Services,
    visit: Visit,
    new: NewSession,
    method: LoginMethod,
    action: str,
    origin: Mapping[str, str],
    **details: str,
) -> None:
    """A session is made anew whenever what it stands on changes."""
    person = visit.person
    with journal.coming_from(tx, origin):
        journal.audit(tx, action, person.id, actor=f"human:{person.name}", name=person.name, **details)
        sessions.end_all(tx, person, actor=f"human:{person.name}", why="how to log in was changed")
        sessions.begin(tx, new, person, method, services=services.people)


def _new_codes(random: Random) -> list[str]:
    """80 random bits each, so a plain hash is enough."""
    return [base64.b32encode(random.token(10)).decode() for _ in range(RECOVERY_CODES)]


async def new_recovery_codes(services: Services, visit: Visit, origin: Mapping[str, str]) -> list[str]:
    """In place of all that there were; shown this once."""
    codes, person = _new_codes(services.certificate_context.random), visit.person

    def write(tx: Tx) -> None:
        demand_fresh(tx, visit)
        people.put_recovery_codes(tx, person.id, [sessions.hashed(Secret(each)) for each in codes])
        with journal.coming_from(tx, origin):
            journal.audit(tx, "recovery_codes_made", person.id, actor=f"human:{person.name}", name=person.name)

    await services.certificate_context.db.write(write)
    return [f"{each[:4]} {each[4:8]} {each[8:12]} {each[12:]}" for each in codes]
