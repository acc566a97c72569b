"""Items of work for agents: each is handed out until its result is there, and a result counts once."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Final

from holdfast.core.agents.item import AgentItem
from holdfast.store.rows import Table
from holdfast.store.tx import Tx, to_micros

ITEMS: Final = Table(AgentItem, "agent_items")
AT_ONCE: Final = 16  # items that one answer carries


def insert(tx: Tx, item: AgentItem) -> None:
    """Add one; what this target was asked before, and did not answer, is not wanted any more."""
    tx.run(
        "UPDATE agent_items SET state = 'over' WHERE agent = :agent AND target = :target AND state = 'waiting'",
        agent=item.agent,
        target=item.target,
    )
    tx.run(ITEMS.insert, **ITEMS.values(item))
    tx.wakes = True


def next_fence(tx: Tx, agent: str, target: str, now: datetime) -> int:
    """Higher than any that this target was given, even if the store has lost some."""
    row = tx.row(
        "SELECT MAX(fence) AS fence FROM agent_items WHERE agent = :agent AND target = :target",
        agent=agent,
        target=target,
    )
    last = 0 if row is None or row["fence"] is None else int(row["fence"])
    return max(last + 1, to_micros(now))


def get(tx: Tx, item: str) -> AgentItem | None:
    row = tx.row(f"SELECT {ITEMS.columns} FROM agent_items WHERE id = :id", id=item)
    return None if row is None else ITEMS.read(row)


def waiting(tx: Tx, agent: str) -> list[AgentItem]:
    rows = tx.rows(
        f"""SELECT {ITEMS.columns} FROM agent_items WHERE agent = :agent AND state = 'waiting'
             ORDER BY fence LIMIT :limit""",
        agent=agent,
        limit=AT_ONCE,
    )
    return [ITEMS.read(row) for row in rows]


def done(tx: Tx, item: str, result: str) -> bool:
    """Keep a result; False if it is there already, or not wanted any more."""
    changed = tx.run(
        """UPDATE agent_items SET state = 'done', result = :result, body = '' , done_at = now_us()
            WHERE id = :id AND state = 'waiting'""",
        id=item,
        result=result,
    )
    tx.wakes = tx.wakes or changed > 0
    return changed == 1


def give_up(tx: Tx, item: str) -> None:
    tx.run("UPDATE agent_items SET state = 'over', body = '' WHERE id = :id AND state = 'waiting'", id=item)


def hinted(tx: Tx, awaited: Collection[str], limit: int = 1000) -> list[str]:
    """Agents with work to fetch, and awaited items whose results are there."""
    agents = tx.rows("SELECT DISTINCT agent FROM agent_items WHERE state = 'waiting' LIMIT :limit", limit=limit)
    found = [row["agent"] for row in agents]
    for each in list(awaited)[:limit]:
        row = tx.row("SELECT id FROM agent_items WHERE id = :id AND state <> 'waiting'", id=each)
        found += [] if row is None else [row["id"]]
    return found


def forget(tx: Tx, before: datetime) -> int:
    return tx.run("DELETE FROM agent_items WHERE created_at < :before AND state <> 'waiting'", before=before)
