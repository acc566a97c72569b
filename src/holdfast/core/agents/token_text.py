"""The one string that enrols a host: where the server is, by which root it is known, and a secret for one use."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from holdfast.core import base64url

MARK: Final = "hfa1."
LONGEST: Final = 4096
SECRET_SIZE: Final = 32


class BadToken(ValueError):
    """A text that is no token of an agent; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenText:
    urls: tuple[str, ...]
    pin: str  # hex: SHA-256 of the public key of our root
    id: str
    secret: bytes = field(repr=False)
    system_roots: bool = False  # a proxy before the server has a certificate of a public CA

    def encoded(self) -> str:
        content: dict[str, object] = {
            "u": list(self.urls), "p": self.pin, "t": self.id, "s": base64url.encode(self.secret)
        }  # fmt: skip
        if self.system_roots:
            content["w"] = 1
        return MARK + base64url.encode(json.dumps(content, separators=(",", ":")).encode())


def decoded(text: str) -> TokenText:
    """Read a token without asking anybody; BadToken says why it cannot be one."""
    text = text.strip()
    if not text.startswith(MARK):
        raise BadToken(f"A token of an agent begins with {MARK}")
    if len(text) > LONGEST:
        raise BadToken(f"A token of an agent has at most {LONGEST} characters.")
    try:
        raw = json.loads(base64url.decode(text.removeprefix(MARK)))
        found = TokenText(
            urls=tuple(str(each).rstrip("/") for each in raw["u"]),
            pin=str(raw["p"]),
            id=str(raw["t"]),
            secret=base64url.decode(raw["s"]),
            system_roots=bool(raw.get("w")),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadToken("This token was cut or changed: copy all of it again.") from None
    _check(found)
    return found


def _check(found: TokenText) -> None:
    if len(found.secret) != SECRET_SIZE or len(found.pin) != 64 or not set(found.pin) <= set("0123456789abcdef"):
        raise BadToken("This token was cut or changed: copy all of it again.")
    if not found.urls or any(urlsplit(each).scheme != "https" or not urlsplit(each).hostname for each in found.urls):
        raise BadToken("This token names no server that is reached by https.")
