"""What issuances, revocations and withdrawals are done with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from holdfast.engine.proving import SolverFor
from holdfast.issuers.base import Issuer
from holdfast.operations.issuing import Keeper
from holdfast.pki import keys
from holdfast.pki.keys import KeyKind, PrivateKey
from holdfast.store.issuers import IssuerRow
from holdfast.telemetry import Telemetry

MakeIssuer = Callable[[IssuerRow], Awaitable[Issuer]]
NewKey = Callable[[KeyKind], Awaitable[PrivateKey]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What steps are made with."""

    keeper: Keeper
    make_issuer: MakeIssuer
    solver_for: SolverFor
    telemetry: Telemetry
    new_key: NewKey = keys.generate
    poll_windows: Mapping[str, timedelta] = field(default_factory=dict)  # by kind of CA, where its row says nothing
