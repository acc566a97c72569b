"""The bounds of this process' listeners, from its settings and from the descriptors that it may have."""

from __future__ import annotations

from ipaddress import ip_network

from holdfast.config import Settings
from holdfast.listening.bounds import LOBBY, PROBES_KEPT, Bounds
from holdfast.listening.descriptors import share
from holdfast.telemetry import Log


def bounds(settings: Settings, *, listeners: int, log: Log | None = None) -> Bounds:
    """For each of so many listeners. With too few descriptors for all, fewer connections than the settings ask for."""
    wanted = settings.listeners
    had = share(wanted.connections + PROBES_KEPT + LOBBY, listeners=listeners, reserved=wanted.reserved_descriptors)
    connections = max(1, had.connections - PROBES_KEPT - LOBBY)
    if connections < wanted.connections and log is not None:
        log.warning(
            "listeners.fewer_connections", wanted=wanted.connections, connections=connections,
            descriptors=had.allowed, fix="Raise the hard limit of open files (systemd: LimitNOFILE=).",
        )  # fmt: skip
    return Bounds(
        connections=connections,
        per_address=wanted.connections_per_address,
        uncounted=tuple(ip_network(each) for each in settings.server.trusted_proxies),
        probes=PROBES_KEPT,
        head_size=wanted.head_size,
        head_fields=wanted.head_fields,
        head_for=wanted.head_timeout.total_seconds(),
        body_for=wanted.body_timeout.total_seconds(),
        idle_for=wanted.idle_timeout.total_seconds(),
    )
