"""One request of one person: who asks, the operations that they may call, and the page that they get."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote, unquote

from jinja2 import Environment
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from holdfast.core.people import local_path
from holdfast.operations import runner
from holdfast.operations.access import Action, Owned, Principal, Verdict, allow
from holdfast.operations.context import Services
from holdfast.operations.mistakes import words
from holdfast.operations.operation import named
from holdfast.operations.runner import Options
from holdfast.pages import rail
from holdfast.pages.assets import Assets
from holdfast.telemetry import Log
from holdfast.web.browser import CSRF_FIELD, WebCaller, fields_of

SAID: Final = "holdfast-said"  # a cookie for one sentence, shown on the next page
THEME: Final = "holdfast-theme"


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What all pages of a process share."""

    templates: Environment
    assets: Assets
    services: Callable[[], Services | None]  # None until the server has started
    now: Callable[[], datetime]
    log: Log
    replica: str
    installation: Callable[[], str]  # the chip beside the name: production, dev, demo
    facts: Callable[[], Mapping[str, str]]  # of this installation, for the first run
    values: Callable[[], Sequence[Any]]  # every setting, with its value and where that came from
    built: frozenset[str] = frozenset()  # paths of the pages that are there


class Mistaken(Exception):
    """A form with mistakes: a sentence for each field."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{name}: {text}" for name, text in fields.items()))
        self.fields = dict(fields)


@dataclass(slots=True, kw_only=True)
class Visit:
    request: Request
    frame: Frame
    caller: WebCaller
    _attention: Any = field(default=None, init=False)

    @property
    def principal(self) -> Principal:
        return self.caller.principal

    @property
    def services(self) -> Services:
        return self.caller.services

    # ── Operations ──

    async def call(self, name: str, /, *, dry_run: bool = False, version: int | None = None, **fields: Any) -> Any:
        """Carry out an operation as this person. Raises Mistaken, or the operation's own error."""
        operation = named(name)
        try:
            asked = operation.input_model.model_validate(fields)
        except ValidationError as error:
            raise Mistaken(_by_field(error)) from None
        options = Options(origin=self.caller.origin, dry_run=dry_run, expected_version=version)
        return (await runner.run(self.services, operation, self.principal, asked, options)).result

    async def attention(self) -> Any:
        """What needs a person, and how many certificates stand how: reckoned once for a page and its frame."""
        if self._attention is None:
            self._attention = await self.call("attention.list")
        return self._attention

    def may(self, action: Action, resource: Owned | None = None) -> bool:
        return allow(self.principal, action, resource or self.principal.scope) is Verdict.ALLOWED

    # ── Input ──

    @property
    def query(self) -> Mapping[str, str]:
        return self.request.query_params

    def path(self, name: str) -> str:
        return str(self.request.path_params[name])

    async def form(self) -> list[tuple[str, str]]:
        """The fields of a form, in their order, without the token of the session."""
        return [each for each in await fields_of(self.request) if each[0] != CSRF_FIELD]

    # ── The answer ──

    async def show(self, template: str, status: int = 200, /, **context: object) -> Response:
        counts = await self.attention()
        text = self.frame.templates.get_template(template).render(**self._frame(counts), **context)
        response = HTMLResponse(text, status)
        if SAID in self.request.cookies:
            response.delete_cookie(SAID)
        return response

    def part(self, template: str, status: int = 200, /, **context: object) -> Response:
        """A piece of a page, without its frame."""
        known = {"now": self.frame.now(), "visit": self, "csrf": self.caller.csrf, "who": self.principal}
        text = self.frame.templates.get_template(template).render(**known, **context)
        return HTMLResponse(text, status)

    def _frame(self, counts: Any) -> dict[str, Any]:
        path, frame = self.request.url.path, self.frame
        theme = self.request.cookies.get(THEME, "")
        said = unquote(self.request.cookies.get(SAID, ""))[:500]
        return {
            "visit": self,
            "now": frame.now(),
            "attention": counts,
            "counts": {
                "needs": len(counts.items),
                "unmanaged": counts.unmanaged,
                "approvals": counts.approvals,
                "dead": counts.dead,
                "certificates": counts.certificates,
            },
            "rail": rail.rail_for(self.principal, frame.built),
            "bottom": rail.BOTTOM,
            "current": rail.current(path),
            "theme": theme if theme in ("light", "dark") else "",
            "said": said,
            "replica": frame.replica,
            "installation": frame.installation(),
            "who": self.principal,
            "csrf": self.caller.csrf,
        }

    def back(self, path: str, said: str = "") -> Response:
        """Lead to another page of ours, which shows a sentence."""
        response = RedirectResponse(local_path(path), 303)
        if said:
            response.set_cookie(SAID, quote(said[:300]), max_age=60, httponly=True, samesite="lax")
        return response


def _by_field(error: ValidationError) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in error.errors(include_url=False):
        place = ".".join(str(part) for part in each["loc"][:1]) or "form"
        found.setdefault(place, words(each["type"], each.get("ctx") or {}))
    return found
