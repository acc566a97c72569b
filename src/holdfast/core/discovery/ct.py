"""Logs of Certificate Transparency: which may be read, and which names concern us."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

LOGS_SETTING: Final = "discovery.logs"
MOST_DOMAINS: Final = 200


class LogKind(StrEnum):
    STATIC = "static"  # tiles: static-ct-api
    RFC6962 = "rfc6962"  # get-entries


def matches(name: str, domains: Collection[str]) -> bool:
    """Whether a name is one of these, or below one of them; a wildcard counts like the name below it."""
    base = name.removeprefix("*.")
    while base:
        if base in domains:
            return True
        base = base.partition(".")[2]
    return False


def problem_with(log: str, kind: LogKind, allowed: Sequence[str]) -> str:
    """Why a log may not be read, as a sentence; empty: it may."""
    if not allowed:
        return f"No log may be read: {LOGS_SETTING} is empty."
    if log.rstrip("/") not in {each.rstrip("/") for each in allowed}:
        return f"{log!r:.120} may not be read: {LOGS_SETTING} does not list it."
    if urlsplit(log).scheme == "file" and kind is not LogKind.STATIC:
        return "A log in a folder is read as tiles (static); get-entries needs a server."
    return ""
