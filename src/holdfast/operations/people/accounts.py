"""Accounts of people: added, changed, disabled and removed by admins; set up by their owners, over links."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, StringConstraints

from holdfast.core.access import Role, TokenKind
from holdfast.core.people import Person, TicketKind
from holdfast.errors import UserError
from holdfast.operations.access import RIGHTS, Action, Principal, Verdict, allow
from holdfast.operations.context import Context
from holdfast.operations.inputs import Changed, Input, Labels, Option, OwnerName, Page, Paged, paged
from holdfast.operations.operation import Face, operation
from holdfast.operations.people import factors, sessions
from holdfast.operations.scopes import INSTALLATION
from holdfast.store import journal, people, personal, secrets
from holdfast.store.tx import Tx

PersonName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9_.@+-]{1,80}$"), Option(argument=True, metavar="NAME")
]
RoleName = Literal["admin", "operator", "viewer", "auditor"]
SHOWS_A_LINK: Final = {Face.MCP: "Its result is a link that logs in, and an assistant must not see one."}


class NoSuchPerson(UserError):
    status, code = 404, "no-such-person"

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no person {name!r:.90}.")
        self.hint = "See who there is: holdfast people ls"


class PersonExists(UserError):
    status, code = 409, "person-exists"

    def __init__(self, name: str) -> None:
        super().__init__(f"There is a person {name} already.")
        self.hint = (
            f"A new set-up link: holdfast people reset {name}. Another role: holdfast people set {name} --role …"
        )


class PersonChanged(UserError):
    status, code = 412, "person-changed"

    def __init__(self, name: str) -> None:
        super().__init__(f"The account of {name} was changed since you read it.")
        self.hint = f"Look at it again: holdfast people get {name}"


class PersonRefused(UserError):
    status, code = 409, "person-refused"

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.hint = hint


class NotHere(UserError):
    status, code = 403, "only-on-its-machine"
    hint = "An admin elsewhere makes a new set-up link instead: holdfast people reset NAME"

    def __init__(self) -> None:
        super().__init__("Accounts are recovered on the server's machine only.")


class PersonDisabled(UserError):
    status, code = 409, "person-disabled"

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is disabled, and cannot log in.")
        self.hint = f"Enable the account first: holdfast people enable {name}"


# ── Inputs and results ──


class PersonRef(Input):
    name: PersonName = Field(description="The name of the person.")


class NewPerson(PersonRef):
    role: RoleName = Field(default="viewer", description="What the person may do.")
    rights: list[Literal["export"]] = Field(
        default=[], max_length=1, description="export: the person may export private keys."
    )
    owners: list[OwnerName] = Field(default=[], max_length=32, description="Only for certificates of this owner.")
    labels: Annotated[Labels, Option(short="-l")] = Field(
        default={}, description="Only for certificates with this label."
    )


class PersonChange(PersonRef):
    """Fields that are left out keep their values."""

    role: RoleName | None = Field(default=None, description="What the person may do.")
    rights: list[Literal["export"]] | None = Field(
        default=None, max_length=1, description="export: the person may export private keys."
    )
    owners: list[OwnerName] | None = Field(
        default=None, max_length=32, description="Only for certificates of this owner."
    )
    labels: Annotated[Labels | None, Option(short="-l")] = Field(
        default=None, description="Only for certificates with this label."
    )


class PersonView(BaseModel):
    name: str
    role: str
    rights: list[str]
    owners: list[str]
    labels: dict[str, str]
    logs_in_by: list[str] = Field(description="password, passkey, provider; empty: the account is not set up yet.")
    created_by: str
    created_at: datetime
    last_login_at: datetime | None
    disabled_at: datetime | None
    version: int


class Link(BaseModel):
    name: str
    link: str = Field(description="Shown this once. It can be followed once.")


class SessionQuery(Input):
    person: Annotated[PersonName | None, Option(argument=True, metavar="[NAME]")] = Field(
        default=None, description="Of this person; left out: your own."
    )


class SessionRef(Input):
    session: Annotated[str, Option(metavar="SESSION")] = Field(max_length=100, description="The id of the session.")


class SessionView(BaseModel):
    id: str
    person: str
    method: str = Field(description="password, passkey, provider, link or setup.")
    address: str
    client: str = Field(description="What the browser calls itself.")
    created_at: datetime
    used_at: datetime
    expires_at: datetime
    current: bool = Field(description="It is the one that asks.")


def shown(tx: Tx, person: Person) -> PersonView:
    has = factors.factors_of(tx, person)
    ways = {"password": has.password, "passkey": bool(has.passkeys), "provider": person.issuer is not None}
    return PersonView(
        name=person.name,
        role=person.role,
        rights=sorted(person.rights),
        owners=list(person.owners),
        labels=dict(person.labels),
        logs_in_by=[way for way, there in ways.items() if there],
        created_by=person.created_by,
        created_at=person.created_at,
        last_login_at=person.last_login_at,
        disabled_at=person.disabled_at,
        version=person.version,
    )


def _decided(person: Person) -> dict[str, Any]:
    """The fields of a person that the audit log has digests of; no hash is among them."""
    return {"name": person.name, "role": person.role, "rights": person.rights, "owners": person.owners,
            "labels": person.labels, "disabled": person.disabled_at is not None}  # fmt: skip


def found(tx: Tx, name: str) -> Person:
    person = people.by_name(tx, name)
    if person is None:
        raise NoSuchPerson(name)
    return person


# ── Looking ──


@operation(
    "people.list",
    "GET /people",
    command="people ls",
    action=Action.SEE_PEOPLE,
    scope=INSTALLATION,
    example="holdfast people ls",
)
def list_people(tx: Tx, ctx: Context, asked: Paged) -> Page[PersonView]:
    """List the people who can log in, and how."""
    return paged(
        asked,
        lambda after, limit: people.page(tx, after=after, limit=limit),
        lambda row: row.name,
        lambda row: shown(tx, row),
    )


@operation(
    "people.get",
    "GET /people/{name}",
    command="people get",
    action=Action.SEE_PEOPLE,
    scope=INSTALLATION,
    versioned=True,
    example="holdfast people get alice",
)
def get_person(tx: Tx, ctx: Context, asked: PersonRef) -> PersonView:
    """Show a person: role, owners, and how they log in."""
    return shown(tx, found(tx, asked.name))


# ── Adding and changing ──


@operation(
    "people.add",
    "POST /people",
    command="people add",
    action=Action.CHANGE_PEOPLE,
    scope=INSTALLATION,
    status=201,
    example="holdfast people add alice --role operator --owner payments",
    not_on=SHOWS_A_LINK,
)
async def add_person(ctx: Context, asked: NewPerson) -> Link:
    """Add a person. Hand them the link: with it they choose a password and an app for codes, or a passkey.

    The link is shown this once, so an Idempotency-Key is not kept here.
    """
    new_id = ctx.certificate_context.random.new_id("person")

    def person(tx: Tx) -> Person:
        _may_give(ctx.principal, asked.rights)
        return add(tx, new_id, asked.name, Role(asked.role), rights=asked.rights, owners=asked.owners,
                   labels=asked.labels, actor=ctx.actor)  # fmt: skip

    return await _link(ctx, asked.name, TicketKind.SETUP, person)


def add(
    tx: Tx,
    person_id: str,
    name: str,
    role: Role,
    *,
    actor: str,
    rights: list[Literal["export"]] | frozenset[str] = frozenset(),
    owners: list[str] | tuple[str, ...] = (),
    labels: Mapping[str, str] | None = None,
    issuer: str | None = None,
    subject: str | None = None,
) -> Person:
    person = Person(
        id=person_id,
        name=name,
        role=role,
        rights=frozenset(rights),
        owners=tuple(owners),
        labels=dict(labels or {}),
        issuer=issuer,
        subject=subject,
        created_by=actor,
        created_at=tx.now(),
    )
    if not people.insert(tx, person):
        raise PersonExists(name)
    journal.audit(tx, "person_added", person.id, actor=actor, after=_decided(person), name=name, role=role,
                  owners=list(person.owners))  # fmt: skip
    return person


def _may_give(by: Principal, rights: list[Literal["export"]] | None) -> None:
    if not frozenset(rights or ()) <= by.rights:
        hint = "A user who has this right can give it."
        raise PersonRefused("You do not have the right that you want to give.", hint)


@operation(
    "people.change",
    "PATCH /people/{name}",
    command="people set",
    action=Action.CHANGE_PEOPLE,
    scope=INSTALLATION,
    versioned=True,
    example="holdfast people set alice --role admin",
    done="{name} is {role} from the next request on.",
)
def change_person(tx: Tx, ctx: Context, asked: PersonChange) -> PersonView:
    """Change role, rights, owners and labels of a person. Options you leave out keep their values."""
    before = found(tx, asked.name)
    if before.issuer is not None:
        hint = "Change the person's groups there, or oidc.groups in the settings."
        raise PersonRefused("The role of this person comes from the OpenID provider.", hint)
    _may_give(ctx.principal, asked.rights)
    given = {name: getattr(asked, name) for name in ("role", "rights", "owners", "labels")}
    readers: dict[str, Any] = {"role": Role, "rights": frozenset, "owners": tuple, "labels": dict}
    changes = {name: readers[name](value) for name, value in given.items() if value is not None}
    return shown(tx, _changed(tx, ctx, before, "person_changed", **changes))


def _changed(tx: Tx, ctx: Context, before: Person, action: str, **changes: Any) -> Person:
    if not people.change(tx, before.id, changes, version=ctx.expected_version):
        raise PersonChanged(before.name)
    after = found(tx, before.name)
    journal.audit(tx, action, before.id, actor=ctx.actor, before=_decided(before), after=_decided(after),
                  name=before.name, changed=sorted(changes))  # fmt: skip
    return after


@operation(
    "people.disable",
    "POST /people/{name}/disable",
    command="people disable",
    action=Action.CHANGE_PEOPLE,
    scope=INSTALLATION,
    destructive=True,
    done="{name} is logged out everywhere and cannot log in.",
)
def disable_person(tx: Tx, ctx: Context, asked: PersonRef) -> PersonView:
    """Disable a person: their browsers are logged out, and they cannot log in until they are enabled."""
    person = found(tx, asked.name)
    if person.disabled_at is None:
        person = _changed(tx, ctx, person, "person_disabled", disabled_at=tx.now())
        people.drop_tickets_of(tx, person.id)
        sessions.end_all(tx, person, actor=ctx.actor, why="disabled")
    return shown(tx, person)


@operation(
    "people.enable",
    "POST /people/{name}/enable",
    command="people enable",
    action=Action.CHANGE_PEOPLE,
    scope=INSTALLATION,
    done="{name} can log in again.",
)
def enable_person(tx: Tx, ctx: Context, asked: PersonRef) -> PersonView:
    """Enable a person who was disabled."""
    person = found(tx, asked.name)
    if person.disabled_at is not None:
        person = _changed(tx, ctx, person, "person_enabled", disabled_at=None)
    return shown(tx, person)


@operation(
    "people.delete",
    "DELETE /people/{name}",
    command="people remove",
    action=Action.CHANGE_PEOPLE,
    scope=INSTALLATION,
    destructive=True,
    done="{name} is removed.",
)
def remove_person(tx: Tx, ctx: Context, asked: PersonRef) -> PersonView:
    """Remove a person for good. What they did stays in the audit log, under their name."""
    person = found(tx, asked.name)
    was = shown(tx, person)
    sessions.end_all(tx, person, actor=ctx.actor, why="removed")
    people.remove(tx, person.id)
    personal.forget(tx, f"{TokenKind.HUMAN}:{person.name}")
    if person.totp is not None:
        secrets.delete(tx, person.totp)
    journal.audit(tx, "person_removed", person.id, actor=ctx.actor, before=_decided(person), name=person.name)
    return was


# ── Links ──


@operation(
    "people.reset",
    "POST /people/{name}/reset",
    command="people reset",
    action=Action.CHANGE_PEOPLE,
    scope=INSTALLATION,
    destructive=True,
    example="holdfast people reset alice",
    not_on=SHOWS_A_LINK,
)
async def reset_person(ctx: Context, asked: PersonRef) -> Link:
    """Make a new set-up link. Password, codes and passkeys of the person are gone, and their browsers logged out.

    The link is shown this once, so an Idempotency-Key is not kept here.
    """

    def person(tx: Tx) -> Person:
        who = found(tx, asked.name)
        if who.issuer is not None:
            hint = "Reset the password there."
            raise PersonRefused("This person logs in by the OpenID provider.", hint)
        people.drop_tickets_of(tx, who.id)
        people.remove_passkeys(tx, who.id)
        people.put_recovery_codes(tx, who.id, [])
        people.change(tx, who.id, {"password": None, "totp": None})
        if who.totp is not None:
            secrets.delete(tx, who.totp)
        sessions.end_all(tx, who, actor=ctx.actor, why="reset")
        journal.audit(tx, "person_reset", who.id, actor=ctx.actor, name=who.name)
        return who

    return await _link(ctx, asked.name, TicketKind.SETUP, person)


@operation(
    "people.recover",
    "POST /people/{name}/recover",
    command="people recover",
    action=Action.CHANGE_PEOPLE,
    scope=INSTALLATION,
    offline=True,
    example="holdfast people recover alice",
    not_on=SHOWS_A_LINK,
)
async def recover(ctx: Context, asked: PersonRef) -> Link:
    """Make a link that logs a person in once; if there is no person of that name, an admin is added.

    It works on the server's machine only: it is the way in where no admin can log in any more, and for the first one.
    The link is shown this once, so an Idempotency-Key is not kept here.
    """
    principal, new_id = ctx.principal, ctx.certificate_context.random.new_id("person")
    if principal.kind != "local":
        raise NotHere

    def person(tx: Tx) -> Person:
        who = people.by_name(tx, asked.name)
        who = who or add(tx, new_id, asked.name, Role.ADMIN, rights=RIGHTS, actor=ctx.actor)
        journal.audit(tx, "person_recovered", who.id, actor=ctx.actor, name=who.name)
        return who

    return await _link(ctx, asked.name, TicketKind.LOGIN, person)


async def _link(ctx: Context, name: str, kind: TicketKind, person: Callable[[Tx], Person]) -> Link:
    known, token = ctx.services.people, sessions.drawn(ctx.certificate_context.random)

    def write(tx: Tx) -> None:
        who = person(tx)
        if who.disabled_at is not None:
            raise PersonDisabled(who.name)
        sessions.put(tx, sessions.hashed(token), kind, person=who.id, services=known)

    await ctx.write(write)
    return Link(name=name, link="" if ctx.dry_run else sessions.link(known, token))


# ── Sessions ──


def _own(tx: Tx, who: Principal) -> Person | None:
    """A token of a person's name is that person's, too."""
    return people.by_name(tx, who.name) if who.kind == TokenKind.HUMAN else None


def _reached(tx: Tx, ctx: Context, action: Action, name: str) -> Person:
    """Oneself, or with the right anyone. For an asker without it, others do not exist."""
    own = _own(tx, ctx.principal)
    if own is not None and own.name == name:
        return own
    if allow(ctx.principal, action) is not Verdict.ALLOWED:
        raise NoSuchPerson(name)
    return found(tx, name)


@operation(
    "sessions.list",
    "GET /sessions",
    command="people sessions",
    action=Action.SEE_SELF,
    scope=INSTALLATION,
    example="holdfast people sessions alice",
)
def list_sessions(tx: Tx, ctx: Context, asked: SessionQuery) -> list[SessionView]:
    """List the browsers in which a person is logged in: your own, or with the right to see people anyone's."""
    own = _own(tx, ctx.principal)
    person = own if asked.person is None else _reached(tx, ctx, Action.SEE_PEOPLE, asked.person)
    rows = [] if person is None else people.sessions_of(tx, person.id)
    idle = ctx.services.people.idle_for
    return [
        SessionView(
            id=row.id,
            person="" if person is None else person.name,
            method=row.method,
            address=row.address,
            client=row.client,
            created_at=row.created_at,
            used_at=row.used_at,
            expires_at=min(row.expires_at, row.used_at + idle),
            current=row.id == ctx.principal.id,
        )
        for row in rows
        if row.good_at(tx.now(), idle)
    ]


