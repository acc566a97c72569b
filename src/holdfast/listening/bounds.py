"""How much of this process one listener may use for its clients; settings are in config.Listeners."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network
from typing import Final

UncountedNetwork = IPv4Network | IPv6Network
PROBES: Final = (b"/health/", b"/metrics")  # paths that are answered beyond the cap
LOBBY: Final = 16  # connections beyond that, which may turn out to be probes
PROBES_KEPT: Final = 16  # connections beyond the cap, for /health and /metrics; a probe needs one for milliseconds


class RefusalReason(StrEnum):
    """Why a connection was refused or ended by the listener: the label of holdfast_connections_refused_total."""

    LISTENER_FULL = "listener-full"
    ADDRESS_FULL = "address-full"
    DISPLACED = "displaced"  # it kept us waiting, and a newcomer needed its place
    DESCRIPTORS = "descriptors"  # the process has none left
    HANDSHAKE = "handshake"  # TLS failed, or took too long
    HEAD_SIZE = "head-size"
    HEAD_FIELDS = "head-fields"
    HEAD_TIMEOUT = "head-timeout"
    BODY_SIZE = "body-size"
    BODY_TIMEOUT = "body-timeout"
    PIPELINED = "pipelined"
    NOT_READING = "not-reading"
    BAD_REQUEST = "bad-request"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Of one listener. Durations are seconds."""

    connections: int = 1000
    per_address: int = 100  # 0: any number
    uncounted: tuple[UncountedNetwork, ...] = ()  # proxies: many clients share their address
    probes: int = 0  # connections kept for probes beyond `connections`
    displaced_after: float = 2.0  # a connection that we waited for that long gives its place to a newcomer
    head_size: int = 64 * 1024
    head_fields: int = 100
    head_for: float = 10.0  # from the first byte, or from the connection, to the end of the head
    body_for: float = 30.0  # plus the time that what came would take at the least rate
    idle_for: float = 30.0  # between two requests


# ── File descriptors ──
# How many the process may have, and how many of them the connections of clients leave to the engine.


MIN_CONNECTIONS: Final = 40  # connections of a listener, however few descriptors there are


@dataclass(frozen=True, slots=True, kw_only=True)
class DescriptorShare:
    """The connections of one listener, and the descriptors that the process may have in all."""

    connections: int
    allowed: int


def share_descriptors(wanted: int, *, listeners: int, reserved: int) -> DescriptorShare:
    """Raise the soft limit as far as is needed and allowed, and divide what the engine leaves between the listeners."""
    allowed = _raised(reserved + wanted * listeners)
    return DescriptorShare(
        connections=divided(allowed, wanted, listeners=listeners, reserved=reserved), allowed=allowed
    )


def divided(allowed: int, wanted: int, *, listeners: int, reserved: int) -> int:
    """Connections for each listener. The engine keeps its reserve, or half of what there is if that is less."""
    for_clients = allowed - min(reserved, allowed // 2)
    return max(MIN_CONNECTIONS, min(wanted, for_clients // listeners))


def _raised(needed: int) -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return needed if soft == resource.RLIM_INFINITY else soft
    raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return raised
