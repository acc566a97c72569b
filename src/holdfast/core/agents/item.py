"""One item of work for an agent: an id, a call and material, fenced and signed; never a command."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, get_args

ItemCall = Literal["write", "restore", "test", "reload", "look", "probe", "csr"]
ItemState = Literal["waiting", "done", "over"]
CALLS: Final = frozenset(get_args(ItemCall))


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentItem:
    id: str
    agent: str  # its id
    target: str  # its name in the agent's own file
    call: str
    fence: int  # only grows for a target of an agent: a lower one is refused
    body: str  # JSON; a key in it is sealed to the agent
    state: str = "waiting"
    result: str | None = None  # JSON
    created_at: datetime
    deadline: datetime
    done_at: datetime | None = None

    def signed_text(self) -> str:
        """What the server signs, and the agent verifies: exactly these characters."""
        content = {
            "id": self.id,
            "agent": self.agent,
            "target": self.target,
            "call": self.call,
            "fence": self.fence,
            "deadline": int(self.deadline.timestamp()),
            "body": json.loads(self.body or "{}"),
        }
        return json.dumps(content, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOrder:
    """An item as an agent reads it."""

    id: str
    agent: str
    target: str
    call: str
    fence: int
    deadline: int
    body: Mapping[str, Any]


class BadItem(ValueError):
    """An item that is not one of ours; the message says why."""


def read_item(text: str) -> WorkOrder:
    """Of a text whose signature was verified; BadItem for what this agent does not understand."""
    try:
        raw = json.loads(text)
        found = WorkOrder(**{name: raw[name] for name in WorkOrder.__slots__})
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadItem("the item cannot be read") from None
    texts = (found.id, found.agent, found.target, found.call)
    numbers = (found.fence, found.deadline)
    if not all(isinstance(each, str) and 0 < len(each) <= 200 for each in texts):
        raise BadItem("the item has other fields")
    if not all(isinstance(each, int) for each in numbers) or not isinstance(found.body, dict):
        raise BadItem("the item has other fields")
    if set(found.id) - set("abcdefghijklmnopqrstuvwxyz0123456789_"):
        raise BadItem("the id of the item is no name of a file")
    return found


# ── Results ──


def well(data: Mapping[str, Any]) -> dict[str, Any]:
    return {"ok": True, "data": dict(data)}


def failed(reason: str, why: str, *, refused: bool, after_s: float | None = None) -> dict[str, Any]:
    return {"ok": False, "reason": reason, "why": why[:1000], "refused": refused, "after_s": after_s}
