"""/certificates: ask for them, look at them, change, pause, archive, renew, cancel, revoke."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Path, Query, Response

from holdfast.api import render, shapes, wishes
from holdfast.api.call import Call, Caller, Changer, IfMatch, etag, expected_version
from holdfast.core.certificate import Certificate
from holdfast.core.inventory import Filter, Sort
from holdfast.errors import UserError
from holdfast.operations import access, certificates, explaining, inventory, revocation, watching
from holdfast.operations.access import Action, Owned
from holdfast.operations.certificates import found_by, view_of
from holdfast.operations.inventory import on_certificate
from holdfast.operations.issuing import Keeper

router = APIRouter(prefix="/certificates", tags=["certificates"])
Ref = Annotated[str, Path(max_length=300, description="Its name, its id, or a prefix of its id that no other has.")]
Cursor = Annotated[str | None, Query(max_length=2000, description="`next` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=500)]
REASONS: Final = {
    "unspecified": 0, "key-compromise": 1, "affiliation-changed": 3, "superseded": 4, "cessation-of-operation": 5,
    "privilege-withdrawn": 9,
}  # fmt: skip


class BadFilter(UserError):
    code, hint = "bad-filter", "A label filter is name=value, for example: label=team=web"


# ── Looking ──


@router.get("", response_model=shapes.Page[shapes.Certificate])
async def listed(
    call: Caller,
    q: Annotated[str | None, Query(max_length=253, description="Part of its name, or of one it is for.")] = None,
    state: Literal["active", "paused", "archived"] | None = None,
    owner: Annotated[str | None, Query(max_length=100)] = None,
    unowned: bool = False,
    label: Annotated[list[str] | None, Query(max_length=16, description="name=value; may be repeated.")] = None,
    issuer: Annotated[str | None, Query(max_length=100)] = None,
    failing: bool = False,
    expires_before: shapes.Instant | None = None,
    sort: Annotated[Sort | None, Query(description="By name; by expiry, if that is what is asked about.")] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
    total: bool = False,
) -> Response:
    """All that the asker may see, filtered and sorted here."""
    call.demand_somewhere(Action.SEE)
    wanted = Filter(
        text=q,
        state=state,
        owners=("",) if unowned else () if owner is None else (owner,),
        labels=dict(label_pair(each) for each in label or ()),
        issuer=issuer,
        failing=failing,
        expires_before=expires_before,
    )
    by: Sort = sort or ("name" if expires_before is None else "expires")
    after = render.place(cursor, *((str, str) if by == "name" else (int, str)))
    page = await inventory.listed(call.keeper, call.principal, wanted, sort=by, after=after, limit=limit, total=total)
    return Response(render.certificate_page(page), media_type="application/json")


def label_pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise BadFilter(f"{text!r:.60} is no label filter.")
    return name, value


@router.get("/{ref}")
async def get(call: Caller, ref: Ref, response: Response) -> shapes.Certificate:
    """What is wanted, what is held, and how it stands; its ETag is for changes."""
    view = await certificates.view(call.looking(on_certificate(call.principal, Action.SEE, ref)), ref)
    response.headers["ETag"] = etag(view.certificate.version)
    return render.certificate(view)


@router.get("/{ref}/versions")
async def versions(call: Caller, ref: Ref) -> list[shapes.Version]:
    """The newest first; never with a key."""
    keeper = call.looking(on_certificate(call.principal, Action.SEE, ref))
    return [render.version(each) for each in await inventory.versions_of(keeper, ref)]


@router.get("/{ref}/explain")
async def explain(call: Caller, ref: Ref, at: shapes.Instant | None = None) -> shapes.Explanation:
    """Each rule in order, what it saw and said, which one blocks, and what would change it; also at another time."""
    keeper = call.looking(on_certificate(call.principal, Action.SEE, ref))
    return render.explanation(await explaining.explained(keeper, ref, at))


@router.get("/{ref}/events")
async def events(
    call: Caller, ref: Ref, after: Annotated[int, Query(ge=0, lt=2**63)] = 0, limit: Limit = 100
) -> shapes.EventPage:
    """Its timeline, the oldest first."""
    keeper = call.looking(on_certificate(call.principal, Action.SEE, ref))
    found = await certificates.timeline(keeper, ref, after=after, limit=limit)
    return shapes.EventPage(items=[render.event(each) for each in found], next=found[-1].id if found else after)


# ── Asking for one, and changing it ──

ACCEPTED: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "Done, or tried only (dry_run)", "model": shapes.Certificate},
    201: {"description": "Obtained while the client waited", "model": shapes.Certificate},
    202: {"description": "Under way: Location names the attempt", "model": shapes.Certificate},
}


FOLLOWED: Final = {status: said for status, said in ACCEPTED.items() if status != 201}


@router.post("", status_code=202, responses=ACCEPTED)
async def create(call: Changer, wish: shapes.NewCertificate, response: Response) -> shapes.Certificate:
    """It exists from now on and is kept renewed; its first attempt is under way when this answers."""
    wanted = await wishes.wanted(call, wish)
    reply = await call.change(
        lambda keeper: certificates.request(keeper, wanted, actor=call.actor),
        check=inventory.anywhere(call.principal, Action.CREATE, Owned(wanted.owner, wanted.labels)),
        render=lambda tx, made: _plain(tx, made.id),
    )
    return await _followed(call, reply, response, done=201)


def _plain(tx: Any, ref: str) -> dict[str, Any]:
    return render.certificate(view_of(tx, found_by(tx, ref))).model_dump(mode="json")


async def _followed(call: Call, reply: dict[str, Any], response: Response, *, done: int = 200) -> shapes.Certificate:
    """The certificate with its attempt: at once, or when that is over and the client is ready to wait for it."""
    shown = shapes.Certificate.model_validate(reply)
    response.status_code = 202
    if call.manner.dry_run or shown.operation is None:
        response.status_code = 200
        return shown
    response.headers["Location"] = f"/api/v1/issuances/{shown.operation.id}"
    if call.wait:
        attempt = await watching.until_over(call.front, call.principal, shown.operation.id, call.wait)
        response.status_code = done if attempt.state.over else 202
        return render.certificate(await certificates.view(call.keeper, shown.id), attempt)
    response.headers["Retry-After"] = "1"
    return shown


@router.patch("/{ref}")
async def change(
    call: Changer, ref: Ref, asked: shapes.CertificateChange, response: Response, if_match: IfMatch = None
) -> shapes.Certificate:
    """Change what is given. Another CA, key or name is a new generation, which is obtained at once. Needs If-Match."""
    expect, changes = expected_version(if_match), wishes.changes(asked)

    def stays(result: Certificate) -> None:
        access.demand(call.principal, Action.CHANGE, Owned.of(result))

    reply = await call.change(
        lambda keeper: certificates.change(keeper, ref, changes, actor=call.actor, expect_version=expect),
        check=on_certificate(call.principal, Action.CHANGE, ref),
        render=lambda tx, made: _plain(tx, made.id),
        after=stays,
    )
    shown = await _followed(call, reply, response)
    response.status_code = 200  # it is changed; what that leads to may be waited for
    response.headers["ETag"] = etag(shown.version)
    return shown


async def _moved(call: Call, ref: str, event: str) -> shapes.Certificate:
    reply = await call.change(
        lambda keeper: certificates.set_state(keeper, ref, event, actor=call.actor),
        check=on_certificate(call.principal, Action.CHANGE, ref),
        render=lambda tx, made: _plain(tx, made.id),
    )
    return shapes.Certificate.model_validate(reply)


@router.delete("/{ref}")
async def archive(call: Changer, ref: Ref) -> shapes.Certificate:
    """Nothing is done about it any more. It is not revoked, and what it holds is kept."""
    return await _moved(call, ref, "archived")


@router.post("/{ref}/pause")
async def pause(call: Changer, ref: Ref) -> shapes.Certificate:
    """Nothing is done until it is resumed: it may expire."""
    return await _moved(call, ref, "paused")


@router.post("/{ref}/resume")
async def resume(call: Changer, ref: Ref) -> shapes.Certificate:
    """What is due by now is done at once."""
    return await _moved(call, ref, "resumed")


# ── Renewing, cancelling, revoking ──


@router.post("/{ref}/renew", status_code=202, responses=FOLLOWED)
async def renew(
    call: Changer,
    ref: Ref,
    response: Response,
    delay_s: Annotated[
        float, Query(ge=0, le=7 * 86400, description="Begin so much later, and never later than it is due anyway.")
    ] = 0,
) -> shapes.Certificate:
    """An attempt now, whatever the schedule and the back-off say; within the CA's budget. delay_s spreads many."""
    reply = await _about_attempt(
        call,
        ref,
        Action.RENEW,
        lambda keeper: certificates.renew(keeper, ref, actor=call.actor, delay=timedelta(seconds=delay_s)),
    )
    return await _followed(call, reply, response)


