"""The kinds of jobs that this version works on; jobs of other kinds are left to replicas that know them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from holdfast.engine import selfcheck
from holdfast.engine.issuance import renewals
from holdfast.operations.acme import authorizations, orders
from holdfast.operations.deployment import planning
from holdfast.operations.discovery import discoveries
from holdfast.operations.endpoints import watching
from holdfast.operations.issuance import attempts
from holdfast.operations.issuers import account_keys
from holdfast.operations.notifications import routing
from holdfast.operations.own_ca import revocation, root_crls

ALL: Final = frozenset(
    {
        selfcheck.KIND, renewals.ARI, authorizations.VALIDATE, orders.ISSUE, planning.DEPLOY, watching.WATCH,
        attempts.ISSUE, attempts.WITHDRAW, attempts.CLEAN, account_keys.ACCOUNT_KEY, routing.NOTIFY, revocation.CRL,
        revocation.REVOKE, root_crls.ROOT_CRL, discoveries.DISCOVER,
    }
)  # fmt: skip


def check_listed(names: Iterable[str]) -> None:
    """What `holdfast upgrade check` does not know of, it would take for a newer version's."""
    if unlisted := {name.partition("@")[0] for name in names} - ALL:
        raise AssertionError(f"kinds of jobs that job_kinds.py does not list: {', '.join(sorted(unlisted))}")
