"""One request: who asks, what for, and in what manner."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, TypeVar

from fastapi import Depends, Header, Query, Request
from fastapi.security import HTTPBearer

from holdfast.api import queries
from holdfast.api.origin import client_address, traceparent
from holdfast.api.throttle import Throttle
from holdfast.errors import StoreUnavailable, UserError
from holdfast.operations import access, asking, tokens
from holdfast.operations.access import Action, Owned, Principal
from holdfast.operations.asking import Check, Manner
from holdfast.operations.front import Front
from holdfast.operations.issuing import Keeper
from holdfast.secret import Secret

R = TypeVar("R")
LOCAL_USER: Final = "x-holdfast-user"  # over the local socket only: who the command says that it is
LONGEST_WAIT: Final = 60.0  # seconds of Prefer: wait
_USER: Final = re.compile(r"[\w.@+-]{1,80}", re.ASCII)
bearer: Final = HTTPBearer(auto_error=False, description="A token, as `holdfast token create` shows it once.")


class BadHeader(UserError):
    code, hint = "bad-header", "Send the header as this API gives it, or leave it out."


class PreconditionMissing(UserError):
    status, code = 428, "precondition-required"
    hint = "Send the ETag that you read as If-Match, or If-Match: * to change it whatever it is."


class Throttled(UserError):
    status, code = 429, "throttled"
    hint = "Wait a minute, and check the token."

    def __init__(self, after: float) -> None:
        super().__init__("Too many requests from this address came with tokens that are not good.")
        self.after = after


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a handler is given."""

    request: Request
    front: Front
    principal: Principal
    manner: Manner
    wait: float  # seconds that the asker is ready to wait

    @property
    def keeper(self) -> Keeper:
        """Without a check of its own: for operations that are given the principal."""
        return self.front.keeper

    @property
    def actor(self) -> str:
        return self.principal.actor

    def demand(self, action: Action, resource: Owned | None = None) -> None:
        access.demand(self.principal, action, resource)

    def demand_somewhere(self, action: Action) -> None:
        """For lists, which show what the asker may see: whether there may be anything at all to see."""
        access.demand(self.principal, action, self.principal.scope)

    def looking(self, check: Check) -> Keeper:
        return asking.checked(self.keeper, check, Manner(origin=self.manner.origin))

    @property
    def trial(self) -> Manner:
        """How it is to be done, for verbs of several transactions: a key would be of one of them only."""
        return Manner(dry_run=self.manner.dry_run, origin=self.manner.origin)

    def doing(self, check: Check) -> Keeper:
        """For verbs of several transactions: each is checked, and undone if it was only to be tried."""
        return asking.checked(self.keeper, check, self.trial)

    async def change(
        self,
        verb: Callable[[Keeper], Awaitable[Any]],
        *,
        check: Check,
        render: Callable[[Any, Any], R],
        after: Callable[[Any], None] | None = None,
    ) -> R:
        """Have a verb carried out as the request says: once for its key, or only on trial."""
        more = {} if after is None else {"after": after}
        return await asking.carry_out(self.keeper, verb, check=check, render=render, manner=self.manner, **more)


Prefer = Annotated[str | None, Header(max_length=200, description="wait=30: answer when it is over, or after 30 s.")]


async def call(request: Request, _: Annotated[object, Depends(bearer)], prefer: Prefer = None) -> Call:
    """For looking."""
    front: Front | None = request.app.state.front()
    if front is None:
        raise StoreUnavailable("the server is starting")
    principal = await _principal(request, front)
    queries.check(request)
    manner = Manner(origin=_origin(request, principal))
    return Call(request=request, front=front, principal=principal, manner=manner, wait=_patience(prefer or ""))


DryRun = Annotated[bool, Query(description="Go all the way, then undo it: nothing is changed.")]


async def changing(
    asked: Annotated[Call, Depends(call)],
    dry_run: DryRun = False,
    idempotency_key: Annotated[
        str | None, Header(pattern=r"^[!-~]{1,255}$", description="Repeated within a day, it happens once.")
    ] = None,
) -> Call:
    """For changing something."""
    return replace(asked, manner=await _manner(asked, idempotency_key, dry_run=dry_run))


Caller = Annotated[Call, Depends(call)]
Changer = Annotated[Call, Depends(changing)]


async def repeatable(asked: Annotated[Call, Depends(call)], dry_run: DryRun = False) -> Call:
    """For changes of which no answer is kept: no Idempotency-Key is offered that would then be forgotten."""
    return replace(asked, manner=Manner(dry_run=dry_run, origin=asked.manner.origin))


Repeater = Annotated[Call, Depends(repeatable)]


async def _principal(request: Request, front: Front) -> Principal:
    """Whoever brings a token is whom it stands for, on the socket of this machine, too."""
    if request.app.state.local and "authorization" not in request.headers:
        user = request.headers.get(LOCAL_USER, "unknown")
        return access.local(user if _USER.fullmatch(user) else "unknown")
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        raise tokens.Unauthenticated("This needs a token: Authorization: Bearer …")
    try:
        return await tokens.authenticate(front.keeper.db, Secret(token.strip()))
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
    """For the audit log."""
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


async def _manner(call: Call, key: str | None, *, dry_run: bool) -> Manner:
    origin = call.manner.origin
    if key is None or dry_run:
        return Manner(dry_run=dry_run, origin=origin)
    url = call.request.url
    what = f"{call.request.method} {url.path}?{url.query}".encode()
    digest = hashlib.sha256(what + b"\n" + await call.request.body()).hexdigest()
    return Manner(key=f"api/{call.principal.id}/{key}", digest=digest, origin=origin)


def _patience(prefer: str) -> float:
    """Prefer: wait=30 (RFC 7240 §4.3)."""
    found = re.search(r"(?:^|[,;\s])wait=(\d{1,6})(?:$|[,;\s])", prefer)
    return 0.0 if found is None else min(float(found[1]), LONGEST_WAIT)


def etag(version: int) -> str:
    return f'"{version}"'


IfMatch = Annotated[str | None, Header(max_length=100, description="The ETag that was read, or *.")]


def expected_version(given: str | None) -> int | None:
    """The version that If-Match names; None for any."""
    if given is None:
        raise PreconditionMissing("A change says which version it is a change of.")
    if given.strip() == "*":
        return None
    found = re.fullmatch(r'\s*(?:W/)?"(\d{1,9})"\s*', given)
    if found is None:
        raise BadHeader('If-Match is an ETag that was read here, such as "3".')
    return int(found[1])
