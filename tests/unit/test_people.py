"""Rules about people who log in: where a log-in leads to, and the address of the pages."""

import pytest

from holdfast.core.people import local_path
from holdfast.core.public_address import PublicAddress, refusal


@pytest.mark.parametrize(
    "text",
    [
        "//evil.test", "/\\evil.test", "\\/evil.test", "https://evil.test", "javascript:alert(1)", "/\t/evil.test",
        "/a\nb", "/a b", " /", "", "evil", "/a\\b", "/login", "/login?next=/", "/login/link/x", "/é", "/" + "a" * 3000,
        None,
    ],
)  # fmt: skip
def test_a_log_in_leads_to_paths_of_this_site_only(text: str | None) -> None:
    assert local_path(text) == "/"


@pytest.mark.parametrize("text", ["/", "/certificates?state=failing&sort=-x", "/a//b", "/%09/evil.test", "/a#b"])
def test_a_path_of_this_site_is_kept(text: str) -> None:
    assert local_path(text) == text


@pytest.mark.parametrize(
    ("url", "origins"),
    [
        ("https://holdfast.test", {"https://holdfast.test"}),
        ("http://localhost:1", {"http://localhost:1", "http://127.0.0.1:1", "http://[::1]:1"}),
        ("http://[::1]:1", {"http://localhost:1", "http://127.0.0.1:1", "http://[::1]:1"}),
    ],
)
def test_an_address_has_the_origins_that_browsers_send(url: str, origins: set[str]) -> None:
    assert PublicAddress(url).origins == origins
    assert refusal(url) is None


def test_pages_without_tls_are_for_this_machine_only() -> None:
    assert refusal("http://holdfast.test") is not None


@pytest.mark.parametrize(
    ("url", "takes"),
    [("https://a.test", True), ("http://localhost:1", True), ("https://192.0.2.1", False), ("http://127.0.0.1", False)],
)
def test_passkeys_need_a_name_and_tls(url: str, *, takes: bool) -> None:
    assert PublicAddress(url).takes_passkeys is takes
