"""Strict parsers for input of clients: JSON (RFC 8259, RFC 7493) and base64url (RFC 7515 §2); all else is malformed."""

from __future__ import annotations

import json
import re
from binascii import a2b_base64
from collections.abc import Iterator
from math import isfinite
from typing import Final, NoReturn

from holdfast.core.own_ca.problem import AcmeError

MAX_SIZE: Final = 64 * 1024
MAX_DEPTH: Final = 16
MAX_INTEGER: Final = 2**53 - 1  # beyond this, readers of JSON disagree about the value (RFC 7493 §2.2)


# ── JSON ──


def loads(data: bytes, what: str = "The body", *, limit: int = MAX_SIZE) -> object:
    """The value of a JSON text. `what` begins the sentence that a client reads if it is not one."""
    if len(data) > limit:
        raise AcmeError.malformed(f"{what} is larger than {limit} bytes.", status=413)
    if too_deep(data):
        raise AcmeError.malformed(f"{what} is nested deeper than {MAX_DEPTH} levels, or its brackets do not match.")
    try:
        value = _DECODER.decode(data.decode())
    except UnicodeDecodeError:
        raise AcmeError.malformed(f"{what} is not UTF-8.") from None
    except ValueError as error:
        raise AcmeError.malformed(f"{what} is not acceptable JSON: {error}.") from None
    if b"\\u" in data and any(map(_BAD_TEXT.search, _texts(value))):
        raise AcmeError.malformed(f"{what} has a NUL or half of a surrogate pair in a text.")
    return value


def loads_object(data: bytes, what: str = "The body", *, limit: int = MAX_SIZE) -> dict[str, object]:
    value = loads(data, what, limit=limit)
    if not isinstance(value, dict):
        raise AcmeError.malformed(f"{what} is not a JSON object.")
    return value


# A text that never ends matches, too: each quote must be passed once only, or the time taken would be quadratic.
_TEXT: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))


def too_deep(data: bytes) -> bool:
    """Each round takes the innermost brackets away: brackets left at the end are too deep, or have no partner."""
    if data.count(b"{") + data.count(b"[") <= MAX_DEPTH:
        return False  # nearly every request
    left = _TEXT.sub(b"", data).translate(_BRACKETS, _NO_BRACKETS)
    for _ in range(MAX_DEPTH):
        left = left.replace(b"[]", b"")
    return left != b""


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):  # json would keep the last, another reader the first
        raise ValueError("a member appears twice")
    return found


def _integer(digits: str) -> int:
    if len(digits) > 17 or abs(number := int(digits)) > MAX_INTEGER:
        raise ValueError("a number is too large")
    return number


def _fraction(digits: str) -> float:
    if not isfinite(number := float(digits)):  # 1e999
        raise ValueError("a number is too large")
    return number


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_fraction, parse_constant=_constant
)
_BAD_TEXT: Final = re.compile("[\0\ud800-\udfff]")  # PostgreSQL stores neither, and no field of ACME has a use for them


def _texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for each in value:
                yield from _texts(each)
        case dict():
            for key, each in value.items():
                yield key
                yield from _texts(each)


# ── base64url ──

# In the standard alphabet, and with what base64url does not have made invalid.
_TO_STANDARD: Final = bytes.maketrans(b"-_+/=", b"+/!!!")
# By length modulo 4: the padding that was left off, and the last characters whose unused bits are zero. With others in
# that place one value would have several spellings.
_PADDING: Final = (b"", b"", b"==", b"=")
_LAST: Final = ("", "", "AQgw", "AEIMQUYcgkosw048")


def decode(text: object) -> bytes:
    """The octets of a base64url text without padding, in its one spelling; ValueError for anything else."""
    if not isinstance(text, str):
        raise ValueError("base64url is a text")
    over = len(text) % 4
    if over and text[-1] not in _LAST[over]:
        raise ValueError("not the canonical base64url of anything")
    return a2b_base64(text.encode("ascii").translate(_TO_STANDARD) + _PADDING[over], strict_mode=True)
