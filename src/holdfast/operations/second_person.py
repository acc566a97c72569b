"""Whether an attempt waits for a second person: by its own wish, by a CA's rule, or for the names of another's wish."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from holdfast.core.certificate import Certificate, Wanted, in_common_with
from holdfast.operations.standing import Standing
from holdfast.store.issuers import IssuerRow

SETTING: Final = "approval_required"  # of a CA: only who may change CAs can set it, or give it up


def why_needed(standing: Standing, found: Certificate, rows: Mapping[str, IssuerRow]) -> str | None:
    """In words for who decides; None: nobody is asked. `rows` are all its CAs, as an attempt may move on to any."""
    if found.wanted.approval_required:
        return "This certificate was asked for with approval."
    strict = _strict(found.wanted, rows)
    if strict is not None:
        return f"The CA {strict} issues nothing without approval."
    return _guarded(standing, found)


def count_needed(ordered: Sequence[Wanted], others: Iterable[Wanted], rows: Mapping[str, IssuerRow]) -> int:
    """How many of these would wait, beside the others that are there or are to be."""
    guarded = [name for each in (*ordered, *others) if each.approval_required for name in each.identifiers]
    overlap = in_common_with(guarded)
    waits = (each.approval_required or _strict(each, rows) or overlap(each.identifiers) for each in ordered)
    return sum(map(bool, waits))


def _strict(wanted: Wanted, rows: Mapping[str, IssuerRow]) -> str | None:
    """The first of its CAs with the rule."""
    return next((name for name in wanted.issuers if name in rows and rows[name].settings.get(SETTING)), None)


def _guarded(standing: Standing, found: Certificate) -> str | None:
    """The same names in a certificate of another name are the same power: the rule follows the names."""
    for other, theirs in standing.guarded_near(found.wanted.identifiers, but=found.id):
        name = in_common_with(theirs)(found.wanted.identifiers)
        if name is not None:
            return f"{name} overlaps with certificate {other}, which needs approval."
    return None
