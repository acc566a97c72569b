"""MCP tools that change something. A destructive tool only makes a plan; `confirm` carries the plan out."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, NamedTuple

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from holdfast.core.revocation_reason import RevocationReason
from holdfast.mcp import operations
from holdfast.mcp.line import ApiLine, JsonObject, McpCaller, segment
from holdfast.mcp.looking import Ref, brief

Args = Mapping[str, Any]
MOST: Final = 500  # dead letters in one plan
Justification = Annotated[str, Field(min_length=1, max_length=500, description="For the audit log.")]


async def renew(line: McpCaller, certificate: Ref) -> JsonObject:
    """Renew a certificate now, before its schedule and back-off say. Follow it with wait. Harms nothing: the
    version in use stays until the new one is there; a renewal under way already is not begun again."""
    row = await line.post(f"/certificates/{segment(certificate)}/renew")
    return {"attempt": row["operation"], "certificate": brief(row)}


# ── Planned first ──


async def plan_certificate(
    line: McpCaller,
    names: Annotated[list[str], Field(min_length=1, max_length=100, description="The first names it.")],
    cas: Annotated[list[str] | None, Field(description="CAs to ask, the first first.")] = None,
    owner: str = "",
    labels: dict[str, str] | None = None,
) -> JsonObject:
    """Plan a new certificate, which is kept renewed from then on: shows how it would be, and asks for nothing yet."""
    return await planned(line, "request", {"names": names, "issuers": cas, "owner": owner, "labels": labels or {}})


async def revoke(line: McpCaller, certificate: Ref, reason: RevocationReason) -> JsonObject:
    """Plan to revoke the current version of a certificate. One that is active is replaced at once."""
    return await planned(line, "revoke", {"certificate": certificate, "reason": reason})


async def cancel_attempt(line: McpCaller, certificate: Ref, why: Justification) -> JsonObject:
    """Plan to stop the attempt that is under way for a certificate."""
    return await planned(line, "cancel", {"certificate": certificate, "why": why})


async def archive(line: McpCaller, certificate: Ref) -> JsonObject:
    """Plan to stop keeping a certificate, for good: it will not be renewed any more. It is not revoked."""
    return await planned(line, "archive", {"certificate": certificate})


async def requeue_dead_letters(
    line: McpCaller,
    jobs: Annotated[list[str] | None, Field(description="Ids of dead jobs.")] = None,
    notifications: Annotated[list[str] | None, Field(description="Ids of dead notifications.")] = None,
) -> JsonObject:
    """Plan to give dead jobs and dead notifications all their attempts back: they are due at once. Those that are
    named, or, if none is, all of them."""
    if jobs is not None or notifications is not None:
        jobs, notifications = jobs or [], notifications or []
    return await planned(line, "requeue", {"jobs": jobs, "notifications": notifications})


async def confirm(
    line: McpCaller, plan: Annotated[str, Field(max_length=20_000, description="The id that a planning tool gave.")]
) -> JsonObject:
    """Carry out a plan, exactly as it was shown. Refused if it ended, or if things are not any more as it saw them."""
    try:
        found = opened(plan, line.secret, line.now())
    except NoPlan as why:
        raise ToolError(f"{why} Plan it again.") from None
    action = ACTIONS[found.action]
    shown = await action.look(line, found.args)
    if digest(_stable(shown, found.made_at)) != found.saw:
        raise ToolError("Things changed since this was planned, or it was carried out already. Look, and plan again.")
    return {"done": found.action, "result": await action.do(line, found.args, found.once)}


def _stable(shown: object, made_at: datetime) -> object:
    """What must still be so when the plan is confirmed. The dry run of then has later times, which do not count."""
    if isinstance(shown, Mapping):
        return {name: _stable(each, made_at) for name, each in shown.items()}
    if isinstance(shown, list):
        return [_stable(each, made_at) for each in shown]
    return "later" if isinstance(shown, str) and _at(shown) >= made_at - CLOCKS_DIFFER else shown


def _at(text: str) -> datetime:
    """The instant that this text is; one long ago, if it is none."""
    try:
        found = datetime.fromisoformat(text) if _INSTANT.match(text) else _LONG_AGO
    except ValueError:
        return _LONG_AGO
    return found if found.tzinfo is not None else _LONG_AGO


async def planned(line: ApiLine, name: str, args: Args) -> JsonObject:
    made_at = line.now().replace(microsecond=0)
    shown = await ACTIONS[name].look(line, args)
    plan = ConfirmedPlan(
        action=name,
        args=args,
        saw=digest(_stable(shown, made_at)),
        once=line.new_id("plan"),
        expires_at=made_at + LIVES_FOR,
    )
    return {
        "plan": seal(plan, line.secret),
        "action": name,
        "would": shown,
        "expires_at": plan.expires_at.isoformat(),
        "next": "Nothing was changed. Show this to a person; if it is right, call confirm with the plan.",
    }


# ── Plans, and carrying them out ──


class PlannedAction(NamedTuple):
    """`look` shows what would be hit, in values that stay the same while nothing happens; `do` does it once."""

    look: Callable[[ApiLine, Args], Awaitable[Any]]
    do: Callable[[ApiLine, Args, str], Awaitable[Any]]


async def _one(line: ApiLine, args: Args) -> JsonObject:
    row = await line.get(f"/certificates/{segment(args['certificate'])}")
    attempt = row["operation"]
    return {
        "certificate": row["id"],
        "name": row["name"],
        "names": row["names"],
        "owner": row["owner"],
        "state": row["state"],
        "serial": row["serial"],
        "expires_at": row["not_after"],
        "attempt": None if attempt is None else attempt["id"],
    }


async def _look_request(line: ApiLine, args: Args) -> JsonObject:
    row = await line.post("/certificates", _wish(args), dry_run=True)
    return {name: row[name] for name in ("name", "names", "issuers", "key", "owner", "labels", "approval_required")}


async def _request(line: ApiLine, args: Args, once: str) -> object:
    return brief(await line.post("/certificates", _wish(args), once=once))


def _wish(args: Args) -> JsonObject:
    return {name: each for name, each in args.items() if each is not None}


async def _look_revoke(line: ApiLine, args: Args) -> JsonObject:
    shown = await _one(line, args)
    await line.post(f"/certificates/{shown['certificate']}/revoke", {"reason": args["reason"]}, dry_run=True)
    return {**shown, "reason": args["reason"]}


async def _revoke(line: ApiLine, args: Args, once: str) -> object:
    path = f"/certificates/{segment(args['certificate'])}/revoke"
    return brief(await line.post(path, {"reason": args["reason"]}, once=once))


async def _look_cancel(line: ApiLine, args: Args) -> JsonObject:
    shown = await _one(line, args)
    await line.post(f"/certificates/{shown['certificate']}/cancel", {"why": args["why"]}, dry_run=True)
    return shown


async def _cancel(line: ApiLine, args: Args, once: str) -> object:
    path = f"/certificates/{segment(args['certificate'])}/cancel"
    return brief(await line.post(path, {"why": args["why"]}, once=once))


async def _look_archive(line: ApiLine, args: Args) -> JsonObject:
    shown = await _one(line, args)
    await line.post(f"/certificates/{shown['certificate']}", method="DELETE", dry_run=True)
    return shown


async def _archive(line: ApiLine, args: Args, once: str) -> object:
    return brief(await line.post(f"/certificates/{segment(args['certificate'])}", method="DELETE", once=once))


async def _look_requeue(line: ApiLine, args: Args) -> JsonObject:
    """Those that are asked for and dead. What was not asked for by id is all there is now, and no more later."""
    shown: JsonObject = {}
    for family in ("jobs", "notifications"):
        page = await line.maybe(f"/{family}", state="dead", limit=MOST)
        dead = [] if page is None else page["items"] if isinstance(page, Mapping) else page
        wanted = args[family]
        shown[family] = [_letter(each) for each in dead if wanted is None or each["id"] in wanted]
    if not any(shown.values()):
        raise ToolError("None of these is dead: there is nothing to requeue.")
    return shown


def _letter(row: Mapping[str, object]) -> JsonObject:
    names = ("id", "kind", "subject", "channel", "event", "title", "reason_code", "last_error", "dead_because")
    return {name: row[name] for name in names if row.get(name) is not None}


async def _requeue(line: ApiLine, args: Args, once: str) -> object:
    """One after the other: what cannot be given back does not keep the others from it."""
    found, problems = await _look_requeue(line, args), list[str]()
    done: dict[str, list[str]] = {"jobs": [], "notifications": []}
    for family, verb in (("jobs", "retry"), ("notifications", "requeue")):
        for row in found[family]:
            try:
                await line.post(f"/{family}/{segment(row['id'])}/{verb}", once=f"{once}-{row['id']}")
                done[family].append(row["id"])
            except ToolError as why:
                problems.append(f"{row['id']}: {why}")
    return {**done, "problems": problems}


ACTIONS: Final[Mapping[str, PlannedAction]] = {
    "request": PlannedAction(_look_request, _request),
    "revoke": PlannedAction(_look_revoke, _revoke),
    "cancel": PlannedAction(_look_cancel, _cancel),
    "archive": PlannedAction(_look_archive, _archive),
    "requeue": PlannedAction(_look_requeue, _requeue),
    "operation": PlannedAction(operations.look, operations.do),
}


LIVES_FOR: Final = timedelta(minutes=10)
CLOCKS_DIFFER: Final = timedelta(minutes=5)  # at most, the server's from ours
_INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d")
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)
PREFIX: Final = "plan_"
_PURPOSE: Final = b"holdfast mcp plan, version 1"


class NoPlan(Exception):
    """Not a plan that this caller may confirm now; says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmedPlan:
    action: str
    args: Mapping[str, Any]
    saw: str  # digest of what it was shown for
    once: str
    expires_at: datetime

    @property
    def made_at(self) -> datetime:
        return self.expires_at - LIVES_FOR


