"""An operation is declared once; routes, OpenAPI, commands, assistants' tools, docs and the access table follow.

    @operation("channels.pause", "POST /channels/{name}/pause", command="notify channel pause", action=…, scope=…)
    def pause(tx: Tx, ctx: Context, asked: ChannelName) -> ChannelView:
        \"""Pause a channel. Its notifications wait until it is resumed.\"""

The first sentence of the docstring is the summary that every face shows. `input` and `result` are the annotations.
Four forms of functions are understood:

    def f(tx, ctx, asked) -> Result                     one transaction; of a GET, one read
    async def f(ctx, asked) -> Transaction[Result]      prepares (seals, asks a remote), then one transaction
    async def f(ctx, asked) -> Result                   several steps by ctx.read and ctx.write: each authorises again
    async def f(ctx, asked) -> TextStream               lines of any number, written as they are read
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from holdfast.core.issuance import Issuance
from holdfast.operations.access import Action
from holdfast.operations.context import Context, TextStream, Transaction
from holdfast.operations.scopes import Scope
from holdfast.store.tx import Tx

F = TypeVar("F", bound=Callable[..., Any])
AfterWait = Callable[[Tx, str, Issuance], Any]  # of the certificate with this id, and the issuance as it stands then


class OperationForm(StrEnum):
    TRANSACTION = "one transaction"
    READ = "one read"
    PREPARED = "prepared, then one transaction"
    STEPS = "several steps, each authorised"
    STREAM = "a stream"


class Face(StrEnum):
    API = "API"
    CLI = "CLI"
    MCP = "MCP"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What every face needs to know of one thing that may be asked for."""

    name: str  # certificates.renew: in audit origins, docs, tools, error texts
    method: str
    path: str  # below /api/v1; {fields} of it are fields of the input
    command: str  # "notify channel pause"; empty where `not_on` says why
    summary: str
    details: str  # what more the docstring says
    example: str  # one command line that a person can paste
    done: str  # the sentence after success, with fields of the input and the result in {braces}
    input_model: type[BaseModel]
    result: Any  # a model, a list or page of models, or None
    action: Action
    scope: Scope
    function: Callable[..., Any]
    form: OperationForm
    status: int  # of an answer that is not waited for
    destructive: bool  # assistants plan first and confirm second; commands and pages ask
    asks: str  # what they ask then: a sentence with fields of the input and of a dry run's result in {braces}
    waits: AfterWait | None  # the result names an issuance that may be waited for; how the result is shown then
    follows: bool  # the result is an issuance: it answers when that is over, or when the asker's patience is
    creates: bool  # answers 201 when the object was made
    dry_runs: bool  # can be tried: it goes all the way, and is undone
    keyed: bool  # an Idempotency-Key is kept, so that repeating it changes nothing
    versioned: bool  # the result has a version (ETag); a change needs If-Match
    offline: bool  # a command may do it on the store itself while no server runs
    media: str  # of an answer that is not JSON
    in_quarantine: bool = False  # a change that is allowed while nothing may act
    reads: bool = False  # nothing is changed, though it may be a POST, such as the plan of a long document
    not_on: Mapping[Face, str] = field(default_factory=dict)  # why a face does not offer it

    @property
    def changes(self) -> bool:
        return not self.reads

    @property
    def tag(self) -> str:
        return self.name.partition(".")[0]

    @property
    def path_fields(self) -> list[str]:
        return re.findall(r"\{(\w+)\}", self.path)


class DeclaredTwice(Exception):
    """Two operations have one name, or one address."""


_DECLARED: Final[dict[str, Operation]] = {}
_FUNCTIONS: Final[dict[Callable[..., Any], Operation]] = {}


def operation(
    name: str,
    route: str,
    *,
    action: Action,
    scope: Scope,
    command: str = "",
    example: str = "",
    done: str = "",
    status: int = 200,
    destructive: bool = False,
    asks: str = "",
    waits: AfterWait | None = None,
    follows: bool = False,
    creates: bool = False,
    dry_runs: bool | None = None,
    keyed: bool | None = None,
    versioned: bool = False,
    offline: bool = False,
    reads: bool = False,
    in_quarantine: bool = False,
    media: str = "application/json",
    not_on: Mapping[Face, str] | None = None,
) -> Callable[[F], F]:
    """Declare a function as an operation. The function itself stays what it is."""
    method, _, path = route.partition(" ")

    def declare(function: F) -> F:
        hints = get_type_hints(function, include_extras=True)
        summary, details = _told(function)
        form, result = _form(function, hints, reads=reads or method == "GET")
        made = Operation(
            name=name,
            method=method,
            path=path,
            command=command,
            summary=summary,
            details=details,
            example=example,
            done=done,
            input_model=hints["asked"],
            result=result,
            action=action,
            scope=scope,
            function=function,
            form=form,
            status=status,
            destructive=destructive,
            asks=asks,
            waits=waits,
            follows=follows,
            creates=creates,
            dry_runs=method != "GET" and form not in (OperationForm.READ, OperationForm.STREAM)
            if dry_runs is None
            else dry_runs,
            keyed=form in (OperationForm.TRANSACTION, OperationForm.PREPARED) if keyed is None else keyed,
            versioned=versioned,
            offline=offline,
            media=media,
            reads=reads or method == "GET",
            in_quarantine=in_quarantine,
            not_on=not_on or {},
        )
        _declare(made)
        return function

    return declare


def _told(function: Callable[..., object]) -> tuple[str, str]:
    text = inspect.cleandoc(function.__doc__ or "")
    first, _, rest = text.partition("\n")
    if not first:
        raise TypeError(f"{function.__qualname__} is an operation, and has no docstring that says what it does")
    return first, rest.strip()


def _form(function: Callable[..., object], hints: Mapping[str, object], *, reads: bool) -> tuple[OperationForm, object]:
    result = hints["return"]
    if result is type(None):
        result = None
    if hints.get("tx") is Tx:
        return (OperationForm.READ if reads else OperationForm.TRANSACTION), result
    if result == TextStream:  # get_type_hints builds the alias anew
        return OperationForm.STREAM, None
    if get_origin(result) is Callable:
        return OperationForm.PREPARED, get_args(result)[-1]
    return OperationForm.STEPS, result


def _declare(made: Operation) -> None:
    taken = [each for each in _DECLARED.values() if (each.method, each.path) == (made.method, made.path)]
    if made.name in _DECLARED or taken:
        other = _DECLARED.get(made.name) or taken[0]
        raise DeclaredTwice(f"{made.name} ({made.method} {made.path}) and {other.name} ({other.method} {other.path})")
    _DECLARED[made.name] = made
    _FUNCTIONS[made.function] = made


def declared() -> list[Operation]:
    """All operations, by name; `holdfast.operations.catalog` has loaded every module that declares some."""
    return [_DECLARED[name] for name in sorted(_DECLARED)]


def by_path(operation: Operation) -> list[tuple[bool, str]]:
    """In this order of routes, /notifications/summary comes before /notifications/{notification}."""
    return [(segment.startswith("{"), segment) for segment in operation.path.split("/")]


def named(name: str) -> Operation:
    return _DECLARED[name]


def of(function: Callable[..., object]) -> Operation:
    """The operation that a function was declared as."""
    return _FUNCTIONS[function]


__all__ = [
    "Context",
    "Face",
    "Operation",
    "OperationForm",
    "TextStream",
    "Transaction",
    "declared",
    "named",
    "of",
    "operation",
]
