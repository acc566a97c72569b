"""Operations in tests, by the runner that every face uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from holdfast.core.access import Role
from holdfast.operations import operation, runner
from holdfast.operations.access import RIGHTS, Principal
from holdfast.operations.context import Context, IdPool, Services, Steps
from holdfast.operations.issuance.attempts import CertificateContext
from holdfast.operations.issuers import manage as manage_issuers
from holdfast.operations.remotes import any_fit
from holdfast.operations.runner import Options
from holdfast.secret import Secret
from holdfast.store.database import Store
from holdfast.store.tx import Tx

T = TypeVar("T")


def someone(actor: str, role: Role = Role.ADMIN) -> Principal:
    """By this name, such as human:alice; without a kind, a person at the server's machine."""
    kind, colon, name = actor.partition(":")
    return Principal(id=actor, name=name if colon else kind, kind=kind if colon else "local", role=role, rights=RIGHTS)


class _Plain(Steps):
    """Transactions of an operation whose asker may do everything."""

    def __init__(self, db: Store) -> None:
        self._db = db

    async def read(self, fn: Callable[[Tx], T]) -> T:
        return await self._db.read(fn)

    async def write(self, fn: Callable[[Tx], T]) -> T:
        return await self._db.write(fn)


def context_of(context: CertificateContext, *, actor: str = "local:alice") -> Context:
    """What the runner gives to an operation of several steps that an admin asked for."""
    ids, services = IdPool(context.random.new_id), services_of(context)
    return Context(principal=someone(actor), services=services, ids=ids, steps=_Plain(context.db))


async def run(
    services: Services,
    function: Callable[..., Any],
    *,
    actor: str = "local:x",
    role: Role = Role.ADMIN,
    options: Options | None = None,
    **asked: Any,
) -> Any:
    """The result of a declared function, asked for by an admin if nothing else is said."""
    declared = operation.of(function)
    given = declared.input_model.model_validate(asked)
    outcome = await runner.run(services, declared, someone(actor, role), given, options or Options())
    return outcome.result


def services_of(context: CertificateContext, **more: Any) -> Services:
    """What operations on issuers and certificates need."""
    none: Any = None
    return Services(
        **{"certificate_context": context, "issuer_kinds": frozenset(), "probe": none, "post": none, **more}
    )


async def add_issuer(
    context: CertificateContext,
    name: str,
    *,
    kind: str,
    settings: Mapping[str, Any],
    credentials: Any = None,
    **more: Any,
) -> None:
    """An issuer, as an admin adds one; its kind is one that this installation can talk to."""
    given = {purpose: _text(each) for purpose, each in (credentials or {}).items()}
    services = services_of(context, issuer_kinds=more.get("kinds") or frozenset({kind}), fit=more.get("fit", any_fit))
    asked = {"name": name, "kind": kind, "settings": settings, "credentials": given}
    await run(services, manage_issuers.add_issuer, actor=more.get("actor", "local:op"), **asked)


async def set_credentials(
    context: CertificateContext, name: str, credentials: Mapping[str, Any], *, actor: str
) -> None:
    given = {purpose: _text(each) for purpose, each in credentials.items()}
    await run(services_of(context), manage_issuers.change, actor=actor, name=name, credentials=given)


def _text(given: Any) -> str:
    found = given.reveal() if isinstance(given, Secret) else given
    return found.decode() if isinstance(found, bytes) else str(found)
