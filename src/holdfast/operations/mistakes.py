"""Mistakes of an input, as pydantic names them, in sentences for people: the same in every face."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

# Each pattern of the shapes, in words; a test sees to it that none is left out.
PATTERNS: Final[Mapping[str, str]] = {
    r"^[0-9a-f]{64}$": "A hash is 64 hexadecimal digits, in lower case.",
    r"^[A-Za-z0-9\[][A-Za-z0-9._:\[\]-]{0,279}$": "An endpoint is a host and a port: www.example.com:443.",
    r"^-----BEGIN (NEW )?CERTIFICATE REQUEST-----[\w+/=\s]+-----END (NEW )?CERTIFICATE REQUEST-----\s*$": (
        "A certificate signing request is one PEM block: BEGIN CERTIFICATE REQUEST to END CERTIFICATE REQUEST."
    ),
    r"^(\*|(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|[0-9a-fA-F:.]+)$": (
        "A pattern of names is a name, *.example.com for every name below it, an address, or *."
    ),
    r"^[^\x00-\x1f\x7f]{1,253}$": "It has 1 to 253 characters, without control characters.",
    r"^[^\x00-\x20\x7f]{1,253}$": "It has 1 to 253 characters, without spaces and control characters.",
    r"^[^\x00-\x1f\x7f/]{1,40}$": "A name of a view has 1 to 40 characters, without / and control characters.",
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$": "A name of a host has letters, digits and . _ -, such as web-1.example.com.",
    r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$": (
        "A label's name has 1 to 63 letters, digits and . _ / -, and begins with a letter or a digit: team, app/tier."
    ),
    r"^[A-Za-z0-9._:/@+-]{0,63}$": "A label's value has at most 63 letters, digits and . _ : / @ + -, and no spaces.",
    r"^[A-Za-z0-9._:/@+-]{0,100}$": "An owner has at most 100 letters, digits and . _ : / @ + -, and no spaces.",
    r"^[^\x00-\x08\x0b-\x1f\x7f]{0,500}$": "It has at most 500 characters, without control characters.",
    r"^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$": (
        "It has 1 to 63 lower-case letters, digits and inner hyphens: corp-ca, on-call."
    ),
    r"^[A-Za-z0-9_.@+-]{1,80}$": "It has 1 to 80 letters, digits and _ . @ + -, and no spaces.",
    r"^[!-~]{1,255}$": "It has 1 to 255 printable ASCII characters, and no spaces.",
}

_Words = Callable[[Mapping[str, Any]], str]


def _fixed(text: str) -> _Words:
    return lambda ctx: text


def _many(ctx: Mapping[str, object]) -> str:
    return f"There are {_number(ctx) or 'more'}, and at most {ctx['max_length']} are allowed."


def _few(ctx: Mapping[str, object]) -> str:
    return f"There are {_number(ctx) or 'fewer'}, and at least {ctx['min_length']} must be given."


def _number(ctx: Mapping[str, object]) -> str:
    """Of a table it is not told."""
    found = ctx.get("actual_length")
    return "" if found is None else str(found)


def _listed(expected: str) -> str:
    """Values alone: pydantic names members of an enumeration as <Role.ADMIN: 'admin'>."""
    return re.sub(r"<[^:>]+: ('[^']*')>", r"\1", expected).replace(" or ", ", ")


def _unknown(near: str) -> str:
    return f"There is no such parameter here; the nearest is {near}." if near else "There are no parameters here."


_KINDS: Final[Mapping[str, _Words]] = {
    "missing": _fixed("It must be given."),
    "extra_forbidden": _fixed("There is no such field: it may be misspelt."),
    "unknown_parameter": lambda ctx: _unknown(str(ctx.get("near", ""))),
    "json_invalid": lambda ctx: f"The body is not JSON: {ctx.get('error', 'it ends too early')}.",
    "string_pattern_mismatch": lambda ctx: PATTERNS.get(str(ctx.get("pattern")), "It has characters that cannot be."),
    "string_too_long": lambda ctx: f"It is longer than the {ctx['max_length']} characters that are allowed.",
    "string_too_short": lambda ctx: f"It is shorter than the {ctx['min_length']} characters that it needs.",
    "too_long": _many,
    "too_short": _few,
    "greater_than_equal": lambda ctx: f"It is at least {ctx['ge']:g}.",
    "greater_than": lambda ctx: f"It is more than {ctx['gt']:g}.",
    "less_than_equal": lambda ctx: f"It is at most {ctx['le']:g}.",
    "less_than": lambda ctx: f"It is less than {ctx['lt']:g}.",
    "finite_number": _fixed("It is a number, and not infinite."),
    "literal_error": lambda ctx: f"It is one of {_listed(ctx['expected'])}.",
    "enum": lambda ctx: f"It is one of {_listed(ctx['expected'])}.",
    "value_error": lambda ctx: f"{_sentence(str(ctx.get('error', 'it cannot be used')))}",
    "int_from_float": _fixed("It is a whole number."),
    "none_required": _fixed("It is left out, or null."),
}
# The first words of the others, by what they begin with.
_TYPES: Final[Mapping[str, str]] = {
    "string": "It is a text.",
    "int": "It is a whole number.",
    "float": "It is a number.",
    "bool": "It is true or false.",
    "list": "It is a list.",
    "dict": "It is a table of names and values.",
    "model": "It is a table of fields.",
    "datetime": "It is a time, written as 2030-01-31T12:00:00Z.",
}


def words(kind: str, context: Mapping[str, object]) -> str:
    """A sentence about one mistake, as pydantic names it."""
    if kind in _KINDS:
        return _KINDS[kind](context)
    return _TYPES.get(kind.split("_")[0], "It has another form than is needed here.")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def place(pointer: str) -> str:
    """As people say it: the field, without the part of the request that it is in."""
    parts = pointer.strip("/").split("/")
    inner = parts[1:] if parts[0] in ("body", "query", "path", "header") else parts
    return ".".join(inner).replace("~1", "/").replace("~0", "~") or "The request"
