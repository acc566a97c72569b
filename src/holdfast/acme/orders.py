"""newOrder, orders, and finalize (RFC 8555 §7.4)."""

from __future__ import annotations

from holdfast.acme import polling, render, strict_json
from holdfast.acme.answer import Answer, json_answer, location
from holdfast.acme.call import Call, Face
from holdfast.acme.wish import wish
from holdfast.core.acme import Order, OrderState
from holdfast.core.problem import AcmeError
from holdfast.operations import acme_orders


async def new_order(face: Face, call: Call) -> Answer:
    asked = wish(call.content)
    placed = await acme_orders.place(face.desk, call.place.ca, call.who, asked, address=call.address)
    return _answer(call, placed, status=201)


async def order(face: Face, call: Call) -> Answer:
    call.only_look()
    found = await polling.settled(
        face.desk.changes,
        call.args[0],
        lambda: acme_orders.get(face.desk, call.who, call.args[0]),
        busy=lambda found: found.state is OrderState.PROCESSING,
    )
    return _answer(call, found)


async def finalize(face: Face, call: Call) -> Answer:
    csr = _der(call.content.get("csr"))
    found = await acme_orders.finalize(face.desk, call.place.ca, call.who, call.args[0], csr)
    if found.state is OrderState.PROCESSING and await face.desk.changes.wait(found.id, polling.PATIENCE):
        found = await acme_orders.get(face.desk, call.who, found.id)
    return _answer(call, found)


def _der(value: object) -> bytes:
    try:
        return strict_json.decode(value)
    except ValueError:
        raise AcmeError.malformed("csr is not a text in base64url without padding.") from None


def _answer(call: Call, found: Order, status: int = 200) -> Answer:
    where = location(call.place.order(found.id))
    return json_answer(render.order(call.place, found), where, *render.order_waits(found), status=status)
