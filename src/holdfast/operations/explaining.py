"""Why a certificate is, or is not, renewed: now, at a time to come, and at one gone by, as far as that is kept."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from holdfast.core import hindsight
from holdfast.core.issuance import Issuance
from holdfast.core.renewal import Check
from holdfast.core.status import Explanation, explain
from holdfast.errors import UserError
from holdfast.operations.certificates import View, found_by, view_of
from holdfast.operations.issuing import Keeper
from holdfast.store import issuances, versions
from holdfast.store.tx import Tx


class NotThen(UserError):
    status, code = 400, "not-there-then"

    def __init__(self, view: View) -> None:
        first = view.certificate.created_at + timedelta(seconds=1)  # whole seconds are shown: never one too early
        super().__init__(f"Certificate {view.certificate.name!r} was not there then: it came at {_shown(first)}.")
        self.hint = f"Ask about a time from then on, for example: --at {_shown(first)}"


async def explained(keeper: Keeper, ref: str, at: datetime | None) -> Explanation:
    def read(tx: Tx) -> Explanation:
        view = view_of(tx, found_by(tx, ref))
        if at is None:
            return view.explain()
        if at >= view.now:
            return replace(view.explain(at), of_today=hindsight.UNTIL_THEN)
        return _before(tx, view, at)

    return await keeper.db.read(read)


def _before(tx: Tx, view: View, at: datetime) -> Explanation:
    """By the version that was in use, and with the attempt that was under way."""
    if at < view.certificate.created_at:
        raise NotThen(view)
    then = versions.in_use_at(tx, view.certificate.id, at)
    was, current = hindsight.as_it_was(view.certificate, then, at)
    found = explain(was, current, None, None, at)
    attempt = issuances.under_way_at(tx, view.certificate.id, at)
    if attempt is not None:
        found = _with_attempt(found, attempt)
    past = "Nothing: that time is over."
    return replace(found, would_change_it=past, of_today=hindsight.of_today(view.certificate, then))


def _with_attempt(found: Explanation, attempt: Issuance) -> Explanation:
    ended = "" if attempt.ended_at is None else f"; {attempt.state.value} at {_shown(attempt.ended_at)}"
    saw = f"{attempt.id} at {attempt.issuer}, because of {attempt.cause}, begun at {_shown(attempt.started_at)}{ended}"
    check = Check(rule="issuance", saw=saw, verdict="it was under way")
    others = (replace(each, blocks=False) for each in found.checks)
    verdict = f"An attempt was under way{ended}."
    return replace(found, verdict=verdict, checks=(*others, check), blocking=None)


def _shown(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"
