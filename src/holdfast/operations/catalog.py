"""Every module that declares operations: importing this one fills the registry."""

from holdfast.operations.agents import manage as manage_agents
from holdfast.operations.agents import tokens as agent_tokens
from holdfast.operations.certificates import (
    documents,
    drill,
    explain,
    imports,
    key_export,
    lifecycle,
    policies,
    statistics,
)
from holdfast.operations.deployment import deployments, targets
from holdfast.operations.discovery import discoveries, reports
from holdfast.operations.discovery import finds as manage_finds
from holdfast.operations.endpoints import manage as manage_endpoints
from holdfast.operations.installation import (
    attention,
    audit,
    backups,
    cluster,
    events,
    jobs,
    key_list,
    restore,
    snoozes,
    tokens,
)
from holdfast.operations.issuance import approvals, issuances
from holdfast.operations.issuers import account_keys
from holdfast.operations.issuers import manage as manage_issuers
from holdfast.operations.notifications import channels, notifications
from holdfast.operations.operation import declared, named
from holdfast.operations.own_ca import cas, clients, eab_keys, issued, stages
from holdfast.operations.people import accounts, saved_views
from holdfast.operations.solvers import manage as manage_solvers

__all__ = [
    "account_keys",
    "accounts",
    "agent_tokens",
    "approvals",
    "attention",
    "audit",
    "backups",
    "cas",
    "channels",
    "clients",
    "cluster",
    "declared",
    "deployments",
    "discoveries",
    "documents",
    "drill",
    "eab_keys",
    "events",
    "explain",
    "imports",
    "issuances",
    "issued",
    "jobs",
    "key_export",
    "key_list",
    "lifecycle",
    "manage_agents",
    "manage_endpoints",
    "manage_finds",
    "manage_issuers",
    "manage_solvers",
    "named",
    "notifications",
    "policies",
    "reports",
    "restore",
    "saved_views",
    "snoozes",
    "stages",
    "statistics",
    "targets",
    "tokens",
]
