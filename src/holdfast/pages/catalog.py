"""Every module with pages: each has PAGES, a list of path, handler and methods."""

from __future__ import annotations

from typing import Final

from holdfast.pages import (
    access_settings,
    approvals,
    audit,
    certificate,
    certificates,
    cluster,
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
    overview, certificates, certificate, approvals, notifications, jobs, targets, issuers, own_ca, cluster, forecast,
    audit, access_settings, settings, palette,
)  # fmt: skip
