"""Codes of problems are all explained; an address is believed as far as the proxies are that bring it."""

import inspect
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from fastapi.routing import APIRoute

from holdfast.api import app  # with it, every error that the API can answer with
from holdfast.api.codes import OTHERS, SENTENCES, doc
from holdfast.api.origin import client_address, networks
from holdfast.api.problems import TITLES
from holdfast.errors import SettingRefused, UserError
from holdfast.pki.refused import PkiRefused
from holdfast.telemetry import SilentLog


def _below(cls: type[UserError]) -> Iterator[type[UserError]]:
    for each in cls.__subclasses__():
        if each is not PkiRefused and each is not SettingRefused:
            yield each
            yield from _below(each)


def test_every_code_that_an_answer_may_have_is_explained() -> None:
    faces = ("holdfast.api", "holdfast.operations", "holdfast.core")
    codes = {each.code for each in _below(UserError) if each.__module__.startswith(faces)}
    plain = {TITLES[status].lower().replace(" ", "-") for status in (404, 405, 413, 415)}
    assert codes | plain <= set(SENTENCES) | {"no-such-verb"}  # that one is of the local socket


def test_a_rule_of_names_and_keys_is_explained_with_its_kind() -> None:
    assert doc("stale") == "docs/reference/problems.md#stale"
    assert doc("name-is-address").endswith(f"#{OTHERS}")


# ── Repeated requests ──

API = app.site(lambda: None, SilentLog(), new_id=str, now=lambda: datetime(2030, 1, 1, tzinfo=UTC))
LOOKS = {"/desired/plan", "/issuers/{name}/test", "/channels/{name}/test", "/certificates/{ref}/export"}
ROUTES = [
    route
    for included in API.routes
    for route in getattr(getattr(included, "original_router", None), "routes", ())
    if isinstance(route, APIRoute)
]
CHANGES = {
    f"{method} {path}": route.endpoint
    for route in ROUTES
    if (path := re.sub(r":\w+}", "}", route.path)) not in LOOKS
    for method in sorted((route.methods or set()) - {"GET", "HEAD"})
}


def _keeps(endpoint: Any) -> bool:
    """Whether its answer is kept under a key: it, or what it calls in its own module, carries a change out."""
    text = inspect.getsource(endpoint)
    below = [getattr(inspect.getmodule(endpoint), name, None) for name in re.findall(r"\b(_\w+)\(", text)]
    return any("call.change(" in each for each in [text, *(inspect.getsource(one) for one in below if callable(one))])


def test_every_change_that_is_documented_is_looked_at() -> None:
    paths = API.openapi()["paths"]
    documented = {f"{method.upper()} {path}" for path, item in paths.items() if path not in LOOKS for method in item}
    assert set(CHANGES) == {each for each in documented if not each.startswith("GET ")}


@pytest.mark.parametrize("change", sorted(CHANGES))
def test_a_key_against_repetition_is_offered_where_it_is_kept_and_else_it_says_so(change: str) -> None:
    method, path = change.split()
    operation = API.openapi()["paths"][path][method.lower()]
    offered = "idempotency-key" in {each["name"].lower() for each in operation.get("parameters", [])}
    assert offered is _keeps(CHANGES[change])
    assert offered is not ("Idempotency-Key is not kept here" in operation.get("description", ""))


# ── Addresses ──

PROXIES = networks(["10.0.0.0/8", "2001:db8::/32"])


@pytest.mark.parametrize(
    ("peer", "forwarded", "found"),
    [
        ("192.0.2.1", ["198.51.100.7"], "192.0.2.1"),  # it is no proxy of ours
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.7"], "198.51.100.7"),
        ("10.0.0.1", ["203.0.113.9, 198.51.100.7"], "198.51.100.7"),  # the client wrote the first one itself
        ("10.0.0.1", ["203.0.113.9", "198.51.100.7, 10.9.9.9"], "198.51.100.7"),
        ("2001:db8::1", ["[2001:db8:1::2]:443, [2a00::1]:80"], "2a00::1"),
        ("10.0.0.1", ["198.51.100.7:4711"], "198.51.100.7"),
        ("10.0.0.1", ["10.0.0.2, 10.0.0.3"], "10.0.0.2"),  # all of them are ours
        ("10.0.0.1", ["198.51.100.7, nonsense\r\n"], "10.0.0.1"),
        ("10.0.0.1", ["unknown", ""], "10.0.0.1"),
        ("", ["198.51.100.7"], ""),  # a socket of this machine
    ],
)
def test_the_address_of_a_client(peer: str, forwarded: list[str], found: str) -> None:
    assert client_address(peer, forwarded, PROXIES) == found
