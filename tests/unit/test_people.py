"""Rules about people who log in: where a log-in leads to, and the address of the pages."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import totp
from holdfast.core.client import browser_name
from holdfast.core.people import OF_NAME, WINDOW, local_path
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


# ── Codes of an app ──


@pytest.mark.parametrize(
    ("at", "code"), [(59, "287082"), (1111111109, "081804"), (1234567890, "005924"), (2000000000, "279037")]
)
def test_codes_are_those_of_rfc_6238(at: int, code: str) -> None:
    """Appendix B, the last six of its eight digits."""
    assert totp.code_at(b"12345678901234567890", at // totp.STEP) == code


NOW = datetime(2026, 11, 18, 11, 32, 10, tzinfo=UTC)
KEY = bytes(range(20))


@pytest.mark.parametrize(("steps", "good"), [(-2, False), (-1, True), (0, True), (1, True), (2, False)])
def test_a_phones_clock_may_be_off_by_one_step(steps: int, *, good: bool) -> None:
    given = totp.code_at(KEY, totp.step_of(NOW) + steps)
    assert (totp.matching_step(KEY, given, NOW) is not None) is good


def test_a_code_of_a_step_that_was_used_is_refused() -> None:
    step = totp.step_of(NOW)
    assert totp.matching_step(KEY, totp.code_at(KEY, step), NOW, after=step) is None
    assert totp.matching_step(KEY, totp.code_at(KEY, step + 1), NOW, after=step) == step + 1


@pytest.mark.parametrize("text", ["", "abc", "AAAA", "1" * 32, "é" * 32])
def test_a_key_that_is_none_is_refused(text: str) -> None:
    assert totp.of_text(text) is None


def test_a_key_survives_being_typed() -> None:
    assert totp.of_text(totp.as_text(KEY)) == KEY
    assert "secret=" in totp.uri(KEY, name="al ice", host="a.test")


# ── Guessing ──


def test_waits_grow_up_to_a_bound_and_end() -> None:
    now, seen, waits = NOW, None, []
    for _ in range(20):
        seen = OF_NAME.after(seen, "name:x", now)
        waits.append((seen.refused_until - now).total_seconds())
        now = seen.refused_until
    assert waits[:8] == [0, 0, 0, 0, 0, 2, 4, 8]
    assert max(waits) == waits[-1] == 60
    later = OF_NAME.after(seen, "name:x", now + WINDOW)
    assert later.failures == 1


@given(st.lists(st.integers(0, 3600), max_size=60))
def test_no_rhythm_of_guesses_is_quicker_than_the_bound_allows(gaps: list[int]) -> None:
    """Whatever the pauses between them: in any quarter of an hour only so many guesses of a name are judged."""
    now, seen, judged = NOW, None, []
    for gap in gaps:
        now += timedelta(seconds=gap)
        if seen is None or now >= seen.refused_until:
            seen = OF_NAME.after(seen, "name:x", now)
            judged.append(now)
    for start in judged:
        assert sum(start <= each < start + WINDOW for each in judged) <= 2 * (OF_NAME.free + 6 + 15)


# ── Browsers ──


@pytest.mark.parametrize(
    ("agent", "name"),
    [
        ("Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/141.0.0.0 Safari/537.36",
         "Chrome 141 on Linux"),
        ("Mozilla/5.0 (Windows NT 10.0; Win64; x64) Chrome/141.0 Safari/537.36 Edg/141.0", "Edge 141 on Windows"),
        ("Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0", "Firefox 140 on Linux"),
        ("Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) Version/18.0 Safari/604.1", "Safari 18 on iPhone"),
        ("curl/8.1\x1b[31m", "curl/8.1[31m"),
        ("", ""),
    ],
)  # fmt: skip
def test_browsers_are_called_as_people_call_them(agent: str, name: str) -> None:
    assert browser_name(agent) == name
