"""Every module with pages: each has PAGES, a list of path, handler and methods."""

from __future__ import annotations

from typing import Final

from holdfast.pages import (
    access_settings,
    agents,
    approvals,
    audit,
    certificate,
    certificates,
    cluster,
    editing,
    finds,
    forecast,
    issuers,
    jobs,
    notifications,
    overview,
    own_ca,
    palette,
    settings,
    targets,
)

MODULES: Final = (
    overview, certificates, certificate, editing, approvals, notifications, jobs, targets, agents, finds, issuers,
    own_ca, cluster, forecast, audit, access_settings, settings, palette,
)  # fmt: skip