def digest(shown: object) -> str:
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()[:32]


def seal(plan: ConfirmedPlan, secret: bytes) -> str:
    fields = [plan.action, dict(plan.args), plan.saw, plan.once, int(plan.expires_at.timestamp())]
    text = json.dumps(fields, separators=(",", ":")).encode()
    return PREFIX + _encode(_mac(secret, text) + text)


def opened(text: str, secret: bytes, now: datetime) -> ConfirmedPlan:
    """Raises NoPlan."""
    bare = text.removeprefix(PREFIX)
    try:
        raw = base64.b64decode(bare + "=" * (-len(bare) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise NoPlan("This is no plan id.") from None
    mac, content = raw[:32], raw[32:]
    if not text.startswith(PREFIX) or not hmac.compare_digest(mac, _mac(secret, content)):
        raise NoPlan("This is not a plan of yours: it was altered, or made with another token.")
    action, args, saw, once, expires = json.loads(content)
    plan = ConfirmedPlan(
        action=action, args=args, saw=saw, once=once, expires_at=datetime.fromtimestamp(expires, tz=UTC)
    )
    if now >= plan.expires_at:
        raise NoPlan(f"This plan ended at {plan.expires_at:%Y-%m-%dT%H:%M:%SZ}.")
    return plan


def _mac(secret: bytes, content: bytes) -> bytes:
    key = hashlib.sha256(_PURPOSE + b"\0" + secret).digest()
    return hmac.digest(key, content, "sha256")


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
