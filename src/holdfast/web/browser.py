"""Who a browser is: the principal of a request by its session cookie, and the token that its forms must carry.

    who = await caller_of(request)          # raises LoginNeeded, which leads to /login and back again
    form = await form_of(request)

A request that changes something gets no principal without the token of its session: no page can forget to ask for it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, quote, urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from holdfast.core.client import ProxyNetwork, browser_name, client_address, origin
from holdfast.core.people import LoginMethod, local_path
from holdfast.core.public_address import PublicAddress
from holdfast.errors import StoreUnavailable, UserError
from holdfast.operations.access import Principal
from holdfast.operations.context import Caller, Services
from holdfast.operations.people import sessions
from holdfast.operations.people.sessions import Visit
from holdfast.secret import Secret
from holdfast.web.guard import UNSAFE

CSRF_FIELD: Final = "csrf"  # of forms
CSRF_HEADER: Final = "x-csrf-token"  # of requests that a script makes
SETUP: Final = "/account/setup"  # a person who came by a set-up link gets no further than here
FIELDS: Final = 200  # of a form, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class WebFace:
    """What pages know of the process. It is `request.app.state.face`."""

    services: Callable[[], Services | None]  # None until the store, the schema and the keys are there
    address: PublicAddress
    proxies: tuple[ProxyNetwork, ...] = ()


class LoginNeeded(Exception):
    """Nobody is logged in: the browser is sent to /login, and comes back afterwards."""


class Forged(UserError):
    status, code = 403, "forged"
    hint = "Load the page again, and repeat it."

    def __init__(self) -> None:
        super().__init__("The request does not carry the token of your session, so another site may have made it.")


@dataclass(frozen=True, slots=True, kw_only=True)
class WebCaller(Caller):
    """A person at a browser."""

    visit: Visit
    csrf: str  # for hidden fields, and for the header of requests by script


def face_of(request: Request) -> WebFace:
    face: WebFace = request.app.state.face
    return face


def services_of(request: Request) -> Services:
    services = face_of(request).services()
    if services is None:
        raise StoreUnavailable("the server is starting")
    return services


async def principal_of(request: Request, *, counts: bool = True) -> Principal:
    return (await caller_of(request, counts=counts)).principal


async def caller_of(request: Request, *, counts: bool = True, setting_up: bool = False) -> WebCaller:
    """The person whose browser asks. Raises LoginNeeded, Forged, or StoreUnavailable while the server starts.

    `counts`: whether this is a person's doing; false for what a page asks for by itself.
    """
    services, token = services_of(request), session_cookie(request)
    visit = await _visit(services, token, counts=counts)
    if visit is None or token is None:
        raise LoginNeeded
    if request.method in UNSAFE:
        await check_csrf(request, token)
    if visit.session.method is LoginMethod.SETUP and not setting_up:
        raise SetupNeeded
    where = origin_of(request, session=visit.session.id)
    return WebCaller(principal=visit.principal, services=services, origin=where, visit=visit, csrf=csrf_token(token))


class SetupNeeded(Exception):
    """The person has to choose how to log in first."""


async def _visit(services: Services, token: Secret[str] | None, *, counts: bool) -> Visit | None:
    if token is None:
        return None
    return await sessions.visit(services.certificate_context.db, token, services.people, counts=counts)


def address_of(request: Request) -> str:
    """Of the client; what a header says counts only from a proxy that the settings name."""
    peer = request.client.host if request.client else ""
    return client_address(peer, request.headers.getlist("x-forwarded-for"), face_of(request).proxies)


def origin_of(request: Request, **known: str) -> dict[str, str]:
    """For the audit log."""
    id_ = str(request.scope.get("request_id", ""))
    client = browser_name(request.headers.get("user-agent", "")[:500])
    return origin(request.headers, face="web", address=address_of(request), request=id_, client=client, **known)


# ── Forms ──


async def form_of(request: Request) -> Mapping[str, str]:
    """The fields of a form; of several with one name, the last. `fields_of` has all of them."""
    return dict(await fields_of(request))


async def fields_of(request: Request) -> list[tuple[str, str]]:
    body = await request.body()  # the request keeps it
    try:
        return parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FIELDS, errors="strict")
    except ValueError:
        raise UserError("The form cannot be read.") from None


def csrf_token(secret: Secret[str]) -> str:
    """Made of the cookie, which only the browser and we know: the store need not keep it."""
    return hmac.new(secret.reveal().encode(), b"csrf", hashlib.sha256).hexdigest()


async def check_csrf(request: Request, secret: Secret[str]) -> None:
    given = request.headers.get(CSRF_HEADER)
    if given is None:
        given = (await form_of(request)).get(CSRF_FIELD, "")
    if not hmac.compare_digest(given.encode(), csrf_token(secret).encode()):
        raise Forged


# ── Cookies ──


def session_cookie(request: Request) -> Secret[str] | None:
    return cookie(request)


def cookie(request: Request, purpose: str = "") -> Secret[str] | None:
    value = request.cookies.get(face_of(request).address.cookie(purpose))
    return Secret(value) if value else None


def set_cookie(
    request: Request, response: Response, value: Secret[str], *, purpose: str = "", age: int | None = None
) -> None:
    """Without an age it lasts until the browser is closed; the session itself ends in the store."""
    address = face_of(request).address
    response.set_cookie(
        address.cookie(purpose), value.reveal(), path="/", secure=address.secure, httponly=True, samesite="lax",
        max_age=age,
    )  # fmt: skip


def drop_cookie(request: Request, response: Response, purpose: str = "") -> None:
    address = face_of(request).address
    response.delete_cookie(address.cookie(purpose), path="/", secure=address.secure, httponly=True, samesite="lax")


# ── The way to the log-in, and back ──


def to_login(request: Request) -> Response:
    """A page leads to the log-in; a part of a page that htmx asks for has the whole page do so."""
    back = quote(_here(request), safe="")
    there = "/login" if back == "%2F" else f"/login?next={back}"
    if "hx-request" in request.headers:
        return Response(status_code=401, headers={"HX-Redirect": there})
    return RedirectResponse(there, 303)


def _here(request: Request) -> str:
    """The page that the person looks at: of a form that was sent, the page it was on."""
    if "hx-request" in request.headers:
        return _local_part(request, request.headers.get("hx-current-url", ""))
    if request.method in UNSAFE:
        return _local_part(request, request.headers.get("referer", ""))
    query = request.url.query
    return local_path(f"{request.url.path}?{query}" if query else request.url.path)


def _local_part(request: Request, url: str) -> str:
    parts = urlsplit(url)
    if f"{parts.scheme}://{parts.netloc}" not in face_of(request).address.origins:
        return "/"
    return local_path(f"{parts.path}?{parts.query}" if parts.query else parts.path)


def to_setup(request: Request) -> Response:
    if "hx-request" in request.headers:
        return Response(status_code=401, headers={"HX-Redirect": SETUP})
    return RedirectResponse(SETUP, 303)
