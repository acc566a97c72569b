"""Which policy refuses what: values in, values out."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.core.own_ca.acme import Identifier
from holdfast.core.policy import NameRequest, Policy, violation


def policy(name: str, *names: str, **more: Any) -> Policy:
    return Policy(name=name, names=names, created_at=datetime(2026, 1, 1, tzinfo=UTC), **more)


def asked(*names: str, **more: Any) -> NameRequest:
    return NameRequest(identifiers=[Identifier("dns", name) for name in names], **{"actor": "human:ann", **more})


A = policy("a", "*.a.example", "a.example", owners=("team-a",))
B = policy("b", "*.b.example", owners=("team-b",))
CI = policy("ci", "ci.a.example", tokens=("robot:ci",))
EC = policy("ec", "*", key_kinds=("ec-p256",))
SHORT = policy("short", "*.a.example", max_lifetime=timedelta(days=30))
BOUGHT = policy("bought", "*.a.example", owners=("team-a",), issuers=("le",))


@pytest.mark.parametrize(
    ("policies", "request_", "refusing"),
    [
        ([], asked("www.a.example"), None),
        ([A, B], asked("www.a.example", "a.example", owner="team-a"), None),
        ([A, B], asked("www.b.example", owner="team-a"), "b"),  # another's
        ([A, B], asked("www.c.example", owner="team-a"), "a"),  # nobody's, and team-a is confined
        ([A, B], asked("www.c.example", owner="team-c"), None),  # nobody's, and team-c is not
        ([A, B], asked("www.a.example", owner="team-c"), "a"),
        ([A, B], asked("www.a.example"), "a"),  # without an owner it is not team-a's
        ([A, B], asked("www.a.example", "www.b.example", owner="team-a"), "b"),  # one of them is enough
        ([A], asked("deep.below.a.example"), "a"),
        ([policy("one", "www.a.example", owners=("x",))], asked("*.a.example"), "one"),  # the wildcard is good for it
        ([policy("one", "deep.www.a.example", owners=("x",))], asked("*.a.example"), None),  # and not for this
        ([policy("one", "*.www.a.example", owners=("x",))], asked("*.a.example"), None),
        ([A, CI], asked("ci.a.example", owner="team-a", actor="robot:ci"), None),
        ([A, CI], asked("www.a.example", owner="team-a", actor="robot:ci"), "ci"),  # the token is confined further
        ([A, CI], asked("www.a.example", owner="team-a"), None),
        ([CI], asked("ci.a.example", actor="acme:acct_1"), "ci"),
        ([CI], asked("ci.a.example", actor=None), None),  # in use: who asked for it is not known
        ([A], asked("www.b.example", owner="team-a", actor=None), "a"),  # but whose it is
        ([EC], asked("www.a.example", key_kind="rsa-2048"), "ec"),
        ([EC], asked("www.a.example", key_kind="ec-p256"), None),
        ([EC], asked("www.a.example"), None),  # a key that is not known yet
        ([A, EC], asked("www.a.example", owner="team-a", key_kind="rsa-2048"), "ec"),
        ([SHORT], asked("www.a.example", lifetime=timedelta(days=31)), "short"),
        ([SHORT], asked("www.a.example", lifetime=timedelta(days=30)), None),
        ([SHORT], asked("www.a.example"), "short"),  # what the issuer would decide may be longer
        ([SHORT], asked("www.b.example"), None),
        ([BOUGHT], asked("www.a.example", owner="team-a", issuers=("le", "own")), "bought"),
        ([BOUGHT], asked("www.a.example", owner="team-a", issuers=("le",)), None),
        ([BOUGHT, A], asked("www.a.example", owner="team-a", issuers=("own",)), None),  # one that is met is enough
    ],
)
def test_a_policy_reserves_confines_and_conditions(
    policies: list[Policy], request_: NameRequest, refusing: str | None
) -> None:
    found = violation(policies, request_)
    assert (None if found is None else found.policy) == refusing


def test_a_violation_says_in_a_sentence_what_would_be_allowed() -> None:
    found = violation([A, B], asked("www.b.example", owner="team-a"))
    assert found is not None
    assert found.why == "www.b.example is reserved for owner team-b."
    found = violation([A], asked("www.c.example", owner="team-a"))
    assert found is not None
    assert found.why == "www.c.example is not among the names of owner team-a: *.a.example, a.example."
    found = violation([SHORT], asked("www.a.example"))
    assert found is not None
    assert found.why.endswith("at most 30 days: ask for that, with --lifetime 30d.")
    found = violation([replace(A, tokens=("robot:x",))], asked("www.a.example"))
    assert found is not None
    assert found.why == "www.a.example is reserved for owner team-a and token robot:x."
