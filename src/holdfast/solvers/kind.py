"""The kinds of solvers: the parts that a solver is made from, and the settings of those that use DNS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from pydantic import Field

from holdfast import kind_settings, plugins
from holdfast.core.kind import Kind, S
from holdfast.kind_settings import Flag, KindSettings, Text
from holdfast.ports import Files, Net, Random
from holdfast.secret import Secret
from holdfast.solvers.base import Delete, Put, Solver
from holdfast.solvers.dns_client import DnsClient
from holdfast.solvers.dns_record import DNS_PORT, DnsSolver, Propagation, Provider


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverParts:
    """What a solver is made with, besides its settings."""

    files: Files
    net: Net
    random: Random
    resolvers: Sequence[str]  # as 192.0.2.1 or 192.0.2.1:5353
    python: str  # an interpreter that has dns-lexicon, if any has
    put: Put
    delete: Delete
    credentials: Mapping[str, Secret[str]] = field(default_factory=dict)  # by name
    tls_alpn_shown: bool = False  # whether a listener of ours shows responses of tls-alpn-01
    dns_port: int = DNS_PORT  # of the zones' own servers; another one in laboratories only

    @property
    def client(self) -> DnsClient:
        return DnsClient(self.net, self.random, self.resolvers)


SolverKind: TypeAlias = Kind[S, SolverParts, Solver, None]


class DnsSettings(KindSettings):
    """What can be set of every solver that changes a zone."""

    zone: Text = Field(default="", description="The zone that is changed; else it is found by its SOA record.")
    propagation: Flag = Field(default=True, description="Whether the zone's servers are asked before the CA looks.")

    def solver(self, parts: SolverParts, provider: Provider) -> DnsSolver:
        looked_for = Propagation(parts.client, port=parts.dns_port) if self.propagation else None
        return DnsSolver(provider, parts.client, looked_for, zone=self.zone.rstrip(".").lower() or None)


def make(kind: str, settings: Mapping[str, object], parts: SolverParts) -> Solver:
    """The solver of this kind; ValueError names the wrong setting."""
    known = plugins.kinds(plugins.SOLVERS)
    if kind not in known:
        raise ValueError(f"there is no solver {kind!r:.40}; there are {', '.join(known)} ({known.problem(kind)})")
    try:
        read = kind_settings.read(known[kind], settings, parts.credentials, given_by="a file, in secret_files")
        made: Solver = known[kind].make(read, parts)
    except ValueError as why:
        raise ValueError(f"{kind}: {why}") from None
    return made
