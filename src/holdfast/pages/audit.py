"""Audit: who changed what: the chain's verdict, a search, the entries, and all of them to keep."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

from starlette.responses import Response, StreamingResponse

from holdfast.pages.visit import Visit

_FILTERS: Final = ("actor", "action", "subject", "since", "until")
_KINDS: Final = {"human": "people", "robot": "key", "agent": "agents", "local": "people", "system": "settings"}


async def show(visit: Visit) -> Response:
    asked = {name: text for name in _FILTERS if (text := visit.query.get(name, "").strip())}
    fields = _fields(asked)
    if cursor := visit.query.get("cursor"):
        fields["cursor"] = cursor
    page = await visit.call("audit.list", limit=50, **fields)
    verdict = await visit.call("audit.verify") if visit.query.get("verify") else None
    return await visit.show(
        "audit.html",
        entries=page.items,
        older=f"/audit?{urlencode({**asked, 'cursor': page.next})}" if page.next else "",
        export=f"/audit/export?{urlencode(asked)}",
        asked=asked,
        verdict=verdict,
        kinds=_KINDS,
        began=bool(visit.query.get("cursor")),
    )


def _fields(asked: dict[str, str]) -> dict[str, Any]:
    return {name: _instant(text) if name in ("since", "until") else text for name, text in asked.items()}


def _instant(text: str) -> str:
    """As a field of the page gives it: without a zone it is UTC."""
    return text if not _is_plain(text) else f"{text}:00Z"


def _is_plain(text: str) -> bool:
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M").tzinfo is None  # noqa: DTZ007
    except ValueError:
        return False


async def export(visit: Visit) -> Response:
    """All that match, as lines of JSON: the same stream as of the API."""
    asked = {name: text for name in _FILTERS if (text := visit.query.get(name, "").strip())}
    lines: Any = await visit.call("audit.export", **_fields(asked))
    headers = {"Content-Disposition": 'attachment; filename="audit.jsonl"'}
    return StreamingResponse(lines, media_type="application/jsonl", headers=headers)


PAGES: Final = [("/audit", show, "GET"), ("/audit/export", export, "GET")]
