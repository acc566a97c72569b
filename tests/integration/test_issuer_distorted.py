"""Answers of CAs with one value replaced by another, anywhere: an issuer makes the best of it, and never breaks."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from tests.support.contestants import CONTESTANTS, Contestant, IssuerUnderTest, an_issuer
from tests.support.issuing import leaf_of

from holdfast.errors import Refused, TryLater
from holdfast.issuers.base import Cancels, Issuer
from holdfast.ports import Request, Response
from holdfast.world import HttpTransport

pytestmark = pytest.mark.anyio

ODD = (None, 7, "odd", [], {}, True, [None], {"a": [1]}, -1.5, "9" * 400, ["x", 1])
EACH = 2  # of these for one place, another two for the next one
Call = Callable[[Issuer], Awaitable[object]]


@pytest.fixture
async def transport() -> AsyncIterator[HttpTransport]:
    transport = HttpTransport()
    yield transport
    await transport.close()


class Recording:
    """The way to a CA, with what came back."""

    def __init__(self, transport: HttpTransport) -> None:
        self._transport = transport
        self.answers: list[Response] = []

    async def request(self, request: Request) -> Response:
        self.answers.append(await self._transport.request(request))
        return self.answers[-1]


class Replaying:
    """The same answers again; the last one for whatever else is asked."""

    def __init__(self, answers: list[Response]) -> None:
        self._answers = answers
        self._at = 0

    async def request(self, request: Request) -> Response:
        self._at += 1
        return self._answers[min(self._at, len(self._answers)) - 1]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inside:
        yield from places(below, (*path, key))


def distorted(value: Any, path: tuple[Any, ...], odd: Any) -> Any:
    if not path:
        return odd
    changed = deepcopy(value)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = odd
    return changed


def variations(answers: list[Response]) -> Iterator[tuple[str, list[Response]]]:
    number = 0
    for at, answer in enumerate(answers):
        try:
            value = json.loads(answer.body)
        except ValueError:
            continue
        for path in places(value):
            for _ in range(EACH):
                number += 1
                odd = ODD[number % len(ODD)]
                body = json.dumps(distorted(value, path, odd)).encode()
                changed = Response(status=answer.status, headers=answer.headers, body=body)
                yield f"answer {at} {path} = {odd!r:.30}", [*answers[:at], changed, *answers[at + 1 :]]


async def calls(bench: IssuerUnderTest) -> dict[str, Call]:
    """Every call that a CA answers, each on an order that is where the call wants it."""
    issuer, now = bench.issuer, datetime.now(UTC)
    fresh, request, open_wish = (bench.wish(asked_at=now) for _ in range(3))
    placed = await issuer.place_order(request)
    leaf = leaf_of(await bench.completed(placed.ref, request)).public_bytes(Encoding.DER)
    bench.ca.approval, bench.ca.pending_looks = True, 10**9
    waiting = await issuer.place_order(open_wish)
    return {
        "probe": lambda each: each.probe(),
        "place": lambda each: each.place_order(fresh),
        "look at what is issued": lambda each: each.order_status(placed.ref, request),
        "look at what waits": lambda each: each.order_status(waiting.ref, open_wish),
        "find": lambda each: each.find_order(request),
        "revoke": lambda each: each.revoke(leaf, 4),
        **({"cancel": lambda each: each.cancel(waiting.ref)} if isinstance(issuer, Cancels) else {}),
    }


async def broken_by(call: Call, issuer: Issuer) -> Exception | None:
    try:
        await call(issuer)
    except (TryLater, Refused):
        return None
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("contestant", [each for each in CONTESTANTS if each.fake], ids=lambda each: each.name)
async def test_no_answer_breaks_an_issuer(contestant: Contestant, tmp_path: Path, transport: HttpTransport) -> None:
    problems, tried = [], 0
    async with contestant.open(tmp_path, transport) as bench:
        for name, call in (await calls(bench)).items():
            recording = Recording(transport)
            assert await broken_by(call, an_issuer(contestant.name, bench.ca, recording)) is None
            for what, answers in variations(recording.answers):
                tried += 1
                error = await broken_by(call, an_issuer(contestant.name, bench.ca, Replaying(answers)))
                problems += [] if error is None else [f"{name}: {what}: {error!r}"]
    assert problems == []
    assert tried > 30
