"""Where an ACME server may send us, and what it calls things: addresses, links and tokens, checked before use."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from holdfast.core.reasons import Reason
from holdfast.errors import Refused
from holdfast.issuers.reading import origin, words

_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{1,512}")
_LINK: Final = re.compile(r'<([^<>"\s]{1,2000})>\s*;\s*rel="?([a-z-]{1,40})"?')


def unacceptable(what: str) -> Refused:
    """An answer that was meant, and is not to be acted upon."""
    return Refused(what, reason=Reason.ANSWER_MALFORMED)


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


def _configured(host: str) -> str | None:
    return origin(f"https://{host.lower()}/")


def links(header: str, rel: str) -> list[str]:
    """The targets of a Link header (RFC 8288) with this relation."""
    return [target for target, found in _LINK.findall(header[:8192]) if found == rel]


def token(value: object) -> str:
    """The token of a challenge: it becomes part of paths and names, so nothing but base64url is let in (§8.1)."""
    if not isinstance(value, str) or not is_token(value):
        raise unacceptable("The CA sent a token that is not base64url; it is not published.")
    return value


def is_token(value: str) -> bool:
    """Whether it is base64url of a decent length, as tokens and nonces are."""
    return _TOKEN.fullmatch(value) is not None
