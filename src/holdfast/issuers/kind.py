"""The kinds of issuers: settings that all of them have, and the parts that an issuer is made from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeAlias

from pydantic import BeforeValidator, Field

from holdfast.core.issuance import LOOKUP_FOR
from holdfast.core.issuers import ca_limits
from holdfast.core.issuers.ca_limits import CaLimits
from holdfast.core.kind import Kind, S
from holdfast.issuers import rest
from holdfast.issuers.base import Issuer
from holdfast.issuers.memory import IssuerMemory
from holdfast.issuers.rest import Headers, Site
from holdfast.kind_settings import Flag, KindSettings, Roots, Seconds
from holdfast.ports import Clock, Files, Identity, Transport
from holdfast.secret import Secret

if TYPE_CHECKING:
    from holdfast.issuers.acme.reading import ResponseContext
    from holdfast.issuers.acme.wire import CaAccount, Eab, Wire
    from holdfast.issuers.own_ca import OwnCaOrders


class Accounts(Protocol):
    """Accounts at ACME servers, each with a key of its own, kept in the store and shared by all replicas."""

    def wire(self, issuer: str, place: ResponseContext) -> Wire: ...

    async def account(
        self, issuer: str, wire: Wire, *, contacts: tuple[str, ...] | None, terms_agreed: bool, eab: Eab | None
    ) -> CaAccount:
        """The account in use; made if there is none. `contacts` None: the contacts at the CA are not changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts that an issuer is made from, besides its settings."""

    name: str  # of its row
    credentials: Mapping[str, Secret[str]]  # by name
    transport: Transport
    clock: Clock
    files: Files
    memory: IssuerMemory  # of this issuer in this process, such as a session; losing it costs a request
    accounts: Accounts | None = None
    own_cas: OwnCaOrders | None = None


# `make` may be a coroutine, for an issuer that must ask its CA before it can be used.
MadeIssuer: TypeAlias = Issuer | Awaitable[Issuer]
IssuerKind: TypeAlias = Kind[S, Parts, MadeIssuer, CaLimits]


# ── Settings ──


def _given_limits(given: object) -> object:
    if problem := ca_limits.problem_with(given):
        raise ValueError(problem if problem.startswith("limits") else f"limits: {problem}")
    return given


def _base_url(text: object) -> str:
    return rest.checked_base(text)


BaseUrl = Annotated[str, BeforeValidator(_base_url)]


class IssuerSettings(KindSettings):
    """Settings of every issuer."""

    approval_required: Flag = Field(default=False, description="A second person approves each order.")
    limits: Annotated[dict[str, Any] | None, BeforeValidator(_given_limits)] = Field(
        default=None, description='The CA\'s limits, where they are other than known: {"orders": [300, 36]}.'
    )
    poll_max_wait_seconds: Seconds = Field(
        default=0, ge=0, le=86_400, description="Seconds for which a new order is looked at often; 0: as configured."
    )
    roots: Roots = Field(default="", description="Trusted roots for the CA's own TLS certificate, in PEM.")
    request_timeout_seconds: Seconds = Field(default=30.0, ge=0.1, le=120, description="Seconds for one answer.")


class RestSettings(IssuerSettings):
    """Settings of an issuer that speaks JSON over HTTPS."""

    base_url: BaseUrl = Field(description="The https address that all requests go below.")
    order_lookup_seconds: Seconds = Field(
        default=LOOKUP_FOR.total_seconds(),
        ge=0,
        le=86_400,
        description="Seconds for which an order that the CA did not answer is looked for, before it is placed again.",
    )

    def site(
        self,
        headers: Headers,
        *,
        base: str | None = None,
        identity: Callable[[], Identity] | None = None,
        hidden: tuple[Secret[str], ...] = (),
    ) -> Site:
        return Site(
            base=base or self.base_url,
            headers=headers,
            roots=self.roots.encode(),
            identity=identity,
            deadline_for=self.request_timeout_seconds,
            hidden=hidden,
        )
