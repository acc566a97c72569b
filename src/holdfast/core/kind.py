"""One kind of issuer, channel, solver or deployer: its settings, credentials, limits and traits, and how one is made.

A kind is declared once, as a value of this shape, in the module that implements it. An entry point names it, in a
group of its own for each of the four, and plugins.py finds it there. The engine asks a kind for its traits and limits,
never for its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    from pydantic import BaseModel

S = TypeVar("S", bound="BaseModel")  # its settings
P = TypeVar("P")  # the parts that one is made with: Parts, SenderParts, SolverParts, DeployerParts
M = TypeVar("M")  # what is made: an Issuer, a Sender, a Solver, a Deployer
L = TypeVar("L")  # its limits: CaLimits, ChannelLimits, DeployLimits, or None


# By these names settings say where a remote is, and whom to believe that it is there.
DESTINATIONS: Final = frozenset(
    {"base_url", "directory", "hosts", "host", "port", "url", "server", "region", "security", "roots"}
)


class Trait(StrEnum):
    """What the engine must know about a kind beforehand; what one can do shows in its protocols instead."""

    WANTS_COMMON_NAME = "wants-common-name"  # an issuer that takes the name of an order from the CSR's common name
    HAS_ACCOUNT = "has-account"  # an issuer where we make accounts by ourselves, each with a key of its own
    OURS = "ours"  # an issuer that is a CA of this installation
    LISTS = "lists-certificates"  # an issuer whose API lists what it issued: the protocol ListsCertificates
    KEEPS_INCIDENTS = "keeps-incidents"  # a channel that opens and closes incidents: it is told one by one
    ATOMIC = "atomic"  # a deployer that swaps key and certificate in one go
    KEEPS_PREVIOUS = "keeps-previous"  # a deployer whose targets keep the bundle before the one in place
    HAS_KEYS = "has-keys"  # a deployer whose targets make keys, and keep them
    RUNS_HERE = "runs-here"  # a deployer or solver of this machine's files or programs: one replica has it, not all


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """A secret that one of this kind is given, sealed, beside its settings."""

    name: str
    summary: str  # one sentence
    required: bool = True
    kept_as: str | None = None  # the name under which a replaced one stays in use, until a person removes it


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Generic[S, P, M, L]):
    name: str  # as its entry point
    summary: str  # one sentence, for help and documentation
    settings: type[S]  # a pydantic model that forbids what it does not know; each field has a description
    make: Callable[[S, P], M]
    limits: L  # what holds where the settings of one say nothing
    limits_for: Callable[[Mapping[str, Any]], L] | None = None  # by the stored settings, where they decide
    credentials: tuple[Credential, ...] = ()
    any_credential: bool = False  # besides those above: what it needs is decided elsewhere, as by a provider's library
    fits: Callable[[S, Mapping[str, object]], None] | None = None  # settings and credentials together; ValueError
    traits: frozenset[Trait] = frozenset()
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # settings of well-known ones, by name
    address: str = "base_url"  # the setting, or the credential, that says where the remote is
    destinations: frozenset[str] = DESTINATIONS  # settings that decide who gets the credentials; a change asks for them

    def leads_elsewhere(self, before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
        """The changed settings that decide who gets the credentials. One that is left out has its default."""
        fields = {field.alias or name: field for name, field in self.settings.model_fields.items()}
        defaults = {name: field.get_default(call_default_factory=True) for name, field in fields.items()}
        decide = {*self.destinations, self.address} & defaults.keys()
        return sorted(name for name in decide if before.get(name, defaults[name]) != after.get(name, defaults[name]))

    def limits_of(self, settings: Mapping[str, object]) -> L:
        return self.limits if self.limits_for is None else self.limits_for(settings)

    def credential(self, name: str) -> Credential | None:
        return next((each for each in self.credentials if each.name == name), None)
