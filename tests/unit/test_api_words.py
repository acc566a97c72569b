"""Codes of problems are all explained; an address is believed as far as the proxies are that bring it."""

from collections.abc import Iterator

import pytest

from holdfast.api import app as app  # with it, every error that the API can answer with
from holdfast.api import openapi
from holdfast.api.codes import OTHERS, SENTENCES, doc
from holdfast.api.problems import TITLES
from holdfast.core.client import client_address, networks
from holdfast.errors import SettingRefused, UserError
from holdfast.operations import catalog
from holdfast.operations.operation import Operation
from holdfast.pki.refused import PkiRefused


def _below(cls: type[UserError]) -> Iterator[type[UserError]]:
    for each in cls.__subclasses__():
        if each is not PkiRefused and each is not SettingRefused:
            yield each
            yield from _below(each)


def test_every_code_that_an_answer_may_have_is_explained() -> None:
    faces = ("holdfast.api", "holdfast.operations", "holdfast.core")
    codes = {each.code for each in _below(UserError) if each.__module__.startswith(faces)}
    plain = {TITLES[status].lower().replace(" ", "-") for status in (404, 405, 413, 415)}
    assert codes | plain <= set(SENTENCES)


def test_a_rule_of_names_and_keys_is_explained_with_its_kind() -> None:
    assert doc("stale") == "docs/reference/problems.md#stale"
    assert doc("name-is-address").endswith(f"#{OTHERS}")


# ── Repeated requests ──

CHANGES = [each for each in catalog.declared() if each.changes and each.dry_runs]


@pytest.mark.parametrize("change", CHANGES, ids=lambda each: each.name)
def test_a_key_against_repetition_is_offered_where_it_is_kept_and_else_it_says_so(change: Operation) -> None:
    said = openapi.whole()["paths"][change.path][change.method.lower()]
    offered = "idempotency-key" in {each["name"].lower() for each in said.get("parameters", [])}
    assert offered is change.keyed
    assert (
        offered
        or change.method == "DELETE"
        or "Idempotency-Key is not kept here" in " ".join(said.get("description", "").split())
    )


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
