"""Reading the body of a request: no larger than the limit, and no slower than patience allows."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.types import Receive

from holdfast.acme.answer import CLOSE, Refusal
from holdfast.acme.jws import MAX_BODY
from holdfast.core.problem import AcmeError

PATIENCE: Final = 10.0  # seconds for the whole body


class Gone(Exception):
    """The client left before it had said what it wanted."""


async def read(receive: Receive, length: bytes | None, *, patience: float = PATIENCE) -> bytes:
    """The body, in however many pieces it comes. `length` is what the client says it will be."""
    if length is not None and (not length.isdigit() or len(length) > 9 or int(length) > MAX_BODY):
        raise _too_large()
    try:
        async with asyncio.timeout(patience):
            return await _pieces(receive)
    except TimeoutError:
        problem = AcmeError.malformed(f"The body did not arrive within {patience:g} s.", status=408).problem
        raise Refusal(problem, CLOSE) from None


async def _pieces(receive: Receive) -> bytes:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise Gone
    body: bytes = message.get("body", b"")
    while message.get("more_body", False) and len(body) <= MAX_BODY:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        body += message.get("body", b"")
    if len(body) > MAX_BODY:
        raise _too_large()
    return body


def _too_large() -> Refusal:
    """The rest of it is not read: the connection ends."""
    problem = AcmeError.malformed(f"A request has at most {MAX_BODY} bytes.", status=413).problem
    return Refusal(problem, CLOSE)
