"""Targets of a document: what they are here, and the steps that make them so, each an operation that people have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from holdfast.core.documents.document import DocumentRefused
from holdfast.core.documents.targets import SETTINGS, TargetEntry, TargetStep
from holdfast.core.target import TargetRow, TargetState
from holdfast.operations import kinds
from holdfast.operations.access import Action
from holdfast.operations.context import Context
from holdfast.operations.deployment import targets as manage
from holdfast.operations.deployment.targets import TARGETS, NewTarget, TargetChange, TargetRef


def meant(entries: Iterable[TargetEntry] | None, there: Mapping[str, TargetRow]) -> tuple[TargetEntry, ...] | None:
    """The entries with the settings of their presets. Refused: a kind that there is not, or another than before."""
    if entries is None:
        return None
    found, problems = list[TargetEntry](), list[tuple[str, str]]()
    presets = kinds.target_presets()
    for each in entries:
        preset = presets.get(each.kind)
        kind, settings = (each.kind, {}) if preset is None else (preset.kind, dict(preset.settings))
        entry = replace(each, kind=kind, settings={**settings, **each.settings})
        problems += _problems(entry, there.get(each.name), presets)
        found.append(entry)
    if problems:
        raise DocumentRefused(problems)
    return tuple(found)


def _problems(entry: TargetEntry, row: TargetRow | None, presets: Iterable[str]) -> list[tuple[str, str]]:
    known = sorted({*kinds.deployers(), *presets})
    if entry.kind not in known:
        return [(f"{entry.where}.kind", f"There is no such kind of target. There are: {', '.join(known)}.")]
    fixed = () if row is None else (("kind", row.kind, entry.kind), ("host", row.host, entry.host or row.host))
    return [
        (f"{entry.where}.{key}", f"Target {entry.name} has {key} {was!r}, which cannot be changed: use another name.")
        for key, was, will_be in fixed
        if was != will_be
    ]


async def carried_out(ctx: Context, step: TargetStep) -> None:
    """UserError says why a step could not be taken."""
    ctx.demand(Action.CHANGE_TARGETS)
    match step.action:
        case "create":
            await _create(ctx, _of(step))
        case "change":
            await _change(ctx, _of(step), _row(step))
        case "delete" if not ctx.dry_run:  # in which certificates still name it: the plan knows that none will
            await ctx.write(lambda tx: manage.delete(tx, ctx, TargetRef(name=step.name)))


async def _create(ctx: Context, entry: TargetEntry) -> None:
    """One that is added paused is paused before anything could be deployed to it."""
    asked = NewTarget.model_validate({**_said(entry), "kind": entry.kind, "host": entry.host, SETTINGS: entry.settings})
    add = await manage.add(ctx, asked)
    await ctx.write(lambda tx: (add(tx), entry.paused and TARGETS.pause(tx, entry.name, ctx.actor)))


async def _change(ctx: Context, entry: TargetEntry, row: TargetRow) -> None:
    """Paused first and resumed last: in between, nothing is deployed that the document does not want."""
    was_paused = row.state is TargetState.PAUSED
    version = row.version
    if entry.paused and not was_paused:
        version = (await ctx.write(lambda tx: TARGETS.pause(tx, entry.name, ctx.actor))).version
    gone = dict.fromkeys(row.settings.keys() - entry.settings.keys())
    settings = {} if entry.settings == row.settings else {SETTINGS: {**entry.settings, **gone}}
    asked = TargetChange.model_validate({**_said(entry), **settings})
    change = await manage.change(replace(ctx, expected_version=version), asked)
    await ctx.write(change)
    if was_paused and not entry.paused:
        await ctx.write(lambda tx: TARGETS.resume(tx, entry.name, ctx.actor))


def _said(entry: TargetEntry) -> dict[str, Any]:
    """In the words of the operations."""
    return {
        "name": entry.name,
        "owner": entry.owner,
        "labels": dict(entry.labels),
        "endpoints": list(entry.endpoints),
        "windows": [each.to_json() for each in entry.windows],
        "reload_domain": entry.domain,
        "rollout": entry.rollout,
    }


def _of(step: TargetStep) -> TargetEntry:
    if step.wanted is None:
        raise AssertionError("only a step that deletes has no target")
    return step.wanted


def _row(step: TargetStep) -> TargetRow:
    if step.existing is None:
        raise AssertionError("only an existing target is changed")
    return step.existing
