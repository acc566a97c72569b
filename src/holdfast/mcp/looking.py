"""Tools that only read: what needs attention, statuses and their reasons, and the forecast."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any

from pydantic import Field

from holdfast.core.finding import SOON, all_drained, needs_a_person, troubled_issuers
from holdfast.mcp.line import ApiLine, JsonObject, McpCaller, segment

Ref = Annotated[str, Field(max_length=300, description="Name or id of a certificate, or a unique prefix of the id.")]
ToolLimit = Annotated[int, Field(ge=1, le=500)]


# ── The first question ──


async def needs_attention(line: McpCaller) -> JsonObject:
    """What a person should look at, most pressing first: failing or ending certificates, approvals, dead jobs and
    dead notifications, CAs that are down or paused, endpoints that serve something wrong, replicas if all were drained.
    Begin here."""
    failing = await line.get("/certificates", failing=True, limit=500)
    soon = (line.now() + SOON).isoformat()
    ending = await line.get("/certificates", expires_before=soon, limit=500)
    stuck = await line.get("/certificates", for_a_person=True, limit=500)
    looked = [*failing["items"], *ending["items"], *stuck["items"]]
    rows = {row["id"]: row for row in looked if needs_a_person(row)}
    found: JsonObject = {"certificates": sorted(map(brief, rows.values()), key=_pressing)}
    others = {
        "approvals": _items(await line.maybe("/approvals", limit=500)),
        "dead_jobs": _items(await line.maybe("/jobs", state="dead", limit=100)),
        "dead_notifications": _items(await line.maybe("/notifications", state="dead", limit=100)),
        "cas": _troubled(_items(await line.maybe("/issuers", limit=500))),
        "endpoints": _items(await line.maybe("/endpoints", troubled=True, limit=500)),
        "drained_replicas": all_drained(await line.maybe("/cluster")),
    }
    found |= {name: each for name, each in others.items() if each is not None}
    found["not_shown"] = [name for name, each in others.items() if each is None]  # not for this token, or not there
    return {**found, "count": sum(len(each) for name, each in found.items() if name != "not_shown")}


def _pressing(row: Mapping[str, object]) -> str:
    return str(row["safe_until"] or row["expires_at"] or "")


def _items(page: Any) -> Any:
    return page["items"] if isinstance(page, Mapping) else page


def _troubled(issuers: Any) -> Any:
    found = troubled_issuers(issuers)
    return None if found is None else list(map(_ca, found))


# ── Certificates ──


async def list_certificates(
    line: McpCaller,
    text: Annotated[str | None, Field(max_length=253, description="Part of a name.")] = None,
    failing: bool = False,
    expiring_within_days: Annotated[int | None, Field(ge=0, le=3650)] = None,
    owner: str | None = None,
    ca: Annotated[str | None, Field(description="Name of the CA that it may come from.")] = None,
    labels: Annotated[list[str] | None, Field(description="Each as name=value.")] = None,
    limit: ToolLimit = 50,
    cursor: Annotated[str | None, Field(description="`next` of the answer before.")] = None,
) -> JsonObject:
    """Certificates that this token may see, each with its phase, reason and next attempt."""
    until = None if expiring_within_days is None else line.now() + timedelta(days=expiring_within_days)
    page = await line.get(
        "/certificates", q=text, failing=failing, owner=owner, issuer=ca, label=labels, limit=limit, cursor=cursor,
        expires_before=None if until is None else until.isoformat(),
    )  # fmt: skip
    return {"certificates": [brief(row) for row in page["items"]], "next": page["next"]}


async def certificate_status(line: McpCaller, certificate: Ref) -> JsonObject:
    """How one certificate stands: phase, reason code, attempts, last error, next attempt and who acts next."""
    row = await line.get(f"/certificates/{segment(certificate)}")
    versions = await line.get(f"/certificates/{segment(certificate)}/versions")
    return {**row, "versions": versions[:5]}


async def explain(
    line: McpCaller,
    certificate: Ref,
    at: Annotated[datetime | None, Field(description="Then instead of now (ISO 8601).")] = None,
) -> JsonObject:
    """Why it is, or is not, renewed: each rule in order, what it saw, which one blocks, what would change it."""
    when = None if at is None else at.isoformat()
    found: JsonObject = await line.get(f"/certificates/{segment(certificate)}/explain", at=when)
    return found


async def events(
    line: McpCaller,
    certificate: Annotated[str | None, Field(max_length=300, description="Only of it; or the id of anything.")] = None,
    after: Annotated[int, Field(ge=0, description="`next` of the answer before.")] = 0,
    limit: ToolLimit = 100,
) -> JsonObject:
    """What happened, the oldest first: attempts, polls, proofs, approvals, results."""
    found: JsonObject = await line.get("/events", subject=certificate, after=after, limit=limit)
    return found


async def wait(
    line: McpCaller,
    certificate: Ref,
    seconds: Annotated[int, Field(ge=1, le=60, description="At most so long.")] = 30,
) -> JsonObject:
    """Wait until the attempt under way for a certificate is over, then say how the certificate stands."""
    row = await line.get(f"/certificates/{segment(certificate)}")
    attempt = row["operation"]
    if attempt is not None and not attempt["done"]:
        attempt = await line.get(f"/issuances/{attempt['id']}", headers={"Prefer": f"wait={seconds}"})
        row = await line.get(f"/certificates/{segment(certificate)}")
    return {"attempt": attempt, "certificate": brief(row)}


# ── What they depend on ──


async def forecast(
    line: McpCaller,
    days: Annotated[int, Field(ge=1, le=90)] = 30,
    months: Annotated[int, Field(ge=1, le=36)] = 12,
    ca: Annotated[str | None, Field(max_length=63, description="Months of this CA only.")] = None,
) -> JsonObject:
    """The forecast: orders at each issuer in each of the next months, and the first limit that they break; certificates
    that expire and renewals that are planned on each of the next days; what each issuer allows now."""
    rows = _items(await line.get("/issuers", limit=500))
    return {
        "months": await line.maybe("/forecast", months=months, issuer=ca),
        "days": await line.maybe("/stats/expiry", by="day", number=days),
        "summary": await line.maybe("/stats/summary"),
        "budgets": {row["name"]: await _budget(line, row["name"]) for row in rows},
    }


async def list_cas(line: McpCaller) -> JsonObject:
    """The CAs that certificates come from: state, whether they answer, and what their limits leave for now."""
    rows = _items(await line.get("/issuers", limit=500))
    return {"cas": [{**_ca(row), "budget": await _budget(line, row["name"])} for row in rows]}


async def _budget(line: ApiLine, ca: str) -> object:
    return await line.maybe(f"/issuers/{segment(ca)}/budget")


def _ca(row: Mapping[str, object]) -> JsonObject:
    return {name: row[name] for name in ("name", "kind", "state", "breaker_open", "breaker_error")}


async def dead_letters(line: McpCaller, limit: ToolLimit = 100) -> JsonObject:
    """Jobs and notifications that were given up and wait for a person's word: requeue_dead_letters gives them back."""
    return {
        "jobs": _items(await line.maybe("/jobs", state="dead", limit=limit)),
        "notifications": _items(await line.maybe("/notifications", state="dead", limit=limit)),
    }


