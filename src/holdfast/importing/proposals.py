"""The targets that would deploy imported certificates to where they are used, as commands to type."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from holdfast.importing.found import FoundCertificate
from holdfast.importing.uses import Use

_MOST_ENDPOINTS: Final = 20  # of one target

Used = Sequence[tuple[FoundCertificate, Sequence[Use]]]


@dataclass(slots=True)
class _Target:
    name: str
    preset: str
    endpoints: dict[str, None] = field(default_factory=dict)  # in their order, each once

    def takes(self, endpoints: Sequence[str]) -> bool:
        return len(self.endpoints | dict.fromkeys(endpoints)) <= _MOST_ENDPOINTS

    def command(self, folder: str) -> str:
        seen = "".join(f" --endpoint {each}" for each in self.endpoints)
        settings = f"--set {shlex.quote(f'folder={folder}')} --reload-domain {self.preset}"
        return f"holdfast target add {self.preset} {self.name} {settings}{seen}"


def used(found: Sequence[FoundCertificate], uses: Sequence[Use]) -> Used:
    """The certificates that are used somewhere, each with its uses."""
    matched = [(each, [use for use in uses if use.serves(each)]) for each in found]
    return [(each, of) for each, of in matched if of]


def commands(certificates: Used, folder: str) -> list[str]:
    """First the targets, one for each daemon and 20 endpoints; then each certificate with its own."""
    targets: dict[str, list[_Target]] = {}
    changes = []
    for found, uses in certificates:
        chosen = [_target(targets, preset, seen).name for preset, seen in _seen(found, uses).items()]
        named = "".join(f" --target {each}" for each in chosen)
        changes.append(f"holdfast change {shlex.quote(found.name)}{named}")
    return [*(each.command(folder) for of in targets.values() for each in of), *changes]


def _seen(found: FoundCertificate, uses: Sequence[Use]) -> Mapping[str, list[str]]:
    """Its endpoints at each daemon."""
    seen: dict[str, list[str]] = {}
    for use in uses:
        seen.setdefault(use.daemon.preset, []).extend(use.endpoints(found))
    return {preset: list(dict.fromkeys(of))[:_MOST_ENDPOINTS] for preset, of in seen.items()}


def _target(targets: dict[str, list[_Target]], preset: str, endpoints: Sequence[str]) -> _Target:
    of = targets.setdefault(preset, [_Target(preset, preset)])
    if not of[-1].takes(endpoints):
        of.append(_Target(f"{preset}-{len(of) + 1}", preset))
    of[-1].endpoints |= dict.fromkeys(endpoints)
    return of[-1]
