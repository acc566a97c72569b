"""The directory and newNonce (RFC 8555 §7.1.1, §7.2): open to all, and to signed requests as well (§6.3)."""

from __future__ import annotations

from holdfast.acme.answer import Answer
from holdfast.acme.call import Call, Face
from holdfast.operations import acme_accounts


async def directory(face: Face, call: Call) -> Answer:
    await _look(face, call)
    return Answer(200, call.place.directory)


async def new_nonce(face: Face, call: Call) -> Answer:
    """The nonce itself is put in where all are."""
    await _look(face, call)
    return Answer(200 if call.method == "HEAD" else 204)


async def _look(face: Face, call: Call) -> None:
    """A signed request must be a POST-as-GET, of an account that still is one."""
    if call.signed is not None:
        call.only_look()
        await acme_accounts.update(face.desk, call.who, None)
