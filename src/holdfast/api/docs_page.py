"""`/docs`: the OpenAPI document as a page to read, without scripts and without anything from elsewhere."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from functools import cache
from html import escape
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

from holdfast.api import openapi

MAKES_TOKENS: Final = "holdfast token create"
STYLE: Final = """
body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;max-width:60rem;padding:1rem;color:#1c2024;background:#fff}
nav a{margin-right:.8rem;white-space:nowrap} code,pre{font-family:ui-monospace,monospace;font-size:.9em}
h2{margin-top:2.5rem;border-bottom:1px solid #d0d7de} details{border-bottom:1px solid #e6e8eb;padding:.4rem 0}
summary{cursor:pointer} .method{display:inline-block;min-width:4.2rem;font-weight:700} table{border-collapse:collapse}
td,th{text-align:left;vertical-align:top;padding:.15rem .8rem .15rem 0} .quiet{color:#59636e}
@media (prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}a{color:#79c0ff}
h2,details{border-color:#30363d}.quiet{color:#9198a1}}
"""
_HASH: Final = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS: Final = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_HASH}'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
Json = dict[str, Any]


def route() -> Route:
    return Route("/docs", _answer, methods=["GET"])


async def _answer(request: Request) -> HTMLResponse:
    return HTMLResponse(whole(), headers=HEADERS)


@cache
def whole() -> str:
    """The same for everybody, and made once."""
    document = openapi.whole()
    return "\n".join(_page(document))


def _page(document: Json) -> Iterator[str]:
    tags = [each["name"] for each in document["tags"]]
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Holdfast API</title>'
    yield f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head><body>'
    yield f"<h1>Holdfast API <span class=quiet>{escape(document['info']['version'])}</span></h1>"
    yield "<p>Every request is below <code>/api/v1</code> and has the header <code>Authorization: Bearer TOKEN</code>; "
    yield f"<code>{MAKES_TOKENS}</code> makes tokens. For programs: "
    yield '<a href="/api/v1/openapi.json">the OpenAPI document</a>. Errors are <code>application/problem+json</code> '
    yield "(RFC 9457).</p>"
    yield f"<nav>{''.join(f'<a href=#{escape(tag)}>{escape(tag)}</a>' for tag in tags)}</nav>"
    found = [(path, method, each) for path, methods in document["paths"].items() for method, each in methods.items()]
    for tag in tags:
        yield f'<h2 id="{escape(tag)}">{escape(tag)}</h2>'
        for path, method, each in found:
            if tag in each["tags"]:
                yield from _operation(document, path, method, each)
    yield "</body></html>"


def _operation(document: Json, path: str, method: str, said: Json) -> Iterator[str]:
    name, ours = escape(said["operationId"]), said["x-holdfast"]
    yield f'<details id="{name}"><summary><span class=method>{method.upper()}</span> <code>{escape(path)}</code> '
    yield f"{escape(said['summary'])}</summary>"
    if said.get("description"):
        yield f"<p>{escape(said['description'].partition(chr(10))[2].strip())}</p>"
    yield f"<p class=quiet>operation {name}; needs the right to {escape(ours['action'])}"
    yield f"; command <code>holdfast {escape(ours['command'])}</code></p>" if ours["command"] else "</p>"
    fields = [(each["name"], each["in"], each) for each in said.get("parameters", ())]
    body = said.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    fields += [(field, "body", each) for field, each in _properties(document, body).items()]
    if fields:
        yield "<table><tr><th>field<th>in<th>type<th>meaning</tr>"
        yield from (_field(document, *each) for each in fields)
        yield "</table>"
    answers = ", ".join(
        f"{status} {_type(document, _schema(each))}" for status, each in said["responses"].items() if status < "300"
    )
    yield f"<p>Answers: {escape(answers)}</p></details>"


def _field(document: Json, name: str, where: str, said: Json) -> str:
    schema = said.get("schema", said)
    meaning = escape(said.get("description") or schema.get("description") or "")
    return f"<tr><td><code>{escape(name)}</code><td>{where}<td>{escape(_type(document, schema))}<td>{meaning}</tr>"


def _schema(response: Json) -> Json | None:
    for each in response.get("content", {}).values():
        found: Json = each.get("schema", {})
        return found
    return None


def _properties(document: Json, schema: Json | None) -> Json:
    if schema is None:
        return {}
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    found: Json = schema.get("properties", {})
    return found


def _type(document: Json, schema: Json | None) -> str:
    """A type in a word or two, as a reader says it."""
    if not schema:
        return ""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if several := schema.get("anyOf") or schema.get("oneOf"):
        words = [_type(document, each) for each in several]
        return " or ".join(dict.fromkeys(word for word in words if word))
    if "enum" in schema or "const" in schema:
        return " | ".join(str(each) for each in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_type(document, schema.get('items')) or 'anything'}"
    return str(schema.get("format") or schema.get("type") or "")
