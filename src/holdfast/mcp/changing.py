"""Tools that change something. What can hurt is only planned by its tool: `confirm` does it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from holdfast.mcp import plans
from holdfast.mcp.line import Caller, Line, segment
from holdfast.mcp.looking import Ref, brief
from holdfast.mcp.plans import LIVES_FOR, NoPlan, Plan

Args = Mapping[str, Any]
Reason = Literal[
    "unspecified", "key-compromise", "affiliation-changed", "superseded", "cessation-of-operation",
    "privilege-withdrawn",
]  # fmt: skip
MOST: Final = 500  # dead letters in one plan
Why = Annotated[str, Field(min_length=1, max_length=500, description="For the audit log.")]


async def renew(line: Caller, certificate: Ref) -> dict[str, Any]:
    """Renew a certificate now, whatever its schedule and back-off say. Follow it with wait. Harms nothing: what is in
    use stays until the new one is there; one that is under way already is not begun again."""
    row = await line.post(f"/certificates/{segment(certificate)}/renew")
    return {"attempt": row["operation"], "certificate": brief(row)}


# ── Planned first ──


async def plan_certificate(
    line: Caller,
    names: Annotated[list[str], Field(min_length=1, max_length=100, description="The first names it.")],
    cas: Annotated[list[str] | None, Field(description="CAs to ask, the first first.")] = None,
    owner: str = "",
    labels: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Plan a new certificate, which is kept renewed from then on: shows how it would be, and asks for nothing yet."""
    return await _planned(line, "request", {"names": names, "issuers": cas, "owner": owner, "labels": labels or {}})


async def revoke(line: Caller, certificate: Ref, reason: Reason) -> dict[str, Any]:
    """Plan to revoke the current version of a certificate. One that is active is replaced at once."""
    return await _planned(line, "revoke", {"certificate": certificate, "reason": reason})


async def cancel_attempt(line: Caller, certificate: Ref, why: Why) -> dict[str, Any]:
    """Plan to stop the attempt that is under way for a certificate."""
    return await _planned(line, "cancel", {"certificate": certificate, "why": why})


async def archive(line: Caller, certificate: Ref) -> dict[str, Any]:
    """Plan to stop keeping a certificate, for good: it will not be renewed any more. It is not revoked."""
    return await _planned(line, "archive", {"certificate": certificate})


async def requeue_dead_letters(
    line: Caller,
    jobs: Annotated[list[str] | None, Field(description="Ids of dead jobs.")] = None,
    notifications: Annotated[list[str] | None, Field(description="Ids of dead notifications.")] = None,
) -> dict[str, Any]:
    """Plan to give dead jobs and dead notifications all their attempts back: they are due at once. Those that are
    named, or, if none is, all of them."""
    if jobs is not None or notifications is not None:
        jobs, notifications = jobs or [], notifications or []
    return await _planned(line, "requeue", {"jobs": jobs, "notifications": notifications})


async def confirm(
    line: Caller, plan: Annotated[str, Field(max_length=20_000, description="The id that a planning tool gave.")]
) -> dict[str, Any]:
    """Carry out a plan, exactly as it was shown. Refused if it ended, or if things are not any more as it saw them."""
    try:
        found = plans.opened(plan, line.secret, line.now())
    except NoPlan as why:
        raise ToolError(f"{why} Plan it again.") from None
    action = ACTIONS[found.action]
    shown = await action.look(line, found.args)
    if plans.digest(shown) != found.saw:
        raise ToolError("Things changed since this was planned, or it was carried out already. Look, and plan again.")
    return {"done": found.action, "result": await action.do(line, found.args, found.once)}


async def _planned(line: Line, name: str, args: Args) -> dict[str, Any]:
    shown = await ACTIONS[name].look(line, args)
    plan = Plan(
        action=name,
        args=args,
        saw=plans.digest(shown),
        once=line.new_id("plan"),
        expires_at=line.now() + LIVES_FOR,
    )
    return {
        "plan": plans.seal(plan, line.secret),
        "action": name,
        "would": shown,
        "expires_at": plan.expires_at.isoformat(),
        "next": "Nothing was changed. Show this to a person; if it is right, call confirm with the plan.",
    }


# ── What is shown, and what is done ──


class Action(NamedTuple):
    """`look` shows what would be hit, in values that stay the same while nothing happens; `do` does it once."""

    look: Callable[[Line, Args], Awaitable[Any]]
    do: Callable[[Line, Args, str], Awaitable[Any]]


async def _one(line: Line, args: Args) -> dict[str, Any]:
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


async def _look_request(line: Line, args: Args) -> dict[str, Any]:
    row = await line.post("/certificates", _wish(args), dry_run=True)
    return {name: row[name] for name in ("name", "names", "issuers", "key", "owner", "labels", "approval_required")}


async def _request(line: Line, args: Args, once: str) -> Any:
    return brief(await line.post("/certificates", _wish(args), once=once))


def _wish(args: Args) -> dict[str, Any]:
    return {name: each for name, each in args.items() if each is not None}


async def _look_revoke(line: Line, args: Args) -> dict[str, Any]:
    shown = await _one(line, args)
    await line.post(f"/certificates/{shown['certificate']}/revoke", {"reason": args["reason"]}, dry_run=True)
    return {**shown, "reason": args["reason"]}


async def _revoke(line: Line, args: Args, once: str) -> Any:
    path = f"/certificates/{segment(args['certificate'])}/revoke"
    return brief(await line.post(path, {"reason": args["reason"]}, once=once))


async def _look_cancel(line: Line, args: Args) -> dict[str, Any]:
    shown = await _one(line, args)
    await line.post(f"/certificates/{shown['certificate']}/cancel", {"why": args["why"]}, dry_run=True)
    return shown


async def _cancel(line: Line, args: Args, once: str) -> Any:
    path = f"/certificates/{segment(args['certificate'])}/cancel"
    return brief(await line.post(path, {"why": args["why"]}, once=once))


async def _look_archive(line: Line, args: Args) -> dict[str, Any]:
    shown = await _one(line, args)
    await line.post(f"/certificates/{shown['certificate']}", method="DELETE", dry_run=True)
    return shown


async def _archive(line: Line, args: Args, once: str) -> Any:
    return brief(await line.post(f"/certificates/{segment(args['certificate'])}", method="DELETE", once=once))


async def _look_requeue(line: Line, args: Args) -> dict[str, Any]:
    """Those that are asked for and dead. What was not asked for by id is all there is now, and no more later."""
    shown: dict[str, Any] = {}
    for family in ("jobs", "notifications"):
        page = await line.maybe(f"/{family}", state="dead", limit=MOST)
        dead = [] if page is None else page["items"] if isinstance(page, Mapping) else page
        wanted = args[family]
        shown[family] = [_letter(each) for each in dead if wanted is None or each["id"] in wanted]
    if not any(shown.values()):
        raise ToolError("None of these is dead: there is nothing to requeue.")
    return shown


def _letter(row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("id", "kind", "subject", "channel", "event", "title", "reason_code", "last_error", "dead_because")
    return {name: row[name] for name in names if row.get(name) is not None}


async def _requeue(line: Line, args: Args, once: str) -> Any:
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


ACTIONS: Final[Mapping[str, Action]] = {
    "request": Action(_look_request, _request),
    "revoke": Action(_look_revoke, _revoke),
    "cancel": Action(_look_cancel, _cancel),
    "archive": Action(_look_archive, _archive),
    "requeue": Action(_look_requeue, _requeue),
}
