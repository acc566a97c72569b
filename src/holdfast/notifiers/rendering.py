"""Renders a message for all channels: event, subject, reason, next command, link.

Names and errors come from certificates, CAs and DNS. `plain` makes each of them one bounded line of visible characters;
channels add the escapes of their own syntax.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from holdfast.core import reasons
from holdfast.core.notifications.notification import Message, Severity

SHORT: Final = 200  # characters of a name or a heading
LONG: Final = 600  # of a sentence
_CUT: Final = "…"
_MOST_MARKS: Final = 3  # on one letter; towers of them cover the lines above and below
# Characters that Python calls printable and that are invisible (Unicode's Default_Ignorable_Code_Point, blanks).
_UNSEEN: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_SCHEME: Final = re.compile(r"(?<=[A-Za-z0-9+.-]):(?=//)")
_MENTION: Final = re.compile(r"(?<!\w)@(?=\w)")
# Look-alikes without a meaning in HTML, Markdown or the syntax of a chat.
_LOOK_ALIKES: Final = str.maketrans({"<": "‹", ">": "›", "[": "⟦", "]": "⟧", "`": "ˋ", "|": "¦", "&": "＆", "~": "∼"})
MOST_LINES: Final = 60  # of a text: a digest has fifty, and none of them may be missing
_MOST_FACTS: Final = 12
_FEW: Final = 4  # lines up to which each may be long
_WORDS: Final = {Severity.INFO: "info", Severity.WARNING: "warning", Severity.CRITICAL: "critical"}
# A command that people copy into a shell: nothing that a shell would take for more than words.
_COMMAND: Final = re.compile(r"[A-Za-z0-9 ._:/@=*+,%'-]{1,400}")
_LINK: Final = re.compile(r"https?://[A-Za-z0-9.\[\]:-]+(?:/[A-Za-z0-9._~!$&()*+,;=:@%/?#-]*)?")
_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,120}")
_KEY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./:@-]{0,200}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """Every text in it is of visible characters and has no line breaks."""

    id: str
    key: str  # of the outage
    event: str
    severity: Severity
    resolved: bool
    at: datetime
    title: str  # without the severity
    lines: tuple[str, ...]
    subject: str
    reason: str  # the code alone
    meaning: str  # its sentence, where the code has one
    facts: tuple[tuple[str, str], ...]
    next: str
    link: str
    attempt: int

    @property
    def word(self) -> str:
        """The severity, or that it is over."""
        return "resolved" if self.resolved else _WORDS[self.severity]

    @property
    def heading(self) -> str:
        return f"[{self.word}] {self.title}"

    @property
    def rows(self) -> tuple[tuple[str, str], ...]:
        """The facts, one a row."""
        why = " ".join(part for part in (self.reason, self.meaning and f"({self.meaning})") if part)
        known = [("about", self.subject), ("what", self.event), ("reason", why), *self.facts]
        known += [("since" if not self.resolved else "at", f"{self.at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}")]
        return tuple((name, value) for name, value in known if value)

    @property
    def text(self) -> str:
        """The whole message, for channels that take plain text."""
        return "\n".join(self._text())

    def _text(self) -> Iterator[str]:
        yield from self.lines
        yield ""
        width = max(len(name) for name, _ in self.rows)
        for name, value in self.rows:
            yield f"{name.ljust(width)}  {value}"
        if self.next:
            yield from ("", f"Next: {self.next}")
        if self.link:
            yield from ("", self.link)


def render(message: Message) -> Rendered:
    """The same words in every channel; a message that comes again has the same ones."""
    code = plain(message.reason, 60)
    return Rendered(
        id=fit(message.id, _ID),
        key=fit(message.key, _KEY),
        event=plain(message.event, 80),
        severity=message.severity,
        resolved=message.resolved,
        at=message.at,
        title=plain(message.title, SHORT) or plain(message.event, 80),
        lines=_lines(message.text),
        subject=plain(message.subject, SHORT),
        reason=code,
        meaning=_meaning(code),
        facts=tuple(
            (plain(name, 40), plain(value, SHORT)) for name, value in list(message.facts.items())[:_MOST_FACTS]
        ),
        next=message.next if _COMMAND.fullmatch(message.next) and "://" not in message.next else "",
        link=message.url if _LINK.fullmatch(message.url) and len(message.url) <= LONG else "",
        attempt=message.attempt,
    )


def _lines(text: str) -> tuple[str, ...]:
    """Split at line feeds only: other separators may be an injection, and are made visible."""
    found = [line for line in text.split("\n", 2 * MOST_LINES) if line.strip()]
    limit = LONG if len(found) <= _FEW else SHORT
    return tuple(plain(line, limit) for line in found[:MOST_LINES])


def _meaning(code: str) -> str:
    known = reasons.of(code) if code else None
    return "" if known is None or known.value != code else reasons.MEANINGS[known].sentence.rstrip(".")


def fit(name: str, pattern: re.Pattern[str]) -> str:
    """An id or key as headers and other people's databases take it; an odd one by its hash."""
    return name if pattern.fullmatch(name) else hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:40]


def shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


# ── Text from certificates, CAs and DNS ──


def plain(text: str, limit: int = LONG) -> str:
    """One line of visible characters; others are written as \\u202e. Addresses in it are no links any more."""
    shown: list[str] = []
    marks = 0
    for char in text[: 4 * limit]:
        marks = marks + 1 if unicodedata.combining(char) else 0
        if marks <= _MOST_MARKS:
            shown.append(_visible(char))
    line = _SCHEME.sub("[:]", " ".join("".join(shown).split()))
    return line if len(line) <= limit and len(text) <= 4 * limit else line[: limit - 1] + _CUT


def _visible(char: str) -> str:
    if char.isspace():
        return " "
    if char.isprintable() and not _UNSEEN.match(char):
        return char
    code = ord(char)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def unmarked(text: str) -> str:
    """For channels that may read HTML or Markdown, or call people by name."""
    return _MENTION.sub("＠", text.translate(_LOOK_ALIKES))


def for_slack(text: str) -> str:
    """Escape the three characters of its markup, and @ before a name, which would mention a person."""
    return _MENTION.sub("＠", text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


def in_header(text: str) -> str:
    """Without the beginning of an encoded word (RFC 2047): decoded, one could hold line breaks, and end the header."""
    return text.replace("=?", "= ?")


def without_functions(text: str) -> str:
    """For adaptive cards, which read {{DATE(…)}} wherever they show text."""
    return text.replace("{{", "{ {").replace("${", "$ {")
