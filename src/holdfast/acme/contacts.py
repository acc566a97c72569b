"""The contacts of an account (RFC 8555 §7.3): mailto URLs with one address each."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import unquote

from holdfast.core.problem import AcmeError
from holdfast.pki import names
from holdfast.pki.refused import NameRefused

MAX_CONTACTS: Final = 10
MAX_ADDRESS: Final = 254  # RFC 5321 §4.5.3.1.3
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_TO_ENCODE: Final = re.compile(r"[/#\[\]&;=]")  # allowed in a mailto URL only as %XX (RFC 6068 §2)
_LOCAL: Final = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*")


def contacts(value: Any) -> tuple[str, ...]:
    """What a client sent as its contacts, each once and in its order."""
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise AcmeError.malformed("contact is not an array of texts.")
    if len(value) > MAX_CONTACTS:
        raise AcmeError.invalid_contact(f"An account has at most {MAX_CONTACTS} contacts.")
    for each in value:
        _check(each)
    return tuple(dict.fromkeys(value))


def _check(url: str) -> None:
    scheme, colon, rest = url.partition(":")
    if not colon or not _SCHEME.fullmatch(scheme):
        raise AcmeError.invalid_contact(f"{_shown(url)} is not a URL; write mailto:somebody@example.com.")
    if scheme.lower() != "mailto":
        raise AcmeError.unsupported_contact(f"{_shown(scheme)} contacts are not supported; only mailto is.")
    if "?" in rest:
        raise AcmeError.invalid_contact(f"{_shown(url)} has header fields, which are not allowed.")
    if "," in rest:
        raise AcmeError.invalid_contact(f"{_shown(url)} has more than one address.")
    if _TO_ENCODE.search(rest) or not _is_address(unquote(rest)):
        raise AcmeError.invalid_contact(f"{_shown(url)} has no valid address.")


def _is_address(text: str) -> bool:
    local, at, domain = text.rpartition("@")
    if not at or len(text) > MAX_ADDRESS or not _LOCAL.fullmatch(local):
        return False
    try:
        names.dns_name(domain, wildcard=False)
    except NameRefused:
        return False
    return True


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 80 else f"{text[:77]}...")
