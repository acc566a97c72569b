"""/issuers: the CAs that certificates come from; add, change, pause, test them, and see what their limits leave."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Response

from holdfast.api import render, shapes
from holdfast.api.call import Call, Caller, Changer, IfMatch, etag, expected_version
from holdfast.api.certificates import Cursor, Limit
from holdfast.operations import account_keys, inventory, issuer_removal, issuers, new_accounts
from holdfast.operations.access import Action
from holdfast.operations.inventory import anywhere
from holdfast.operations.issuers import PRESETS, IssuerRefused
from holdfast.secret import Secret

router = APIRouter(prefix="/issuers", tags=["issuers"])
Name = Annotated[str, Path(max_length=100)]


@router.get("")
async def listed(call: Caller, cursor: Cursor = None, limit: Limit = 100) -> shapes.Page[shapes.Issuer]:
    """In the order of their names."""
    call.demand(Action.SEE_ISSUERS)
    after = render.place(cursor, str)
    now = await inventory.now(call.keeper)
    found = await issuers.page(call.keeper, after="" if after is None else after[0], limit=limit)
    end = (found[-1].name,) if len(found) == limit else None
    return shapes.Page[shapes.Issuer](items=[render.issuer(row, now) for row in found], next=render.cursor(end))


@router.get("/{name}")
async def get(call: Caller, name: Name, response: Response) -> shapes.Issuer:
    call.demand(Action.SEE_ISSUERS)
    found = render.issuer(await issuers.get(call.keeper, name), await inventory.now(call.keeper))
    response.headers["ETag"] = etag(found.version)
    return found


@router.post("", status_code=201)
async def add(call: Changer, asked: shapes.NewIssuer) -> shapes.Issuer:
    """Add a CA. Its credentials are sealed, and never shown again. A preset may stand where its kind would."""
    call.demand(Action.CHANGE_ISSUERS)  # first: what kinds there are is not for everybody
    settings, kind, preset = dict(asked.settings), asked.kind, asked.preset
    if preset is None and kind not in call.front.issuer_kinds and kind in PRESETS:
        kind, preset = "acme", kind
    if preset is not None:
        if preset not in PRESETS:
            raise IssuerRefused(f"There is no preset {preset!r:.40}.", f"There are: {', '.join(PRESETS)}.")
        settings["directory"] = PRESETS[preset]
    reply = await call.change(
        lambda keeper: issuers.add(
            keeper,
            asked.name,
            kind=kind,
            kinds=call.front.issuer_kinds,
            settings=settings,
            credentials=_sealed(asked),
            actor=call.actor,
            fit=call.front.fit,
        ),
        check=anywhere(call.principal, Action.CHANGE_ISSUERS),
        render=_shown,
    )
    return shapes.Issuer.model_validate(reply)


def _sealed(asked: shapes.NewIssuer | shapes.IssuerCredentials) -> dict[str, Secret[bytes]]:
    return {name: Secret(each.get_secret_value().encode()) for name, each in asked.credentials.items()}


def _shown(tx: Any, row: Any) -> dict[str, Any]:
    return render.issuer(row, tx.now()).model_dump(mode="json")


@router.put("/{name}/settings")
async def change(
    call: Changer, name: Name, asked: shapes.IssuerSettings, response: Response, if_match: IfMatch = None
) -> shapes.Issuer:
    """New settings instead of the old; they hold from the next step of whatever is under way. Needs If-Match."""
    call.demand(Action.CHANGE_ISSUERS)
    version, fit = expected_version(if_match), call.front.fit
    reply = await call.change(
        lambda keeper: issuers.change(keeper, name, asked.settings, actor=call.actor, fit=fit, version=version),
        check=anywhere(call.principal, Action.CHANGE_ISSUERS),
        render=_shown,
    )
    shown = shapes.Issuer.model_validate(reply)
    response.headers["ETag"] = etag(shown.version)
    return shown


@router.delete("/{name}")
async def remove(call: Changer, name: Name) -> shapes.Issuer:
    """For good, with its credentials and our account's key. Refused while certificates need it. As it was."""
    reply = await call.change(
        lambda keeper: issuer_removal.remove(keeper, name, actor=call.actor),
        check=anywhere(call.principal, Action.CHANGE_ISSUERS),
        render=_shown,
    )
    return shapes.Issuer.model_validate(reply)


@router.post("/{name}/credentials")
async def set_credentials(call: Changer, name: Name, asked: shapes.IssuerCredentials) -> shapes.Issuer:
    """New credentials instead of those of the same names. They are sealed, and never shown again."""
    reply = await call.change(
        lambda keeper: issuers.set_credentials(keeper, name, _sealed(asked), actor=call.actor, fit=call.front.fit),
        check=anywhere(call.principal, Action.CHANGE_ISSUERS),
        render=_shown,
    )
    return shapes.Issuer.model_validate(reply)


async def _moved(call: Call, name: str, *, paused: bool) -> shapes.Issuer:
    verb = issuers.pause if paused else issuers.resume
    reply = await call.change(
        lambda keeper: verb(keeper, name, actor=call.actor),
        check=anywhere(call.principal, Action.CHANGE_ISSUERS),
        render=_shown,
    )
    return shapes.Issuer.model_validate(reply)


@router.post("/{name}/pause")
async def pause(call: Changer, name: Name) -> shapes.Issuer:
    """No new attempt begins there; those under way go on."""
    return await _moved(call, name, paused=True)


@router.post("/{name}/resume")
async def resume(call: Changer, name: Name) -> shapes.Issuer:
    return await _moved(call, name, paused=False)


@router.post("/{name}/test")
async def test(call: Caller, name: Name) -> shapes.Probed:
    """Whether it can be reached and knows us. Nothing is ordered."""
    call.demand(Action.CHANGE_ISSUERS)
    try:
        return shapes.Probed(ok=True, detail=await issuers.test(call.keeper, name, call.front.probe))
    except IssuerRefused as why:
        return shapes.Probed(ok=False, detail=f"{why} {why.hint}".strip())


@router.post("/{name}/account-key", status_code=202)
async def change_account_key(call: Changer, name: Name) -> shapes.Job:
    """A new key for our account at an ACME CA. The job that does it; asked again meanwhile, it is the same one."""
    reply = await call.change(
        lambda keeper: account_keys.change(keeper, name, actor=call.actor),
        check=anywhere(call.principal, Action.CHANGE_ISSUERS),
        render=lambda tx, job: render.job(job).model_dump(mode="json"),
    )
    return shapes.Job.model_validate(reply)


@router.post("/{name}/new-account")
async def new_account(call: Changer, name: Name) -> shapes.Issuer:
    """Another account at an ACME CA, made by the next order. Orders of the old one are begun anew; nothing counts."""
    reply = await call.change(
        lambda keeper: new_accounts.begin_anew(keeper, name, actor=call.actor),
        check=anywhere(call.principal, Action.CHANGE_ISSUERS),
        render=_shown,
    )
    return shapes.Issuer.model_validate(reply)


@router.get("/{name}/budget")
async def budget(call: Caller, name: Name) -> list[shapes.BudgetLeft]:
    """What the CA's limits, as far as they are known, leave for now."""
    call.demand(Action.SEE_ISSUERS)
    await issuers.get(call.keeper, name)
    now = await inventory.now(call.keeper)
    return [render.budget(each, now) for each in await issuers.left(call.keeper, name)]
