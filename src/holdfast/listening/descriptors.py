"""File descriptors: how many the process may have, and how many of them connections of clients leave to the engine."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from typing import Final

LEAST: Final = 40  # connections of a listener, however few descriptors there are


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one listener gets, and what the process may have in all."""

    connections: int
    allowed: int


def share(wanted: int, *, listeners: int, reserved: int) -> Share:
    """Raise the soft limit as far as is needed and allowed, and divide what the engine leaves between the listeners."""
    allowed = _raised(reserved + wanted * listeners)
    return Share(connections=divided(allowed, wanted, listeners=listeners, reserved=reserved), allowed=allowed)


def divided(allowed: int, wanted: int, *, listeners: int, reserved: int) -> int:
    """Connections for each listener. The engine keeps its reserve, or half of what there is if that is less."""
    for_clients = allowed - min(reserved, allowed // 2)
    return max(LEAST, min(wanted, for_clients // listeners))


def _raised(needed: int) -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return needed if soft == resource.RLIM_INFINITY else soft
    raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return raised
