"""Passkeys (WebAuthn): an authenticator with its own check of the person, so it is enough by itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from fido2.server import Fido2Server
from fido2.webauthn import (
    AttestedCredentialData,
    AuthenticationResponse,
    AuthenticatorData,
    PublicKeyCredentialRpEntity,
    PublicKeyCredentialUserEntity,
    RegistrationResponse,
    ResidentKeyRequirement,
    UserVerificationRequirement,
)

from holdfast.core import base64url
from holdfast.core.people import LoginMethod, Passkey, Person, TicketKind
from holdfast.errors import UserError
from holdfast.operations.context import PeopleServices, Services
from holdfast.operations.people import factors, login, sessions
from holdfast.operations.people.factors import FactorRefused
from holdfast.operations.people.sessions import NewSession, Visit
from holdfast.secret import Secret
from holdfast.store import journal, people
from holdfast.store.tx import Tx

MOST: Final = 20  # passkeys of a person
LONGEST: Final = 20_000  # characters of an answer of a browser
PURPOSE: Final = "passkey"
VERIFIED: Final = UserVerificationRequirement.REQUIRED


class PasskeyRefused(UserError):
    status, code = 401, "passkey-refused"
    hint = "Try again, or log in another way."

    def __init__(self, problem: str = "The passkey was not accepted.") -> None:
        super().__init__(problem)


class NoPasskeysHere(UserError):
    status, code = 409, "no-passkeys-here"
    hint = "Set server.public_url to https:// and a host name."

    def __init__(self) -> None:
        super().__init__("Passkeys need an address with TLS and a name.")


def _server(services: PeopleServices) -> Fido2Server:
    """For the host of the public address: what Host says would be a stranger's word."""
    address = services.address
    if not address.takes_passkeys:
        raise NoPasskeysHere
    rp = PublicKeyCredentialRpEntity(name="Holdfast", id=address.host)
    return Fido2Server(rp, verify_origin=lambda origin: origin in address.origins)


def _state(challenge: bytes) -> dict[str, Any]:
    """As the library wants it. Whether the challenge is one of ours, we ask ourselves."""
    return {"challenge": base64url.encode(challenge), "user_verification": VERIFIED}


def _ticket(challenge: bytes) -> str:
    return sessions.digest(base64url.encode(challenge))


def _read(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text) if len(text) <= LONGEST else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise PasskeyRefused("The browser's answer cannot be read.")
    return found


# ── Enrolment ──


async def begin_enrolment(services: Services, visit: Visit) -> dict[str, Any]:
    """What the browser is to ask the authenticator for."""
    context, person, server = services.certificate_context, visit.person, _server(services.people)
    challenge = context.random.token(32)

    def write(tx: Tx) -> list[Passkey]:
        factors.demand_fresh(tx, visit)
        known = people.passkeys_of(tx, person.id)
        if len(known) >= MOST:
            raise FactorRefused("passkey", f"An account has at most {MOST} passkeys. Remove one first.")
        sessions.put(tx, _ticket(challenge), TicketKind.NEW_PASSKEY, person=person.id, services=services.people)
        return known

    known = await context.db.write(write)
    user = PublicKeyCredentialUserEntity(name=person.name, id=person.id.encode(), display_name=person.name)
    options, _ = server.register_begin(
        user,
        [AttestedCredentialData(each.credential) for each in known],
        resident_key_requirement=ResidentKeyRequirement.REQUIRED,
        user_verification=VERIFIED,
        challenge=challenge,
    )
    return dict(options)


