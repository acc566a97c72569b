"""The reference of state machines, drawn from the tables of moves in core/."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import ModuleType
from typing import Any, Final

from holdfast.core import certificate, deployment, issuance
from holdfast.core.agents import agent
from holdfast.core.discovery import discovery, find
from holdfast.core.notifications import notification
from holdfast.core.own_ca import acme
from holdfast.core.work import job

Moves = Mapping[tuple[Any, str], Any]


@dataclass(frozen=True, slots=True)
class Machine:
    """A state machine of core/: the table `moves` of `module`, and the states in which its subject can begin."""

    title: str
    sentence: str
    module: ModuleType
    moves: str
    begins: tuple[StrEnum, ...]

    @property
    def table(self) -> Moves:
        table: Moves = getattr(self.module, self.moves)
        return table

    @property
    def final(self) -> list[StrEnum]:
        """States without a move out of them."""
        left = {before for before, _ in self.table}
        return [state for state in type(self.begins[0]) if state not in left]


MACHINES: Final = (
    Machine(
        "Certificate",
        "A certificate that Holdfast keeps. An imported one may begin paused.",
        certificate, "MOVES", (certificate.CertificateState.ACTIVE, certificate.CertificateState.PAUSED),
    ),
    Machine(
        "Issuance",
        "One attempt to obtain a certificate from an issuer. It begins with an approval where the policy asks for one.",
        issuance, "MOVES", (issuance.IssuanceState.REQUESTED, issuance.IssuanceState.AWAITING_APPROVAL),
    ),
    Machine(
        "Deployment",
        "One version of a certificate on one target. It is tried again for as long as the version is wanted there.",
        deployment, "MOVES", (deployment.DeploymentState.QUEUED,),
    ),
    Machine(
        "Agent",
        "A host that carries out deployments by itself. It begins pending where its token asks for an approval.",
        agent, "MOVES", (agent.AgentState.ACTIVE, agent.AgentState.PENDING),
    ),
    Machine(
        "Find",
        "A certificate that was seen somewhere. One that is seen again after it was gone is as it was decided before.",
        find, "MOVES", (find.FindState.NEW,),
    ),
    Machine(
        "Discovery",
        "One place to look for certificates, once or every so often.",
        discovery, "MOVES", (discovery.DiscoveryState.RUNNING,),
    ),
    Machine(
        "Job",
        "One piece of work, leased by one worker at a time. It begins running if the process that adds it takes it over at once.",
        job, "MOVES", (job.JobState.READY, job.JobState.RUNNING),
    ),
    Machine(
        "Notification",
        "One message owed to one channel. It begins dead if no channel is configured for it, so that it is not lost.",
        notification, "MOVES", (notification.NotificationState.PENDING, notification.NotificationState.DEAD),
    ),
    Machine(
        "ACME account",
        "An account at our own CA (RFC 8555 §7.1.6).",
        acme, "ACCOUNT_MOVES", (acme.AccountState.VALID,),
    ),
    Machine(
        "ACME order",
        "An order at our own CA (RFC 8555 §7.1.6). It begins ready if no identifier needs a new challenge.",
        acme, "ORDER_MOVES", (acme.OrderState.PENDING, acme.OrderState.READY),
    ),
    Machine(
        "ACME authorization",
        "An authorization at our own CA (RFC 8555 §7.1.6). It begins valid for an account that the CA trusts with the identifier.",
        acme, "AUTHZ_MOVES", (acme.AuthzState.PENDING, acme.AuthzState.VALID),
    ),
    Machine(
        "ACME challenge",
        "A challenge at our own CA (RFC 8555 §7.1.6). Attempts that failed for now stay in `processing`.",
        acme, "CHALLENGE_MOVES", (acme.ChallengeState.PENDING,),
    ),
)  # fmt: skip


def machines() -> str:
    lines = [
        "# State machines",
        "",
        "Each machine is one table in `src/holdfast/core/`, and no other code decides a state. Diagrams and tables on this page are",
        "drawn from those tables.",
        *(line for machine in MACHINES for line in _section(machine)),
    ]
    return "\n".join(lines) + "\n"


def _section(machine: Machine) -> Iterator[str]:
    path = machine.module.__name__.replace(".", "/")
    yield from ("", f"## {machine.title}", "", f"{machine.sentence} Table: `{machine.moves}` in `src/{path}.py`.", "")
    yield from ("```mermaid", "stateDiagram-v2", *(f"    {arrow}" for arrow in _arrows(machine)), "```", "")
    yield from ("| from | event | to |", "|---|---|---|")
    yield from (f"| `{before}` | {event} | `{after}` |" for (before, event), after in machine.table.items())


def _arrows(machine: Machine) -> Iterator[str]:
    """One arrow for each pair of states, with all its events."""
    events: dict[tuple[StrEnum, StrEnum], list[str]] = {}
    for (before, event), after in machine.table.items():
        events.setdefault((before, after), []).append(event)
    yield from (f"[*] --> {state}" for state in machine.begins)
    yield from (f"{before} --> {after}: {', '.join(names)}" for (before, after), names in events.items())
    yield from (f"{state} --> [*]" for state in machine.final)