@router.post("/{ref}/cancel")
async def cancel(call: Changer, ref: Ref, asked: shapes.Cancellation) -> shapes.Certificate:
    """Stop the attempt under way; it does not count as a failure."""
    reply = await _about_attempt(
        call, ref, Action.RENEW, lambda keeper: certificates.cancel(keeper, ref, actor=call.actor, why=asked.why)
    )
    return shapes.Certificate.model_validate(reply)


@router.post("/{ref}/revoke", status_code=202, responses=FOLLOWED)
async def revoke(call: Changer, ref: Ref, asked: shapes.Revocation, response: Response) -> shapes.Certificate:
    """Tell the CA that it is no longer good. One in use is replaced at once; what was given up, taken up again."""
    reply = await call.change(
        lambda keeper: certificates.revoke(
            keeper, ref, reason=REASONS[asked.reason], actor=call.actor, version=asked.version
        ),
        check=on_certificate(call.principal, Action.REVOKE, ref),
        render=lambda tx, version: _plain(tx, ref) | {"note": revocation.note(tx, version)},
    )
    return await _followed(call, reply, response)


async def _about_attempt(call: Call, ref: str, action: Action, verb: Callable[[Keeper], Any]) -> dict[str, Any]:
    return await call.change(
        verb,
        check=on_certificate(call.principal, action, ref),
        render=lambda tx, result: _plain(tx, ref),
    )
