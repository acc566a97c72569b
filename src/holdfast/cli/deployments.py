"""Targets and deployments as people read them: what each target serves or is to serve, and what holds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from holdfast.cli.calling import clock
from holdfast.cli.certificates.options import window_shown
from holdfast.cli.terminal import Column, emit, emit_one, pairs, when


def targets(rows: Any) -> None:
    columns = [
        Column("NAME", lambda row: str(row["name"])),
        Column("KIND", lambda row: str(row["kind"])),
        Column("STATE", _target_state),
        Column("ENDPOINTS", lambda row: ", ".join(row["endpoints"]) or "-"),
        Column("RELOAD DOMAIN", lambda row: str(row["reload_domain"]), wide=True),
        Column("HOST", lambda row: str(row["host"] or "any"), wide=True),
        Column("OWNER", lambda row: str(row["owner"] or "-"), wide=True),
    ]
    emit(rows, columns, name="name", empty="There is no target. Add one: holdfast target add KIND NAME")


def target(row: Any) -> None:
    emit_one(row, text=_target, name="name")


def _target_state(row: Any) -> str:
    return "unreachable" if row["breaker_open"] else str(row["state"])


def _target(row: Any) -> str:
    facts = [
        ("target", f"{row['name']}   {row['kind']}   {_target_state(row)}"),
        ("host", row["host"] or "any replica"),
        ("reload domain", row["reload_domain"]),
        ("rollout", row["rollout"]),
        ("endpoints", ", ".join(row["endpoints"])),
        ("windows", ", ".join(window_shown(each) for each in row["windows"])),
        ("settings", ", ".join(f"{name}={value}" for name, value in row["settings"].items())),
        ("credentials", ", ".join(row["credentials"])),
        ("owner", row["owner"]),
        ("last error", row["breaker_error"] or ""),
    ]
    return pairs([fact for fact in facts if fact[1]])


def deployments(rows: Any) -> None:
    now = clock().now()
    columns = [
        Column("CERTIFICATE", lambda row: str(row["certificate"])),
        Column("TARGET", lambda row: str(row["target"])),
        Column("STATE", lambda row: str(row["state"])),
        Column("SINCE", lambda row: when(row["changed_at"], now)),
        Column("NEXT", lambda row: when(row["next_at"], now) if row["next_at"] else "-"),
        Column("WHY", lambda row: str(row["error"] or row["reason_code"] or row["seen"] or "-")),
        Column("SERIAL", lambda row: str(row["serial"]), wide=True),
        Column("FAILURES", lambda row: str(row["failures"]), wide=True),
        Column("SWAP", _swap, wide=True),
    ]
    emit(rows, columns, name="id", empty="Nothing is deployed. Name a target: holdfast change CERT --target TARGET")


def _swap(row: Any) -> str:
    return {None: "-", True: "atomic", False: "not atomic"}[row["atomic"]]


SHOWN: Final[Mapping[str, Callable[[Any], None]]] = {
    "targets.list": targets,
    "targets.get": target,
    "deployments.list": deployments,
}
