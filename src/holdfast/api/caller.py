"""The caller of a request: its token or local user, its address and trace, and the throttle for bad tokens."""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from typing import Final

from starlette.requests import Request

from holdfast.core.client import client_address, origin
from holdfast.errors import StoreUnavailable, UserError
from holdfast.operations import access
from holdfast.operations.access import Principal
from holdfast.operations.context import Caller, Services
from holdfast.operations.installation import tokens
from holdfast.secret import Secret

ALLOWED: Final = 30  # bad tokens in a window
WINDOW: Final = 60.0  # seconds
MOST: Final = 10_000  # addresses that are remembered


class Throttle:
    """In memory: 256 random bits cannot be guessed, so nothing depends on all replicas counting together."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def failed(self, address: str) -> float:
        """Count a bad token; return the seconds for which its address is refused. Good tokens are never refused."""
        since, failures = self._seen.pop(address, (_now(), 0))
        if _now() - since >= WINDOW:
            since, failures = _now(), 0
        self._seen[address] = (since, failures + 1)
        while len(self._seen) > MOST:
            self._seen.popitem(last=False)
        return max(1.0, since + WINDOW - _now()) if failures >= ALLOWED else 0.0


def _now() -> float:
    return asyncio.get_running_loop().time()


LOCAL_USER: Final = "x-holdfast-user"  # over the local socket only: who the command says that it is
_USER: Final = re.compile(r"[\w.@+-]{1,80}", re.ASCII)


class Throttled(UserError):
    status, code = 429, "throttled"
    hint = "Wait a minute, and check the token."

    def __init__(self, after: float) -> None:
        super().__init__("Too many requests from this address came with tokens that are not good.")
        self.after = after


async def opened(request: Request) -> Caller:
    """Authenticate a request. Raises Unauthenticated, or StoreUnavailable while the server starts."""
    services: Services | None = request.app.state.services()
    if services is None:
        raise StoreUnavailable("the server is starting")
    principal = await _principal(request, services)
    return Caller(principal=principal, services=services, origin=_origin(request, principal))


async def _principal(request: Request, services: Services) -> Principal:
    """A token counts on the socket of this machine, too."""
    if request.app.state.local and "authorization" not in request.headers:
        user = request.headers.get(LOCAL_USER, "unknown")
        return access.local(user if _USER.fullmatch(user) else "unknown")
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        raise tokens.Unauthenticated("This needs a token: Authorization: Bearer …")
    try:
        return await tokens.authenticate(services.certificate_context.db, Secret(token.strip()))
    except tokens.Unauthenticated:
        throttle: Throttle = request.app.state.throttle
        if wait := throttle.failed(_address(request)):
            raise Throttled(wait) from None
        raise


def _address(request: Request) -> str:
    """Of the client; what a header says counts only from a proxy that the settings name."""
    peer = request.client.host if request.client else ""
    return client_address(peer, request.headers.getlist("x-forwarded-for"), request.app.state.proxies)


def _origin(request: Request, principal: Principal) -> dict[str, str]:
    local = request.app.state.local
    return origin(
        request.headers,
        face="local" if local else "api",
        address="" if local else _address(request),
        request=str(request.scope.get("request_id", "")),
        token="" if principal.kind == "local" else principal.id,
    )
