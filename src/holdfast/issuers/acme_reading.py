"""What a CA sends us, read as if by an enemy's hand: sizes, shapes, addresses and texts are checked before use."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlsplit

from holdfast.core.reasons import Reason
from holdfast.errors import Refused, TryLater

MAX_DEPTH: Final = 16
MAX_WORDS: Final = 400  # characters of the CA's own that are shown to people
# RFC 3986 without userinfo (@), fragments, and what parsers disagree about (backslashes, spaces, other scripts).
_URL: Final = re.compile(r"https://[A-Za-z0-9\-._~:/?\[\]!$&'()*+,;=%]{1,2000}")
_HOST: Final = re.compile(r"[a-z0-9.-]{1,253}|[0-9a-f:.]{2,45}")
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{1,512}")
_LINK: Final = re.compile(r'<([^<>"\s]{1,2000})>\s*;\s*rel="?([a-z-]{1,40})"?')


def unreadable(what: str) -> TryLater:
    """An answer that no CA means to give: a proxy's page, half a body. The next one may be better."""
    return TryLater(f"{what} cannot be understood.", reason=Reason.ANSWER_MALFORMED)


def unacceptable(what: str) -> Refused:
    """An answer that was meant, and is not to be acted upon."""
    return Refused(what, reason=Reason.ANSWER_MALFORMED)


# ── Addresses ──


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One CA as configured: where its directory is, which hosts it may send us to, and who vouches for them."""

    directory: str
    hosts: tuple[str, ...] = ()  # "ca.example" or "ca.example:8443", besides the directory's own
    roots: bytes = b""  # PEM; empty: the system's
    deadline_for: float = 30.0  # seconds for one answer

    @property
    def name(self) -> str:
        """What it is called in sentences."""
        return urlsplit(self.directory).hostname or "the CA"

    def allows(self, url: str) -> bool:
        found = origin(url)
        return found is not None and found in {origin(self.directory), *map(_configured, self.hosts)}

    def checked(self, url: object, what: str) -> str:
        """An address to go to, if it is one of this CA's; asked at each use, for what is stored may be old."""
        if not isinstance(url, str) or not self.allows(url):
            raise Refused(
                f"{self.name} names an address for {what} that is not https, or not on its own host: {words(url)}.",
                reason=Reason.DIRECTORY_UNSAFE,
            )
        return url


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


def _configured(host: str) -> str | None:
    return origin(f"https://{host.lower()}/")


def links(header: str, rel: str) -> list[str]:
    """The targets of a Link header (RFC 8288) with this relation."""
    return [target for target, found in _LINK.findall(header[:8192]) if found == rel]


# ── JSON ──


def json_object(body: bytes, what: str) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):  # not UTF-8, not JSON, or brackets without end
        raise unreadable(what) from None
    if not isinstance(value, dict) or _deeper_than(value, MAX_DEPTH):
        raise unreadable(what)
    return value


def _deeper_than(value: object, levels: int) -> bool:
    inside: Iterable[object] = ()
    if isinstance(value, dict):
        inside = value.values()
    elif isinstance(value, list):
        inside = value
    return levels == 0 or any(_deeper_than(each, levels - 1) for each in inside)


def text(value: Mapping[str, Any], name: str, what: str) -> str:
    found = value.get(name)
    if not isinstance(found, str):
        raise unreadable(what)
    return found


def items(value: Mapping[str, Any], name: str, what: str, *, most: int) -> list[Any]:
    found = value.get(name)
    if not isinstance(found, list) or len(found) > most:
        raise unreadable(what)
    return found


def token(value: object) -> str:
    """The token of a challenge: it becomes part of paths and names, so nothing but base64url is let in (§8.1)."""
    if not isinstance(value, str) or not is_token(value):
        raise unacceptable("The CA sent a token that is not base64url; it is not published.")
    return value


def is_token(value: str) -> bool:
    """Whether it is base64url of a decent length, as tokens and nonces are."""
    return _TOKEN.fullmatch(value) is not None


def instant(value: object) -> datetime | None:
    """A time (RFC 3339); None if it is none."""
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) and len(value) <= 40 else None
    except ValueError:
        return None
    return found.astimezone(UTC) if found is not None and found.tzinfo is not None else None


def words(value: object, most: int = MAX_WORDS) -> str:
    """What the CA says, fit for one line of a log, a page or a terminal."""
    plain = "".join(each if each.isprintable() else " " for each in str(value)[: 4 * most])
    plain = " ".join(plain.split())
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"
