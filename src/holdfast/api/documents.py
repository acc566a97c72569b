"""/desired and /imports: many certificates at once, as a document, or as another client's files held them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Final, TypeVar

from fastapi import APIRouter, Query
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from holdfast.api import document_shapes as shapes
from holdfast.api.call import Call, Caller, Repeater
from holdfast.api.certificates import label_pair
from holdfast.operations import desired, importing
from holdfast.operations.access import Action, Role
from holdfast.operations.importing import AccountOffer
from holdfast.operations.inventory import anywhere
from holdfast.operations.verbs_certificates import MOST_STEPS, done_told, plan_told
from holdfast.secret import Secret

router = APIRouter()
M = TypeVar("M", bound=BaseModel)
Labels = Annotated[list[str] | None, Query(max_length=16, description="name=value; may be repeated.")]


def _body(shape: type[BaseModel]) -> dict[str, Any]:
    """For the document: these bodies may be long, so they are read only after it is known who asks."""
    schema = shape.model_json_schema()
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


async def _read(call: Call, shape: type[M]) -> M:
    try:
        return shape.model_validate_json(await call.request.body())
    except ValidationError as error:
        found = [{**each, "loc": ("body", *each["loc"])} for each in error.errors(include_input=False)]
        raise RequestValidationError(found) from None


@router.post("/desired/plan", tags=["desired"], openapi_extra=_body(shapes.DocumentWish))
async def plan(call: Caller) -> shapes.Plan:
    """What would be created, changed and archived to make the certificates what a document says, and what it costs."""
    call.demand(Action.PLAN)
    asked = await _read(call, shapes.DocumentWish)
    return shapes.Plan.model_validate(plan_told(await desired.plan(call.keeper, asked.document, prune=asked.prune)))


@router.post("/desired/apply", tags=["desired"], openapi_extra=_body(shapes.ApplyWish))
async def apply(call: Repeater) -> shapes.Applied:
    """Make it so, 500 steps at a time; what was done is not done again. Each step is a change of its own.

    Only admins give up a second person's approval this way. An Idempotency-Key is not kept here: see `expect`.
    """
    call.demand(Action.APPLY)
    asked = await _read(call, shapes.ApplyWish)
    done, left = await desired.apply(
        call.doing(anywhere(call.principal, Action.APPLY)),
        asked.document,
        prune=asked.prune,
        actor=call.actor,
        expect=asked.expect,
        skip=frozenset(asked.skip),
        most=MOST_STEPS,
        may_lift_approval=call.principal.role is Role.ADMIN,
    )
    return shapes.Applied.model_validate(done_told(done, left))


@router.get("/desired", tags=["desired"])
async def export(call: Caller, label: Labels = None) -> dict[str, Any]:
    """The certificates as a document; planning with it changes nothing. Keys are not in it."""
    call.demand(Action.PLAN)
    return await desired.export(call.keeper, scope=dict(label_pair(each) for each in label or ()))


# ── Imports ──

_ACCOUNT: Final = (
    "The CA of a directory, and our account there; both stay as they are if they are here already. "
    "So repeating it is harmless, and an Idempotency-Key is not kept here."
)


@router.post("/imports/account", tags=["imports"], description=_ACCOUNT)
async def import_account(call: Repeater, asked: shapes.AccountImport) -> shapes.AccountImported:
    call.demand(Action.IMPORT)
    key = None if asked.key is None else Secret(asked.key.get_secret_value().encode())
    offer = AccountOffer(
        directory=asked.directory, key=key, url=asked.url, contacts=tuple(asked.contacts), roots=asked.roots
    )
    found = await importing.adopt_account(call.keeper, offer, actor=call.actor, manner=call.trial)
    return shapes.AccountImported.model_validate(found)


@router.post("/imports/certificates", tags=["imports"], openapi_extra=_body(shapes.CertificatesImport))
async def import_certificates(call: Repeater) -> list[shapes.CertificateImported]:
    """Adopt certificates with their keys. Nothing is issued; what is here already is known by its serial number.

    So repeating it is harmless, and an Idempotency-Key is not kept here.
    """
    call.demand(Action.IMPORT)
    asked = await _read(call, shapes.CertificatesImport)
    rows = [{**each.model_dump(), "key": each.key.get_secret_value()} for each in asked.certificates]
    offers = importing.read_offers(rows, issuer=asked.issuer, owner=asked.owner, labels=asked.labels)
    found = await importing.adopt(call.keeper, offers, actor=call.actor, manner=call.trial)
    return [shapes.CertificateImported(**asdict(each)) for each in found]
