"""Settings about access: people, tokens, and how and where oneself is logged in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from starlette.responses import RedirectResponse, Response

from holdfast.errors import UserError
from holdfast.operations.access import Action
from holdfast.operations.operation import Operation, named
from holdfast.operations.people import factors, passkeys
from holdfast.pages import forms
from holdfast.pages.settings import tabs
from holdfast.pages.visit import Mistaken, Visit

OWN: Final = "/settings/sessions"


# ── People ──


async def people(visit: Visit) -> Response:
    return await _people(visit, [], {}, 200)


async def _people(
    visit: Visit, given: Sequence[tuple[str, str]], errors: Mapping[str, str], status: int, *, made: Any = None
) -> Response:
    found = await visit.call("people.list", limit=500)
    return await visit.show(
        "settings_people.html",
        status,
        tabs=tabs(visit),
        people=found.items,
        unset=[each for each in found.items if not each.logs_in_by and not each.disabled_at],
        fields=_fields("people.add", given, errors, "name", "role", "owners", "labels"),
        errors=errors,
        made=made,
        lasts=visit.services.people.link_for,
        may=visit.may(Action.CHANGE_PEOPLE) and not visit.principal.confined,
    )


def _fields(operation: str, given: Sequence[tuple[str, str]], errors: Mapping[str, str], *names: str) -> Any:
    return forms.fields(named(operation), dict(given), errors, *names)


async def add_person(visit: Visit) -> Response:
    given = await visit.form()
    made, errors, status = await _tried(visit, named("people.add"), given)
    return await _people(visit, [] if made else given, errors, status, made=made)


async def reset_person(visit: Visit) -> Response:
    made = await visit.call("people.reset", name=visit.path("name"))
    return await _people(visit, [], {}, 200, made=made)


async def _tried(visit: Visit, operation: Operation, given: Sequence[tuple[str, str]]) -> tuple[Any, Any, int]:
    """Carry out a form: the result, or what is wrong beside which field."""
    try:
        return await visit.call(operation.name, **forms.read(operation, given)), {}, 200
    except Mistaken as error:
        return None, error.fields, 422
    except UserError as error:
        return None, {"name": str(error)}, error.status


# ── Tokens ──


async def tokens(visit: Visit) -> Response:
    return await _tokens(visit, [], {}, 200)


async def _tokens(
    visit: Visit, given: Sequence[tuple[str, str]], errors: Mapping[str, str], status: int, *, made: Any = None
) -> Response:
    found = await visit.call("tokens.list", limit=500)
    now = visit.frame.now()
    good = [each for each in found.items if not each.revoked_at and (not each.expires_at or each.expires_at > now)]
    names = ("name", "role", "kind", "owners", "labels")
    return await visit.show(
        "settings_tokens.html",
        status,
        tabs=tabs(visit),
        tokens=good,
        over=len(found.items) - len(good),
        soon=[each for each in good if each.expires_at and (each.expires_at - now).days < 14],
        fields=_fields("tokens.create", given, errors, *names),
        errors=errors,
        made=made,
        may=visit.may(Action.MAKE_TOKENS) and not visit.principal.confined,
    )


async def create_token(visit: Visit) -> Response:
    given = await visit.form()
    made, errors, status = await _tried(visit, named("tokens.create"), given)
    return await _tokens(visit, [] if made else given, errors, status, made=made)


# ── Oneself ──


async def sessions(visit: Visit) -> Response:
    return await _own(visit)


async def _own(visit: Visit, status: int = 200, *, codes: Sequence[str] = (), error: str = "") -> Response:
    person, db = visit.caller.visit.person, visit.services.certificate_context.db
    found = await visit.call("sessions.list")
    has = await db.read(lambda tx: factors.factors_of(tx, person))
    return await visit.show(
        "settings_sessions.html",
        status,
        tabs=tabs(visit),
        sessions=found,
        has=has,
        person=person,
        codes=codes,
        error=error,
        takes_passkeys=visit.services.people.address.takes_passkeys,
        host=visit.services.people.address.host,
    )


async def new_codes(visit: Visit) -> Response:
    caller = visit.caller
    try:
        return await _own(visit, codes=await factors.new_recovery_codes(caller.services, caller.visit, caller.origin))
    except UserError as error:
        return await _own(visit, error.status, error=f"{error} {error.hint}")


async def remove_passkey(visit: Visit) -> Response:
    caller = visit.caller
    try:
        await passkeys.remove(caller.services, caller.visit, visit.path("passkey"), caller.origin)
    except UserError as error:
        return await _own(visit, error.status, error=f"{error} {error.hint}")
    return visit.back(OWN, "The passkey is removed.")


async def account(visit: Visit) -> Response:
    return RedirectResponse(OWN, 303)


PAGES: Final = [
    ("/settings/people", people, "GET"),
    ("/settings/people", add_person, "POST"),
    ("/settings/people/{name}/reset", reset_person, "POST"),
    ("/settings/tokens", tokens, "GET"),
    ("/settings/tokens", create_token, "POST"),
    (OWN, sessions, "GET"),
    ("/account", account, "GET"),
    ("/account/recovery-codes", new_codes, "POST"),
    ("/account/passkeys/{passkey}/remove", remove_passkey, "POST"),
]
