"""Answers of CAs, read as hostile input: sizes, shapes, addresses and texts are checked before use."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit

from holdfast.core.reasons import Reason
from holdfast.errors import TryLater

MAX_DEPTH: Final = 16
MAX_WORDS: Final = 400  # characters of the CA's own that are shown to people
# RFC 3986 without userinfo (@), fragments, and what parsers disagree about (backslashes, spaces, other scripts).
_URL: Final = re.compile(r"https://[A-Za-z0-9\-._~:/?\[\]!$&'()*+,;=%]{1,2000}")
_HOST: Final = re.compile(r"[a-z0-9.-]{1,253}|[0-9a-f:.]{2,45}")


def unreadable(what: str) -> TryLater:
    """An answer that no CA means to give: a proxy's page, half a body. The next one may be better."""
    return TryLater(f"{what} cannot be understood.", reason=Reason.ANSWER_MALFORMED)


def origin(url: str) -> str | None:
    """Host and port of an https address; None if it is no such thing, in any way of reading it."""
    if not _URL.fullmatch(url):
        return None
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", 443 if parts.port is None else parts.port
    except ValueError:
        return None
    return f"{host}:{port}" if _HOST.fullmatch(host) else None


def json_object(body: bytes, what: str) -> dict[str, object]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):  # not UTF-8, not JSON, or brackets without end
        raise unreadable(what) from None
    if not isinstance(value, dict) or deeper_than(value, MAX_DEPTH):
        raise unreadable(what)
    return value


def deeper_than(value: object, levels: int) -> bool:
    inside: Iterable[object] = ()
    if isinstance(value, dict):
        inside = value.values()
    elif isinstance(value, list):
        inside = value
    return levels == 0 or any(deeper_than(each, levels - 1) for each in inside)


def text(value: Mapping[str, object], name: str, what: str) -> str:
    found = value.get(name)
    if not isinstance(found, str):
        raise unreadable(what)
    return found


def items(value: Mapping[str, object], name: str, what: str, *, most: int) -> list[object]:
    found = value.get(name)
    if not isinstance(found, list) or len(found) > most:
        raise unreadable(what)
    return found


def instant(value: object) -> datetime | None:
    """A time (RFC 3339); None if it is none."""
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) and len(value) <= 40 else None
    except ValueError:
        return None
    return found.astimezone(UTC) if found is not None and found.tzinfo is not None else None


def words(value: object, most: int = MAX_WORDS) -> str:
    """A text of the CA, fit for one line of a log, a page or a terminal."""
    plain = "".join(each if each.isprintable() else " " for each in str(value)[: 4 * most])
    plain = " ".join(plain.split())
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"
