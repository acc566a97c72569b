"""http-01 (RFC 8555 §8.3): the key authorization is what a web server of that name, or address, answers with.

Redirects are followed as Boulder follows them: ten at most, on the two ports alone, each hop checked like the first.
"""

from __future__ import annotations

import hmac
from typing import Final

from holdfast.ports import Tls
from holdfast.validators import fetch
from holdfast.validators.dialer import SafeDialer
from holdfast.validators.fetch import Reply
from holdfast.validators.location import Place, Ports, follow
from holdfast.validators.verdict import Challenge, Failed, Trace

MAX_REDIRECTS: Final = 10
MAX_SHOWN: Final = 64  # characters of a wrong answer that we repeat
REDIRECTS: Final = frozenset({301, 302, 307, 308})


async def check(challenge: Challenge, dialer: SafeDialer, ports: Ports, user_agent: str, trace: Trace) -> None:
    """Return if the proof is there; Failed if not."""
    if challenge.wildcard:
        raise Failed("rejectedIdentifier", "A wildcard cannot be proved by http-01 (RFC 8555 §7.1.3).")
    path = f"/.well-known/acme-challenge/{challenge.token}"
    place = Place(https=False, host=challenge.identifier, port=ports.http, target=path)
    seen = set[str]()
    while True:
        trace.hops.append(place.url)
        reply, private = await _get(place, dialer, user_agent, trace)
        if reply.status not in REDIRECTS:
            break
        seen.add(place.url)
        place = follow(place, reply.location, ports)
        if place.url in seen:
            raise Failed("connection", f"{place.url} redirects back to itself.")
        if len(seen) > MAX_REDIRECTS:
            raise Failed("connection", f"There are more than {MAX_REDIRECTS} redirects.")
    _judge(reply, challenge.key_authorization, place.url, show=not private and not seen)


async def _get(place: Place, dialer: SafeDialer, user_agent: str, trace: Trace) -> tuple[Reply, bool]:
    tls = Tls(server_name=place.server_name) if place.https else None
    line = await dialer.connect(place.host, place.port, trace, tls=tls)
    try:
        return await fetch.get(line.stream, place, user_agent), line.private
    finally:
        line.stream.close()


def _judge(reply: Reply, expected: str, url: str, *, show: bool) -> None:
    if reply.status != 200:
        raise Failed("incorrectResponse", f"{url} answered with status {reply.status} instead of 200.")
    if reply.cut_off:
        raise Failed("incorrectResponse", f"{url} answered with more than {fetch.MAX_BODY} bytes.")
    # Trailing whitespace is to be ignored, says §8.3: many write the file with an editor.
    if not hmac.compare_digest(reply.body.rstrip(), expected.encode()):
        raise Failed("incorrectResponse", f"{url} did not answer with the key authorization{_shown(reply, show)}.")


def _shown(reply: Reply, show: bool) -> str:
    """A few characters, if they are anybody's to read: others may make us fetch what only we can."""
    if not show:
        return ""
    text = "".join(chr(c) if 0x20 <= c < 0x7F else "?" for c in reply.body[:MAX_SHOWN])
    return f', but with "{text}"'
