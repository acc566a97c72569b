"""docs/reference/api.md and problems.md, from the API's own document and its table of codes."""

from typing import Any

from holdfast.api import openapi
from holdfast.api.codes import OTHERS, SENTENCES

ABOUT = """# API

Under `/api/v1`, as JSON. The whole of it as OpenAPI 3.1: `/api/v1/openapi.json`, which needs no token.

- **Who asks**: `Authorization: Bearer hf_…`, a token that `holdfast token create` showed once. What it may do is its role
  (admin, operator, viewer, auditor, agent), its rights, and the owners and labels that it is confined to. What a token
  may not see is as if it were not there. Commands on the server's machine use a socket in the data folder instead.
- **Errors** are `application/problem+json` (RFC 9457): `code` is what programs decide by ([all codes](problems.md)),
  `retryable` and `retry_at` say whether the same request may succeed later and from when on, `errors` point at fields,
  and `request_id` is in the server's log, too.
- **Lists** come in pages: `next` of one is `cursor` of the next; `limit` up to 500; `total=true` counts all.
- **Changes** take `dry_run=true` (done, shown, and undone), and an `Idempotency-Key`: repeated within a day with the same
  request, it happens once. `PATCH` needs `If-Match` with the `ETag` that was read, or `*`.
- **What takes its time** is answered with 202, its `operation`, and `Location`. With `Prefer: wait=30` the answer comes
  when it is over, or after 30 seconds.
- **Events** are pages of `/events`, or a stream of server-sent events at `/events/stream`. The stream resumes after
  `Last-Event-ID`, on any replica.
- **Behind a proxy**: `server.trusted_proxies` names the networks whose `X-Forwarded-For` is believed.
"""


def api() -> str:
    lines, tag = [ABOUT], ""
    for path, method, operation in sorted(_operations(), key=lambda each: (each[2]["tags"][0], each[0])):
        if operation["tags"][0] != tag:
            tag = operation["tags"][0]
            lines += [f"\n## {tag}\n", "| request | what it does |", "|---|---|"]
        says = " ".join(operation.get("description", "").split()).replace("|", "\\|")
        lines.append(f"| `{method.upper()} {path}` | {says or operation['summary']} |")
    return "\n".join(lines) + "\n"


def _operations() -> list[tuple[str, str, dict[str, Any]]]:
    paths = openapi.whole()["paths"]
    return [(path, method, each) for path, item in paths.items() for method, each in item.items()]


def problems() -> str:
    lines = [
        "# Problems",
        "",
        "Each answer that is an error has a `code`. Codes may be added, and are never renamed.",
    ]
    for code, sentence in SENTENCES.items():
        lines += ["", f"## {code}", "", sentence]
    lines += [
        "",
        f"## {OTHERS}",
        "",
        "Names, keys, requests and chains that no certificate of ours may carry are refused with a code of the rule that",
        "they break, such as `name-is-address`; the sentence says what it was.",
    ]
    return "\n".join(lines) + "\n"
