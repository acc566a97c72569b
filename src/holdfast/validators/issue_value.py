"""The syntax that CAA records and persistent proofs share: `ca.example; accounturi=…; policy=…` (RFC 8659 §4.2)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_LABEL: Final = r"[A-Za-z0-9](?:-*[A-Za-z0-9])*"
_DOMAIN: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_PARAMETER: Final = re.compile(rf"({_LABEL})[ \t]*=[ \t]*([\x21-\x3a\x3c-\x7e]*)")


@dataclass(frozen=True, slots=True)
class IssueValue:
    issuer: str  # in lower case; empty means nobody
    parameters: tuple[tuple[str, str], ...] = ()  # tags in lower case; one may come twice

    def all(self, tag: str) -> list[str]:
        return [value for name, value in self.parameters if name == tag]


def parse(text: str) -> IssueValue | None:
    """None if it does not follow the grammar."""
    domain, _, rest = text.partition(";")
    domain, rest = domain.strip(" \t"), rest.strip(" \t")
    if domain and not _DOMAIN.fullmatch(domain):
        return None
    found = []
    for part in rest.split(";") if rest else ():
        parameter = _PARAMETER.fullmatch(part.strip(" \t"))
        if parameter is None:
            return None
        found.append((parameter[1].lower(), parameter[2]))
    return IssueValue(domain.lower(), tuple(found))
