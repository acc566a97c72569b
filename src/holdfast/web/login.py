"""Logging in and out."""

from __future__ import annotations

from html import escape

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from holdfast.core.people import LoginMethod, local_path
from holdfast.operations.people import sessions
from holdfast.secret import Secret
from holdfast.web.browser import (
    CSRF_FIELD,
    SETUP,
    caller_of,
    drop_cookie,
    origin_of,
    services_of,
    set_cookie,
)
from holdfast.web.plain_page import hidden, page

LINK = "/login/link/{token}"


async def login(request: Request) -> Response:
    back = local_path(request.query_params.get("next"))
    return page("Log in", f"<p>Follow a link: holdfast people recover NAME.</p>{hidden('next', back)}")


async def follow(request: Request) -> Response:
    """A link that is opened by hand logs in at once. One that another site leads to asks first: it may be theirs."""
    if request.method == "GET" and request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return page("Log in by this link?", '<form method="post"><button>Log in</button></form>')
    services = services_of(request)
    context = services.certificate_context
    new = sessions.new_session(context.random)
    token = Secret(request.path_params["token"])
    begun = await sessions.follow_link(context.db, token, new, services.people, origin_of(request))
    if begun is None:
        text = "This link was used before, has expired, or was never made. "
        return page("This link is no good", f"<p>{escape(text)}Ask an admin for another one.</p>", 410)
    answer = RedirectResponse(SETUP if begun.method is LoginMethod.SETUP else "/", 303)
    set_cookie(request, answer, new.token)
    return answer


async def logout(request: Request) -> Response:
    who = await caller_of(request, setting_up=True)
    session = who.visit.session
    await who.services.certificate_context.db.write(
        lambda tx: sessions.end(tx, session, actor=who.principal.actor, why="logged out")
    )
    answer = RedirectResponse("/login", 303)
    drop_cookie(request, answer)
    return answer


def logout_form(csrf: str) -> str:
    return f'<form method="post" action="/logout">{hidden(CSRF_FIELD, csrf)}<button>Log out</button></form>'


ROUTES = [
    Route("/login", login, methods=["GET"]),
    Route(LINK, follow, methods=["GET", "POST"]),
    Route("/logout", logout, methods=["POST"]),
]
