"""Asks the server: signs, tries its addresses in turn, and learns the time from it once if our clock is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from hashlib import sha256
from typing import Any

from cryptography import x509

from holdfast.agent.line import ANYBODY
from holdfast.core import base64url
from holdfast.core.agents import http_signature, protocol
from holdfast.errors import TryLater, UserError
from holdfast.pki import agent_keys
from holdfast.ports import Clock, Random, Request, Response, Transport


class ServerRefused(UserError):
    """The server said no, by a code."""

    def __init__(self, status: int, code: str, detail: str, retry_after: float | None) -> None:
        super().__init__(detail)
        self.status, self.code, self.retry_after = status, code, retry_after


class WrongPin(UserError):
    code = "wrong-pin"

    def __init__(self, url: str) -> None:
        super().__init__(f"The server at {url} does not show the root that the token names.")
        self.hint = "An attacker may sit in between, or the token is of another installation: make a new token."


@dataclass(frozen=True, slots=True, kw_only=True)
class Signer:
    """Whose signature a request carries."""

    agent: str
    generation: int
    key: Any


@dataclass(slots=True, kw_only=True)
class Server:
    """`offset` is what the server's clock is ahead of ours, as it told us; the local clock is never changed."""

    urls: Sequence[str]
    transport: Transport
    clock: Clock
    random: Random
    roots: bytes = b""
    offset: float = 0.0
    _first: int = field(default=0)

    async def ask(
        self, path: str, body: Mapping[str, Any], *, signer: Signer | None = None, within: float = 30.0
    ) -> dict[str, Any]:
        """The answer of the first address that answers. ServerRefused: by its code; TryLater: none could be reached."""
        try:
            return _good(await self._sent(path, body, signer, within))
        except ServerRefused as refused:
            if refused.code != "clock-skew" or signer is None:
                raise
        return _good(await self._sent(path, body, signer, within))  # once, by the server's clock

    async def _sent(self, path: str, body: Mapping[str, Any], signer: Signer | None, within: float) -> Response:
        content = json.dumps(body, separators=(",", ":")).encode()
        problem: TryLater | None = None
        for step in range(len(self.urls)):
            at = (self._first + step) % len(self.urls)
            try:
                answer = await self.transport.request(self._request(self.urls[at], path, content, signer, within))
            except TryLater as why:
                problem = why
                continue
            self._first = at
            self._learn(answer)
            return answer
        raise problem or TryLater("no address of the server is known", reason="UNREACHABLE")

    def _request(self, url: str, path: str, content: bytes, signer: Signer | None, within: float) -> Request:
        headers = {"Content-Type": "application/json"}
        if signer is not None:
            headers |= self._signature(path, content, signer)
        return Request(
            method="POST",
            url=url + path,
            headers=headers,
            body=content,
            deadline_for=within,
            max_body=protocol.LARGEST_ANSWER,
            roots=self.roots,
        )

    def _signature(self, path: str, content: bytes, signer: Signer) -> dict[str, str]:
        params = http_signature.SignatureParams(
            agent=signer.agent,
            generation=signer.generation,
            created=int(self.clock.now().timestamp() + self.offset),
            nonce=base64url.encode(self.random.token(18)),
            algorithm=agent_keys.algorithm_of(signer.key),
        )
        digest = http_signature.content_digest(content)
        base = http_signature.signature_base("POST", path, digest, params)
        return http_signature.headers(digest, params, agent_keys.sign(signer.key, base))

    def _learn(self, answer: Response) -> None:
        """Small differences are the way's; only a refusal for our clock makes us sign by the server's."""
        told = answer.headers.get("date", "")
        if answer.status == 401 and told and _code(answer) == "clock-skew":
            self.offset = (parsedate_to_datetime(told) - self.clock.now()).total_seconds()

    async def pinned_roots(self, pin: str) -> str:
        """The roots of the server, compared with the pin. Nothing is trusted, and nothing secret is sent."""
        problem: TryLater | None = None
        for url in self.urls:
            request = Request(method="GET", url=url + protocol.ROOTS, roots=ANYBODY, max_body=64 * 1024)
            try:
                roots = str(_good(await self.transport.request(request)).get("roots", ""))
            except TryLater as why:
                problem = why
                continue
            if not _has(roots, pin):
                raise WrongPin(url)
            return roots
        raise problem or TryLater("no address of the server is known", reason="UNREACHABLE")


def _has(roots: str, pin: str) -> bool:
    try:
        found = x509.load_pem_x509_certificates(roots.encode())
    except ValueError:
        return False
    return len(found) == 1 and sha256(agent_keys.public_der(found[0])).hexdigest() == pin


def _good(answer: Response) -> dict[str, Any]:
    body = _json(answer)
    if answer.status in (200, 202):
        return {**body, "status": answer.status, "retry_after": _later(answer)}
    code = str(body.get("code", "")) or f"http-{answer.status}"
    detail = str(body.get("detail", "")) or f"The server answered {answer.status}."
    raise ServerRefused(answer.status, code, detail[:500], _later(answer))


def _json(answer: Response) -> dict[str, Any]:
    try:
        found = json.loads(answer.body)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found
    if answer.status in (200, 202):
        raise TryLater("the server's answer is not of this protocol", reason="BAD_ANSWER")
    return {}


def _code(answer: Response) -> str:
    return str(_json(answer).get("code", ""))


def _later(answer: Response) -> float | None:
    text = answer.headers.get("retry-after", "")
    return float(text) if text.isdigit() and len(text) < 8 else None
