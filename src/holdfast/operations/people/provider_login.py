"""Logging in by an OpenID provider: whom it vouches for becomes a person here, with the role of their groups."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from holdfast.core.people import Granted, LoginMethod, Person, granted
from holdfast.errors import UserError
from holdfast.operations.context import Services
from holdfast.operations.people import accounts, login, sessions, throttle
from holdfast.operations.people.provider import Identity, Provider, ProviderRefused
from holdfast.operations.people.sessions import NewSession
from holdfast.secret import Secret
from holdfast.store import journal, people
from holdfast.store.tx import Tx

STATE: Final = "state"
BY: Final = "provider"
_NAME: Final = re.compile(r"[\w.@+-]{1,80}", re.ASCII)


class NoProvider(UserError):
    status, code = 404, "no-provider"
    hint = "The settings of oidc.* name one."

    def __init__(self) -> None:
        super().__init__("There is no OpenID provider here.")


def provider_of(services: Services) -> Provider:
    found = services.people.provider
    if found is None:
        raise NoProvider
    return found


async def begin(services: Services, browser: Secret[str]) -> str:
    """The address of the provider that the browser is sent to."""
    now = await services.certificate_context.db.read(lambda tx: tx.now())
    state = sessions.stamp(browser, STATE, now)
    return await provider_of(services).address(services.people.address, browser, state)


async def complete(
    services: Services,
    browser: Secret[str] | None,
    given: Mapping[str, str],
    new: NewSession,
    origin: Mapping[str, str],
) -> None:
    """The way back. Raises LoginExpired, ProviderRefused, TooManyTries; TryLater if the provider does not answer."""
    db, known, provider = services.certificate_context.db, services.people, provider_of(services)
    state = given.get("state", "")
    now = await db.read(lambda tx: tx.now())
    if browser is None or not sessions.stamped(browser, STATE, state, now, known):
        raise login.LoginExpired
    try:
        who = await provider.identity(known.address, browser, given)
        person_id = services.certificate_context.random.new_id("person")

        def write(tx: Tx) -> None:
            if not sessions.first_use(tx, state, known):
                raise login.LoginExpired
            with journal.coming_from(tx, origin):
                person = _person(tx, provider, who, person_id)
                sessions.begin(tx, new, person, LoginMethod.PROVIDER, services=known, sid=who.sid)

        await db.write(write)
    except ProviderRefused as why:
        problem = str(why)
        await db.write(lambda tx: _failed(tx, problem, origin))
        raise


def _failed(tx: Tx, problem: str, origin: Mapping[str, str]) -> None:
    """Strangers can cause this, so it is counted by address, and not written down without end."""
    throttle.count_address(tx, origin.get("address", ""))
    with journal.coming_from(tx, origin):
        journal.audit(tx, "person_login_failed", "provider", step="provider", why=problem)


def _person(tx: Tx, provider: Provider, who: Identity, person_id: str) -> Person:
    issuer, rules = provider.settings.issuer, provider.settings.rules
    rights = granted(rules, who.groups)
    if rights is None:
        raise ProviderRefused("None of your groups is let in here (oidc.groups).")
    person = people.by_subject(tx, issuer, who.subject)
    if person is None:
        return _new(tx, issuer, who, rights, person_id)
    if person.disabled_at is not None:
        raise ProviderRefused("Your account is disabled here.")
    return _updated(tx, person, rights)


def _new(tx: Tx, issuer: str, who: Identity, rights: Granted, person_id: str) -> Person:
    """By the provider's id of the person, never by a name or an address: those can be given to another person."""
    if not _NAME.fullmatch(who.name):
        raise ProviderRefused("Your name at the provider cannot be used here (oidc.name_claim).")
    try:
        return accounts.add(
            tx, person_id, who.name, rights.role, actor=BY, rights=rights.rights, owners=rights.owners,
            issuer=issuer, subject=who.subject,
        )  # fmt: skip
    except accounts.PersonExists:
        raise ProviderRefused(f"There is another account named {who.name} here.") from None


def _updated(tx: Tx, person: Person, rights: Granted) -> Person:
    """Groups are looked at again at each log-in."""
    wanted: dict[str, Any] = {"role": rights.role, "rights": rights.rights, "owners": rights.owners}
    changes = {name: value for name, value in wanted.items() if getattr(person, name) != value}
    if not changes:
        return person
    people.change(tx, person.id, changes)
    journal.audit(tx, "person_changed", person.id, actor=BY, name=person.name, changed=sorted(changes))
    return people.get(tx, person.id) or person


async def logged_out_there(services: Services, token: str, origin: Mapping[str, str]) -> int:
    """End the sessions that the provider says are over. Raises ProviderRefused."""
    provider = provider_of(services)
    subject, sid, message = await provider.logged_out(token)
    issuer = provider.settings.issuer

    def write(tx: Tx) -> int:
        if not sessions.first_use(tx, f"{issuer} {message}", services.people):
            return 0
        found = people.sessions_of_provider(tx, issuer, subject=subject, sid=sid)
        with journal.coming_from(tx, origin):
            for each in found:
                sessions.end(tx, each, actor=BY, why="logged out at the provider")
        return len(found)

    return await services.certificate_context.db.write(write)
