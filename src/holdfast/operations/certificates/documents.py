"""Certificates as a document: plan what it would change, apply it, export what there is.

Each step is an operation that people have, too, and a transaction of its own: applying an interrupted document again
does the rest. Nothing here revokes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field

from holdfast.core.access import Role
from holdfast.core.certificate import Certificate, CertificateSpec
from holdfast.core.documents import document as declared
from holdfast.core.documents.document import (
    Document,
    DocumentEntry,
    DocumentPlan,
    DocumentRefused,
    DocumentStep,
    Existing,
)
from holdfast.core.documents.targets import compare as compare_targets
from holdfast.core.issuers.budget import remaining
from holdfast.core.issuers.ca_limits import order_key
from holdfast.core.issuers.issuer import IssuerRow
from holdfast.core.target import TargetRow
from holdfast.errors import UserError
from holdfast.operations.access import Action
from holdfast.operations.certificates.checks import SpecificationRefused, few_enough, identifiers_of
from holdfast.operations.certificates.document_steps import Step, StepDone, by_itself, carried_out, in_order, key_of
from holdfast.operations.context import Context
from holdfast.operations.deployment import documents as document_targets
from holdfast.operations.inputs import Input, StrictFlag
from holdfast.operations.issuance import attempts
from holdfast.operations.operation import operation
from holdfast.operations.scopes import INSTALLATION
from holdfast.pki.in_thread import aside
from holdfast.pki.refused import PkiRefused
from holdfast.store import certificates, issuers
from holdfast.store.deployments import targets
from holdfast.store.tx import Tx
from holdfast.store.work import budgets

MOST_STEPS: Final = 500  # in one request: the asker comes back for the rest
_PAGE: Final = 500
_AT_ONCE: Final = 8  # steps under way together: their commits are grouped


class PlanIsStale(UserError):
    status, code = 409, "stale"
    hint = "Look at what would be done now: holdfast plan"

    def __init__(self) -> None:
        super().__init__("Since this plan was made, the certificates or the document have changed.")


class BadLabel(UserError):
    code, hint = "bad-filter", "A label is given as name=value, such as env=prod."


# ── Inputs and results ──


class DocumentInput(Input):
    document: dict[str, Any] = Field(description="The certificates as a document: see `holdfast export --schema`.")
    prune: StrictFlag = Field(
        default=False,
        description="Archive certificates that are not in it, and delete targets that nothing names; none is revoked.",
    )


class ApplyInput(DocumentInput):
    expect: str | None = Field(default=None, max_length=200, description="`digest` of the plan that was reviewed.")
    skip: list[Annotated[str, Field(max_length=253)]] = Field(
        default=[],
        max_length=100_000,
        description="Names of certificates to leave as they are; of targets as 'target NAME'.",
    )


class ExportInput(Input):
    label: list[str] = Field(default=[], max_length=16, description="name=value; may be repeated.")


class StepChange(BaseModel):
    field: str
    was: Any
    will_be: Any


class StepView(BaseModel):
    what: str = Field(description="certificate or target")
    action: str
    name: str
    reason: str
    issues: bool = Field(description="Whether a certificate is ordered for it.")
    changes: list[StepChange]


class StepDoneView(StepView):
    error: str = Field(description="Empty: it is done.")
    hint: str


class PlanView(BaseModel):
    steps: list[StepView]
    unchanged: int = Field(description="Certificates that are as they should be.")
    left_alone: list[str]
    targets_unchanged: int
    targets_left_alone: list[str] = Field(description="Not in the document, and named by a certificate or not pruned.")
    orders: dict[str, int] = Field(description="By the issuer that is asked first.")
    budgets: dict[str, int] = Field(description="What each of them would take now.")
    approvals: int
    digest: str


class Applied(BaseModel):
    done: list[StepDoneView]
    left: int = Field(description="How many are left: ask again, with those that failed in `skip`.")


def _step(step: Step) -> StepView:
    changes = [StepChange(**asdict(each)) for each in step.changes]
    what, issues = ("certificate", step.issues) if isinstance(step, DocumentStep) else ("target", False)
    return StepView(what=what, action=step.action, name=step.name, reason=step.reason, issues=issues, changes=changes)


# ── Planning, applying, exporting ──


@operation(
    "documents.plan",
    "POST /documents/plan",
    command="plan",
    action=Action.PLAN,
    scope=INSTALLATION,
    reads=True,
    dry_runs=False,
    offline=True,
    example="holdfast plan -f certificates.yaml",
)
async def plan(ctx: Context, asked: DocumentInput) -> PlanView:
    """Show what a document of certificates and targets would create, change and archive, and what that costs."""
    async with ctx.services.reckoning.turn() as aside:
        truth = await ctx.read(_truth)
        found = await aside(lambda check: _planned(asked.document, truth, asked.prune))
    return PlanView(
        steps=[_step(each) for group in in_order(found.plan) for each in group],
        unchanged=found.plan.unchanged,
        left_alone=list(found.plan.left_alone),
        targets_unchanged=found.plan.targets.unchanged,
        targets_left_alone=list(found.plan.targets.left_alone),
        orders=dict(found.orders),
        budgets=dict(found.budgets),
        approvals=found.approvals,
        digest=found.plan.digest(),
    )


@operation(
    "documents.apply",
    "POST /documents/apply",
    command="apply",
    action=Action.APPLY,
    scope=INSTALLATION,
    destructive=True,
    offline=True,
    example="holdfast apply -f certificates.yaml",
)
async def apply(ctx: Context, asked: ApplyInput) -> Applied:
    """Make certificates and targets what a document says, 500 steps at a time. Each step is a change of its own.

    What was done is not done again. Only admins change targets, or give up the approval of a second person. An
    Idempotency-Key is not kept here: `expect` names the plan that is to be carried out.
    """
    done, left = await applied(
        ctx,
        asked.document,
        prune=asked.prune,
        expect=asked.expect,
        skip=frozenset(asked.skip),
        most=MOST_STEPS,
        may_lift_approval=ctx.principal.role is Role.ADMIN,
    )
    steps = [StepDoneView(**dict(_step(each.step)), error=each.error, hint=each.hint) for each in done]
    return Applied(done=steps, left=left)


@operation(
    "documents.export",
    "GET /documents",
    command="export",
    action=Action.PLAN,
    scope=INSTALLATION,
    offline=True,
    example="holdfast export > certificates.yaml",
)
async def export(ctx: Context, asked: ExportInput) -> dict[str, Any]:
    """Export certificates and targets as a document, without keys and credentials. Planning with it changes nothing."""
    labels = dict(map(_label, asked.label))
    async with ctx.services.reckoning.turn() as aside:
        truth = await ctx.read(_truth)
        return await aside(lambda check: declared.document(truth.existing, labels, list(truth.targets.values())))


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise BadLabel(f"{text!r:.60} is no label filter.")
    return name, value


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDocument:
    """A plan, with what it costs."""

    plan: DocumentPlan
    orders: Mapping[str, int]  # by the CA that is asked first
    budgets: Mapping[str, int]  # what each of them would take now
    approvals: int  # attempts that a second person has to approve


@dataclass(frozen=True, slots=True)
class _Truth:
    """What there is, read in one transaction."""

    existing: list[Existing]
    issuers: Mapping[str, IssuerRow]
    order_budgets: Mapping[str, int]
    targets: Mapping[str, TargetRow]


# ── Planning: a document against the certificates there are ──


async def planned(ctx: Context, tree: object, *, prune: bool = False) -> PlannedDocument:
    """Compare a document with the certificates there are; DocumentRefused lists all mistakes of the document."""
    truth = await ctx.read(_truth)
    return await aside(_planned, tree, truth, prune)


def _truth(tx: Tx) -> _Truth:
    now, rows = tx.now(), {row.name: row for row in issuers.all_issuers(tx)}
    keys = {order_key(name): name for name in rows}
    left = {keys[each.key]: remaining(each, now, urgent=False) for each in budgets.all_budgets(tx) if each.key in keys}
    there = {row.name: row for row in targets.all_targets(tx)}
    return _Truth([_existing(each) for each in _everything(tx)], rows, left, there)


def _everything(tx: Tx) -> list[Certificate]:
    found, after = list[Certificate](), ""
    while page := certificates.page(tx, after=after, limit=_PAGE):
        found += page
        after = page[-1].name
    return found


def _existing(found: Certificate) -> Existing:
    return Existing(
        id=found.id, version=found.version, wanted=found.wanted, state=found.state, fingerprint=found.fingerprint
    )


def _planned(tree: object, truth: _Truth, prune: bool) -> PlannedDocument:
    document = declared.read(tree)
    entries = document_targets.meant(document.targets, truth.targets)
    wanted = _wanted(document, truth.issuers, {*truth.targets, *(each.name for each in entries or ())})
    made = declared.compare(wanted, truth.existing, scope=document.scope, prune=prune)
    named = {name for each in declared.left_by(made, truth.existing) for name in each.targets}
    there = list(truth.targets.values())
    of_targets = compare_targets(entries, there, scope=document.scope, prune=prune, in_use=named)
    made = replace(made, targets=of_targets)
    ordered = [each.wanted for each in made.steps if each.issues and each.wanted is not None]
    orders = Counter(each.issuers[0] for each in ordered)
    return PlannedDocument(
        plan=made,
        orders=dict(sorted(orders.items())),
        budgets={name: left for name, left in truth.order_budgets.items() if name in orders},
        approvals=attempts.count_approvals(ordered, [each.wanted for each in truth.existing], truth.issuers),
    )


def _wanted(
    document: Document, known: Mapping[str, IssuerRow], targets_known: Collection[str]
) -> list[tuple[CertificateSpec, bool]]:
    problems: list[tuple[str, str]] = []
    found = []
    for entry in document.entries:
        try:
            spec = declared.wanted_of(entry, identifiers_of(entry.names), _default_issuers(entry, known))
            problems += _unknown(entry, spec, known) + _not_there(entry, spec, targets_known)
            few_enough(spec, [known[name] for name in spec.issuers if name in known])
            found.append((spec, entry.paused))
        except (PkiRefused, SpecificationRefused) as refused:
            problems.append((f"{entry.where}.names", f"{refused} {refused.hint}".rstrip()))
        except ValueError as error:
            problems.append((entry.where, f"This cannot be asked for: {error}."))
    if problems:
        raise DocumentRefused(problems)
    return found


def _default_issuers(entry: DocumentEntry, known: Collection[str]) -> tuple[str, ...]:
    """Where an entry names no CA, there must be no choice."""
    if "issuers" not in entry.fields and len(known) != 1:
        raise ValueError(f"say which CA it is to come from ('issuers'), here or in 'defaults'; {_listed(known)}")
    return tuple(known)


def _unknown(entry: DocumentEntry, spec: CertificateSpec, known: Collection[str]) -> list[tuple[str, str]]:
    missing = [name for name in spec.issuers if name not in known]
    return [(f"{entry.where}.issuers", f"There is no CA named {name!r:.80}; {_listed(known)}.") for name in missing]


def _not_there(entry: DocumentEntry, spec: CertificateSpec, known: Collection[str]) -> list[tuple[str, str]]:
    problem = "There is no target named {!r:.80}, here or in the document: holdfast target ls"
    return [(f"{entry.where}.targets", problem.format(name)) for name in spec.targets if name not in known]


def _listed(known: Collection[str]) -> str:
    return f"there are: {', '.join(known)}" if known else "there is none yet: holdfast issuer add"


# ── Applying: each step is a transaction of its own ──


async def applied(
    ctx: Context,
    tree: object,
    *,
    prune: bool = False,
    expect: str | None = None,
    skip: Collection[str] = (),
    most: int = 1_000_000,
    may_lift_approval: bool = True,
) -> tuple[list[StepDone], int]:
    """Carry steps out, at most so many, and say how many are left. With `expect`, only the plan that was reviewed."""
    made = (await planned(ctx, tree, prune=prune)).plan
    if expect is not None and made.digest() != expect:
        raise PlanIsStale
    gate, done, left = asyncio.Semaphore(_AT_ONCE), list[StepDone](), 0

    async def one(step: Step) -> StepDone:
        async with gate:
            tried = by_itself(step, made) if ctx.dry_run else step
            return await carried_out(ctx, tried, may_lift=may_lift_approval)

    for group in in_order(made):
        steps = [each for each in group if key_of(each) not in skip]
        now = steps[: most - len(done)]
        done += await asyncio.gather(*(one(step) for step in now))
        left += len(steps) - len(now)
    return done, left
