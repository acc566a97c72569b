"""Finds: certificates that were seen somewhere. List them, and decide about each: adopt it, or ignore it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from holdfast.core.discovery import judgement
from holdfast.core.discovery.find import HERE, MOST_PLACES, Find, FindPlace, FindState, Manager, move
from holdfast.errors import UserError
from holdfast.operations.access import Action
from holdfast.operations.certificates import lifecycle
from holdfast.operations.certificates.refs import found_by
from holdfast.operations.certificates.views import NewCertificate, owned_by
from holdfast.operations.context import Context
from holdfast.operations.inputs import (
    Input,
    Labels,
    NoteText,
    OneOf,
    Option,
    OwnerName,
    Page,
    Paged,
    RemoteName,
    Short,
    from_row,
    paged,
)
from holdfast.operations.operation import operation
from holdfast.operations.scopes import INSTALLATION, demand_on_certificate
from holdfast.store import certificates, finds, journal
from holdfast.store.tx import Tx


class NoSuchFind(UserError):
    status, code = 404, "no-such-find"

    def __init__(self, ref: str) -> None:
        super().__init__(f"There is no find {ref!r:.80}.")
        self.hint = "See what there is: holdfast finds ls"


class AmbiguousFind(UserError):
    status, code = 409, "ambiguous-find"

    def __init__(self, ref: str) -> None:
        super().__init__(f"Several finds have a fingerprint that begins with {ref!r:.80}.")
        self.hint = "Say more of it, or give the id: holdfast finds ls"


class FindSettled(UserError):
    status, code = 409, "find-settled"

    def __init__(self, row: Find, why: str) -> None:
        super().__init__(f"Find {row.id} ({row.name}) {why}")
        self.hint = f"See it: holdfast finds show {row.id}"


class NotAdopted(UserError):
    code = "not-adopted"

    def __init__(self, row: Find, why: str) -> None:
        super().__init__(f"Find {row.id} cannot be adopted. {why}")
        self.hint = f"If it is to stay as it is: holdfast finds ignore {row.id} --reason TEXT"


# ── Inputs and results ──


class FindRef(Input):
    find: Annotated[str, Option(metavar="FIND")] = Field(
        max_length=100, description="The id of the find, or the beginning of its fingerprint."
    )


class FindQuery(Paged):
    state: list[Annotated[str, OneOf(FindState)]] = Field(
        default=[], max_length=4, description="Only finds in this state; may be repeated."
    )
    unmanaged: bool = Field(default=False, description="Only finds that are not managed here, and not decided about.")
    served: bool = Field(default=False, description="Only finds that are shown in handshakes now.")
    q: str | None = Field(default=None, max_length=253, description="Part of a name, or of the fingerprint.")
    expiring_days: Annotated[int | None, Option(flag="--expiring-days")] = Field(
        default=None, ge=0, le=3650, description="Only finds that expire within so many days."
    )


class PlaceView(BaseModel):
    """One place where a find is, or was, seen."""

    source: str = Field(description="network, host, ca or ct.")
    place: str
    discovery: str = Field(description="The discovery, or the host, that looks there.")
    served: bool = Field(description="It was shown in a handshake.")
    program: str
    notes: str = Field(description="Such as the mode and owner of its key file.")
    first_seen_at: datetime
    last_seen_at: datetime
    gone_at: datetime | None = Field(description="null: it is seen there.")


class FindView(BaseModel):
    id: str
    name: str = Field(description="Its first name.")
    fingerprint: str = Field(description="SHA-256; empty: only its precertificate is known, from a log.")
    serial: str
    issuer: str
    names: list[str]
    not_before: datetime
    not_after: datetime
    days_left: int = Field(description="Negative: it has expired.")
    self_signed: bool
    chain: list[str] = Field(description="SHA-256 of all certificates that were shown, in their order.")
    chain_problem: str = Field(description="Where the chain breaks; empty: it is complete, or was not shown.")
    manager: str = Field(description="Who renews it: holdfast, acme-client, certbot, acme.sh, lego or unknown.")
    certificate: str | None = Field(description="The certificate here that it is a version of, or that replaces it.")
    state: str
    why: str = Field(description="The reason to ignore it.")
    decided_by: str
    decided_at: datetime | None
    served: bool
    places: int = Field(description="In how many places it is seen now.")
    where: str = Field(description="One of them.")
    first_seen_at: datetime
    last_seen_at: datetime
    version: int
    says: str = Field(description="How it stands, to be read after its name.")
    adopt: str = Field(description="The command that adopts it; empty: that is not needed, or not possible.")
    ignore: str = Field(description="The command that ignores it.")
    cannot_adopt: str = Field(description="Why it cannot be adopted.")


class FindDetails(FindView):
    seen: list[PlaceView]


class Ignoring(FindRef):
    reason: Annotated[NoteText, Option(flag="--reason")] = Field(min_length=1, description="Why it is left alone.")


class Adoption(FindRef):
    certificate: Short | None = Field(
        default=None, description="A certificate here that takes its place; left out: a new one is asked for."
    )
    name: Short | None = Field(default=None, description="The name of the new certificate; left out: its first name.")
    issuers: Annotated[list[RemoteName], Option(flag="--issuer")] = Field(
        default=[], max_length=10, description="Where the new certificate comes from, in this order."
    )
    owner: OwnerName = Field(default="", description="Whose the new certificate is.")
    labels: Annotated[Labels, Option(short="-l")] = Field(default={}, description="A label, as name=value.")


def shown(tx: Tx, row: Find, where: str = "") -> FindView:
    return FindView(**_fields(tx, row, where))


def _fields(tx: Tx, row: Find, where: str) -> dict[str, Any]:
    facts, now, remedy = row.facts, tx.now(), judgement.remedy_of(row)
    about = None if row.certificate is None else certificates.get(tx, row.certificate)
    return {
        "id": row.id, "name": row.name, "fingerprint": facts.fingerprint, "serial": facts.serial,
        "issuer": facts.issuer, "names": list(facts.names), "not_before": facts.not_before,
        "not_after": facts.not_after, "days_left": (facts.not_after - now).days, "self_signed": facts.self_signed,
        "chain": list(facts.chain), "chain_problem": facts.gap, "manager": row.manager.value,
        "certificate": None if about is None else about.name, "state": row.state.value, "why": row.why,
        "decided_by": row.decided_by, "decided_at": row.decided_at, "served": row.served, "places": row.places,
        "where": where or finds.first_places(tx, [row.id]).get(row.id, ""), "first_seen_at": row.first_seen_at,
        "last_seen_at": row.last_seen_at, "version": row.version, "says": judgement.sentence_of(row, now),
        "adopt": remedy.adopt, "ignore": remedy.ignore, "cannot_adopt": remedy.why_not,
    }  # fmt: skip


def _details(tx: Tx, row: Find) -> FindDetails:
    seen = [_place(each) for each in finds.places_of(tx, row.id, MOST_PLACES)]
    return FindDetails(**_fields(tx, row, ""), seen=seen)


def _place(row: FindPlace) -> PlaceView:
    return from_row(PlaceView, row, source=row.source.value)


def found(tx: Tx, ref: str) -> Find:
    row = finds.get(tx, ref)
    if row is not None:
        return row
    alike = finds.by_fingerprint(tx, ref.lower()) if len(ref) >= 6 else []
    if len(alike) > 1:
        raise AmbiguousFind(ref)
    if not alike:
        raise NoSuchFind(ref)
    return alike[0]


# ── Looking ──


@operation(
    "finds.list",
    "GET /finds",
    command="finds ls",
    action=Action.SEE_FINDS,
    scope=INSTALLATION,
    example="holdfast finds ls --unmanaged --served",
)
def list_finds(tx: Tx, ctx: Context, asked: FindQuery) -> Page[FindView]:
    """List finds: certificates that were seen on networks, hosts, at CAs or in CT logs."""
    ends = None if asked.expiring_days is None else tx.now() + timedelta(days=asked.expiring_days)

    def read(after: str, limit: int) -> Sequence[Find]:
        states = [FindState(each) for each in asked.state]
        return finds.page(
            tx, after=after, limit=limit, states=states, unmanaged_only=asked.unmanaged, served=asked.served,
            text=asked.q, ends_before=ends,
        )  # fmt: skip

    return paged(asked, read, lambda row: row.id, lambda row: shown(tx, row))


@operation(
    "finds.get", "GET /finds/{find}", command="finds show", action=Action.SEE_FINDS, scope=INSTALLATION, versioned=True
)
def get(tx: Tx, ctx: Context, asked: FindRef) -> FindDetails:
    """Show one find: where it is seen, who manages it, and the command that adopts or ignores it."""
    return _details(tx, found(tx, asked.find))


# ── Deciding ──


@operation(
    "finds.ignore",
    "POST /finds/{find}/ignore",
    command="finds ignore",
    action=Action.CHANGE_FINDS,
    scope=INSTALLATION,
    example="holdfast finds ignore 3f2a9c --reason 'A printer; replaced in May.'",
    done="Find {id} ({name}) is ignored. Undo it: holdfast finds reconsider {id}",
)
def ignore(tx: Tx, ctx: Context, asked: Ignoring) -> FindDetails:
    """Leave a find alone, with a reason. It is not told of any more, and not counted as unmanaged."""
    row = found(tx, asked.find)
    if not row.unmanaged:
        raise FindSettled(row, _settled(row))
    after = _decided(tx, ctx, row, state=move(row.state, "ignored"), why=asked.reason)
    journal.audit(tx, "find_ignored", row.id, actor=ctx.actor, **_told(row), reason=asked.reason)
    journal.event(tx, "find.ignored", row.id, by=ctx.actor, called=row.name)
    return _details(tx, after)


def _settled(row: Find) -> str:
    if row.manager is Manager.HOLDFAST:
        return "is a version of a certificate here, which is renewed here."
    if row.manager is Manager.ACME_CLIENT:
        return "was issued by our own CA, and its ACME client renews it."
    return f"is {row.state} already."


@operation(
    "finds.reconsider",
    "POST /finds/{find}/reconsider",
    command="finds reconsider",
    action=Action.CHANGE_FINDS,
    scope=INSTALLATION,
    done="Find {id} ({name}) waits for a decision again.",
)
def reconsider(tx: Tx, ctx: Context, asked: FindRef) -> FindDetails:
    """Take back what was decided about a find."""
    row = found(tx, asked.find)
    if row.state not in (FindState.IGNORED, FindState.ADOPTED):
        raise FindSettled(row, f"is {row.state}: nothing was decided about it.")
    state = move(row.state, "reconsidered")
    after = finds.save(tx, row, state=state, why="", decided_by="", decided_at=None, certificate=None)
    journal.audit(tx, "find_reconsidered", row.id, actor=ctx.actor, **_told(row), was=row.state.value)
    journal.event(tx, "find.reconsidered", row.id, by=ctx.actor, called=row.name)
    return _details(tx, after)


@operation(
    "finds.adopt",
    "POST /finds/{find}/adopt",
    command="finds adopt",
    action=Action.CHANGE_FINDS,
    scope=INSTALLATION,
    example="holdfast finds adopt 3f2a9c --owner web",
    done="Certificate {certificate} takes its place once installed: holdfast change {certificate} --target TARGET",
)
def adopt(tx: Tx, ctx: Context, asked: Adoption) -> FindDetails:
    """Adopt a find: ask for a certificate with its names, or name one here that takes its place.

    Its private key is not here, so a new certificate is issued, by the rules and policies of every other one. Nothing
    changes where the find is served until the new certificate is deployed there.
    """
    row = found(tx, asked.find)
    if row.manager in HERE or row.state in (FindState.ADOPTED, FindState.GONE):
        raise FindSettled(row, _settled(row))
    certificate = _named(tx, ctx, asked.certificate) if asked.certificate else _asked_for(tx, ctx, row, asked)
    state = move(row.state, "adopted")
    after = _decided(tx, ctx, row, state=state, why="", certificate=certificate)
    name = found_by(tx, certificate).name
    journal.audit(tx, "find_adopted", row.id, actor=ctx.actor, **_told(row), certificate=name)
    journal.event(tx, "find.adopted", row.id, by=ctx.actor, called=row.name, certificate=name)
    return _details(tx, after)


def _named(tx: Tx, ctx: Context, ref: str) -> str:
    demand_on_certificate(tx, ctx.principal, Action.CHANGE, ref)
    return found_by(tx, ref).id


def _asked_for(tx: Tx, ctx: Context, row: Find, asked: Adoption) -> str:
    """The id of the new certificate. Policies and limits are those of every request."""
    if why_not := judgement.problem_with_adopting(row):
        raise NotAdopted(row, why_not)
    said = {"names": list(row.facts.names), "name": asked.name, "issuers": asked.issuers or None}
    try:
        wanted = NewCertificate.model_validate({**said, "owner": asked.owner, "labels": asked.labels})
    except ValidationError:
        raise NotAdopted(row, "One of its names cannot be in a certificate here.") from None
    ctx.demand(Action.CREATE, owned_by(ctx.principal, wanted))
    return lifecycle.request(tx, ctx, wanted).id


def _decided(tx: Tx, ctx: Context, row: Find, **changes: object) -> Find:
    return finds.save(tx, row, decided_by=ctx.actor, decided_at=tx.now(), **changes)


def _told(row: Find) -> dict[str, object]:
    """What the audit log says of a find."""
    return {"fingerprint": row.facts.fingerprint, "names": list(row.facts.names[:10]), "issuer": row.facts.issuer}
