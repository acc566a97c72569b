"""The types that inputs and results are made of: bounded texts, labels, instants, pages and cursors."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Final, Generic, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    StringConstraints,
)
from pydantic_core import CoreSchema, core_schema

from holdfast.core import base64url
from holdfast.core.key_kind import KeyKind
from holdfast.core.revocation_reason import RevocationReason
from holdfast.errors import UserError

T = TypeVar("T")
Short = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,253}$")]
HostName = Annotated[str, StringConstraints(min_length=1, max_length=1000)]  # what it may be is for names.py to say
LabelName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$")]
LabelValue = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:/@+-]{0,63}$")]
OwnerName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:/@+-]{0,100}$")]
# The name of an issuer or a channel.
RemoteName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$")]
NoteText = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x08\x0b-\x1f\x7f]{0,500}$")]
_RFC3339: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d+)?)?([Zz]|[+-]\d\d:\d\d)?")


def _instant(given: object) -> object:
    """pydantic would take a number for seconds since 1970."""
    if not isinstance(given, str) or not _RFC3339.fullmatch(given):
        raise ValueError("an instant is written as 2030-01-31T12:00:00Z")
    return given


def _aware(at: datetime) -> datetime:
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _absent(value: object) -> bool:
    """Whether a field is left out of a result, rather than shown as null."""
    return value is None


StrictFlag = Annotated[bool, Strict()]  # true or false, and neither 1 nor "yes"
CLOSED: Final[dict[str, Any]] = {"additionalProperties": False}  # what matches no pattern is refused, and said to be
Labels = Annotated[dict[LabelName, LabelValue], Field(max_length=32, json_schema_extra=CLOSED)]
Instant = Annotated[datetime, BeforeValidator(_instant), AfterValidator(_aware)]  # as it is given, never as it is shown


@dataclass(frozen=True, slots=True)
class OneOf:
    """A closed list of core, written out in OpenAPI where it is used: several of them are called State."""

    kind: type[StrEnum]

    def __get_pydantic_core_schema__(self, _source: object, _handler: object) -> CoreSchema:
        written = {"type": "string", "enum": [each.value for each in self.kind]}
        inner = {"pydantic_js_functions": [lambda _core, _inner: dict(written)]}
        return core_schema.enum_schema(self.kind, list(self.kind), sub_type="str", metadata=inner)


ReasonName = Annotated[str, OneOf(RevocationReason)]
KeyKindName = Annotated[str, OneOf(KeyKind)]


class Input(BaseModel):
    """The input of an operation. An unknown field is refused, and named."""

    model_config = ConfigDict(extra="forbid")


class Page(BaseModel, Generic[T]):
    items: list[T]
    next: str | None = Field(default=None, description="The cursor of the next page; null: there is none.")
    total: int | None = Field(default=None, description="How many there are in all, if that was asked for.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """How a command takes a field, where its name and type do not say it: `Annotated[str, Option(flag="--digest")]`."""

    flag: str = ""
    short: str = ""
    metavar: str = ""
    read: str = ""  # duration, instant, pairs, setting, credential, secret, file, files, rate, window, json, profile
    argument: bool = False  # stands without a flag
    hidden: bool = False  # no command offers it
    help: str = ""


class Nothing(Input):
    """An operation that needs no input."""


class Probed(BaseModel):
    """The result of a test of a remote."""

    ok: bool
    detail: str


class Changed(BaseModel):
    number: int = Field(description="How many were changed.")


class Rate(Input):
    """At most `burst` at once, and one more every so many seconds."""

    burst: int = Field(ge=1, le=10_000)
    every_s: float = Field(ge=0.001, le=86400)


R = TypeVar("R")
M = TypeVar("M")
V = TypeVar("V", bound=BaseModel)
PageLimit = Annotated[int, Field(ge=1, le=500, description="How many at most.")]


class Paged(Input):
    """The input of a list."""

    cursor: str | None = Field(default=None, max_length=2000, description="`next` of the page before.")
    limit: PageLimit = 100


class BadCursor(UserError):
    code = "bad-cursor"
    hint = "Use `next` of the last page as it was, with the same filters; or begin again without it."


class BadFilter(UserError):
    code, hint = "bad-filter", "A label filter is name=value, for example: label=team=web"


def cursor(place: Sequence[object] | None) -> str | None:
    if place is None:
        return None
    return base64url.encode(json.dumps(list(place)).encode())


def place(text: str | None, *kinds: type) -> tuple[Any, ...] | None:
    """Where a cursor points: values of these kinds."""
    if text is None:
        return None
    try:
        found = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, UnicodeError, RecursionError):
        raise BadCursor("This is not a cursor of this server.") from None
    if not isinstance(found, list) or [type(each) for each in found] != list(kinds):
        raise BadCursor("This is not a cursor of this list.")
    if any("\0" in each if isinstance(each, str) else abs(each) >= 2**63 for each in found):
        raise BadCursor("This is not a cursor of this list.")
    return tuple(found)


def label_pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise BadFilter(f"{text!r:.60} is no label filter.")
    return name, value


def paged(
    asked: Paged, read: Callable[[str, int], Sequence[R]], key: Callable[[R], str], show: Callable[[R], M]
) -> Page[M]:
    """A page of a list that is ordered by one text; `read` gets the text to begin after, and how many to read."""
    [after] = place(asked.cursor, str) or ("",)
    found = read(after, asked.limit + 1)
    rows = found[: asked.limit]
    end = [key(rows[-1])] if len(found) > asked.limit else None
    return Page(items=[show(each) for each in rows], next=cursor(end))


def from_row(view: type[V], row: object, **others: object) -> V:
    """A view of a row: fields of the same name are taken over, the others are given."""
    same = {name: getattr(row, name) for name in view.model_fields.keys() - others.keys() if hasattr(row, name)}
    return view(**same, **others)


def page_of(items: Sequence[M], limit: int, where: Callable[[Any], Sequence[Any]], rows: Sequence[Any]) -> Page[M]:
    """A page of shown items; a full one says where the next begins: after the place of the last row that was read."""
    return Page(items=list(items), next=cursor(where(rows[-1])) if len(rows) == limit else None)
