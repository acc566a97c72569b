"""Operations that all families of named remotes have, declared by one function for each.

A family (issuers, channels) says what it is called and how one of its rows is shown. Each `text` is the docstring that
every face shows: it says what the operation means for this family.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, NamedTuple, TypeVar

from pydantic import BaseModel, Field, SecretStr

from holdfast.operations import kinds, remotes
from holdfast.operations.access import Action, Principal
from holdfast.operations.context import Context, Transaction
from holdfast.operations.inputs import CLOSED, Input, Probed, Short
from holdfast.operations.operation import Face, operation
from holdfast.operations.remotes import Credentials, NamedRemotes, RemoteRow, RemoteSettings
from holdfast.operations.scopes import INSTALLATION
from holdfast.secret import Secret
from holdfast.store.tx import Tx

R = TypeVar("R", bound=RemoteRow)
V = TypeVar("V", bound=BaseModel)
A = TypeVar("A", bound="RemoteChange")
Declared = Callable[..., Any]  # a function that `operation` declared
TAKES_CREDENTIALS: Final = {Face.MCP: "It takes credentials, which must not pass through an assistant."}


class RemoteRef(Input):
    name: str  # a family's own says whose name it is


class RemoteChange(RemoteRef):
    """Fields that are left out keep their values. A setting or credential that is null is removed."""

    settings: RemoteSettings | None = Field(
        default=None, description="A setting, as text or JSON; NAME=null takes it away."
    )
    credentials: Annotated[dict[Short, SecretStr | None], Field(max_length=8, json_schema_extra=CLOSED)] | None = Field(
        default=None, description="A credential, as for add; NAME=none takes it away."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFamily(Generic[R, V]):
    """How the remotes of one table are offered to people."""

    name: str  # "issuers": of operations (issuers.pause) and routes (/issuers/{name}/pause)
    command: str  # "issuer": its commands are `holdfast issuer pause` and so on
    remotes: NamedRemotes[R]
    ref: type[RemoteRef]
    view: type[V]
    shown: Callable[[Tx, R], V]
    see: Action
    change: Action


class Switches(NamedTuple):
    pause: Declared
    resume: Declared


def declare_get(
    family: RemoteFamily[R, V], text: str, *, shown_to: Callable[[Tx, Principal, R], V | None] | None = None
) -> Declared:
    """`shown_to`: a row as this asker may see it; None if it is not there for them."""

    def get(tx: Tx, ctx: Context, asked: RemoteRef) -> V:
        row = family.remotes.found(tx, asked.name)
        shown = family.shown(tx, row) if shown_to is None else shown_to(tx, ctx.principal, row)
        if shown is None:
            raise family.remotes.missing(asked.name)
        return shown

    declare = operation(
        f"{family.name}.get",
        f"GET /{family.name}/{{name}}",
        command=f"{family.command} show",
        action=family.see,
        scope=INSTALLATION,
        versioned=True,
    )
    return declare(_typed(get, text, family.ref, family.view))


def declare_switches(family: RemoteFamily[R, V], *, pause: str, resume: str) -> Switches:
    """Declare the operations that pause a remote and resume it."""
    noun, command, switch = family.remotes.noun.capitalize(), f"holdfast {family.command}", family.remotes

    def paused(tx: Tx, ctx: Context, asked: RemoteRef) -> V:
        return family.shown(tx, switch.pause(tx, asked.name, ctx.actor))

    def resumed(tx: Tx, ctx: Context, asked: RemoteRef) -> V:
        return family.shown(tx, switch.resume(tx, asked.name, ctx.actor))

    return Switches(
        _on_one(family, "pause", f"{noun} {{name}} is paused until: {command} resume {{name}}")(
            _typed(paused, pause, family.ref, family.view)
        ),
        _on_one(family, "resume", f"{noun} {{name}} is resumed.")(_typed(resumed, resume, family.ref, family.view)),
    )


def declare_test(
    family: RemoteFamily[R, V], text: str, test: Callable[[Context, str], Awaitable[str]], *, command: str = ""
) -> Declared:
    """Declare the operation that tries a remote. `test` tells what happened; its refusal is a result, too."""

    async def tested(ctx: Context, asked: RemoteRef) -> Probed:
        return await family.remotes.tested(test(ctx, asked.name))

    declare = operation(
        f"{family.name}.test",
        f"POST /{family.name}/{{name}}/test",
        command=command or f"{family.command} test",
        action=family.change,
        scope=INSTALLATION,
        dry_runs=False,
    )
    return declare(_typed(tested, text, family.ref, Probed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Changing(Generic[R, A]):
    """What a family adds to the change of one of its remotes."""

    # Refuses settings and credentials that do not fit together; it gets all that the remote will have.
    check: Callable[[Context, R, Mapping[str, Any], Credentials], Awaitable[None]]
    # What follows of a change, from the row before to the row after; the audit entry tells what it returns.
    follows: Callable[[Tx, R, R], Mapping[str, object]]
    # The columns that were given, besides settings and credentials.
    fields: Callable[[A, R], dict[str, Any]] = lambda asked, row: {}
    # Refuses a row that cannot work, by what was changed of it.
    sound: Callable[[Tx, R, set[str]], None] = lambda tx, row, changed: None


def declare_change(
    family: RemoteFamily[R, V], text: str, asks: type[A], changing: Changing[R, A], *, test: str = "", example: str
) -> Declared:
    """Declare the operation that changes settings, credentials and other fields of a remote, and leaves the rest."""

    async def change(ctx: Context, asked: A) -> Transaction[V]:
        before = await ctx.read(lambda tx: family.remotes.found(tx, asked.name))
        version = before.version if ctx.expected_version is None else ctx.expected_version
        given, without = _given(asked)
        settings = family.remotes.merged(before, asked.settings)
        columns = changing.fields(asked, before) | ({} if asked.settings is None else {"settings": settings})
        store = ctx.certificate_context.secret_store
        if asked.credentials or asked.settings is not None:
            family.remotes.check_destination(before, kinds.kind_of(before), settings, {*given, *without})
            held = await remotes.opened(store, before, but=without)
            await changing.check(ctx, before, settings, {**held, **given})
        sealed = await family.remotes.sealed(store, asked.name, given)

        def write(tx: Tx) -> V:
            row = family.remotes.at_version(tx, asked.name, version)
            kept = remotes.kept(row, remotes.put(tx, sealed), without)
            after = family.remotes.table.save(tx, row, **columns, credentials=kept)
            changing.sound(tx, after, set(columns))
            remotes.delete_secrets(tx, set(row.credentials.values()) - set(kept.values()))
            told = changing.follows(tx, row, after)
            facts = {"changed": sorted(columns), "credentials": sorted({*sealed, *without})}
            family.remotes.wrote(tx, "changed", row, after, ctx.actor, told, settings=dict(after.settings), **facts)
            return family.shown(tx, family.remotes.found(tx, asked.name))

        return write

    declare = operation(
        f"{family.name}.change",
        f"PATCH /{family.name}/{{name}}",
        command=f"{family.command} set",
        action=family.change,
        scope=INSTALLATION,
        versioned=True,
        done=f"Changed. See that it works: holdfast {test or f'{family.command} test'} {{name}}",
        example=example,
        not_on=TAKES_CREDENTIALS,
    )
    return declare(_typed(change, text, asks, Transaction[family.view]))  # type: ignore[misc, name-defined]


def _given(asked: RemoteChange) -> tuple[dict[str, Secret[bytes]], frozenset[str]]:
    """The new credentials, and the names of those that are taken away."""
    named = asked.credentials or {}
    given = remotes.secrets_of({purpose: each for purpose, each in named.items() if each is not None})
    return given, frozenset(named.keys() - given.keys())


def _on_one(family: RemoteFamily[R, V], word: str, done: str) -> Callable[[Declared], Declared]:
    return operation(
        f"{family.name}.{word}",
        f"POST /{family.name}/{{name}}/{word}",
        command=f"{family.command} {word}",
        action=family.change,
        scope=INSTALLATION,
        done=done,
    )


def _typed(function: Declared, text: str, asked: type[BaseModel], result: object) -> Declared:
    """The function with the docstring and the types of its family, which `operation` reads."""
    function.__doc__ = text
    function.__annotations__ |= {"asked": asked, "return": result}
    return function
