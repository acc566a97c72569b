"""What others wrote into names and errors is harmless in every channel."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hostile_texts import HOSTILE
from tests.support.messages import a_message

from holdfast.core.notifications.notification import DIGEST_LINES
from holdfast.notifiers.rendering import for_slack, in_header, plain, render, unmarked, without_functions

cases = pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())


def _unseen(text: str) -> list[str]:
    return [char for char in text if unicodedata.category(char)[0] in "CZ" and char != " "]


@cases
def test_only_one_line_of_visible_characters_is_left(text: str) -> None:
    shown = plain(text)
    assert _unseen(shown) == []
    assert len(shown) <= 600
    assert shown == shown.strip()
    shown.encode("utf-8")


@cases
def test_no_address_in_it_can_be_followed(text: str) -> None:
    assert "://" not in plain(text)


@cases
def test_slack_sees_no_markup(text: str) -> None:
    shown = for_slack(plain(text))
    assert not {"<", ">"} & set(shown)
    assert "@everyone" not in shown


@cases
def test_channels_of_html_or_markdown_see_none(text: str) -> None:
    shown = unmarked(plain(text))
    assert not set("<>[]`|&~") & set(shown)
    assert "@here" not in shown


@cases
def test_a_header_holds_no_encoded_word(text: str) -> None:
    assert "=?" not in in_header(plain(text))


@cases
def test_cards_see_no_function(text: str) -> None:
    shown = without_functions(plain(text))
    assert "{{" not in shown
    assert "${" not in shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("*.example.com", "*.example.com"),
        ("my_host-1.example.com", "my_host-1.example.com"),
        ("bücher.example", "bücher.example"),
        ("The CA refused: no such order.", "The CA refused: no such order."),
        ("contact admin@example.com", "contact admin@example.com"),
        ("a\u202eb", "a\\u202eb"),
        ("a\U000e0041b", "a\\U000e0041b"),
        ("a\u3164b\u2800", "a\\u3164b\\u2800"),
        ("z" + "\u0300" * 400 + "y", "z" + "\u0300" * 3 + "y"),
        ("two\r\nlines", "two lines"),
        ("see https://ca.example/x", "see https[:]//ca.example/x"),
    ],
)
def test_what_is_honest_can_still_be_read(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_what_is_cut_says_so() -> None:
    assert plain("a" * 300, 200) == "a" * 199 + "…"
    assert plain("a" * 200, 200) == "a" * 200


@given(st.text(max_size=300))
def test_cleaning_again_changes_nothing(text: str) -> None:
    once = plain(text, 400)
    assert plain(once, 400) == once
    assert _unseen(once) == []


# ── Whole messages ──


def test_a_message_says_what_happened_to_what_why_what_next_and_where() -> None:
    assert render(a_message()).text.splitlines() == [
        "The CA refused the order.",
        "It is tried again in an hour.",
        "",
        "about    www.example.com",
        "what     issuance.failed",
        "reason   CA_REFUSED (The CA refused the order)",
        "CA       letsencrypt",
        "attempt  3",
        "since    2030-01-02T03:04:05Z",
        "",
        "Next: holdfast explain www.example.com",
        "",
        "https://holdfast.example.com/certificates/www.example.com",
    ]
    assert render(a_message()).heading == "[critical] www.example.com could not be renewed"
    assert render(a_message(resolved=True)).heading.startswith("[resolved] ")


@cases
def test_nobody_else_adds_a_line_to_a_message(text: str) -> None:
    usual = len(render(a_message()).text.splitlines())
    said = render(a_message(subject=text or "x", title=text, reason=text or "x", facts={"CA": text or "x", "b": "c"}))
    assert len(said.text.splitlines()) <= usual
    assert len(said.heading.splitlines()) == 1


@pytest.mark.parametrize(
    "command",
    [
        "holdfast explain $(reboot)",
        "holdfast explain `reboot`",
        "holdfast explain a; reboot",
        "holdfast explain a\nreboot",
        "holdfast explain a | sh",
        "holdfast explain a > /etc/passwd",
        "holdfast explain a && reboot",
        "holdfast login https://evil.example",
        "holdfast explain \u202e",
    ],
)
def test_a_command_that_would_do_more_in_a_shell_is_not_shown(command: str) -> None:
    assert render(a_message(next=command)).next == ""


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "https://a b",
        "https://a/\r\nx",
        "//evil",
        "https://a/<script>",
        'https://a/"x',
        "ftp://a/x",
    ],
)
def test_an_address_that_is_none_is_not_linked(url: str) -> None:
    assert render(a_message(url=url)).link == ""


def test_every_line_of_a_digest_is_kept() -> None:
    text = "\n".join(f"line {number} {'x' * 5000}" for number in range(DIGEST_LINES))
    assert [line.split()[1] for line in render(a_message(text=text)).lines] == [str(n) for n in range(DIGEST_LINES)]


def test_odd_ids_are_known_by_their_hash() -> None:
    assert (render(a_message()).id, render(a_message(key="issuer/own")).key) == ("notification_01", "issuer/own")
    odd = [render(a_message(id=each, key=each)) for each in ("a b", "a\r\nb", "../b", "a%2fb", "")]
    assert all(each.id.isalnum() for each in odd)
    assert all(each.key.isalnum() for each in odd)
    assert len({each.key for each in odd}) == len(odd)
