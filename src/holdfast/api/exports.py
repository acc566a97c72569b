"""/certificates/{ref}/chain and /export: the public part for whoever may look, the key for whoever has that right."""

from __future__ import annotations

import base64
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import PlainTextResponse

from holdfast.api import shapes
from holdfast.api.call import Caller
from holdfast.api.certificates import Ref
from holdfast.operations import keeping
from holdfast.operations.access import Action
from holdfast.operations.inventory import on_certificate
from holdfast.secret import Secret

router = APIRouter(prefix="/certificates", tags=["certificates"])


class PemResponse(PlainTextResponse):
    media_type = "application/x-pem-file"


@router.get("/{ref}/chain", response_class=PemResponse)
async def chain(call: Caller, ref: Ref, version: Annotated[str | None, Query(max_length=100)] = None) -> PemResponse:
    """The certificate and its chain, in PEM."""
    keeper = call.looking(on_certificate(call.principal, Action.SEE, ref))
    return PemResponse((await keeping.chain_of(keeper, ref, version=version)).chain)


@router.post("/{ref}/export")
async def export(call: Caller, ref: Ref, asked: shapes.Export) -> shapes.Exported:
    """With its private key: a right of its own, audited before the key leaves."""
    keeper = call.looking(on_certificate(call.principal, Action.EXPORT, ref))
    passphrase = None if asked.passphrase is None else Secret(asked.passphrase.get_secret_value())
    found = await keeping.export(
        keeper,
        ref,
        form=asked.form,
        passphrase=passphrase,
        compatible=asked.compatible,
        actor=call.actor,
        version=asked.version,
    )
    key = b"" if found.key is None else found.key.reveal()
    binary = asked.form == "pkcs12"
    return shapes.Exported(
        certificate=found.certificate,
        version=found.version,
        form=asked.form,
        chain_pem=found.chain.decode("ascii"),
        key_pem=None if binary else key.decode("ascii"),
        pkcs12=base64.b64encode(key).decode() if binary else None,
    )
