"""What stands around every page: security headers on all answers, and the refusal of requests from other sites."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.core.public_address import PublicAddress

MOST: Final = 256 * 1024  # bytes of a body
UNSAFE: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
# Scripts and styles are files of ours: nothing inline, nothing from elsewhere, and no page of ours in a frame.
POLICY: Final = "; ".join(
    [
        "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data:", "font-src 'self'",
        "connect-src 'self'", "manifest-src 'self'", "form-action 'self'", "base-uri 'none'", "frame-ancestors 'none'",
    ]
)  # fmt: skip
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not no-referrer: with it, browsers send `Origin: null` with our own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
HSTS: Final = "max-age=31536000"


class Guard:
    """Around the whole face, so that its errors have the headers, too. `open_to_others`: paths that servers post to."""

    def __init__(
        self, app: ASGIApp, address: PublicAddress, new_id: Callable[[], str], *, open_to_others: frozenset[str]
    ) -> None:
        self._app, self._address, self._new_id = app, address, new_id
        self._open = open_to_others
        self._headers = HEADERS | ({"Strict-Transport-Security": HSTS} if address.secure else {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["request_id"] = self._new_id()

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(self._headers)
                headers["X-Request-Id"] = scope["request_id"]
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        problem = self._problem(scope)
        if problem:
            await PlainTextResponse(f"{problem}\n", 403)(scope, receive, marked)
        else:
            await self._app(scope, _bounded(receive), marked)

    def _problem(self, scope: Scope) -> str | None:
        if scope["method"] not in UNSAFE or scope["path"] in self._open:
            return None
        headers = Headers(scope=scope)
        return foreign(headers.get("origin"), headers.get("sec-fetch-site"), self._address)


def foreign(origin: str | None, site: str | None, address: PublicAddress) -> str | None:
    """Why a request that changes something is taken for another site's; None if it is ours.

    Browsers send Origin with every such request, and Sec-Fetch-Site unless they are old. Pages cannot forge either.
    """
    if origin is None and site is None:
        return "The request does not say which site it comes from (Origin)."
    if site not in (None, "same-origin"):
        return "The request comes from another site."
    if origin is not None and origin not in address.origins:
        return f"The request comes from {origin!r:.100}; this server's address is {address.url} (server.public_url)."
    return None


def _bounded(receive: Receive) -> Receive:
    seen = 0

    async def bounded() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > MOST:
            raise HTTPException(413, f"The body has more than {MOST >> 10} KiB.")
        return message

    return bounded
