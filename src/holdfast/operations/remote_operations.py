"""Operations that all families of named remotes have, declared by one function for each.

A family (issuers, channels) says what it is called and how one of its rows is shown. Each `text` is the docstring that
every face shows: it says what the operation means for this family.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, NamedTuple, TypeVar

from pydantic import BaseModel, Field, SecretStr

from holdfast.operations import remotes
from holdfast.operations.access import Action, Principal
from holdfast.operations.context import Context, Transaction
from holdfast.operations.inputs import CLOSED, Input, Probed, Short
from holdfast.operations.operation import Face, operation
from holdfast.operations.remotes import NamedRemotes, RemoteRow
from holdfast.operations.scopes import INSTALLATION
from holdfast.store.tx import Tx

R = TypeVar("R", bound=RemoteRow)
V = TypeVar("V", bound=BaseModel)
Declared = Callable[..., Any]  # a function that `operation` declared
TAKES_CREDENTIALS: Final = {Face.MCP: "It takes credentials, which must not pass through an assistant."}


class RemoteRef(Input):
    name: str  # a family's own says whose name it is


class RemoteCredentials(RemoteRef):
    credentials: Annotated[dict[Short, SecretStr], Field(min_length=1, max_length=8, json_schema_extra=CLOSED)] = Field(
        description="A credential: a file, - for stdin, or env:VARIABLE."
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


def declare_set_credentials(
    family: RemoteFamily[R, V],
    text: str,
    asks: type[RemoteCredentials],
    *,
    check: Callable[[Context, R, Mapping[str, object]], None],
    follows: Callable[[Tx, R], Mapping[str, object]],
    example: str,
) -> Declared:
    """Declare the operation that replaces credentials by new ones of the same names.

    `check` refuses those that do not fit: it gets all that the remote will have, the new ones with their values.
    `follows` does what follows of the change, and says what of it the audit entry tells.
    """

    async def set_credentials(ctx: Context, asked: RemoteCredentials) -> Transaction[V]:
        given = remotes.secrets_of(asked.credentials)
        sealed = await family.remotes.sealed(ctx.certificate_context.secret_store, asked.name, given)

        def write(tx: Tx) -> V:
            row = family.remotes.found(tx, asked.name, lock=True)
            kept = {**row.credentials, **remotes.put(tx, sealed)}
            check(ctx, row, {**kept, **given})
            after = family.remotes.table.save(tx, row, credentials=kept)
            remotes.delete_secrets(tx, set(row.credentials.values()) - set(kept.values()))
            told = {"credentials": list(sealed), **follows(tx, after)}
            family.remotes.wrote(tx, "credentials_set", row, after, ctx.actor, told)
            return family.shown(tx, after)

        return write

    declare = operation(
        f"{family.name}.set-credentials",
        f"POST /{family.name}/{{name}}/credentials",
        command=f"{family.command} credentials",
        action=family.change,
        scope=INSTALLATION,
        done=f"Set. See that they are right: holdfast {family.command} test {{name}}",
        example=example,
        not_on=TAKES_CREDENTIALS,
    )
    return declare(_typed(set_credentials, text, asks, Transaction[family.view]))  # type: ignore[misc, name-defined]


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
