"""Every module with pages: each has PAGES, a list of path, handler and methods."""

from __future__ import annotations

from typing import Final

from holdfast.pages import audit, certificate, certificates, cluster, forecast, overview

MODULES: Final = (overview, certificates, certificate, cluster, forecast, audit)
