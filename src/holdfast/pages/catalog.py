"""Every module with pages: each has PAGES, a list of path, handler and methods."""

from __future__ import annotations

from typing import Final

from holdfast.pages import certificate, certificates, overview

MODULES: Final = (overview, certificates, certificate)
