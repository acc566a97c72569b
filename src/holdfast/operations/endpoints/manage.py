"""Endpoints: where certificates are seen served. List, add, change, check, delete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field, StringConstraints

from holdfast.core.certificate import Certificate
from holdfast.core.endpoint import MAX_ADDRESSES, MAX_SAMPLES, Endpoint, KeyFamily, Seen, endpoint_of, is_address
from holdfast.core.endpoint_watch import TROUBLES, WatchedEndpoint
from holdfast.errors import UserError
from holdfast.operations.access import Action, Owned, Principal, Verdict, allow, demand
from holdfast.operations.certificates.refs import found_by
from holdfast.operations.context import Context
from holdfast.operations.endpoints import watching
from holdfast.operations.endpoints.watching import WATCH
from holdfast.operations.inputs import (
    Input,
    Labels,
    Option,
    OwnerName,
    Page,
    Paged,
    Short,
    StrictFlag,
    paged,
)
from holdfast.operations.operation import operation
from holdfast.operations.scopes import VISIBLE, Scope, demand_on_certificate, owner_in_input
from holdfast.pki import names
from holdfast.ports import Random
from holdfast.store import certificates, endpoints, journal
from holdfast.store.tx import Tx
from holdfast.store.work import jobs

EndpointName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9\[][A-Za-z0-9._:\[\]-]{0,279}$")]
AT_ONCE: Final = 4  # checks that one asker may wait for: each opens several connections
BOTH: Final[tuple[KeyFamily, ...]] = ("rsa", "ecdsa")


class NoSuchEndpoint(UserError):
    status, code = 404, "no-such-endpoint"

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no endpoint {name!r:.80}.")
        self.hint = "See what there is: holdfast endpoint ls"


class EndpointExists(UserError):
    status, code = 409, "endpoint-exists"

    def __init__(self, name: str) -> None:
        super().__init__(f"There is an endpoint named {name} already.")
        self.hint = "Change that one, or give this one another name: --name"


class EndpointChanged(UserError):
    status, code = 412, "endpoint-changed"

    def __init__(self, row: WatchedEndpoint) -> None:
        super().__init__(f"Endpoint {row.name} was changed since you looked: it is at version {row.version}.")
        self.hint = "Look again, and decide with what you see then."


class TooManyChecks(UserError):
    status, code = 429, "too-many-checks"
    hint = "Wait for one of them; every endpoint is looked at by itself, too."
    after = 5.0  # seconds

    def __init__(self) -> None:
        super().__init__(f"You wait for {AT_ONCE} checks of endpoints already.")


class EndpointRefused(UserError):
    code, hint = "endpoint-refused", "See: holdfast endpoint add --help"


# ── Inputs and results ──


class EndpointRef(Input):
    endpoint: Annotated[str, Option(metavar="ENDPOINT")] = Field(
        max_length=300, description="The endpoint's name or id."
    )


class _Watched(Input):
    """What is said of an endpoint, besides where it is."""

    server_name: Short | None = Field(
        default=None, description="The name to ask for (SNI), which the certificate must have; left out: the host."
    )
    addresses: Annotated[list[Short], Option(flag="--address")] = Field(
        default=[], max_length=MAX_ADDRESSES, description="Only this address; left out: all that DNS has."
    )
    samples: int = Field(
        default=1, ge=1, le=MAX_SAMPLES, description="Handshakes with each address: behind a balancer, more than one."
    )
    both_keys: StrictFlag = Field(
        default=False, description="Ask for the RSA and for the ECDSA certificate of a server that has both."
    )
    certificate: Short | None = Field(
        default=None, description="The certificate whose current version must be seen; left out: any that is in order."
    )
    twin: Short | None = Field(
        default=None, description="The certificate with the other kind of key, of a server that has both."
    )


class NewEndpoint(_Watched):
    place: Annotated[Short, Option(argument=True, metavar="PLACE")] = Field(
        description="HOST, HOST:PORT or PROTOCOL://HOST: tls, smtp, imap, pop3, ldap, postgres, mysql, ftp, xmpp."
    )
    name: EndpointName | None = Field(default=None, description="Its name; left out: made of host and port.")
    owner: OwnerName = Field(default="", description="Whose it is; left out: the owner of its certificate.")
    labels: Annotated[Labels, Option(short="-l")] = Field(default={}, description="A label, as name=value.")


class EndpointChange(EndpointRef):
    """Fields that are left out keep their values."""

    place: Short | None = Field(default=None, description="Where it is, as for add.")
    server_name: Short | None = Field(default=None, description="The name to ask for (SNI); null: the host.")
    addresses: Annotated[list[Short] | None, Option(flag="--address")] = Field(
        default=None, max_length=MAX_ADDRESSES, description="Only this address; an empty list: all that DNS has."
    )
    samples: int | None = Field(default=None, ge=1, le=MAX_SAMPLES, description="Handshakes with each address.")
    both_keys: StrictFlag | None = Field(
        default=None, description="Ask for the RSA and for the ECDSA certificate of a server that has both."
    )
    certificate: Short | None = Field(
        default=None, description="The certificate whose current version must be seen; null: any that is in order."
    )
    twin: Short | None = Field(default=None, description="The certificate with the other kind of key; null: none.")
    owner: OwnerName | None = Field(default=None, description="Whose it is.")
    labels: Annotated[Labels | None, Option(short="-l")] = Field(default=None, description="All of its labels.")


class EndpointQuery(Paged):
    troubled: bool = Field(default=False, description="Only those that people are told of.")


class SeenAt(BaseModel):
    """What was seen at one address."""

    address: str
    outcome: str = Field(description="new, old, other, unreachable, refused, tls problem, no upgrade, not permitted.")
    samples: int = Field(description="How many handshakes ended so.")
    key: str | None = Field(description="The kind of key that was asked for; null: any.")
    sha256: str | None = Field(description="Of the certificate that was shown.")
    chain: list[str] = Field(description="SHA-256 of all certificates that were shown, in their order.")
    names: list[str]
    issuer: str | None
    not_after: datetime | None
    tls: str | None = Field(description="The version of TLS.")
    problem: str | None


class EndpointView(BaseModel):
    id: str
    name: str
    place: str = Field(description="As tls://www.example.org:443.")
    host: str
    port: int
    protocol: str
    server_name: str | None
    addresses: list[str]
    samples: int
    both_keys: bool
    certificate: str | None = Field(description="The name of the certificate that must be seen there.")
    twin: str | None
    target: str | None
    owner: str
    labels: dict[str, str]
    version: int
    created_at: datetime
    reason_code: str | None = Field(description="OK, or what is wrong; null: it was not looked at yet.")
    reason: str | None
    troubled: bool = Field(description="People are told of it.")
    since: datetime | None
    checked_at: datetime | None
    next_check_at: datetime | None
    expires_at: datetime | None = Field(description="The first end of what is served there.")
    seen: list[SeenAt]


def shown(tx: Tx, row: WatchedEndpoint) -> EndpointView:
    place, last = row.place, row.last
    job = jobs.live(tx, WATCH, row.id)
    return EndpointView(
        id=row.id,
        name=row.name,
        place=place.shown,
        host=place.host,
        port=place.port,
        protocol=place.protocol.value,
        server_name=place.server_name,
        addresses=list(place.addresses),
        samples=place.samples,
        both_keys=bool(place.keys),
        certificate=_certificate_name(tx, row.certificate),
        twin=_certificate_name(tx, row.twin),
        target=row.target or None,
        owner=row.owner,
        labels=dict(row.labels),
        version=row.version,
        created_at=row.created_at,
        reason_code=None if last is None else last.reason.value,
        reason=None if last is None else last.sentence,
        troubled=last is not None and last.troubled,
        since=None if last is None else last.since,
        checked_at=None if last is None else last.at,
        next_check_at=None if job is None else job.due_at,
        expires_at=None if last is None else last.ends,
        seen=[] if last is None else [_seen_at(each) for each in last.seen],
    )


def _certificate_name(tx: Tx, certificate: str | None) -> str | None:
    found = None if certificate is None else certificates.get(tx, certificate)
    return certificate if found is None else found.name


def _seen_at(seen: Seen) -> SeenAt:
    found = seen.sighting
    return SeenAt(
        address=found.address,
        outcome=seen.outcome.value,
        samples=seen.count,
        key=found.key,
        sha256=found.leaf or None,
        chain=list(found.chain),
        names=list(found.names),
        issuer=found.issuer or None,
        not_after=found.not_after,
        tls=found.tls or None,
        problem=found.why or None,
    )


# ── Finding, and who may ──


def found(tx: Tx, ref: str) -> WatchedEndpoint:
    row = endpoints.by_name(tx, ref) or endpoints.get(tx, ref)
    if row is None:
        raise NoSuchEndpoint(ref)
    return row


def _on_endpoint(tx: Tx, who: Principal, action: Action, asked: Any) -> None:
    """An endpoint that the asker may not see is not there for them."""
    row = endpoints.by_name(tx, asked.endpoint) or endpoints.get(tx, asked.endpoint)
    owned = Owned("", {}) if row is None else Owned(row.owner, row.labels)
    if allow(who, action, owned) is Verdict.HIDDEN:
        raise NoSuchEndpoint(asked.endpoint)
    demand(who, action, owned)


ENDPOINT: Final = Scope(name="an endpoint", check=_on_endpoint, objects=True)


def _owned_by(principal: Principal, asked: NewEndpoint) -> Owned:
    owner = asked.owner or (principal.owners[0] if len(principal.owners) == 1 else "")
    return Owned(owner, {**principal.labels, **asked.labels})


# ── Looking ──


@operation("endpoints.list", "GET /endpoints", command="endpoint ls", action=Action.SEE_ENDPOINTS, scope=VISIBLE)
def list_endpoints(tx: Tx, ctx: Context, asked: EndpointQuery) -> Page[EndpointView]:
    """List endpoints, with what was seen there last."""
    who = ctx.principal

    def read(after: str, limit: int) -> list[WatchedEndpoint]:
        reasons = TROUBLES if asked.troubled else None
        return endpoints.page(tx, after=after, limit=limit, owners=who.owners, labels=who.labels, reasons=reasons)

    return paged(asked, read, lambda row: row.name, lambda row: shown(tx, row))


@operation(
    "endpoints.get",
    "GET /endpoints/{endpoint}",
    command="endpoint show",
    action=Action.SEE_ENDPOINTS,
    scope=ENDPOINT,
    versioned=True,
)
def get(tx: Tx, ctx: Context, asked: EndpointRef) -> EndpointView:
    """Show one endpoint: what must be seen there, and what each address showed last."""
    return shown(tx, found(tx, asked.endpoint))


# ── Adding and changing ──


@operation(
    "endpoints.add",
    "POST /endpoints",
    command="endpoint add",
    action=Action.CHANGE_ENDPOINTS,
    scope=owner_in_input(_owned_by),
    status=201,
    example="holdfast endpoint add smtp://mail.example.org --certificate mail.example.org",
    done="Watched. Look at it now: holdfast endpoint check {name}",
)
def add(tx: Tx, ctx: Context, asked: NewEndpoint) -> EndpointView:
    """Watch an endpoint: its certificate is checked every 10 minutes, deployed by Holdfast or not.

    Without a certificate, whatever is served must be valid, complete and for the name. With one, its current version
    must be seen at every address.
    """
    place = _placed(asked.place, asked)
    expected = [_seen_by(tx, ctx, each) for each in (asked.certificate, asked.twin)]
    owner, labels = _owned_by(ctx.principal, asked)
    if asked.certificate is not None and not asked.owner and not ctx.principal.confined:
        wanted = found_by(tx, asked.certificate).wanted
        owner, labels = wanted.owner, {**wanted.labels, **labels}
    row = WatchedEndpoint(
        id=ctx.ids.new("ep"),
        name=asked.name or _name_of(place),
        place=place,
        certificate=expected[0],
        twin=expected[1],
        owner=owner,
        labels=labels,
        created_at=tx.now(),
    )
    _check_twins(row)
    if not endpoints.insert(tx, row):
        raise EndpointExists(row.name)
    return shown(tx, _begun(tx, row, ctx.ids.new("job"), actor=ctx.actor))


@operation(
    "endpoints.change",
    "PATCH /endpoints/{endpoint}",
    command="endpoint change",
    action=Action.CHANGE_ENDPOINTS,
    scope=ENDPOINT,
    versioned=True,
    example="holdfast endpoint change www.example.org --samples 10",
    done="Changed. It is checked again at once.",
)
def change(tx: Tx, ctx: Context, asked: EndpointChange) -> EndpointView:
    """Change an endpoint. Options you leave out keep their values."""
    row = found(tx, asked.endpoint)
    if ctx.expected_version is not None and ctx.expected_version != row.version:
        raise EndpointChanged(row)
    given = asked.model_fields_set
    place = _changed_place(row.place, asked)
    expected: dict[str, Any] = {
        name: _seen_by(tx, ctx, getattr(asked, name)) for name in ("certificate", "twin") if name in given
    }
    owned = {name: getattr(asked, name) for name in ("owner", "labels") if getattr(asked, name) is not None}
    demand(
        ctx.principal, Action.CHANGE_ENDPOINTS, Owned(owned.get("owner", row.owner), owned.get("labels", row.labels))
    )
    _check_twins(replace(row, place=place, **expected))
    after = endpoints.save(tx, row, place=place, last=None, **expected, **owned)
    jobs.bring_forward(tx, WATCH, row.id, tx.now())
    journal.audit(
        tx, "endpoint_changed", row.id, actor=ctx.actor, before=_decided(row), after=_decided(after), name=row.name,
        changed=sorted(given - {"endpoint"}),
    )  # fmt: skip
    journal.event(tx, "endpoint.changed", row.id, by=ctx.actor, called=row.name)
    return shown(tx, after)


@operation(
    "endpoints.delete",
    "DELETE /endpoints/{endpoint}",
    command="endpoint rm",
    action=Action.CHANGE_ENDPOINTS,
    scope=ENDPOINT,
    destructive=True,
    done="Endpoint {endpoint} is not watched any more.",
)
def delete(tx: Tx, ctx: Context, asked: EndpointRef) -> None:
    """Stop watching an endpoint. Nothing is changed at the endpoint itself."""
    row = found(tx, asked.endpoint)
    if row.target:
        raise EndpointRefused(f"Endpoint {row.name} belongs to target {row.target}: change the endpoints of that.")
    remove(tx, row, actor=ctx.actor)


def remove(tx: Tx, row: WatchedEndpoint, *, actor: str) -> None:
    endpoints.delete(tx, row.id)
    job = jobs.live(tx, WATCH, row.id)
    if job is not None:
        jobs.cancel(tx, job.id)
    journal.audit(tx, "endpoint_deleted", row.id, actor=actor, before=_decided(row), name=row.name)
    journal.event(tx, "endpoint.deleted", row.id, by=actor, called=row.name)


def watch(tx: Tx, random: Random, place: Endpoint, *, target: str, certificate: Certificate) -> WatchedEndpoint:
    """Watch a certificate where a target serves it; the name says so, if another endpoint has the plain one."""
    plain, wanted = _name_of(place), certificate.wanted
    row = WatchedEndpoint(
        id=random.new_id("ep"),
        name=plain,
        place=place,
        certificate=certificate.id,
        target=target,
        owner=wanted.owner,
        labels=wanted.labels,
        created_at=tx.now(),
    )
    for name in (plain, f"{plain}.{target}", f"{plain}.{row.id}"):
        row = replace(row, name=name)
        if endpoints.insert(tx, row):
            break
    return _begun(tx, row, random.new_id("job"), actor=journal.SYSTEM)


def _begun(tx: Tx, row: WatchedEndpoint, job_id: str, *, actor: str) -> WatchedEndpoint:
    jobs.enqueue(tx, watching.job(job_id, row.id))
    place = row.place.shown
    journal.audit(tx, "endpoint_added", row.id, actor=actor, after=_decided(row), name=row.name, place=place)
    journal.event(tx, "endpoint.added", row.id, by=actor, called=row.name)
    return row


@operation(
    "endpoints.check",
    "POST /endpoints/{endpoint}/check",
    command="endpoint check",
    action=Action.CHANGE_ENDPOINTS,
    scope=ENDPOINT,
    dry_runs=False,
    example="holdfast endpoint check www.example.org",
)
async def check(ctx: Context, asked: EndpointRef) -> EndpointView:
    """Look at an endpoint now: a fresh handshake with each of its addresses."""
    row = await ctx.read(lambda tx: found(tx, asked.endpoint))
    looking, who = ctx.services.looking, ctx.principal.id
    if looking[who] >= AT_ONCE:
        raise TooManyChecks
    looking[who] += 1
    try:
        sightings = await ctx.services.look(row.place)
    finally:
        looking[who] -= 1

    def write(tx: Tx) -> EndpointView:
        now = found(tx, asked.endpoint)
        return shown(tx, watching.record(tx, now, watching.judge(tx, now, sightings)) or now)

    return await ctx.write(write)


def _decided(row: WatchedEndpoint) -> dict[str, object]:
    """What people decide about an endpoint: the audit log has digests of it."""
    place = row.place
    return {
        "place": [place.shown, place.server_name, place.addresses, place.samples, place.keys],
        "expected": row.certificates,
        "owner": row.owner,
        "labels": dict(row.labels),
    }


def _seen_by(tx: Tx, ctx: Context, ref: str | None) -> str | None:
    """The id of a certificate that the asker may see."""
    if ref is None:
        return None
    demand_on_certificate(tx, ctx.principal, Action.SEE, ref)
    return found_by(tx, ref).id


def _check_twins(row: WatchedEndpoint) -> None:
    if row.twin is not None and (row.certificate is None or row.twin == row.certificate):
        raise EndpointRefused("A twin is another certificate than the first one, which must be named, too.")


def _placed(text: str, asked: _Watched) -> Endpoint:
    place = _built(lambda: endpoint_of(text))
    keys = BOTH if asked.both_keys or asked.twin is not None else ()
    return _checked(place, asked.server_name, asked.addresses, samples=asked.samples, keys=keys)


def _changed_place(before: Endpoint, asked: EndpointChange) -> Endpoint:
    given = asked.model_fields_set
    place = before if asked.place is None else _built(lambda: endpoint_of(asked.place or ""))
    keys = before.keys if asked.both_keys is None else BOTH if asked.both_keys else ()
    return _checked(
        place,
        asked.server_name if "server_name" in given else before.server_name,
        before.addresses if asked.addresses is None else asked.addresses,
        samples=asked.samples or before.samples,
        keys=BOTH if asked.twin is not None else keys,
    )


def _checked(
    place: Endpoint, server_name: str | None, addresses: Sequence[str], *, samples: int, keys: tuple[KeyFamily, ...]
) -> Endpoint:
    """The same place in the one spelling of its names and addresses."""
    host = _spelled(place.host)
    found: Endpoint = _built(
        lambda: replace(
            place,
            host=host,
            server_name=None if server_name is None else _spelled(server_name),
            addresses=tuple(names.ip_address(each) for each in addresses),
            samples=samples,
            keys=keys,
        )
    )
    return found


def _spelled(host: str) -> str:
    if host == "localhost":
        return host
    return str(_built(lambda: names.ip_address(host) if is_address(host) else names.dns_name(host, wildcard=False)))


def _built(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except ValueError as why:
        said = str(why).rstrip(".")
        raise EndpointRefused(f"{said[:1].upper()}{said[1:]}.") from None


def _name_of(place: Endpoint) -> str:
    host = f"[{place.host}]" if ":" in place.host else place.host
    return host if place.port == 443 else f"{host}:{place.port}"
