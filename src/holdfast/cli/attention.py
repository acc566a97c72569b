"""What a person should look at, of everything: from the same sources as the first of the tools for assistants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from holdfast.core.attention import SOON, all_drained, needs_somebody, troubled

if TYPE_CHECKING:
    from holdfast.cli.client import Client

SOURCES: Final = ("attention", "approvals", "dead_jobs", "dead_notifications", "cas", "drained")
Found = Mapping[str, Any]


def of_all(client: Client, now: datetime) -> dict[str, Any]:
    """Each source by its name; `not_shown`: those that this token may not see."""
    failing = client.pages("/certificates", failing=True, limit=500)
    ending = client.pages("/certificates", expires_before=(now + SOON).isoformat(), limit=500)
    rows = {row["id"]: row for row in [*failing, *ending] if needs_somebody(row)}
    found = {
        "attention": list(rows.values()),
        "approvals": _items(client.maybe("/approvals", limit=500)),
        "dead_jobs": _items(client.maybe("/jobs", state="dead", limit=100)),
        "dead_notifications": _items(client.maybe("/notifications", state="dead", limit=100)),
        "cas": troubled(_items(client.maybe("/issuers", limit=500))),
        "drained": all_drained(client.maybe("/cluster")),
    }
    return found | {"not_shown": [name for name, each in found.items() if each is None]}


def _items(page: Any) -> Any:
    return None if page is None else page["items"]


def anything(found: Found) -> bool:
    return any(found[name] for name in SOURCES)


def facts(found: Found) -> Iterator[tuple[str, str]]:
    """What is not about one certificate, and the command that shows it."""
    for name, words, command in (
        ("approvals", "wait for a second person", "holdfast approvals ls"),
        ("dead_jobs", "were given up", "holdfast jobs ls --state dead"),
        ("dead_notifications", "were never delivered", "holdfast notify ls --dead"),
    ):
        if found[name]:
            yield name.replace("_", " "), f"{len(found[name])} {words}: {command}"
    if found["drained"]:
        resume = f"holdfast cluster resume {found['drained'][0]['name']}"
        yield "replicas", f"all {len(found['drained'])} were drained, and nothing is renewed: {resume}"
    for row in found["cas"] or ():
        paused = row["state"] != "active"
        remedy = f"holdfast ca resume {row['name']}" if paused else f"holdfast ca test {row['name']}"
        yield f"CA {row['name']}", f"{row['state'] if paused else row['breaker_error'] or 'it is down'}: {remedy}"
