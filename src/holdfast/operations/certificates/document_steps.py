"""Carries out the steps of a plan: each is an operation that people have, too, and a transaction of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from holdfast.core.certificate import CertificateSpec, CertificateState
from holdfast.core.documents.document import DocumentPlan, DocumentStep
from holdfast.core.documents.targets import TargetStep
from holdfast.errors import UserError
from holdfast.operations.certificates import lifecycle
from holdfast.operations.context import Context
from holdfast.operations.deployment import documents as document_targets

Step = DocumentStep | TargetStep


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    step: Step
    error: str = ""
    hint: str = ""


def in_order(plan: DocumentPlan) -> Iterator[tuple[Step, ...]]:
    """Groups of steps, one after the other: targets before certificates that name them, and after those that did."""
    yield tuple(each for each in plan.targets.steps if each.action != "delete")
    yield plan.steps
    yield tuple(each for each in plan.targets.steps if each.action == "delete")


def by_itself(step: Step, plan: DocumentPlan) -> Step:
    """For a dry run, in which no step finds what an earlier one would have made: a certificate without new targets."""
    new = {each.name for each in plan.targets.steps if each.action == "create"}
    if isinstance(step, TargetStep) or step.wanted is None or new.isdisjoint(step.wanted.targets):
        return step
    rest = tuple(each for each in step.wanted.targets if each not in new)
    return replace(step, wanted=replace(step.wanted, targets=rest))


def key_of(step: Step) -> str:
    """By this an asker leaves a step out; no certificate has a space in its name."""
    return step.name if isinstance(step, DocumentStep) else f"target {step.name}"


async def carried_out(ctx: Context, step: Step, *, may_lift: bool = True) -> StepDone:
    try:
        if isinstance(step, TargetStep):
            await document_targets.carried_out(ctx, step)
            return StepDone(step=step)
        match step.action:
            case "create":
                await _create(ctx, step)
            case "change":
                await _change(ctx, step, may_lift=may_lift)
            case "archive":
                await _set_state(ctx, step, "archived")
    except UserError as error:
        return StepDone(step=step, error=str(error), hint=error.hint)
    return StepDone(step=step)


async def _create(ctx: Context, step: DocumentStep) -> None:
    """A certificate that is added paused orders nothing before a person resumes it."""
    new_id, ids = ctx.ids.new("certificate"), None if step.paused else ctx.issuance_ids()
    await ctx.write(lambda tx: lifecycle.create(tx, new_id, _of(step), ids, actor=ctx.actor, asker=ctx.principal))


async def _set_state(ctx: Context, step: DocumentStep, event: str) -> None:
    await ctx.write(lambda tx: lifecycle.set_state(tx, _id(step), event, actor=ctx.actor))


async def _change(ctx: Context, step: DocumentStep, *, may_lift: bool) -> None:
    """Paused first and resumed last: in between, nothing is ordered that the document does not want."""
    was_paused = step.existing is not None and step.existing.state is CertificateState.PAUSED
    if step.paused and not was_paused:
        await _set_state(ctx, step, "paused")
    if any(each.field != "paused" for each in step.changes):
        spec = _of(step)
        changes = {name: getattr(spec, name) for name in CertificateSpec.__dataclass_fields__}
        expect = step.existing.version if step.existing is not None and step.paused == was_paused else None
        ids = ctx.issuance_ids()
        await ctx.write(
            lambda tx: lifecycle.change_wanted(
                tx,
                _id(step),
                changes,
                ids,
                actor=ctx.actor,
                asker=ctx.principal,
                expected_version=expect,
                may_lift_approval=may_lift,
            )
        )
    if was_paused and not step.paused:
        await _set_state(ctx, step, "resumed")


def _id(step: DocumentStep) -> str:
    if step.existing is None:
        raise AssertionError("only an existing certificate is changed or archived")
    return step.existing.id


def _of(step: DocumentStep) -> CertificateSpec:
    if step.wanted is None:
        raise AssertionError("only a step that archives has no specification")
    return step.wanted