class NoSuchSession(UserError):
    status, code = 404, "no-such-session"

    def __init__(self, session: str) -> None:
        super().__init__(f"There is no session {session!r:.60}.")
        self.hint = "See what there is: holdfast people sessions NAME"


@operation(
    "sessions.end",
    "POST /sessions/{session}/end",
    command="people end-session",
    action=Action.CHANGE_SELF,
    scope=INSTALLATION,
    done="The browser is logged out.",
)
def end_session(tx: Tx, ctx: Context, asked: SessionRef) -> Changed:
    """Log one browser out: your own, or with the right to change people anyone's."""
    session, own = people.get_session(tx, asked.session), _own(tx, ctx.principal)
    reached = session is not None and own is not None and session.person == own.id
    if session is None or not (reached or allow(ctx.principal, Action.CHANGE_PEOPLE) is Verdict.ALLOWED):
        raise NoSuchSession(asked.session)
    before = session.ended_at
    sessions.end(tx, session, actor=ctx.actor, why="ended by hand")
    return Changed(number=1 if before is None else 0)


@operation(
    "people.logout",
    "POST /people/{name}/logout",
    command="people logout",
    action=Action.CHANGE_SELF,
    scope=INSTALLATION,
    done="{number} browsers are logged out.",
)
def log_out_everywhere(tx: Tx, ctx: Context, asked: PersonRef) -> Changed:
    """Log a person out everywhere: yourself, or with the right to change people anyone."""
    person = _reached(tx, ctx, Action.CHANGE_PEOPLE, asked.name)
    return Changed(number=sessions.end_all(tx, person, actor=ctx.actor, why="logged out everywhere"))
