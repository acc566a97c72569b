"""What may be written as a setting of a CA: whatever cannot be used is refused by its name, and never ignored."""

from typing import Any

import pytest

from holdfast.core.issuers import ca_limits
from holdfast.engine.issuance import issuer_factory
from holdfast.secret import Secret

DIRECTORY = "https://ca.example/directory"
KEY = {"eab_key": Secret(b"zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W")}
ZEROSSL = "https://acme.zerossl.com/v2/DV90"
GOOGLE = "https://dv.acme-v02.api.pki.goog/directory"


def check(settings: dict[str, Any], credentials: Any = (), kind: str = "acme") -> None:
    issuer_factory.check(kind, {"directory": DIRECTORY, **settings} if kind == "acme" else settings, credentials)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ca_bundle": "x"}, "there is no setting 'ca_bundle'"),
        ({"pol_max_wait_seconds": 5}, "there is no setting 'pol_max_wait_seconds'"),
        ({"roots": "garbage"}, "roots is not a list of certificates"),
        ({"roots": 5}, "roots is not a list of certificates"),
        ({"request_timeout_seconds": "x"}, "request_timeout_seconds must be"),
        ({"request_timeout_seconds": True}, "request_timeout_seconds must be"),
        ({"directory": "http://1.2.3.4/d"}, "directory must begin with https://"),
        ({"directory": "file:///etc/passwd"}, "directory is not an https address"),
        ({"directory": "https://user:secret@ca.example/"}, "directory is not an https address"),
        ({"directory": ""}, "directory is missing"),
        ({"hosts": "other.example"}, "hosts must be a list"),
        ({"hosts": ["https://other.example/"]}, "hosts must be a list"),
        ({"contacts": "ops@example.com"}, "contacts must be a list"),
        ({"contacts": ["nobody"]}, "contacts must be a list"),
        ({"terms_agreed": "yes"}, "terms_agreed must be true or false"),
        ({"eab_key": "c2VjcmV0"}, "eab_key is a credential, and not a setting"),
        ({"eab_kid": "kid-1"}, "the credential eab_key is missing"),
    ],
    ids=str,
)
def test_a_setting_of_an_acme_ca_that_cannot_be_used_is_named(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said) as why:
        check(settings)
    assert "secret" not in str(why.value)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"hosts": ["other.example", "third.example:8443"], "contacts": ["ops@example.com", "mailto:b@example.com"]},
        {"terms_agreed": False, "request_timeout_seconds": 5, "approval_required": True, "poll_max_wait_seconds": 60},
        {"limits": {"orders": [300, 36]}},
    ],
    ids=["plain", "lists", "others", "limits"],
)
def test_settings_of_an_acme_ca_that_can_be_used_are_let_through(settings: dict[str, Any]) -> None:
    check(settings)


@pytest.mark.parametrize(
    ("credentials", "said"),
    [
        ({"eab_key": Secret(b"not base64 !!")}, "eab_key is not base64url"),
        ({"eab_key": Secret(b"short")}, "eab_key is not base64url"),
        ({"api_key": Secret(b"x")}, "there is no credential 'api_key'; there are eab_key"),
    ],
    ids=["odd", "short", "other"],
)
def test_a_binding_that_cannot_be_used_is_named(credentials: dict[str, Secret[bytes]], said: str) -> None:
    with pytest.raises(ValueError, match=said) as why:
        check({"eab_kid": "kid-1"}, credentials)
    assert "!!" not in str(why.value)


def test_a_binding_is_let_through_by_its_value_and_later_by_its_name() -> None:
    check({"eab_kid": "kid-1"}, KEY)
    check({"eab_kid": 4711}, {"eab_key": "secret_01"})  # as a row has it: the id of what is kept
    check({}, KEY)  # whoever adds both to a CA that is there gives the key first


@pytest.mark.parametrize("directory", [ZEROSSL, GOOGLE])
def test_a_ca_that_makes_no_account_without_a_binding_says_so_before_it_is_added(directory: str) -> None:
    with pytest.raises(ValueError, match=r"eab_kid is missing: (ZeroSSL|Google) .* external account binding"):
        check({"directory": directory})
    with pytest.raises(ValueError, match="the credential eab_key is missing"):
        check({"directory": directory, "eab_kid": "kid-1"})
    check({"directory": directory, "eab_kid": "kid-1"}, KEY)


def test_a_misspelt_setting_of_our_own_ca_is_named() -> None:
    check({"ca": "default"}, kind="local")
    with pytest.raises(ValueError, match="there is no setting 'cas'"):
        check({"cas": "default"}, kind="local")


# ── Of all kinds ──

SECTIGO = {"customer_uri": "x", "login": "api", "org_id": 1, "cert_type": 2, "term": 365}


def test_a_number_is_a_text_where_a_text_is_wanted() -> None:
    check({**SECTIGO, "login": 12345}, ["password"], "sectigo")
    with pytest.raises(ValueError, match="login is not well-formed"):
        check({**SECTIGO, "login": True}, ["password"], "sectigo")


@pytest.mark.parametrize(("kind", "name"), [("digicert", "api_key"), ("sectigo", "password"), ("vault", "token")])
def test_a_credential_among_the_settings_is_said_to_be_one_and_how_it_is_given(kind: str, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is a credential, .* --credential {name}=FILE") as why:
        check({name: "hunter2"}, kind=kind)
    assert "hunter2" not in str(why.value)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (7, "limits is 7, and must be a table"),
        ({"order": [1, 1]}, "there is no limit 'order'; there are requests, orders"),
        ({"per_domain": ["a", 1]}, "per_domain is"),
        ({"orders": [1]}, "orders is"),
        ({"orders": [0, 1]}, "orders is"),
        ({"orders": [1, 0]}, "orders is"),
        ({"orders": [1, float("nan")]}, "orders is"),
        ({"max_names": "many"}, "max_names is 'many'"),
        ({"answers": 0}, "answers is 0"),
    ],
    ids=str,
)
def test_limits_that_cannot_be_used_are_named(limits: object, said: str) -> None:
    assert (ca_limits.problem_with(limits) or "").startswith(said)


@pytest.mark.parametrize("limits", [None, {}, {"orders": None}, {"requests": [20, 0.05], "max_names": 25}], ids=str)
def test_limits_that_can_be_used_are_let_through(limits: object) -> None:
    assert ca_limits.problem_with(limits) is None
