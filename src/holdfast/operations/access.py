"""Who may do what to which object: one pure function, asked by every route, in the transaction that does it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from holdfast.core.access import Role
from holdfast.core.certificate import Certificate
from holdfast.errors import UserError


class Action(StrEnum):
    SEE = "see certificates"
    CREATE = "ask for certificates"
    CHANGE = "change certificates"
    RENEW = "renew certificates"
    REVOKE = "revoke certificates"
    EXPORT = "export keys"
    APPROVE = "approve requests"
    SEE_JOBS = "see jobs"
    CHANGE_JOBS = "change jobs"
    SEE_ISSUERS = "see issuers"
    CHANGE_ISSUERS = "change issuers"
    SEE_TARGETS = "see targets"
    CHANGE_TARGETS = "change targets"
    SEE_ENDPOINTS = "see endpoints"
    CHANGE_ENDPOINTS = "change and check endpoints"
    SEE_FINDS = "see finds and discoveries"
    CHANGE_FINDS = "adopt and ignore finds"
    DISCOVER = "look for certificates"
    SEE_NOTIFICATIONS = "see notifications"
    CHANGE_NOTIFICATIONS = "requeue and resolve notifications"
    SEE_CHANNELS = "see channels"
    CHANGE_CHANNELS = "change channels"
    SEE_AUDIT = "see the audit log"
    ARCHIVE_AUDIT = "archive the audit log"
    SEE_CLUSTER = "see the cluster"
    CHANGE_CLUSTER = "take replicas out of work"
    BACK_UP = "make backups, and release a restored installation"
    SEE_TOKENS = "see tokens"
    MAKE_TOKENS = "make tokens"
    REVOKE_TOKENS = "revoke tokens"
    SEE_PEOPLE = "see people"
    CHANGE_PEOPLE = "change people"
    SEE_SELF = "see who one is"
    CHANGE_SELF = "change one's own sessions, views and snoozes"
    PLAN = "plan documents"
    APPLY = "apply documents"
    IMPORT = "import certificates"
    SEE_CAS = "see our CAs"
    CHANGE_CAS = "change our CAs"
    REVOKE_ISSUED = "revoke what our CAs issued"
    CHANGE_ACME_CLIENTS = "administer ACME clients"
    SEE_AGENTS = "see agents"
    CHANGE_AGENTS = "change agents"
    SEE_AGENT_TOKENS = "see agent tokens"
    MAKE_AGENT_TOKENS = "make and revoke agent tokens"
    SEE_POLICIES = "see policies"
    CHANGE_POLICIES = "change policies"


EXPORT_RIGHT: Final = "export"  # given to a token by name: no role has it by itself
RIGHTS: Final = frozenset({EXPORT_RIGHT})
_LOOK: Final = frozenset(
    {
        Action.SEE, Action.SEE_ISSUERS, Action.SEE_JOBS, Action.SEE_CLUSTER, Action.SEE_SELF, Action.CHANGE_SELF,
        Action.PLAN, Action.SEE_NOTIFICATIONS, Action.SEE_CHANNELS, Action.SEE_CAS, Action.SEE_POLICIES,
        Action.SEE_ENDPOINTS, Action.SEE_TARGETS, Action.SEE_AGENTS, Action.SEE_FINDS,
    }
)  # fmt: skip
_OPERATE: Final = frozenset(
    {
        Action.CREATE, Action.CHANGE, Action.RENEW, Action.REVOKE, Action.EXPORT, Action.APPROVE, Action.CHANGE_JOBS,
        Action.APPLY, Action.CHANGE_NOTIFICATIONS, Action.CHANGE_ENDPOINTS, Action.CHANGE_FINDS,
        Action.DISCOVER,
    }
)  # fmt: skip
MAY: Final[Mapping[Role, frozenset[Action]]] = {
    Role.ADMIN: frozenset(Action),
    Role.OPERATOR: _LOOK | _OPERATE,
    Role.VIEWER: _LOOK,
    Role.AUDITOR: _LOOK | {Action.SEE_AUDIT, Action.SEE_TOKENS, Action.SEE_PEOPLE, Action.SEE_AGENT_TOKENS},
    Role.AGENT: frozenset({Action.SEE, Action.RENEW, Action.EXPORT, Action.SEE_ISSUERS, Action.SEE_SELF}),
    Role.FIRST: frozenset({Action.MAKE_TOKENS}),
}
# What a confined principal may do though no certificate is named.
_UNOWNED: Final = frozenset(
    {Action.SEE_ISSUERS, Action.SEE_CHANNELS, Action.SEE_TARGETS, Action.SEE_SELF, Action.CHANGE_SELF}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The asker: a token, a person's session or a local user.

    Confined to certificates of these owners and with all of these labels.
    """

    id: str
    name: str
    kind: str  # human, robot, agent or local
    role: Role
    rights: frozenset[str] = frozenset()
    owners: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    by_session: bool = False  # `id` is that of a browser's session, and not of a token

    @property
    def actor(self) -> str:
        """By this the audit log knows them; a person with two tokens is one person."""
        return f"{self.kind}:{self.name}"

    @property
    def scope(self) -> Owned:
        """An object as they are confined to."""
        return Owned(next(iter(self.owners), ""), self.labels)

    @property
    def confined(self) -> bool:
        return bool(self.owners or self.labels)


def local(user: str) -> Principal:
    """A user who can open the local socket is treated as admin: that user can already read the database and its key."""
    return Principal(id=f"local:{user}", name=user, kind="local", role=Role.ADMIN, rights=RIGHTS)


class Owned(NamedTuple):
    """What decides about an object: whose it is, and what it is labelled."""

    owner: str
    labels: Mapping[str, str]

    @classmethod
    def of(cls, certificate: Certificate) -> Owned:
        return cls(certificate.wanted.owner, certificate.wanted.labels)


class Verdict(StrEnum):
    ALLOWED = "allowed"
    FORBIDDEN = "forbidden"
    HIDDEN = "hidden"  # as if it did not exist


def allow(principal: Principal, action: Action, resource: Owned | None = None) -> Verdict:
    """`resource` is None for what belongs to the whole installation."""
    if action not in MAY[principal.role]:
        return Verdict.FORBIDDEN
    if action is Action.EXPORT and EXPORT_RIGHT not in principal.rights:
        return Verdict.FORBIDDEN
    if not principal.confined or action in _UNOWNED:
        return Verdict.ALLOWED
    if resource is None:
        return Verdict.FORBIDDEN
    return Verdict.ALLOWED if _within(principal, resource) else Verdict.HIDDEN


def _within(principal: Principal, resource: Owned) -> bool:
    owned = not principal.owners or resource.owner in principal.owners
    return owned and all(resource.labels.get(name) == value for name, value in principal.labels.items())


class Forbidden(UserError):
    status, code = 403, "forbidden"

    def __init__(self, principal: Principal, action: Action) -> None:
        super().__init__(f"{principal.actor} ({principal.role}) may not {action.value} here.")
        self.hint = "Ask an admin for a token with another role, right or scope: holdfast token create --help"
        if action is Action.EXPORT and EXPORT_RIGHT not in principal.rights:
            self.hint = (
                "No role may export keys by itself. A token with that right: holdfast token create NAME --right export"
            )


def demand(principal: Principal, action: Action, resource: Owned | None = None) -> None:
    """Raise Forbidden unless it is allowed."""
    if allow(principal, action, resource) is not Verdict.ALLOWED:
        raise Forbidden(principal, action)
