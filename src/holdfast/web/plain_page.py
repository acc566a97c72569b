"""The plainest page, for errors where no template can be asked."""

from __future__ import annotations

from html import escape

from starlette.responses import HTMLResponse


def page(title: str, body: str, status: int = 200) -> HTMLResponse:
    """`body` is HTML of ours, with every value escaped."""
    return HTMLResponse(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)} · Holdfast</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"></head>'
        f"<body><main><h1>{escape(title)}</h1>{body}</main></body></html>",
        status,
    )
