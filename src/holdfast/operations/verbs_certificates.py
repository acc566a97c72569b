"""What may be asked about kept certificates by name, with plain values in and out: imports, plans, exports."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from holdfast.core.desired import Step
from holdfast.errors import UserError
from holdfast.operations import desired, importing
from holdfast.operations.asking import Manner
from holdfast.operations.desired import Done, Planned
from holdfast.operations.importing import AccountOffer
from holdfast.operations.issuing import Keeper
from holdfast.secret import Secret

if TYPE_CHECKING:
    from holdfast.operations.verbs import Office

Json = Any
MOST_STEPS: Final = 500  # in one call: the asker comes back for the rest


def _keeper(office: Office) -> Keeper:
    vault = office.vault
    return Keeper(db=vault.db, random=vault.keyring.random, vault=vault)


# ── Imports ──


async def import_account(
    office: Office,
    actor: str,
    *,
    directory: str,
    key: str | None = None,
    url: str | None = None,
    contacts: Sequence[str] = (),
    roots: str = "",
    dry_run: bool = False,
) -> Json:
    """The CA of a directory, and our account there."""
    secret = None if key is None else Secret(key.encode())
    offer = AccountOffer(directory=directory, key=secret, url=url, contacts=tuple(contacts), roots=roots)
    return await importing.adopt_account(_keeper(office), offer, actor=actor, manner=Manner(dry_run=dry_run))


async def import_certificates(
    office: Office,
    actor: str,
    *,
    certificates: Sequence[Mapping[str, Json]],
    issuer: str | None = None,
    owner: str = "",
    labels: Mapping[str, str] | None = None,
    dry_run: bool = False,
) -> Json:
    try:
        offers = importing.read_offers(certificates, issuer=issuer, owner=owner, labels=labels or {})
    except (KeyError, TypeError, ValueError) as error:
        refused = UserError(f"This import cannot be read: {type(error).__name__}.")
        refused.hint = "Import with the 'holdfast import' command of the server's own version."
        raise refused from None
    found = await importing.adopt(_keeper(office), offers, actor=actor, manner=Manner(dry_run=dry_run))
    return [asdict(each) for each in found]


# ── Documents ──


async def plan(office: Office, actor: str, *, document: Json, prune: bool = False) -> Json:
    return plan_told(await desired.plan(_keeper(office), document, prune=prune))


def plan_told(planned: Planned) -> Json:
    return {
        "steps": [_step(each) for each in planned.plan.steps],
        "unchanged": planned.plan.unchanged,
        "left_alone": list(planned.plan.left_alone),
        "orders": dict(planned.orders),
        "budgets": dict(planned.budgets),
        "approvals": planned.approvals,
        "digest": planned.plan.digest(),
    }


async def apply(
    office: Office,
    actor: str,
    *,
    document: Json,
    prune: bool = False,
    expect: str | None = None,
    skip: Sequence[str] = (),
) -> Json:
    done, left = await desired.apply(
        _keeper(office), document, prune=prune, actor=actor, expect=expect, skip=frozenset(skip), most=MOST_STEPS
    )
    return done_told(done, left)


def done_told(done: Sequence[Done], left: int) -> Json:
    return {"done": [{**_step(each.step), "error": each.error, "hint": each.hint} for each in done], "left": left}


async def export(office: Office, actor: str, *, scope: Mapping[str, str] | None = None) -> Json:
    return await desired.export(_keeper(office), scope=scope or {})


def _step(step: Step) -> dict[str, Json]:
    return {
        "action": step.action,
        "name": step.name,
        "reason": step.reason,
        "issues": step.issues,
        "changes": [asdict(each) for each in step.changes],
    }


VERBS: Final[Mapping[str, Callable[..., Awaitable[Json]]]] = {
    "import.account": import_account,
    "import.certificates": import_certificates,
    "desired.plan": plan,
    "desired.apply": apply,
    "desired.export": export,
}
