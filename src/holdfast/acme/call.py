"""One request, after it was let in: which CA, which resource, who asks, and for what."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.acme import jws
from holdfast.acme.account_keys import AccountKeys
from holdfast.acme.answer import Answer
from holdfast.acme.chaos import Chaos
from holdfast.acme.jwk import AccountKey
from holdfast.acme.jws import Unverified
from holdfast.acme.place import Place
from holdfast.acme.replay import Nonces
from holdfast.core.problem import AcmeError
from holdfast.operations.desk import Desk, Requester
from holdfast.ports import Clock
from holdfast.telemetry import Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class Face:
    """What handlers need besides the request."""

    desk: Desk
    nonces: Nonces
    clock: Clock
    telemetry: Telemetry
    keys: AccountKeys
    chaos: Chaos


class Signed(NamedTuple):
    """A request whose signature and nonce are good."""

    jws: Unverified
    key: AccountKey
    who: Requester | None  # None if it was signed with a key, and not for an account


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    place: Place
    method: str
    args: tuple[str, ...]  # the parts of the path after the kind of resource
    query: str
    accept: str
    address: str  # of the peer: a header could say anything
    signed: Signed | None  # None only where anyone may ask

    @property
    def jws(self) -> Unverified:
        return self._signed.jws

    @property
    def key(self) -> AccountKey:
        return self._signed.key

    @property
    def who(self) -> Requester:
        who = self._signed.who
        if who is None:
            raise AssertionError("this resource is for accounts: the gate lets nobody else in")
        return who

    @property
    def _signed(self) -> Signed:
        if self.signed is None:
            raise AssertionError("this resource is for signed requests: the gate lets nobody else in")
        return self.signed

    @property
    def content(self) -> dict[str, Any]:
        return jws.payload_json(self.jws)

    def must_be_object(self) -> None:
        """Refuse a payload that is no JSON object, where its fields do not matter."""
        jws.payload_json(self.jws)

    def only_look(self) -> None:
        """Refuse anything but POST-as-GET (§6.3)."""
        if not self.jws.is_post_as_get:
            raise AcmeError.malformed("This resource can only be fetched: the payload must be empty.")


Handler = Callable[[Face, Call], Awaitable[Answer]]
