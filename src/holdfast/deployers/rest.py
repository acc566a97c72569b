"""The exchange with a target that has an HTTP API: answers are judged once, and errors quote neither key nor secret."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import Field

from holdfast import __version__
from holdfast.core import backoff
from holdfast.core.reasons import Reason
from holdfast.deployers.base import later, refused
from holdfast.deployers.kind import DeployerParts
from holdfast.errors import Refused, TryLater
from holdfast.kind_settings import Address, KindSettings, Roots
from holdfast.ports import Request, Response
from holdfast.secret import MASK, Secret

DEADLINE: Final = 30.0  # seconds for one answer
MAX_ANSWER: Final = 2 * 1024 * 1024  # bytes: a Secret of Kubernetes has up to 1 MiB, and more as base64
_QUOTED: Final = 300
_LONG: Final = re.compile(r"[A-Za-z0-9+/=]{40,}|-----(?:BEGIN|END)[A-Z -]*-----")  # what a key or a token looks like
_PASSES: Final = frozenset({408, 412, 425, 429, 472, 473})  # 472, 473: a replica of Vault that is not up to date


class RestTargetSettings(KindSettings):
    """Settings of a target with an address of its own."""

    base_url: Address = Field(description="The https address of the API.")
    roots: Roots = Field(default="", description="Trusted roots for its TLS certificate, in PEM.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """All requests to one target. It repeats nothing: the engine owns every retry."""

    parts: DeployerParts
    name: str  # of the product, in sentences
    base: str
    roots: str = ""
    secrets: tuple[Secret[str], ...] = ()  # that an answer may repeat

    async def ask(
        self, method: str, path: str, *, body: Any = b"", headers: Mapping[str, str] | None = None
    ) -> Response:
        """An answer that is final, good or bad. TryLater: there is none, or it is one that passes."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        told = {"User-Agent": f"holdfast/{__version__}", "Content-Type": "application/json", **(headers or {})}
        if not all(each.isascii() and each.isprintable() for each in told.values()):
            raise refused(f"Target {self.parts.target}: a credential has line breaks or other odd characters in it.")
        request = Request(
            method=method, url=f"{self.base}{path}", headers=told, body=content,
            deadline_for=DEADLINE, max_body=MAX_ANSWER, roots=self.roots.encode(),
        )  # fmt: skip
        try:
            response = await self.parts.transport.request(request)
        except TryLater as why:
            advice = " Check the setting roots." if why.reason == "TLS" else ""
            raise later(f"Target {self.parts.target}: {why}.{advice}") from None
        if response.status in _PASSES or response.status >= 500:
            raise self.passing(response)
        return response

    def passing(self, response: Response, reason: Reason | None = None) -> TryLater:
        after = backoff.retry_after(response.headers.get("retry-after"), self.parts.clock.now())
        busy = Reason.TARGET_BUSY if response.status == 429 else Reason.TARGET_UNREACHABLE
        return TryLater(self._said(response), after=after, reason=(reason or busy).value, answered=True)

    def refusal(self, response: Response, advice: str = "", reason: Reason = Reason.TARGET_REFUSED) -> Refused:
        return refused(f"{self._said(response)} {advice}".rstrip(), reason)

    def answer(self, response: Response, advice: Mapping[int, str] | None = None) -> dict[str, Any]:
        """The JSON object of a good answer; else Refused, with the advice for its status."""
        if not 200 <= response.status < 300:
            raise self.refusal(response, (advice or {}).get(response.status, ""))
        found = read_json(response)
        if found is None:
            raise later(f"Target {self.parts.target}: {self.name} did not answer with JSON; is a proxy in between?")
        return found

    def _said(self, response: Response) -> str:
        text = response.body.decode("utf-8", "replace")
        for each in sorted((each.reveal() for each in self.secrets if each), key=len, reverse=True):
            text = text.replace(each, MASK)
        plain = " ".join("".join(each if each.isprintable() else " " for each in _LONG.sub(MASK, text)).split())
        shown = f": {plain[:_QUOTED]}" if plain else ""
        return f"Target {self.parts.target}: {self.name} answered {response.status}{shown}."


def read_json(response: Response) -> dict[str, Any] | None:
    try:
        found = json.loads(response.body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def table(value: object) -> dict[str, Any]:
    """A table of an answer; an empty one, if it is something else."""
    return value if isinstance(value, dict) else {}
