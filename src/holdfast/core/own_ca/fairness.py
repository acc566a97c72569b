"""Who may use one of a few slots: no account holds so many that another one finds none."""

from __future__ import annotations

from collections import Counter


def share_of(slots: int, accounts: int) -> int:
    """How many of the slots one of so many accounts may hold: one share more than there are accounts stays free."""
    return max(1, slots // (accounts + 1))


def may_begin(held: Counter[str], account: str, slots: int) -> bool:
    others = sum(1 for each, number in held.items() if number and each != account)
    return held[account] < share_of(slots, others + 1)