async def enrol(services: Services, visit: Visit, answer: str, name: str, origin: Mapping[str, str]) -> NewSession:
    """Keep a new passkey. Every other browser is logged out, and this one gets a new session."""
    person, new = visit.person, sessions.new_session(services.certificate_context.random)
    challenge, made = _registered(_server(services.people), _read(answer))
    credential = made.credential_data
    if credential is None:
        raise PasskeyRefused

    def write(tx: Tx) -> None:
        factors.demand_fresh(tx, visit)
        ticket = people.take_ticket(tx, _ticket(challenge), TicketKind.NEW_PASSKEY)
        if ticket is None or ticket.person != person.id:
            raise PasskeyRefused("It took too long. Begin again.")
        key = Passkey(
            id=base64url.encode(credential.credential_id),
            person=person.id,
            name=name[:80] or "passkey",
            credential=bytes(credential),
            sign_count=made.counter,
            created_at=tx.now(),
        )
        if not people.insert_passkey(tx, key):
            raise PasskeyRefused("This passkey is known already.")
        factors.renewed(tx, services, visit, new, LoginMethod.PASSKEY, "passkey_added", origin, passkey=key.id)

    await services.certificate_context.db.write(write)
    return new


def _registered(server: Fido2Server, answer: Mapping[str, Any]) -> tuple[bytes, AuthenticatorData]:
    try:
        challenge = RegistrationResponse.from_dict(answer).response.client_data.challenge
        made = server.register_complete(_state(challenge), answer)
    except Exception as why:  # the library's parsers raise what they happen to stumble over
        raise PasskeyRefused from why
    return challenge, made


async def remove(services: Services, visit: Visit, passkey: str, origin: Mapping[str, str]) -> None:
    """Remove a passkey; but not the last thing that one can log in with."""
    person = visit.person

    def write(tx: Tx) -> None:
        factors.demand_fresh(tx, visit)
        has = factors.factors_of(tx, people.get(tx, person.id) or person)
        if not has.password and len(has.passkeys) < 2:
            raise FactorRefused("passkey", "This is all that you log in with. Add something else first.")
        if people.remove_passkeys(tx, person.id, passkey):
            with journal.coming_from(tx, origin):
                journal.audit(tx, "passkey_removed", person.id, actor=f"human:{person.name}", passkey=passkey)

    await services.certificate_context.db.write(write)


# ── Logging in ──


async def begin_login(services: Services, browser: Secret[str]) -> dict[str, Any]:
    """The person need not say who they are: the authenticator knows."""
    server = _server(services.people)
    now = await services.certificate_context.db.read(lambda tx: tx.now())
    challenge = sessions.stamp(browser, PURPOSE, now).encode()
    return dict(server.authenticate_begin(user_verification=VERIFIED, challenge=challenge)[0])


async def log_in(
    services: Services, browser: Secret[str], answer: str, new: NewSession, origin: Mapping[str, str]
) -> None:
    """Raises PasskeyRefused."""
    db, server, given = services.certificate_context.db, _server(services.people), _read(answer)
    try:
        read = AuthenticationResponse.from_dict(given)
        challenge, key_id = read.response.client_data.challenge, base64url.encode(read.raw_id)
        count, text = read.response.authenticator_data.counter, challenge.decode("ascii", "replace")
    except Exception as why:
        raise PasskeyRefused from why
    passkey, person = await db.read(lambda tx: _known(tx, key_id))
    if passkey is None or person is None:
        raise PasskeyRefused
    good = _verified(server, passkey, challenge, given)

    def judge(tx: Tx) -> bool:
        fits = good and sessions.stamped(browser, PURPOSE, text, tx.now(), services.people)
        if fits and passkey.counts_on(count) and sessions.first_use(tx, text, services.people):
            people.passkey_used(tx, passkey, count)
            with journal.coming_from(tx, origin):
                sessions.begin(tx, new, person, LoginMethod.PASSKEY, services=services.people)
            return True
        login.failed(tx, person.name, "passkey", origin)
        return False

    if not await db.write(judge):
        raise PasskeyRefused


def _known(tx: Tx, key_id: str) -> tuple[Passkey | None, Person | None]:
    passkey = people.get_passkey(tx, key_id)
    person = None if passkey is None else people.get(tx, passkey.person)
    return passkey, None if person is None or person.disabled_at is not None else person


def _verified(server: Fido2Server, passkey: Passkey, challenge: bytes, answer: Mapping[str, Any]) -> bool:
    try:
        known = AttestedCredentialData(passkey.credential)
        server.authenticate_complete(_state(challenge), [known], answer)
    except Exception:  # whatever the library stumbles over: it is not the passkey
        return False
    return True
