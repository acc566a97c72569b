"""Operations in the simulator, by the runner that every face uses, as a person at the server's machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from holdfast.core.issuers.issuer import IssuerRow
from holdfast.core.notifications.channel import ChannelRow
from holdfast.errors import Refused
from holdfast.operations import operation, runner
from holdfast.operations.access import local
from holdfast.operations.context import Services
from holdfast.operations.issuance.attempts import CertificateContext
from holdfast.operations.remotes import Credentials, OpenChannel


class NoChannels:
    """Nothing is delivered here."""

    kinds: frozenset[str] = frozenset()

    async def check(self, name: str, kind: str, settings: Mapping[str, Any], credentials: Credentials) -> None:
        _refuse(f"channel {name}")

    async def open(self, row: ChannelRow) -> OpenChannel:
        _refuse(f"channel {row.name}")


async def no_probe(row: IssuerRow) -> str:
    _refuse(f"issuer {row.name}")


def _refuse(what: str) -> NoReturn:
    raise Refused(f"There is no {what} to reach here.")


async def ask(context: CertificateContext, function: Callable[..., Any], **asked: Any) -> Any:
    """The result of a declared function."""
    services = Services(certificate_context=context, issuer_kinds=frozenset(), probe=no_probe, post=NoChannels())
    declared = operation.of(function)
    outcome = await runner.run(services, declared, local("sim"), declared.input_model.model_validate(asked))
    return outcome.result
