"""Authorizations and their challenges (RFC 8555 §7.5)."""

from __future__ import annotations

from holdfast.acme import polling, render
from holdfast.acme.answer import Answer, json_answer, link
from holdfast.acme.call import Call, Face
from holdfast.core.acme import Authz, AuthzState, Challenge, ChallengeState
from holdfast.core.problem import AcmeError
from holdfast.operations import acme_authzs


async def authz(face: Face, call: Call) -> Answer:
    if call.jws.is_post_as_get:
        return _answer(face, call, await _settled(face, call))
    if call.content.get("status") != AuthzState.DEACTIVATED.value:  # §7.5.2; fields that we do not know are ignored
        raise AcmeError.malformed('All that can be done to an authorization is {"status": "deactivated"}.')
    return _answer(face, call, await acme_authzs.deactivate(face.desk, call.who, call.args[0]))


async def _settled(face: Face, call: Call) -> Authz:
    return await polling.settled(
        face.desk.changes,
        call.args[0],
        lambda: acme_authzs.get(face.desk, call.who, call.args[0]),
        busy=lambda found: render.under_way(found) is not None,
    )


def _answer(face: Face, call: Call, found: Authz) -> Answer:
    tested = render.under_way(found)
    waits = () if tested is None else render.challenge_waits(tested, face.clock.now())
    return json_answer(render.authz(call.place, found), *waits)


async def challenge(face: Face, call: Call) -> Answer:
    """Look, or say that the proof is in place: an empty object, whose unknown fields are ignored (§7.5.1)."""
    if call.jws.is_post_as_get:
        found, parent = await _settled_challenge(
            face, call, await acme_authzs.challenge(face.desk, call.who, call.args[0])
        )
    else:
        call.must_be_object()
        found, parent = await _settled_challenge(
            face, call, await acme_authzs.answer(face.desk, call.who, call.args[0])
        )
    up = link(call.place.authz(parent.id), "up")
    waits = render.challenge_waits(found, face.clock.now())
    return json_answer(render.challenge(call.place, found, parent), up, *waits)


async def _settled_challenge(face: Face, call: Call, seen: tuple[Challenge, Authz]) -> tuple[Challenge, Authz]:
    """A proof that is in place is mostly seen within milliseconds: the client is told so, and need not ask again."""
    found, parent = seen
    if found.state is not ChallengeState.PROCESSING:
        return seen
    await face.desk.changes.wait(parent.id, polling.PATIENCE)
    return await acme_authzs.challenge(face.desk, call.who, call.args[0])