async def approvals(line: McpCaller, limit: ToolLimit = 100, cursor: str | None = None) -> JsonObject:
    """What waits for a second person. Only a person can approve it: holdfast approvals approve ID."""
    page = await line.get("/approvals", limit=limit, cursor=cursor)
    return {"approvals": page["items"], "next": page["next"]}


async def search_audit(
    line: McpCaller,
    actor: str | None = None,
    action: str | None = None,
    subject: Annotated[str | None, Field(max_length=300)] = None,
    limit: ToolLimit = 50,
    cursor: str | None = None,
) -> JsonObject:
    """Who changed what, the newest first."""
    found: JsonObject = await line.get(
        "/audit", actor=actor, action=action, subject=subject, limit=limit, cursor=cursor
    )
    return found


async def doctor(line: McpCaller) -> JsonObject:
    """Whether Holdfast itself is well: whom this token stands for, the numbers of the whole, replicas, leases and
    loops, CAs and channels in trouble. What only its machine can tell: holdfast doctor."""
    channels = await line.maybe("/channels")
    return {
        "you": await line.get("/self"),
        "summary": await line.maybe("/stats/summary"),
        "cluster": await line.maybe("/cluster"),
        "cas_in_trouble": _troubled(_items(await line.maybe("/issuers", limit=500))),
        "channels_in_trouble": None if channels is None else [row for row in channels if row.get("breaker_open")],
        "notifications": await line.maybe("/notifications/summary"),
    }


def brief(row: Mapping[str, Any]) -> JsonObject:
    """One certificate in a list."""
    status = row["status"]
    about = {name: row[name] for name in ("id", "name", "names", "owner", "labels", "issuers", "serial", "operation")}
    wanted = (
        "phase", "reason_code", "reason", "acts_next", "attempt", "last_error", "next_attempt_at",
        "next_attempt_cause", "attempts_that_fit", "safe_until", "expires_at", "blocked_by",
    )  # fmt: skip
    return about | {name: status.get(name) for name in wanted}  # an older server has fewer
