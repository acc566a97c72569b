"""Core values as the wire shows them; nothing here decides anything."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pydantic_core import to_json

from holdfast.api import installation_shapes as whole
from holdfast.api import shapes
from holdfast.core import base64url
from holdfast.core import budget as budgets
from holdfast.core.budget import Budget
from holdfast.core.certificate import Failing, Version
from holdfast.core.chain import Entry
from holdfast.core.issuance import Issuance
from holdfast.core.status import Explanation
from holdfast.errors import UserError
from holdfast.operations.access import Principal
from holdfast.operations.certificates import View
from holdfast.operations.inventory import Page

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# Rows of the store come through operations; their fields are read, their classes are not named here.
Row = Any


class BadCursor(UserError):
    code = "bad-cursor"
    hint = "Use `next` of the last page as it was, with the same filters; or begin again without it."


def cursor(place: Sequence[Any] | None) -> str | None:
    if place is None:
        return None
    return base64url.encode(json.dumps(list(place)).encode())


def place(text: str | None, *kinds: type) -> tuple[Any, ...] | None:
    """Where a cursor points: values of these kinds."""
    if text is None:
        return None
    try:
        found = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, UnicodeError, RecursionError):
        raise BadCursor("This is not a cursor of ours.") from None
    if not isinstance(found, list) or [type(each) for each in found] != list(kinds):
        raise BadCursor("This is not a cursor of this list.")
    if any("\0" in each if isinstance(each, str) else abs(each) >= 2**63 for each in found):
        raise BadCursor("This is not a cursor of this list.")
    return tuple(found)


# ── Certificates ──


def certificate(view: View, issuance: Issuance | None = None) -> shapes.Certificate:
    """`issuance` is the attempt to show, when it is over; otherwise the one under way."""
    plain = _certificate(view, issuance)
    rule, windows = plain.pop("renewal"), plain.pop("windows")
    return shapes.Certificate(
        renewal=shapes.RenewalRule.model_construct(**rule),
        windows=[shapes.MaintenanceWindow.model_construct(**each) for each in windows],
        **plain,
    )


def certificate_page(page: Page[View]) -> bytes:
    """As JSON, without a model for each: what was checked when it was written is not checked once more."""
    items = [_certificate(each) for each in page.items]
    return to_json({"items": items, "next": cursor(page.next), "total": page.total})


def _certificate(view: View, issuance: Issuance | None = None) -> dict[str, Any]:
    """The fields of shapes.Certificate, in their order; enums by their values, which the encoder is slow to find."""
    row, wanted, held = view.certificate, view.certificate.wanted, view.current
    attempt = issuance or view.issuance
    return {
        "id": row.id,
        "name": row.name,
        "names": [each.value for each in wanted.identifiers],
        "issuers": wanted.issuers,
        "key": wanted.key_kind,
        "profile": wanted.profile,
        "preferred_chain": wanted.preferred_chain,
        "lifetime_s": None if wanted.lifetime is None else wanted.lifetime.total_seconds(),
        "reuse_key": wanted.reuse_key,
        "renewal": wanted.rule.to_json(),
        "windows": [each.to_json() for each in wanted.windows],
        "owner": wanted.owner,
        "labels": wanted.labels,
        "approval_required": wanted.approval_required,
        "state": row.state.value,
        "generation": row.generation,
        "version": row.version,
        "created_at": row.created_at,
        "changed_by": row.changed_by,
        "serial": None if held is None else held.serial,
        "not_before": None if held is None else held.not_before,
        "not_after": None if held is None else held.not_after,
        "issuer": None if held is None else held.issuer,
        **_failing(row.failing),
        "status": _status(view),
        "operation": None if attempt is None else _operation(attempt),
    }


def _failing(failing: Failing | None) -> dict[str, Any]:
    """There only while it is failing; of a row of an older release the count is not known."""
    if failing is None:
        return {}
    counted = {} if failing.attempts is None else {"issuance_attempts": failing.attempts}
    return {**counted, "last_failure_at": failing.last_at}


def _status(view: View) -> dict[str, Any]:
    block = view.status
    plain = {name: getattr(block, name) for name in block.__slots__}
    return plain | {"phase": block.phase.value, "reason_code": block.reason_code.value}


def _operation(attempt: Issuance) -> dict[str, Any]:
    return {
        "id": attempt.id,
        "kind": "issuance",
        "state": attempt.state.value,
        "done": attempt.state.over,
        "error": attempt.error,
        "reason_code": attempt.reason,
    }


def version(held: Version) -> shapes.Version:
    return shapes.Version(
        id=held.id,
        generation=held.generation,
        state=held.state,
        serial=held.serial,
        not_before=held.not_before,
        not_after=held.not_after,
        issuer=held.issuer,
        key_sha256=held.spki_sha256,
        issued_at=held.issued_at,
        revoked_at=held.revoked_at,
        revocation_asked_at=held.revoke_asked_at,
        revocation_reason=held.revoke_reason,
        chain_pem=held.chain_pem,
    )


def explanation(found: Explanation) -> shapes.Explanation:
    return shapes.Explanation(
        at=found.at,
        verdict=found.verdict,
        checks=[shapes.Check(**asdict(each)) for each in found.checks],
        blocking=found.blocking,
        would_change_it=found.would_change_it,
        of_today=list(found.of_today),
    )


def issuance(attempt: Issuance) -> shapes.Issuance:
    return shapes.Issuance(
        id=attempt.id,
        certificate=attempt.certificate,
        generation=attempt.generation,
        state=attempt.state,
        issuer=attempt.issuer,
        cause=attempt.cause,
        urgent=attempt.urgent,
        names=[each.value for each in attempt.identifiers],
        requested_by=attempt.requested_by,
        started_at=attempt.started_at,
        ended_at=attempt.ended_at,
        polls=attempt.polls,
        failures=attempt.failures,
        uncertain_since=attempt.uncertain_since,
        maybe_twice=attempt.maybe_twice,
        withdrawal=attempt.withdrawal,
        error=attempt.error,
        reason_code=attempt.reason,
    )


# ── The rest ──


def job(row: Row) -> shapes.Job:
    return shapes.Job(
        id=row.id,
        kind=row.kind,
        subject=row.subject,
        state=row.state,
        priority=int(row.priority),
        due_at=row.due_at,
        attempt=row.attempts,
        max_attempts=row.max_attempts,
        crashes=row.crashes,
        holder=row.holder,
        lease_until=row.lease_until,
        reason_code=row.reason,
        last_error=row.last_error,
        last_attempt_at=row.started_at,
        next_attempt_at=row.due_at if row.state in ("ready", "failed") else None,
        finished_at=row.finished_at,
    )


def issuer(row: Row, now: datetime) -> shapes.Issuer:
    return shapes.Issuer(
        name=row.name,
        kind=row.kind,
        state=row.state,
        settings=dict(row.settings),
        credentials=sorted(row.credentials),
        breaker_open=row.breaker.open_at(now),
        breaker_error=row.breaker.error,
        version=row.version,
        created_at=row.created_at,
    )


def budget(held: Budget, now: datetime) -> shapes.BudgetLeft:
    return shapes.BudgetLeft(
        key=held.key,
        left=budgets.remaining(held, now, urgent=True),
        burst=held.limit.burst,
        every_s=held.limit.every.total_seconds(),
        held_until=held.not_before,
    )


def approval(row: Row) -> shapes.Approval:
    return shapes.Approval(
        id=row.id,
        certificate=row.certificate,
        issuance=row.issuance,
        state=row.state,
        requested_by=row.requested_by,
        asked_at=row.asked_at,
        expires_at=row.expires_at,
        decided_by=row.decided_by,
        decided_at=row.decided_at,
        note=row.note,
    )


def event(row: Row) -> shapes.Event:
    return shapes.Event(id=row.id, at=row.at, name=row.name, subject=row.subject, job=row.job, details=row.details)


def audit(entry: Entry) -> whole.AuditEntry:
    details = json.loads(entry.details)
    origin = details.pop("origin", None)
    kind, colon, _ = entry.actor.partition(":")
    return whole.AuditEntry(
        seq=entry.seq,
        at=_EPOCH + timedelta(microseconds=entry.at),
        actor=entry.actor,
        actor_kind=kind if colon else "system",
        action=entry.action,
        subject=entry.subject,
        origin=whole.Origin(**origin) if isinstance(origin, dict) else None,
        before=details.pop("before", None),
        after=details.pop("after", None),
        details=details,
        hash=entry.hash,
    )


def token(row: Row) -> shapes.Token:
    return shapes.Token(**_token(row))


def made_token(row: Row, text: str) -> shapes.MadeToken:
    return shapes.MadeToken(**_token(row), token=text)


def _token(row: Row) -> dict[str, Any]:
    return {
        "id": row.id,
        "name": row.name,
        "kind": row.kind,
        "role": row.role,
        "rights": sorted(row.rights),
        "owners": list(row.owners),
        "labels": dict(row.labels),
        "created_by": row.created_by,
        "created_at": row.created_at,
        "expires_at": row.expires_at,
        "last_used_at": row.last_used_at,
        "revoked_at": row.revoked_at,
    }


def principal(who: Principal) -> shapes.Self:
    return shapes.Self(
        actor=who.actor, role=who.role, rights=sorted(who.rights), owners=list(who.owners), labels=dict(who.labels)
    )
