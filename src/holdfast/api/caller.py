"""The caller of a request: its token or local user, its address and trace, and the throttle for bad tokens."""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request

from holdfast.errors import StoreUnavailable, UserError
from holdfast.operations import access
from holdfast.operations.access import Principal
from holdfast.operations.context import Services
from holdfast.operations.installation import tokens
from holdfast.secret import Secret

ProxyNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
PARENT: Final = 52  # characters of a traceparent, after its version
LONGEST: Final = 200
_PARENT: Final = re.compile(r"(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def networks(texts: Sequence[str]) -> tuple[ProxyNetwork, ...]:
    return tuple(ipaddress.ip_network(each, strict=False) for each in texts)


def client_address(peer: str, forwarded: Sequence[str], proxies: Sequence[ProxyNetwork]) -> str:
    """The peer; or, if that is one of our proxies, the last address in its header that is none of them.

    A header is a chain: each proxy adds whom it heard it from. What stands left of the first stranger is hearsay.
    """
    chain = [each.strip() for line in forwarded for each in line.split(",")]
    found = peer
    while chain and _within(found, proxies):
        nearer = _read_address(chain.pop())
        if nearer is None:
            break
        found = nearer
    return found


def _within(address: str, proxies: Sequence[ProxyNetwork]) -> bool:
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return False  # a socket in the file system
    return any(known in network for network in proxies)


def _read_address(text: str) -> str | None:
    bare = text.removeprefix("[").partition("]")[0] if text.startswith("[") else text
    host = bare.partition(":")[0] if bare.count(":") == 1 else bare  # 192.0.2.1:4711
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return None


def traceparent(given: str) -> str:
    """The trace that a request is a part of (W3C Trace Context §3.2), as version 00 writes it; else nothing.

    It is kept with the jobs of the request, and only sent to otel.endpoint.
    """
    version, _, rest = given[:LONGEST].partition("-")
    known, more = rest[:PARENT], rest[PARENT:]
    if not re.fullmatch(r"(?!ff)[0-9a-f]{2}", version) or (more and (version == "00" or not more.startswith("-"))):
        return ""
    return f"00-{known}" if _PARENT.fullmatch(known) else ""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    principal: Principal
    services: Services
    origin: dict[str, str]  # for the audit log


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
    found = {
        "face": "local" if local else "api",
        "address": "" if local else _address(request),
        "request": str(request.scope.get("request_id", "")),
        "token": "" if principal.kind == "local" else principal.id,
        "trace": traceparent(request.headers.get("traceparent", "")),
        "client": "".join(char for char in request.headers.get("user-agent", "") if " " <= char <= "~")[:80],
    }
    return {name: value for name, value in found.items() if value}
