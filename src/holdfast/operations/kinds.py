"""What operations and the engine ask about the kind of a stored issuer or channel: its limits and its traits.

A row may be of a kind whose package is no longer installed. It then has the limits of an unknown one, and no traits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol

from holdfast import plugins
from holdfast.core.issuers import ca_limits
from holdfast.core.issuers.ca_limits import CaLimits, Reckoned
from holdfast.core.issuers.issuer import IssuerRow
from holdfast.core.kind import Trait
from holdfast.core.notifications.channel import ChannelRow
from holdfast.core.notifications.notification import ChannelLimits
from holdfast.core.solver import SolverRow
from holdfast.core.target import DeployLimits, TargetRow
from holdfast.plugins import DEPLOYERS, ISSUERS, NOTIFIERS, SOLVERS, AnyKind

_GROUPS: Final[Mapping[type, str]] = {
    IssuerRow: ISSUERS,
    ChannelRow: NOTIFIERS,
    TargetRow: DEPLOYERS,
    SolverRow: SOLVERS,
}


class OfKind(Protocol):
    """A row of one of the families above."""

    @property
    def kind(self) -> str: ...


def kind_of(row: OfKind) -> AnyKind | None:
    return plugins.kinds(_GROUPS[type(row)]).get(row.kind)


def has(row: OfKind, trait: Trait) -> bool:
    found = kind_of(row)
    return found is not None and trait in found.traits


def issuer_has(kind: str, trait: Trait) -> bool:
    """As `has`, where there is only the name of the kind."""
    found = plugins.kinds(ISSUERS).get(kind)
    return found is not None and trait in found.traits


# ── Issuers ──


def limits_of(row: IssuerRow) -> CaLimits:
    return limits_by(row.kind, row.settings)


def limits_by(kind: str, settings: Mapping[str, object]) -> CaLimits:
    """What the kind knows, with what the settings say otherwise."""
    found = plugins.kinds(ISSUERS).get(kind)
    return ca_limits.as_given(ca_limits.UNKNOWN if found is None else found.limits_of(settings), settings)


def requests_of(row: IssuerRow, names: int = 1) -> Reckoned:
    """How many requests one claim makes, for a certificate with so many names."""
    return limits_of(row).claim.for_names(names)


class Preset(NamedTuple):
    kind: str
    settings: Mapping[str, Any]


def presets() -> dict[str, Preset]:
    """Well-known issuers, by the name that people know them by."""
    return {
        name: Preset(kind.name, settings)
        for kind in plugins.kinds(ISSUERS).values()
        for name, settings in kind.presets.items()
    }


# ── Channels ──


def channel_limits(kind: str) -> ChannelLimits:
    found = plugins.kinds(NOTIFIERS).get(kind)
    return ChannelLimits() if found is None else found.limits


# ── Targets ──


def deployers() -> frozenset[str]:
    """The kinds of targets that are installed here."""
    return frozenset(plugins.kinds(DEPLOYERS))


def deploy_limits(kind: str) -> DeployLimits:
    found = plugins.kinds(DEPLOYERS).get(kind)
    return DeployLimits() if found is None else found.limits


def target_presets() -> dict[str, Preset]:
    """Well-known daemons, by the name that people know them by."""
    return {
        name: Preset(kind.name, settings)
        for kind in plugins.kinds(DEPLOYERS).values()
        for name, settings in kind.presets.items()
    }
