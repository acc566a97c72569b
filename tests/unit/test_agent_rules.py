"""Agents: their states, sessions, tokens and signatures, as values."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.core import base64url
from holdfast.core.agents import http_signature
from holdfast.core.agents.agent import (
    MOVES,
    AgentIdentity,
    AgentRow,
    AgentState,
    Evidence,
    identity_refusal,
    judge_session,
    move,
    recovery_refusal,
    renew_at,
)
from holdfast.core.agents.http_signature import SignatureParams, content_digest, parsed, signature_base
from holdfast.core.agents.token_text import BadToken, TokenText, decoded
from holdfast.errors import IllegalMove
from holdfast.pki import agent_keys
from holdfast.pki.refused import KeyRefused
from holdfast.secret import Secret

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ROW = AgentRow(id="agent_1", name="edge", binding_key="", binding_sha256="", created_at=NOW, changed_at=NOW)
TOKEN = TokenText(urls=("https://pki.example.com:8631",), pin="ab" * 32, id="at_1", secret=bytes(range(32)))


def test_a_retired_agent_stays_retired_and_a_banned_one_can_be_let_in() -> None:
    assert not [state for state, _ in MOVES if state is AgentState.RETIRED]
    assert move(AgentState.BANNED, "unbanned") is AgentState.ACTIVE
    with pytest.raises(IllegalMove):
        move(AgentState.ACTIVE, "approved")


def test_a_session_that_comes_back_after_another_is_a_copy_and_one_that_was_on_its_way_is_late() -> None:
    row = replace(ROW, session="new", earlier=("old",), session_since=NOW)
    after, before = int(NOW.timestamp()) + 1, int(NOW.timestamp()) - 1
    assert judge_session(row, "new", after) == "same"
    assert judge_session(row, "third", after) == "new"
    assert judge_session(row, "old", after) == "clone"
    assert judge_session(row, "old", before) == "late"


def test_an_identity_is_refused_once_a_newer_one_was_used_and_not_before() -> None:
    first = AgentIdentity(
        agent="agent_1", generation=1, spki="", order_id="", not_after=NOW + timedelta(days=1), created_at=NOW
    )
    assert identity_refusal(replace(ROW, generation=2, used_generation=1), first, NOW) is None
    refused = identity_refusal(replace(ROW, generation=2, used_generation=2), first, NOW)
    assert refused is not None
    assert refused.code == "identity-superseded"
    late = identity_refusal(ROW, first, NOW + timedelta(days=90))
    assert late is not None
    assert late.code == "identity-expired"


def test_recovery_is_refused_on_another_host_and_when_it_was_used_up() -> None:
    here, there = Evidence(machine="a", product="b"), Evidence(machine="c", product="d")
    row = replace(ROW, evidence={"machine": "a", "product": "b"})
    assert recovery_refusal(row, here) is None
    assert recovery_refusal(row, replace(there, product="b")) is None  # a new disk in the same machine
    assert [getattr(recovery_refusal(row, there), "code", ""), _code(replace(row, recoveries_left=0), here)] == [
        "another-host",
        "recoveries-used",
    ]
    assert _code(replace(row, state=AgentState.BANNED), here) == "banned"


def _code(row: AgentRow, evidence: Evidence) -> str:
    return getattr(recovery_refusal(row, evidence), "code", "")


def test_an_identity_is_renewed_about_half_of_its_life_after_it_was_issued() -> None:
    week = timedelta(days=7)
    assert renew_at(NOW, week, 0) == NOW + week / 2
    assert renew_at(NOW, week, -1) == NOW + week / 2 * 0.9
    assert renew_at(NOW, week, 1) == NOW + week / 2 * 1.1


def test_evidence_keeps_bounded_texts_only() -> None:
    read = Evidence.read({"hostname": "a" * 1000 + "\n", "boot": 7, "unknown": "x", "system": "x\x1b[2J"})
    assert (len(read.hostname), read.boot, read.system) == (128, "", "x[2J")
    assert Evidence.read(["no", "mapping"]) == Evidence()


def test_a_token_is_read_as_it_was_written() -> None:
    assert decoded(f"  {TOKEN.encoded()}\n") == TOKEN
    assert "secret" not in repr(TOKEN)


@pytest.mark.parametrize(
    "text",
    ["", "hfa1.", "hfa1.e30", "hfa2.x", "hf_x", "hfa1." + "A" * 5000, TOKEN.encoded()[:-1],
     replace(TOKEN, urls=("http://plain.example.com",)).encoded(), replace(TOKEN, pin="x").encoded(),
     replace(TOKEN, secret=b"short").encoded(), replace(TOKEN, urls=()).encoded()],
)  # fmt: skip
def test_a_text_that_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(BadToken):
        decoded(text)


@pytest.mark.parametrize("key", [agent_keys.new_identity(), agent_keys.new_binding()], ids=["P-256", "Ed25519"])
def test_a_signed_request_is_verified_and_any_change_of_it_is_noticed(key: agent_keys.Signs) -> None:
    params = SignatureParams(
        agent="agent_" + "0" * 26, generation=3, created=1_893_456_000, nonce="n" * 24,
        algorithm=agent_keys.algorithm_of(key),
    )  # fmt: skip
    digest = content_digest(b"{}")
    signature = agent_keys.sign(key, signature_base("POST", "/agent/v1/poll", digest, params))
    sent = http_signature.headers(digest, params, signature)
    found = parsed(sent["Signature-Input"], sent["Signature"])
    assert found is not None
    assert found.params == params
    public = agent_keys.read_public(agent_keys.public_der(key))

    def good(method: str, path: str, body: bytes, told: SignatureParams) -> bool:
        return agent_keys.verifies(public, found.signature, signature_base(method, path, content_digest(body), told))

    assert good("POST", "/agent/v1/poll", b"{}", params)
    assert not good("GET", "/agent/v1/poll", b"{}", params)
    assert not good("POST", "/agent/v1/renew", b"{}", params)
    assert not good("POST", "/agent/v1/poll", b"{ }", params)
    assert not good("POST", "/agent/v1/poll", b"{}", replace(params, created=params.created + 1))
    assert not good("POST", "/agent/v1/poll", b"{}", replace(params, generation=4))


@pytest.mark.parametrize(
    ("signature_input", "signature"),
    [("", ""), ("agent=()", "agent=:AAAA:"), ('sig1=("@method");created=1', "sig1=:AA==:"), ("agent=" * 5000, "")],
)
def test_signatures_of_another_form_are_none_of_ours(signature_input: str, signature: str) -> None:
    assert parsed(signature_input, signature) is None


def test_what_is_sealed_opens_for_its_agent_and_purpose_alone() -> None:
    key, other = agent_keys.new_sealing(), agent_keys.new_sealing()
    sealed = agent_keys.seal(Secret(b"a key"), agent_keys.public_der(key), purpose="item_1")
    assert b"a key" not in sealed
    assert agent_keys.unseal(sealed, key, purpose="item_1") == Secret(b"a key")
    for wrong, purpose in ((other, "item_1"), (key, "item_2")):
        with pytest.raises(KeyRefused):
            agent_keys.unseal(sealed, wrong, purpose=purpose)


def test_base64url_has_one_text_for_octets() -> None:
    assert base64url.decode(base64url.encode(b"\xff\xfe\x00")) == b"\xff\xfe\x00"
    for text in ("A", "AB==", "A B", "+/+/", "AB"):
        with pytest.raises(ValueError, match=r".+"):
            base64url.decode(text)
