"""What whoever imports must know besides: proofs that nothing here makes, and certificates that nobody would renew."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.cli.given import content

if TYPE_CHECKING:
    from holdfast.importing.found import FoundCertificate

MOST: Final = 1_000_000
_WHERE: Final = "docs/guides/certificates.md, How names are proved"


def unproved(found: Sequence[FoundCertificate], solvers: Sequence[Mapping[str, Any]] | None) -> list[str]:
    """Those that were proved by DNS, and here could not be. `solvers`: None, if they are another machine's to know."""
    return [_words(each, solvers) for each in found if not _proved(each, solvers)]


def _proved(found: FoundCertificate, solvers: Sequence[Mapping[str, Any]] | None) -> bool:
    from holdfast.core.acme import Identifier, permits

    wildcards = [each for each in found.names if each.startswith("*.")]
    wanted = found.names if found.proved_by.startswith("dns-01") else wildcards
    patterns = [name for each in solvers or () if str(each.get("kind")).startswith("dns-") for name in _names(each)]
    return all(permits(patterns, Identifier("dns", each)) for each in wanted)


def _names(solver: Mapping[str, Any]) -> list[str]:
    names = solver.get("names")
    return [str(each) for each in names] if isinstance(names, list) else []


def _words(found: FoundCertificate, solvers: Sequence[Mapping[str, Any]] | None) -> str:
    how = found.proved_by or "a wildcard needs dns-01"
    if solvers is None:
        return f"{found.name}: {how}: see that the server has a DNS solver for it, or its renewal fails ({_WHERE})."
    return f"{found.name}: {how}, and no DNS solver is set up here for it: its renewal fails until one is ({_WHERE})."


def solvers_of(file: Path | None) -> list[Mapping[str, Any]]:
    """The tables of keeping.solvers_file, as far as they can be read: the server says what is wrong with them."""
    if file is None:
        return []
    try:
        tables = tomllib.loads(content(file, MOST).decode()).get("solver", [])
    except (UnicodeDecodeError, tomllib.TOMLDecodeError):
        return []
    return [each for each in tables if isinstance(each, dict)] if isinstance(tables, list) else []


def by_nobody(report: Mapping[str, Any]) -> list[str]:
    """What was not adopted, and would be renewed by nobody once the old timer is off."""
    count = len(report["problems"])
    if not count:
        return []
    files = [str(each["file"]) for each in report["problems"]]
    shown = ", ".join(files[:5]) + (f" and {count - 5} more" if count > 5 else "")
    return [f"Careful: {count} not adopted ({shown}). Once the old timer is off, nobody renews {_these(count)}."]


def _these(count: int) -> str:
    return "it" if count == 1 else "them"
