"""Saved views: filters of the list of certificates under a name, which follow the person who saved them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

from pydantic import BaseModel, Field, StringConstraints

from holdfast.core.personal import SavedView
from holdfast.errors import UserError
from holdfast.operations.access import Action
from holdfast.operations.context import Context
from holdfast.operations.inputs import Input, Nothing, from_row
from holdfast.operations.operation import Face, operation
from holdfast.operations.scopes import INSTALLATION
from holdfast.store import personal
from holdfast.store.tx import Tx

MOST: Final = 50
ViewName = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f/]{1,40}$", strip_whitespace=True)]
_PAGES_ONLY: Final = {
    Face.CLI: "A view is a tab of the pages; `holdfast ls` takes the filter itself.",
    Face.MCP: "A view is a tab of the pages; `certificates.list` takes the filter itself.",
}


class TooManyViews(UserError):
    status, code = 409, "too-many-views"
    hint = "Remove one that you do not need any more."

    def __init__(self) -> None:
        super().__init__(f"There are {MOST} saved views already, which is the most.")


class NoSuchView(UserError):
    status, code, hint = 404, "no-such-view", "See which there are: GET /api/v1/views"

    def __init__(self, name: str) -> None:
        super().__init__(f"You have no view {name!r:.60}.")


class ViewRef(Input):
    name: ViewName = Field(description="What the view is called.")


class NewView(ViewRef):
    query: str = Field(default="", max_length=300, description="A filter line, such as state:retrying owner:payments.")


class ViewShown(BaseModel):
    name: str
    query: str
    at: datetime


@operation("views.list", "GET /views", action=Action.SEE_SELF, scope=INSTALLATION, not_on=_PAGES_ONLY)
def list_views(tx: Tx, ctx: Context, asked: Nothing) -> list[ViewShown]:
    """List your saved views of the certificates, in the order in which they were saved."""
    return [from_row(ViewShown, each) for each in personal.views_of(tx, ctx.actor)]


@operation(
    "views.save",
    "PUT /views/{name}",
    action=Action.CHANGE_SELF,
    scope=INSTALLATION,
    not_on=_PAGES_ONLY,
    done="The view {name} is saved: it is there in every browser in which you log in.",
)
def save_view(tx: Tx, ctx: Context, asked: NewView) -> ViewShown:
    """Save a filter of the certificates as a view of yours, in place of one with the same name."""
    held = personal.views_of(tx, ctx.actor)
    if len(held) >= MOST and asked.name not in {each.name for each in held}:
        raise TooManyViews
    view = SavedView(actor=ctx.actor, name=asked.name, query=asked.query, at=tx.now())
    personal.put_view(tx, view)
    return from_row(ViewShown, view)


@operation(
    "views.delete",
    "DELETE /views/{name}",
    action=Action.CHANGE_SELF,
    scope=INSTALLATION,
    destructive=True,
    not_on=_PAGES_ONLY,
    done="The view {name} is removed.",
)
def remove_view(tx: Tx, ctx: Context, asked: ViewRef) -> ViewShown:
    """Remove a view of yours. The certificates that it shows are not touched."""
    held = {each.name: each for each in personal.views_of(tx, ctx.actor)}
    if asked.name not in held or not personal.drop_view(tx, ctx.actor, asked.name):
        raise NoSuchView(asked.name)
    return from_row(ViewShown, held[asked.name])
