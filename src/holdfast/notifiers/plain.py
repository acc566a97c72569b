"""Text of others made harmless: one line of visible characters, bounded, and without the markup of any channel.

Names and errors come from certificates, CAs and DNS: whoever writes one of them must not write our messages.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

SHORT: Final = 200  # characters of a name or a heading
LONG: Final = 600  # of a sentence
_CUT: Final = "…"
_MOST_MARKS: Final = 3  # on one letter; towers of them cover the lines above and below
# Characters that Python calls printable, and that are seen by nobody (Unicode's Default_Ignorable_Code_Point, blanks).
_UNSEEN: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_SCHEME: Final = re.compile(r"(?<=[A-Za-z0-9+.-]):(?=//)")
_MENTION: Final = re.compile(r"(?<!\w)@(?=\w)")
# Look-alikes without a meaning in HTML, Markdown or the syntax of a chat.
_LOOK_ALIKES: Final = str.maketrans({"<": "‹", ">": "›", "[": "⟦", "]": "⟧", "`": "ˋ", "|": "¦", "&": "＆", "~": "∼"})


def plain(text: str, limit: int = LONG) -> str:
    """What can be seen of it, on one line; what cannot is named, as \\u202e. An address in it is no link any more."""
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
    """The three characters that begin and end its markup; and nobody is called by name where @ alone does that."""
    return _MENTION.sub("＠", text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


def in_header(text: str) -> str:
    """Without the beginning of an encoded word (RFC 2047): decoded, one could hold line breaks, and end the header."""
    return text.replace("=?", "= ?")


def without_functions(text: str) -> str:
    """For adaptive cards, which read {{DATE(…)}} wherever they show text."""
    return text.replace("{{", "{ {").replace("${", "$ {")
