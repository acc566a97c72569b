"""Editing: the form of what is there, saved only if it is still so; else what was, yours and theirs side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from starlette.responses import Response

from holdfast.errors import UserError
from holdfast.operations.access import Action
from holdfast.operations.operation import Operation, named
from holdfast.pages import forms
from holdfast.pages.visit import Mistaken, Visit

_STALE: Final = 412
_WAS: Final = "_was_"  # before the name of a field: its value when the form was made


class Subject(NamedTuple):
    """What can be edited: the operations that show and change it, and the fields that the form asks for."""

    word: str
    get: str
    change: str
    ref: str  # the field that names it
    fields: tuple[str, ...]
    page: str  # where it is looked at
    action: Action


CERTIFICATE: Final = Subject(
    "certificate",
    "certificates.get",
    "certificates.change",
    "ref",
    ("owner", "labels", "issuers", "names", "key", "profile", "targets", "approval_required"),
    "/certificates/{}",
    Action.CHANGE,
)
PERSON: Final = Subject(
    "account of",
    "people.get",
    "people.change",
    "name",
    ("role", "owners", "labels"),
    "/settings/people",
    Action.CHANGE_PEOPLE,
)


class Differs(NamedTuple):
    """A field that one of both changed."""

    label: str
    was: str
    yours: str
    theirs: str


def _texts(subject: Subject, found: Any) -> dict[str, str]:
    """What there is, as the fields of a form write it."""
    return {name: _text(getattr(found, name)) for name in subject.fields}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else ""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={each}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return "\n".join(str(each) for each in value)
    return "" if value is None else str(value)


async def _form(
    visit: Visit,
    subject: Subject,
    ref: str,
    values: Mapping[str, str],
    was: Mapping[str, str],
    version: int,
    *,
    errors: Mapping[str, str] | None = None,
    status: int = 200,
) -> Response:
    return await visit.show(
        "edit.html",
        status,
        subject=subject,
        ref=ref,
        fields=forms.fields(named(subject.change), values, errors or {}, *subject.fields),
        was=was,
        version=version,
        errors=errors or {},
        back=subject.page.format(quote(ref, safe="")),
    )


async def _found(visit: Visit, subject: Subject, ref: str) -> Any:
    named_by: dict[str, Any] = {subject.ref: ref}
    return await visit.call(subject.get, **named_by)


async def edit(visit: Visit, subject: Subject) -> Response:
    found = await _found(visit, subject, visit.path("ref"))
    texts = _texts(subject, found)
    return await _form(visit, subject, found.name, texts, texts, found.version)


async def save(visit: Visit, subject: Subject) -> Response:
    given = dict(await visit.form())
    operation, ref = named(subject.change), visit.path("ref")
    was = {name: given.get(f"{_WAS}{name}", "") for name in subject.fields}
    yours = {name: given.get(name, "") for name in subject.fields}
    version = int(given["_version"]) if given.get("_version", "").isdigit() else 0
    differ = [name for name in subject.fields if not _same(yours[name], was[name])]
    changed: dict[str, Any] = {name: _read(operation, name, yours[name]) for name in differ}
    back = subject.page.format(quote(ref, safe=""))
    if not differ:
        return visit.back(back, "Nothing was changed.")
    changed[subject.ref] = ref
    try:
        await visit.call(subject.change, version=version, **changed)
    except Mistaken as error:
        return await _form(visit, subject, ref, yours, was, version, errors=error.fields, status=422)
    except UserError as error:
        if error.status == _STALE or error.code == "stale":
            return await _stale(visit, subject, ref, yours, was)
        errors = {differ[0]: f"{error} {error.hint}".strip()}
        return await _form(visit, subject, ref, yours, was, version, errors=errors, status=error.status)
    return visit.back(back, f"{ref} is changed.")


async def _stale(
    visit: Visit, subject: Subject, ref: str, yours: Mapping[str, str], was: Mapping[str, str]
) -> Response:
    """It was changed meanwhile: three columns, and the person decides."""
    found = await _found(visit, subject, ref)
    theirs = _texts(subject, found)
    mine = {name: theirs[name] if _same(yours[name], was[name]) else yours[name] for name in subject.fields}
    differs = [
        Differs(each.label, was[each.name], yours[each.name], theirs[each.name])
        for each in forms.fields(named(subject.change), {}, {}, *subject.fields)
        if not (_same(yours[each.name], was[each.name]) and _same(theirs[each.name], was[each.name]))
    ]
    return await visit.show(
        "stale.html",
        _STALE,
        subject=subject,
        ref=ref,
        differs=differs,
        mine=mine,
        theirs=theirs,
        version=found.version,
        by=getattr(found, "changed_by", ""),
        back=subject.page.format(quote(ref, safe="")),
    )


def _same(one: str, other: str) -> bool:
    return one.split() == other.split()


def _read(operation: Operation, name: str, text: str) -> Any:
    """As the operation takes it; an empty field takes the value away."""
    found = forms.read(operation, [(name, text)])
    return found[name] if name in found else forms.emptied(operation, name)


async def edit_certificate(visit: Visit) -> Response:
    return await edit(visit, CERTIFICATE)


async def save_certificate(visit: Visit) -> Response:
    return await save(visit, CERTIFICATE)


async def edit_person(visit: Visit) -> Response:
    return await edit(visit, PERSON)


async def save_person(visit: Visit) -> Response:
    return await save(visit, PERSON)


PAGES: Final = [
    ("/certificates/{ref}/edit", edit_certificate, "GET"),
    ("/certificates/{ref}/edit", save_certificate, "POST"),
    ("/settings/people/{ref}/edit", edit_person, "GET"),
    ("/settings/people/{ref}/edit", save_person, "POST"),
]
