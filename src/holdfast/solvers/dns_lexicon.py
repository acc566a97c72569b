"""dns-01 at 80 and more DNS providers, by dns-lexicon (the extra `dns`), in a process of its own.

Their code is not ours, may hang, and fetches lists over the network: it gets a time limit, nothing of our memory, and
no environment. The credentials go through a pipe, and no error text comes back, since many of them quote a credential.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import Field

from holdfast.core.kind import Kind
from holdfast.errors import TryLater
from holdfast.kind_settings import Number, Text
from holdfast.ports import Files
from holdfast.secret import Secret
from holdfast.solvers.base import never, not_now
from holdfast.solvers.dns_record import DnsSolver, TxtRecord
from holdfast.solvers.kind import DnsSettings, SolverKind, SolverParts

RUN_FOR: Final = 120.0
REQUIREMENT: Final = "dns-lexicon>=3.25"  # as in the extra
_PROGRAM: Final = Path(__file__).with_name("lexicon_process.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class LexiconSettings:
    provider: str  # as in `lexicon --help`: cloudflare, route53 …
    options: Mapping[str, Secret[str]]  # its auth_token and the like; all of them taken for secrets
    ttl: int = 60
    run_for: float = RUN_FOR


class Lexicon:
    """A provider for DnsSolver. One change follows the other: several of its providers write the whole zone back."""

    side_by_side = False

    def __init__(self, files: Files, python: str, settings: LexiconSettings) -> None:
        self._files = files
        self._python = python  # the interpreter that has dns-lexicon; mostly our own
        self._settings = settings

    async def add(self, record: TxtRecord) -> None:
        await self._run("add", record)

    async def remove(self, record: TxtRecord) -> None:
        await self._run("remove", record)

    async def _run(self, action: str, record: TxtRecord) -> None:
        settings = self._settings
        told = {
            "action": action, "name": record.name, "value": record.value, "zone": record.zone, "ttl": settings.ttl,
            "provider": settings.provider, "options": {k: v.reveal() for k, v in settings.options.items()},
        }  # fmt: skip
        said = await self._said(json.dumps(told).encode(), f"{action} {record.name}")
        if said == "done":
            return
        if said == "missing":
            raise never(
                f"dns-lexicon is not installed for {self._python}. "
                f"Install it there: {self._python} -m pip install {REQUIREMENT!r} (it is the extra of holdfast[dns])."
            )
        if said == "unknown":
            raise never(f"dns-lexicon has no provider {settings.provider!r}, or it needs another package.")
        word = said.removeprefix("failed ")
        raise not_now(
            f"{settings.provider} did not {action} {record.name}: {word if word.isidentifier() else 'it failed'}."
        )

    async def _said(self, told: bytes, what: str) -> str:
        """The last line that the process prints."""
        provider, run_for = self._settings.provider, self._settings.run_for
        argv = [self._python, "-I", str(_PROGRAM)]
        try:
            _, output = await self._files.run(argv, stdin=told, timeout=run_for)
        except OSError as error:
            raise not_now(f"dns-lexicon cannot be run by {self._python}: {error.strerror}.") from None
        except TryLater:  # its time was up
            why = f"{provider}, by dns-lexicon, did not end in {run_for:g} s ({what}) and was stopped; is it reachable?"
            raise not_now(why) from None
        return output.decode("ascii", "replace").strip().rpartition("\n")[2]


class DnsLexiconSettings(DnsSettings):
    provider: Text = Field(description="As in `lexicon --help`: cloudflare, route53, …")
    ttl: Number = Field(default=60, le=2**31 - 1, description="Seconds that records may be cached.")


def _make(settings: DnsLexiconSettings, parts: SolverParts) -> DnsSolver:
    told = LexiconSettings(provider=settings.provider, options=parts.credentials, ttl=settings.ttl)
    return settings.solver(parts, Lexicon(parts.files, parts.python, told))


DNS_LEXICON: Final[SolverKind[DnsLexiconSettings]] = Kind(
    name="dns-lexicon",
    summary="dns-01, at 80 and more DNS providers, by dns-lexicon (the extra dns).",
    settings=DnsLexiconSettings,
    any_credential=True,  # those that its provider wants
    limits=None,
    address="provider",
    make=_make,
)
