"""Which CAA records let us issue (RFC 8659, RFC 8657)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.validators import caa
from holdfast.validators.caa import IssueValue, forbidden
from holdfast.validators.verdict import ChallengeToCheck
from holdfast.validators.wire import Property

OURS = frozenset({"ca.example", "ca2.example"})
ACCOUNT = "https://ca.example/acme/account/1"


def a_challenge(name: str = "www.example.internal", type_: str = "http-01") -> ChallengeToCheck:
    return ChallengeToCheck(
        type=type_, identifier_type="dns", identifier=name, token="t", thumbprint="k", account_url=ACCOUNT
    )


def records(*texts: str) -> list[Property]:
    """Written as `issue ca.example`, or `!issue …` if it is critical."""
    parts = [text.partition(" ") for text in texts]
    return [Property(tag.startswith("!"), tag.removeprefix("!"), value) for tag, _, value in parts]


@pytest.mark.parametrize(
    "texts",
    [
        [],
        ["issue ca.example"],
        ["issue CA.Example"],
        ["issue  \t ca.example \t "],
        ["issue ca2.example"],
        ["issue other.example", "issue ca.example"],
        ["issue ;", "issue ca.example"],
        ["iodef mailto:a@example.com"],
        ["!iodef mailto:a@example.com"],
        ["issuewild ;"],  # says nothing about names that are no wildcards
        ["issuewild other.example", "issue ca.example"],
        ["issuemail ;"],
        ["!issue ca.example"],
        ["unknown x"],  # not critical
        ["issue ca.example;"],
        ["issue ca.example; "],
        ["issue ca.example; unknown=1"],
        ["issue ca.example; unknown=1; unknown=2"],
        [f"issue ca.example; accounturi={ACCOUNT}"],
        [f"issue ca.example;accounturi={ACCOUNT};validationmethods=http-01"],
        [f"issue ca.example; AccountURI={ACCOUNT}"],
        [f"issue ca.example; accounturi = {ACCOUNT}"],
        ["issue ca.example; validationmethods=http-01"],
        ["issue ca.example; validationmethods=dns-01,http-01,ca-1"],
        ["issue ca.example; validationmethods=dns-01", "issue ca.example; validationmethods=http-01"],
        ["issue ca.example; accounturi=https://other", "issue ca2.example"],
    ],
    ids=str,
)
def test_these_let_us_issue(texts: list[str]) -> None:
    assert forbidden(records(*texts), a_challenge(), OURS) is None


@pytest.mark.parametrize(
    "texts",
    [
        ["issue ;"],
        ["issue "],
        ["issue other.example"],
        ["issue ca.example.evil.example"],
        ["issue xca.example"],
        ["issue example"],
        ["issue %%%%"],
        ["issue ca.example ca2.example"],
        ["issue ca..example"],
        ["issue -ca.example"],
        ["issue ca.example."],
        ["issue ca.example; ="],
        ["issue ca.example; accounturi"],
        ["issue ca.example; a=b;"],  # the grammar has no parameter after the last semicolon
        ["issue ca.example;;"],
        ["issue ca.example; a=b c"],
        ["issue ca.example; -a=b"],
        ["issue ca.example; a=\xe9"],
        ["issue ca.example; accounturi=https://ca.example/acme/account/2"],
        ["issue ca.example; accounturi="],
        [f"issue ca.example; accounturi={ACCOUNT}/"],
        [f"issue ca.example; accounturi={ACCOUNT.upper()}"],
        [f"issue ca.example; accounturi={ACCOUNT}; accounturi={ACCOUNT}"],
        [f"issue ca.example; accounturi={ACCOUNT}; accounturi=https://other"],
        ["issue ca.example; validationmethods=dns-01"],
        ["issue ca.example; validationmethods="],
        ["issue ca.example; validationmethods=HTTP-01"],
        ["issue ca.example; validationmethods=xhttp-01"],
        ["issue ca.example; validationmethods=http-01; validationmethods=http-01"],
        [f"issue ca.example; accounturi={ACCOUNT}; validationmethods=dns-01"],
        ["!tbs x"],
        ["!tbs x", "issue ca.example"],
        ["!future ", "iodef mailto:a@example.com"],
    ],
    ids=str,
)
def test_these_forbid_it(texts: list[str]) -> None:
    assert forbidden(records(*texts), a_challenge(), OURS)


@pytest.mark.parametrize(
    ("texts", "allowed"),
    [
        (["issue ca.example"], True),  # where nothing is said about wildcards, issue counts
        (["issue ;"], False),
        (["issuewild ca.example"], True),
        (["issuewild ;"], False),
        (["issue ca.example", "issuewild ;"], False),
        (["issue ;", "issuewild ca.example"], True),
        (["issue ca.example", "issuewild other.example"], False),
        (["issuewild other.example", "issuewild ca2.example"], True),
        (["issue ca.example", "issuewild %%%"], False),
        (["iodef mailto:a@example.com"], True),
        (["issuewild ca.example; validationmethods=dns-01"], True),
        (["issuewild ca.example; validationmethods=http-01"], False),
    ],
    ids=str,
)
def test_a_wildcard_is_a_matter_of_issuewild_if_there_is_one(texts: list[str], allowed: bool) -> None:
    challenge = a_challenge("*.example.internal", "dns-01")
    assert (forbidden(records(*texts), challenge, OURS) is None) is allowed


# ── the grammar ──


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", IssueValue("")),
        (";", IssueValue("")),
        (" ; ", IssueValue("")),
        ("; a=1", IssueValue("", (("a", "1"),))),
        ("Ca.Example", IssueValue("ca.example")),
        ("ca--1.example", IssueValue("ca--1.example")),
        ("ca.example;a=1;\tB-c = x:y/z,~ ", IssueValue("ca.example", (("a", "1"), ("b-c", "x:y/z,~")))),
        ("ca.example; a=", IssueValue("ca.example", (("a", ""),))),
        ("ca.example; a=b=c", IssueValue("ca.example", (("a", "b=c"),))),
    ],
)
def test_a_value_is_parsed_by_the_grammar(text: str, expected: IssueValue) -> None:
    assert caa.parse_issue_value(text) == expected


@pytest.mark.parametrize(
    "text", ["ca-.example", "ca.example-", "a b", "ca.example; a", "ca.example; a=1 b=2", "ca_1.example", ";;", "a\n"]
)
def test_a_value_outside_the_grammar_is_none(text: str) -> None:
    assert caa.parse_issue_value(text) is None


@given(st.text(alphabet=st.characters(max_codepoint=255)))
def test_any_text_is_a_value_or_none(text: str) -> None:
    caa.parse_issue_value(text)


def test_a_long_value_does_not_take_long() -> None:
    """Sixty thousand hyphens: a pattern that backtracks would take minutes."""
    assert caa.parse_issue_value("a" + "-" * 60_000) is None
    assert caa.parse_issue_value("a.b" * 20_000 + "!") is None
    assert caa.parse_issue_value("ca.example; " + "a-" * 30_000 + "=") is None
