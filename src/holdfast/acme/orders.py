"""newOrder, orders and finalize (RFC 8555 §7.4), authorizations and their challenges (§7.5)."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Final, TypeVar, cast

from holdfast.acme import resources
from holdfast.acme.answer import AcmeAnswer, json_answer, link, location
from holdfast.acme.request import AcmeRequest, AcmeServices
from holdfast.core.own_ca.acme import (
    Authz,
    AuthzState,
    Challenge,
    ChallengeState,
    Identifier,
    IdentifierType,
    Order,
    OrderState,
)
from holdfast.core.own_ca.ca import MAX_NAMES
from holdfast.core.own_ca.problem import AcmeError, Problem, SubProblem
from holdfast.operations.acme import authorizations, orders
from holdfast.operations.acme.context import Changes
from holdfast.operations.acme.orders import NewOrder
from holdfast.pki import names, strict_json
from holdfast.pki.refused import NameRefused

# ── Waiting a moment ──
# A request for an order or authorization that is under way waits a moment: most are settled in a few milliseconds.


PATIENCE: Final = 0.3  # seconds

T = TypeVar("T")


async def settled(changes: Changes, subject: str, look: Callable[[], Awaitable[T]], *, busy: Callable[[T], bool]) -> T:
    """The result of `look`; if that is busy, its result a little later, or as soon as the subject has moved on."""
    found = await look()
    if not busy(found):
        return found
    await changes.wait(subject, PATIENCE)
    return await look()  # in any case: another replica may have moved it on


# ── Orders ──
# RFC 8555 §7.4.


async def new_order(services: AcmeServices, request: AcmeRequest) -> AcmeAnswer:
    asked = parse_new_order(request.content)
    placed = await orders.place(services.acme_context, request.place.ca, request.who, asked, address=request.address)
    return _answer(request, placed, status=201)


async def order(services: AcmeServices, request: AcmeRequest) -> AcmeAnswer:
    request.only_look()
    found = await settled(
        services.acme_context.changes,
        request.args[0],
        lambda: orders.get(services.acme_context, request.who, request.args[0]),
        busy=lambda found: found.state is OrderState.PROCESSING,
    )
    return _answer(request, found)


async def finalize(services: AcmeServices, request: AcmeRequest) -> AcmeAnswer:
    csr = _der(request.content.get("csr"))
    found = await orders.finalize(services.acme_context, request.place.ca, request.who, request.args[0], csr)
    if found.state is OrderState.PROCESSING and await services.acme_context.changes.wait(found.id, PATIENCE):
        found = await orders.get(services.acme_context, request.who, found.id)
    return _answer(request, found)


def _der(value: object) -> bytes:
    try:
        return strict_json.decode(value)
    except ValueError:
        raise AcmeError.malformed("csr is not a text in base64url without padding.") from None


def _answer(request: AcmeRequest, found: Order, status: int = 200) -> AcmeAnswer:
    where = location(request.place.order(found.id))
    return json_answer(resources.order(request.place, found), where, *resources.order_waits(found), status=status)


# ── newOrder ──
# The payload of newOrder (RFC 8555 §7.4, RFC 8738, RFC 9773 §5, profiles): from its JSON to a NewOrder, or a refusal.


MAX_VALUE: Final = 1000  # characters of an identifier that an answer repeats
_RFC3339: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII)


def parse_new_order(content: Mapping[str, object]) -> NewOrder:
    not_before, not_after = _instant(content, "notBefore"), _instant(content, "notAfter")
    if not_before is not None and not_after is not None and not_after <= not_before:
        raise AcmeError.malformed("notAfter is not after notBefore.")
    return NewOrder(
        identifiers=identifiers(content.get("identifiers")),
        profile=_text(content, "profile"),
        not_before=not_before,
        not_after=not_after,
        replaces=_text(content, "replaces"),
    )


def _text(content: Mapping[str, object], name: str) -> str | None:
    value = content.get(name)
    if value is not None and not isinstance(value, str):
        raise AcmeError.malformed(f"{name} is not a text.")
    return value


def _instant(content: Mapping[str, object], name: str) -> datetime | None:
    """A certificate has whole seconds: fractions that a client writes are cut off."""
    text = _text(content, name)
    if text is None:
        return None
    written = text.upper()
    try:
        if not _RFC3339.fullmatch(written):
            raise ValueError("not RFC 3339")
        return datetime.fromisoformat(written).astimezone(UTC).replace(microsecond=0)
    except (ValueError, OverflowError):
        raise AcmeError.malformed(f"{name} is not a date of RFC 3339, such as 2030-01-31T00:00:00Z.") from None


# ── Identifiers ──


def identifiers(value: object) -> tuple[Identifier, ...]:
    """Each name once, in its one spelling; the refusal has a subproblem for each bad name (§6.7.1)."""
    if not isinstance(value, list) or not value:
        raise AcmeError.malformed("identifiers is not an array with at least one member.")
    if len(value) > MAX_NAMES:
        raise AcmeError.malformed(f"An order has at most {MAX_NAMES} identifiers, and this one has {len(value)}.")
    read = [_identifier(each) for each in value]
    problems = [each for each in read if isinstance(each, SubProblem)]
    if problems:
        raise AcmeError(_all_of(problems))
    return tuple(dict.fromkeys(each for each in read if isinstance(each, Identifier)))


def _identifier(value: object) -> Identifier | SubProblem:
    if not isinstance(value, dict):
        raise AcmeError.malformed("An identifier is a JSON object with type and value.")
    kind, text = value.get("type"), value.get("value")
    if not isinstance(kind, str) or not isinstance(text, str):
        raise AcmeError.malformed("The type and the value of an identifier are texts.")
    named = (kind[:MAX_VALUE], text[:MAX_VALUE])
    if kind not in ("dns", "ip"):
        return SubProblem("unsupportedIdentifier", "Certificates are issued for dns and ip identifiers.", named)
    try:
        return Identifier(cast(IdentifierType, kind), names.dns_name(text) if kind == "dns" else _address(text))
    except NameRefused as refused:
        return SubProblem("rejectedIdentifier", str(refused), named)


def _address(text: str) -> str:
    """RFC 8738 §3 has one spelling for each address: RFC 1123's, and RFC 5952's."""
    canonical = names.ip_address(text)
    if canonical != text:
        raise NameRefused("ip-spelling", f"{text!r:.60} is not how this address is written.", f"Write {canonical}.")
    return canonical


def _all_of(problems: list[SubProblem]) -> Problem:
    kinds = {each.type for each in problems}
    if len(problems) == 1:
        detail = problems[0].detail
    else:
        detail = f"{len(problems)} of the identifiers are refused; the subproblems say why."
    return Problem(kinds.pop() if len(kinds) == 1 else "compound", detail, 400, tuple(problems))


# ── Authorizations and challenges ──
# RFC 8555 §7.5.


async def authz(services: AcmeServices, request: AcmeRequest) -> AcmeAnswer:
    if request.jws.is_post_as_get:
        return _authz_answer(services, request, await _settled_authz(services, request))
    if request.content.get("status") != AuthzState.DEACTIVATED.value:  # §7.5.2; fields that we do not know are ignored
        raise AcmeError.malformed('All that can be done to an authorization is {"status": "deactivated"}.')
    return _authz_answer(
        services, request, await authorizations.deactivate(services.acme_context, request.who, request.args[0])
    )


async def _settled_authz(services: AcmeServices, request: AcmeRequest) -> Authz:
    return await settled(
        services.acme_context.changes,
        request.args[0],
        lambda: authorizations.get(services.acme_context, request.who, request.args[0]),
        busy=lambda found: resources.under_way(found) is not None,
    )


def _authz_answer(services: AcmeServices, request: AcmeRequest, found: Authz) -> AcmeAnswer:
    tested = resources.under_way(found)
    waits = () if tested is None else resources.challenge_waits(tested, services.clock.now())
    return json_answer(resources.authz(request.place, found), *waits)


async def challenge(services: AcmeServices, request: AcmeRequest) -> AcmeAnswer:
    """Look, or say that the response is in place: an empty object, whose unknown fields are ignored (§7.5.1)."""
    if request.jws.is_post_as_get:
        found, parent = await _settled_challenge(
            services, request, await authorizations.challenge(services.acme_context, request.who, request.args[0])
        )
    else:
        request.must_be_object()
        found, parent = await _settled_challenge(
            services, request, await authorizations.answer(services.acme_context, request.who, request.args[0])
        )
    up = link(request.place.authz(parent.id), "up")
    waits = resources.challenge_waits(found, services.clock.now())
    return json_answer(resources.challenge(request.place, found, parent), up, *waits)


async def _settled_challenge(
    services: AcmeServices, request: AcmeRequest, seen: tuple[Challenge, Authz]
) -> tuple[Challenge, Authz]:
    """A challenge response that is in place is mostly seen within milliseconds: the client need not ask again."""
    found, parent = seen
    if found.state is not ChallengeState.PROCESSING:
        return seen
    await services.acme_context.changes.wait(parent.id, PATIENCE)
    return await authorizations.challenge(services.acme_context, request.who, request.args[0])
