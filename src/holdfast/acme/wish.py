"""What a newOrder asks for (RFC 8555 §7.4, RFC 8738, RFC 9773 §5, profiles): from its JSON to a wish, or a refusal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, cast

from holdfast.core.acme import Identifier, IdentifierType
from holdfast.core.ca import MAX_NAMES
from holdfast.core.problem import AcmeError, Problem, SubProblem
from holdfast.operations.acme_orders import Wish
from holdfast.pki import names
from holdfast.pki.refused import NameRefused

MAX_VALUE: Final = 1000  # characters of an identifier that an answer repeats
_RFC3339: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII)


def wish(content: Mapping[str, Any]) -> Wish:
    not_before, not_after = _instant(content, "notBefore"), _instant(content, "notAfter")
    if not_before is not None and not_after is not None and not_after <= not_before:
        raise AcmeError.malformed("notAfter is not after notBefore.")
    return Wish(
        identifiers=identifiers(content.get("identifiers")),
        profile=_text(content, "profile"),
        not_before=not_before,
        not_after=not_after,
        replaces=_text(content, "replaces"),
    )


def _text(content: Mapping[str, Any], name: str) -> str | None:
    value = content.get(name)
    if value is not None and not isinstance(value, str):
        raise AcmeError.malformed(f"{name} is not a text.")
    return value


def _instant(content: Mapping[str, Any], name: str) -> datetime | None:
    """A certificate has whole seconds: what a client writes below them cannot be kept, and is cut off."""
    text = _text(content, name)
    if text is None:
        return None
    written = text.upper()
    try:
        if not _RFC3339.fullmatch(written):
            raise ValueError("not RFC 3339")
        return datetime.fromisoformat(written).astimezone(UTC).replace(microsecond=0)
    except (ValueError, OverflowError):
        raise AcmeError.malformed(f"{name} is not a date of RFC 3339, such as 2030-01-31T00:00:00Z.") from None


# ── Identifiers ──


def identifiers(value: Any) -> tuple[Identifier, ...]:
    """Each name once, in its one spelling; the refusal says of each bad one what is wrong with it (§6.7.1)."""
    if not isinstance(value, list) or not value:
        raise AcmeError.malformed("identifiers is not an array with at least one member.")
    if len(value) > MAX_NAMES:
        raise AcmeError.malformed(f"An order has at most {MAX_NAMES} identifiers, and this one has {len(value)}.")
    read = [_identifier(each) for each in value]
    problems = [each for each in read if isinstance(each, SubProblem)]
    if problems:
        raise AcmeError(_all_of(problems))
    return tuple(dict.fromkeys(each for each in read if isinstance(each, Identifier)))


def _identifier(value: Any) -> Identifier | SubProblem:
    if not isinstance(value, dict):
        raise AcmeError.malformed("An identifier is a JSON object with type and value.")
    kind, text = value.get("type"), value.get("value")
    if not isinstance(kind, str) or not isinstance(text, str):
        raise AcmeError.malformed("The type and the value of an identifier are texts.")
    named = (kind[:MAX_VALUE], text[:MAX_VALUE])
    if kind not in ("dns", "ip"):
        return SubProblem("unsupportedIdentifier", "Certificates are issued for dns and ip identifiers.", named)
    try:
        return Identifier(cast(IdentifierType, kind), names.dns_name(text) if kind == "dns" else _address(text))
    except NameRefused as refused:
        return SubProblem("rejectedIdentifier", str(refused), named)


def _address(text: str) -> str:
    """RFC 8738 §3 has one spelling for each address: RFC 1123's, and RFC 5952's."""
    canonical = names.ip_address(text)
    if canonical != text:
        raise NameRefused("ip-spelling", f"{text!r:.60} is not how this address is written.", f"Write {canonical}.")
    return canonical


def _all_of(problems: list[SubProblem]) -> Problem:
    kinds = {each.type for each in problems}
    if len(problems) == 1:
        detail = problems[0].detail
    else:
        detail = f"{len(problems)} of the identifiers are refused; the subproblems say why."
    return Problem(kinds.pop() if len(kinds) == 1 else "compound", detail, 400, tuple(problems))
