"""Accounts of people: added, changed, disabled and removed by admins; set up by their owners, over links."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, StringConstraints

from holdfast.core.access import Role
from holdfast.core.people import Person, TicketKind
from holdfast.errors import UserError
from holdfast.operations.access import RIGHTS, Action
from holdfast.operations.context import Context
from holdfast.operations.inputs import Input, Option
from holdfast.operations.operation import Face, operation
from holdfast.operations.people import sessions
from holdfast.operations.scopes import INSTALLATION
from holdfast.store import journal, people
from holdfast.store.tx import Tx

PersonName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9_.@+-]{1,80}$"), Option(argument=True, metavar="NAME")
]
SHOWS_A_LINK = {Face.MCP: "Its result is a link that logs in, and an assistant must not see one."}


class NotHere(UserError):
    status, code = 403, "only-on-its-machine"
    hint = "Run the command there."

    def __init__(self) -> None:
        super().__init__("Accounts are recovered on the server's machine only.")


class PersonDisabled(UserError):
    status, code = 409, "person-disabled"

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is disabled, and cannot log in.")
        self.hint = "An admin can enable the account."


class PersonRef(Input):
    name: PersonName = Field(description="The name of the person.")


class Link(BaseModel):
    name: str
    link: str = Field(description="Shown this once. It can be followed once.")


@operation(
    "people.recover",
    "POST /people/{name}/recover",
    command="people recover",
    action=Action.CHANGE_PEOPLE,
    scope=INSTALLATION,
    example="holdfast people recover alice",
    not_on=SHOWS_A_LINK,
)
async def recover(ctx: Context, asked: PersonRef) -> Link:
    """Make a link that logs a person in once; an admin is added where nobody has that name.

    It works on the server's machine only: it is the way in where no admin can log in any more, and for the first one.
    The link is shown this once, so an Idempotency-Key is not kept here.
    """
    principal = ctx.principal
    if principal.kind != "local":
        raise NotHere
    context, known = ctx.certificate_context, ctx.services.people
    token, new_id = sessions.drawn(context.random), context.random.new_id("person")

    def write(tx: Tx) -> None:
        person = people.by_name(tx, asked.name) or add(tx, new_id, asked.name, Role.ADMIN, actor=ctx.actor)
        if person.disabled_at is not None:
            raise PersonDisabled(person.name)
        sessions.put(tx, token, TicketKind.LOGIN, person=person.id, services=known)
        journal.audit(tx, "person_recovered", person.id, actor=ctx.actor, name=person.name)

    await ctx.write(write)
    return Link(name=asked.name, link="" if ctx.dry_run else sessions.link(known, token))


def add(tx: Tx, person_id: str, name: str, role: Role, *, actor: str) -> Person:
    rights = RIGHTS if role is Role.ADMIN else frozenset[str]()
    person = Person(id=person_id, name=name, role=role, rights=rights, created_by=actor, created_at=tx.now())
    people.insert(tx, person)
    journal.audit(tx, "person_added", person.id, actor=actor, name=name, role=role)
    return person
