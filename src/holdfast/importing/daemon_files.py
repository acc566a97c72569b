"""The configuration languages of daemons, as far as certificates are concerned: a text becomes statements, one by one.

A statement is its words. `("{", name, …)` opens a block, `("}",)` closes the one that was opened last.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

Statement = tuple[str, ...]
_NGINX: Final = re.compile(
    r"""#[^\n]*|"((?:\\.|[^"\\])*)"|'((?:\\.|[^'\\])*)'|([{};])|([^\s{};"'#][^\s{};]*)""", re.DOTALL
)
_APACHE: Final = re.compile(r'"([^"]*)"|(\S+)')
_LONGEST: Final = 2_000  # characters of a value of Postfix, and
_MOST_DEEP: Final = 3  # names within it that stand for others
_SETTING: Final = re.compile(r"([A-Za-z_]\w*)\s*=\s*(.*)")


def nginx(text: str) -> Iterator[Statement]:
    words: list[str] = []
    for token in _NGINX.finditer(text):
        mark = token[3]
        if mark is None:
            words += [each for each in (token[1], token[2], token[4]) if each is not None]
            continue
        if mark == "{":
            yield ("{", *words)
        elif words:
            yield tuple(words)
        if mark == "}":
            yield ("}",)
        words = []


def apache(text: str) -> Iterator[Statement]:
    """Names of directives in small letters. Of the sections only virtual hosts matter: all others count as if taken."""
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        words = [quoted or plain for quoted, plain in _APACHE.findall(line.strip().rstrip(">"))]
        first = words[0].lower() if words else "#"
        if first == "<virtualhost":
            yield ("{", "virtualhost", *words[1:])
        elif first == "</virtualhost":
            yield ("}",)
        elif first[0] not in "#<":
            yield (first, *words[1:])


def postfix(text: str) -> Iterator[Statement]:
    """A line that begins with a space goes on with the one before; `$name` is what was set for that name."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    found = [_SETTING.fullmatch(line.strip()) for line in re.sub(r"\n\s+", " ", "\n".join(lines)).splitlines()]
    values = {each[1]: each[2][:_LONGEST] for each in found if each is not None}
    for name, value in values.items():
        for _ in range(_MOST_DEEP):
            value = re.sub(r"\$[({]?(\w+)[)}]?", lambda used: values.get(used[1], used[0]), value)[:_LONGEST]
        yield (name, *re.split(r"[\s,]+", value))


def dovecot(text: str) -> Iterator[Statement]:
    """`ssl_cert = </path` until 2.3, `ssl_server_cert_file = /path` since 2.4. Blocks for single names are left out."""
    depth = 0
    for line in (each.strip() for each in text.splitlines()):
        setting = _SETTING.fullmatch(line)
        if line.endswith("{"):
            depth += 1
        elif line == "}":
            depth = max(0, depth - 1)
        elif depth == 0 and line.startswith("!include"):
            yield tuple(line.split())
        elif depth == 0 and setting is not None:
            yield (setting[1], setting[2].removeprefix("<").strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """Where a daemon is configured below /etc, and by which words."""

    preset: str  # of the target that deploys to it
    files: tuple[str, ...]
    statements: Callable[[str], Iterator[Statement]]
    includes: frozenset[str] = frozenset()
    counts_from_file: bool = False  # a relative path begins at the file that includes, not at the daemon's folder
    block: str = ""  # what stands for one server; "": the whole file
    certificate: frozenset[str]
    key: frozenset[str]
    names: frozenset[str]
    place: str  # where it is seen, with {name} and {port}
    port: str


DAEMONS: Final = (
    Daemon(
        preset="nginx", files=("nginx/nginx.conf",), statements=nginx, includes=frozenset({"include"}), block="server",
        certificate=frozenset({"ssl_certificate"}), key=frozenset({"ssl_certificate_key"}),
        names=frozenset({"server_name"}), place="{name}:{port}", port="443",
    ),
    Daemon(
        preset="apache", files=("apache2/apache2.conf", "httpd/conf/httpd.conf"), statements=apache,
        includes=frozenset({"include", "includeoptional"}), block="virtualhost",
        certificate=frozenset({"sslcertificatefile"}), key=frozenset({"sslcertificatekeyfile"}),
        names=frozenset({"servername", "serveralias"}), place="{name}:{port}", port="443",
    ),
    Daemon(
        preset="postfix", files=("postfix/main.cf",), statements=postfix,
        certificate=frozenset({"smtpd_tls_cert_file", "smtpd_tls_chain_files"}), key=frozenset({"smtpd_tls_key_file"}),
        names=frozenset({"myhostname"}), place="smtp://{name}:{port}", port="25",
    ),
    Daemon(
        preset="dovecot", files=("dovecot/dovecot.conf",), statements=dovecot,
        includes=frozenset({"!include", "!include_try"}), counts_from_file=True,
        certificate=frozenset({"ssl_cert", "ssl_server_cert_file"}), key=frozenset({"ssl_key", "ssl_server_key_file"}),
        names=frozenset(), place="{name}:{port}", port="993",
    ),
)  # fmt: skip
