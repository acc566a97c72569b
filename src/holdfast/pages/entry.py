"""The way in and out: password and code, passkeys, links, the company's provider, and the first set-up of an account.

These pages stand before a session, so each asks for the token that its forms carry by itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final
from urllib.parse import quote, unquote

import segno
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from holdfast.core import totp
from holdfast.core.people import LoginMethod, local_path
from holdfast.errors import TryLater, UserError
from holdfast.operations.people import factors, login, passkeys, provider, provider_login, sessions
from holdfast.operations.people.factors import FactorRefused
from holdfast.pages.visit import THEME, Frame
from holdfast.secret import Secret
from holdfast.web.browser import (
    SETUP,
    Forged,
    WebCaller,
    caller_of,
    check_csrf,
    cookie,
    csrf_token,
    drop_cookie,
    face_of,
    form_of,
    origin_of,
    services_of,
    set_cookie,
)

BEFORE: Final = "login"  # the purpose of the cookie of a browser in which nobody is logged in yet
Handler = Callable[[Frame, Request], Awaitable[Response]]


def routes(frame: Frame) -> list[Route]:
    known: list[tuple[str, Handler, list[str]]] = [
        ("/login", log_in, ["GET", "POST"]),
        ("/login/code", second_step, ["GET", "POST"]),
        ("/login/link/{token}", follow, ["GET", "POST"]),
        ("/login/passkey/begin", begin_passkey, ["POST"]),
        ("/login/passkey", passkey, ["POST"]),
        ("/login/provider", to_provider, ["GET"]),
        (provider.BACK, from_provider, ["GET"]),
        (provider.OUT, provider_says_out, ["POST"]),
        ("/logout", log_out, ["POST"]),
        (SETUP, set_up, ["GET", "POST"]),
        ("/account/passkeys/begin", begin_enrolment, ["POST"]),
        ("/account/passkeys", enrol, ["POST"]),
    ]
    return [Route(path, partial(handler, frame), methods=methods) for path, handler, methods in known]


def page(frame: Frame, request: Request, template: str, status: int = 200, **context: Any) -> Response:
    theme = request.cookies.get(THEME, "")
    known = {"theme": theme if theme in ("light", "dark") else "", "installation": frame.installation()}
    return HTMLResponse(frame.templates.get_template(template).render(**known, **context), status)


def _before(frame: Frame, request: Request, template: str, status: int = 200, **context: Any) -> Response:
    """A page for a browser in which nobody is logged in: its cookie is what its forms are bound to."""
    known = cookie(request, BEFORE)
    secret = known or sessions.drawn(services_of(request).certificate_context.random)
    response = page(frame, request, template, status, csrf=csrf_token(secret), **context)
    if known is None:
        set_cookie(request, response, secret, purpose=BEFORE)
    return response


async def _browser(request: Request) -> Secret[str]:
    """The cookie of a form that was sent before a log-in. Raises Forged."""
    secret = cookie(request, BEFORE)
    if secret is None:
        raise Forged
    await check_csrf(request, secret)
    return secret


def _let_in(request: Request, response: Response, token: Secret[str]) -> Response:
    set_cookie(request, response, token)
    if cookie(request, BEFORE) is not None:
        drop_cookie(request, response, BEFORE)
    return response


def _entered(request: Request, token: Secret[str], there: str) -> Response:
    return _let_in(request, RedirectResponse(there, 303), token)


# ── Name and password, then a code ──


async def log_in(frame: Frame, request: Request) -> Response:
    if request.method == "GET":
        return _form(frame, request, local_path(request.query_params.get("next")))
    given = await form_of(request)
    back, name = local_path(given.get("next")), given.get("name", "").strip()
    try:
        browser = await _browser(request)
        password = Secret(given.get("password", ""))
        await login.check_password(services_of(request), browser, name, password, origin_of(request))
    except UserError as error:
        return _form(frame, request, back, name=name, error=error)
    return RedirectResponse(f"/login/code?next={quote(back, safe='')}", 303)


def _form(
    frame: Frame,
    request: Request,
    back: str,
    *,
    name: str = "",
    error: UserError | None = None,
    beside: str = "password",
) -> Response:
    people, status = services_of(request).people, 200 if error is None else error.status
    company = "" if people.provider is None else people.provider.settings.name
    here = {"passkeys": people.address.takes_passkeys, "provider": company}
    return _before(frame, request, "login.html", status, back=back, name=name, error=error, beside=beside, **here)


async def second_step(frame: Frame, request: Request) -> Response:
    if request.method == "GET":
        return _before(frame, request, "code.html", back=local_path(request.query_params.get("next")), error=None)
    services, given = services_of(request), await form_of(request)
    new, back = sessions.new_session(services.certificate_context.random), local_path(given.get("next"))
    try:
        browser = await _browser(request)
        await login.check_code(services, browser, given.get("code", ""), new, origin_of(request))
    except login.LoginExpired as error:
        return _form(frame, request, back, error=error)
    except UserError as error:
        return _before(frame, request, "code.html", error.status, back=back, error=error)
    return _entered(request, new.token, back)


# ── Passkeys: scripts ask, and are answered in JSON ──


def _refused(error: UserError) -> Response:
    return JSONResponse({"says": str(error), "hint": error.hint}, error.status)


async def begin_passkey(frame: Frame, request: Request) -> Response:
    try:
        return JSONResponse(await passkeys.begin_login(services_of(request), await _browser(request)))
    except UserError as error:
        return _refused(error)


async def passkey(frame: Frame, request: Request) -> Response:
    services, given = services_of(request), await form_of(request)
    new = sessions.new_session(services.certificate_context.random)
    try:
        browser = await _browser(request)
        await passkeys.log_in(services, browser, given.get("answer", ""), new, origin_of(request))
    except UserError as error:
        return _refused(error)
    return _to(request, new.token, local_path(given.get("next")))


def _to(request: Request, token: Secret[str], there: str) -> Response:
    """Where a script leads the page to."""
    return _let_in(request, JSONResponse({"to": there}), token)


# ── The company's provider ──

NEXT: Final = "next"  # the purpose of the cookie with the page to come back to


async def to_provider(frame: Frame, request: Request) -> Response:
    known = cookie(request, BEFORE)
    browser = known or sessions.drawn(services_of(request).certificate_context.random)
    try:
        response: Response = RedirectResponse(await provider_login.begin(services_of(request), browser), 303)
    except (UserError, TryLater) as error:
        return _turned_away(frame, request, error)
    if known is None:
        set_cookie(request, response, browser, purpose=BEFORE)
    back = Secret(quote(local_path(request.query_params.get("next")), safe=""))
    set_cookie(request, response, back, purpose=NEXT, age=600)
    return response


async def from_provider(frame: Frame, request: Request) -> Response:
    services, given = services_of(request), dict(request.query_params)
    new, kept = sessions.new_session(services.certificate_context.random), cookie(request, NEXT)
    try:
        await provider_login.complete(services, cookie(request, BEFORE), given, new, origin_of(request))
    except (UserError, TryLater) as error:
        return _turned_away(frame, request, error)
    response = _entered(request, new.token, local_path(None if kept is None else unquote(kept.reveal())))
    drop_cookie(request, response, NEXT)
    return response


def _turned_away(frame: Frame, request: Request, error: UserError | TryLater) -> Response:
    if isinstance(error, TryLater):
        error = provider.ProviderRefused(f"The provider does not answer: {error}.")
    return _form(frame, request, "/", error=error, beside="provider")


async def provider_says_out(frame: Frame, request: Request) -> Response:
    """A message between servers, which is believed for its signature (OpenID Connect Back-Channel Logout)."""
    token = (await form_of(request)).get("logout_token", "")
    try:
        await provider_login.logged_out_there(services_of(request), token, origin_of(request))
    except (UserError, TryLater) as error:
        return JSONResponse({"error": "invalid_request", "error_description": str(error)}, 400)
    return Response(status_code=200)


# ── Links ──


async def follow(frame: Frame, request: Request) -> Response:
    """A link that is opened by hand logs in at once. One that another site leads to asks first: it may be theirs."""
    if request.method == "GET" and request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return page(frame, request, "link.html", good=True)
    services = services_of(request)
    context = services.certificate_context
    new, token = sessions.new_session(context.random), Secret(request.path_params["token"])
    begun = await sessions.follow_link(context.db, token, new, services.people, origin_of(request))
    if begun is None:
        return page(frame, request, "link.html", 410, good=False)
    return _entered(request, new.token, SETUP if begun.method is LoginMethod.SETUP else "/")


# ── Out ──


async def log_out(frame: Frame, request: Request) -> Response:
    who = await caller_of(request, setting_up=True)
    session = who.visit.session
    await who.services.certificate_context.db.write(
        lambda tx: sessions.end(tx, session, actor=who.principal.actor, why="logged out")
    )
    response = await _farewell(frame, request, who)
    drop_cookie(request, response)
    return response


async def _farewell(frame: Frame, request: Request, who: WebCaller) -> Response:
    """Who came by the provider is still logged in there: a page offers to end that, too."""
    people = who.services.people
    if who.visit.session.method is LoginMethod.PROVIDER and people.provider is not None:
        there = await people.provider.farewell(people.address)
        if there:
            return page(frame, request, "logged_out.html", there=there, company=people.provider.settings.name)
    return RedirectResponse("/login", 303)


# ── The set-up of an account ──


async def set_up(frame: Frame, request: Request) -> Response:
    """Choose a password and an app for codes; or a passkey, which a script enrols."""
    who = await caller_of(request, setting_up=True)
    if who.visit.person.issuer is not None:
        raise factors.ByProvider
    services, given = who.services, await form_of(request) if request.method == "POST" else {}
    secret = given.get("secret") or factors.new_totp_secret(services.certificate_context.random)
    if request.method == "GET":
        return _setup_form(frame, request, who, secret, None)
    password = Secret(given.get("password", ""))
    try:
        new, codes = await factors.set_password(
            services, who.visit, password, secret, given.get("code", ""), who.origin
        )
    except FactorRefused as error:
        return _setup_form(frame, request, who, secret, error)
    response = page(frame, request, "recovery.html", codes=codes)
    set_cookie(request, response, new.token)
    return response


def _setup_form(frame: Frame, request: Request, who: WebCaller, secret: str, error: FactorRefused | None) -> Response:
    host = face_of(request).address.host
    key = totp.of_text(secret)
    shown = "" if key is None else Markup(_drawn(totp.uri(key, name=who.principal.name, host=host)))  # noqa: S704
    return page(
        frame, request, "setup.html", 200 if error is None else error.status,
        who=who.principal, csrf=who.csrf, secret=secret, qr=shown, error=error,
        passkeys=who.services.people.address.takes_passkeys, host=host,
    )  # fmt: skip


def _drawn(text: str) -> str:
    """A QR code as SVG, black on white in both themes: readers want the contrast."""
    return str(
        segno.make(text, error="m").svg_inline(border=4, light="#fff", svgclass="qr", lineclass=None, omitsize=True)
    )


async def begin_enrolment(frame: Frame, request: Request) -> Response:
    try:
        who = await caller_of(request, setting_up=True)
        return JSONResponse(await passkeys.begin_enrolment(who.services, who.visit))
    except UserError as error:
        return _refused(error)


async def enrol(frame: Frame, request: Request) -> Response:
    try:
        who, given = await caller_of(request, setting_up=True), await form_of(request)
        new = await passkeys.enrol(who.services, who.visit, given.get("answer", ""), given.get("name", ""), who.origin)
    except UserError as error:
        return _refused(error)
    return _to(request, new.token, "/" if who.visit.session.method is LoginMethod.SETUP else "/account")
