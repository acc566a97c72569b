"""Whether an attempt waits for a second person: by its own wish, by a CA's rule, or for the names of another's wish."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast.core.certificate import Certificate, in_common
from holdfast.store import certificates
from holdfast.store.issuers import IssuerRow
from holdfast.store.tx import Tx

SETTING: Final = "approval_required"  # of a CA: only who may change CAs can set it, or give it up


def why_needed(tx: Tx, found: Certificate, rows: Mapping[str, IssuerRow]) -> str | None:
    """In words for who decides; None: nobody is asked. `rows` are all its CAs, as an attempt may move on to any."""
    if found.wanted.approval_required:
        return "This certificate was asked for with approval."
    strict = sorted(name for name, row in rows.items() if row.settings.get(SETTING))
    if strict:
        return f"The CA {strict[0]} issues nothing without approval."
    return _guarded(tx, found)


def _guarded(tx: Tx, found: Certificate) -> str | None:
    """The same names in a certificate of another name are the same power: the rule follows the names."""
    for other, theirs in certificates.guarded_near(tx, found.wanted.identifiers, but=found.id):
        name = in_common(found.wanted.identifiers, theirs)
        if name is not None:
            return f"{name} overlaps with certificate {other}, which needs approval."
    return None
