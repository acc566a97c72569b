"""Answers to ACME clients: a status, headers, a body, and a function to call once they are sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from math import ceil
from typing import Any, Final

from holdfast.core.own_ca.problem import Problem

Header = tuple[bytes, bytes]

JSON: Final = b"application/json"
PROBLEM: Final = b"application/problem+json"
CLOSE: Final[Header] = (b"connection", b"close")
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"))
_CHALLENGE: Final[Header] = (b"www-authenticate", b"JWS")  # RFC 9110 §15.5.2: a 401 names a way to do better


@dataclass(frozen=True, slots=True)
class AcmeAnswer:
    status: int
    body: bytes = b""
    media: bytes = JSON
    headers: tuple[Header, ...] = ()
    note: str = ""  # travels in the nonce of this answer, and comes back with the client that received it
    sent: Callable[[], None] | None = None  # called when the last byte was handed to the connection


class AcmeRefusal(Exception):
    """A problem that needs headers of its own, such as Allow."""

    def __init__(self, problem: Problem, *headers: Header) -> None:
        super().__init__(problem.detail)
        self.problem = problem
        self.headers = headers


def json_answer(content: dict[str, Any], *headers: Header, status: int = 200) -> AcmeAnswer:
    return AcmeAnswer(status, to_json(content), JSON, headers)


def problem_answer(problem: Problem, *headers: Header) -> AcmeAnswer:
    extra = list(headers)
    if problem.retry_after is not None:
        extra.append(retry_after(problem.retry_after))
    if problem.status == 401:
        extra.append(_CHALLENGE)
    if problem.type == "userActionRequired":  # §7.3.3
        extra.append(link(problem.instance, "terms-of-service"))
    return AcmeAnswer(problem.status, to_json(problem.to_json()), PROBLEM, tuple(extra))


def to_json(content: dict[str, object]) -> bytes:
    return _ENCODER.encode(content).encode()


# ── Headers ──


def link(url: str, relation: str) -> Header:
    return b"link", f'<{url}>;rel="{relation}"'.encode()


def location(url: str) -> Header:
    return b"location", url.encode()


def retry_after(seconds: float) -> Header:
    """Always as a number of seconds: clients read that, and dates only sometimes."""
    return b"retry-after", b"%d" % max(ceil(seconds), 1)


def rfc3339(at: datetime) -> str:
    """In whole seconds; every instant here is in UTC."""
    return at.isoformat()[:19] + "Z"
