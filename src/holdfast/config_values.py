"""Kinds of configuration values: how each is read from a file or a variable, and the error when it cannot be."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from holdfast.core import durations, public_address
from holdfast.core.durations import in_words
from holdfast.core.people import group_rule
from holdfast.secret import Secret


@dataclass(frozen=True, slots=True)
class SettingKind:
    """How a value is read: `parse` raises ValueError, with the problem, or empty when the type is wrong."""

    expected: str  # completes the sentence "expected …", with an example
    parse: Callable[[Any], Any]
    of_text: Callable[[str], Any] = str  # a variable is always text, while TOML has types
    secret: bool = False


def _span(raw: object) -> timedelta:
    """Bare numbers are seconds. A sign is read so that "below the minimum" can be said of it."""
    if isinstance(raw, str) and (match := re.fullmatch(r"([+-]?)([0-9.]+) ?([a-z]*)", raw)):
        try:
            span = durations.parse(f"{match[2]}{match[3] or 's'}")
        except ValueError:
            raise ValueError from None
        return -span if match[1] == "-" else span
    if isinstance(raw, int | float) and not isinstance(raw, bool) and math.isfinite(raw):
        return raw * timedelta(seconds=1)
    raise ValueError


def duration(least: str, most: str = "36500d") -> SettingKind:  # beyond a century, adding it to a date may overflow
    low, high = _span(least), _span(most)

    def parse(raw: object) -> timedelta:
        written = raw if isinstance(raw, str) and not raw[-1:].isdigit() else f"{raw}s"
        try:
            span = _span(raw)
        except OverflowError:
            raise ValueError(f"{written:.40} is not between {in_words(low)} and {in_words(high)}") from None
        if span < low:
            raise ValueError(f"{written} is below the minimum of {in_words(low)}")
        if span > high:
            raise ValueError(f"{written} is above the maximum of {in_words(high)}")
        return span

    return SettingKind(f"a duration from {in_words(low)} to {in_words(high)}, such as 30s, 5m, 1h or 90d", parse)


def whole(least: int, most: int, *, empty: int | None = None) -> SettingKind:
    """`empty` is what an empty variable stands for, such as a compose file makes of one that is not set."""

    def parse(raw: object) -> int:
        if not isinstance(raw, int) or isinstance(raw, bool):
            raise ValueError
        if not least <= raw <= most:
            raise ValueError(f"{raw} is not between {least} and {most}")
        return raw

    def of_text(text: str) -> int | str:
        if empty is not None and not text.strip():
            return empty
        return int(text) if re.fullmatch(r"[+-]?[0-9]{1,18}", text) else text

    return SettingKind(f"a whole number from {least} to {most}, such as {least * 4}", parse, of_text)


def choice(*words: str) -> SettingKind:
    def parse(raw: object) -> object:
        if raw not in words:
            raise ValueError
        return raw

    return SettingKind(f"one of {', '.join(words)}, such as {words[0]}", parse)


def _text(raw: object) -> str:
    if not isinstance(raw, str) or not raw.isprintable():  # a line break here would forge log lines
        raise ValueError
    return raw


def _path(raw: object) -> Path:
    if not _text(raw):
        raise ValueError("a path cannot be empty")
    return Path(_text(raw))


def _address(raw: object) -> str:
    match = re.fullmatch(r"(?:\[([^\]]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})", _text(raw))
    if not match:
        raise ValueError
    if int(match[3]) > 65535:
        raise ValueError(f"port {match[3]} is not between 0 and 65535")
    try:
        if match[1]:
            ipaddress.IPv6Address(match[1])
        elif re.fullmatch(r"[0-9.]+", match[2]):
            ipaddress.IPv4Address(match[2])
    except ValueError:
        raise ValueError(f"{match[1] or match[2]} is not an IP address") from None
    return match[0]


def _address_or_none(raw: object) -> str:
    return "" if raw == "" else _address(raw)


def _secret(raw: str) -> Secret[str]:
    if not raw:  # a lost injection must not quietly mean "no passphrase" or "another database"
        raise ValueError("is given but empty")
    return Secret(raw)


def _store_url(raw: str) -> Secret[str]:
    url = _secret(raw)
    if not raw.isprintable() or not re.match(r"postgresql://.|sqlite:///(?!:memory:).", raw):
        raise ValueError("expected postgresql://user@host/database or sqlite:///file")  # never quoted
    return url


def several(what: str, parse: Callable[[object], object], example: str) -> SettingKind:
    """A list: an array in the file, divided by commas in a variable. Each of its values is judged by itself."""

    def each(raw: object) -> tuple[object, ...]:
        if not isinstance(raw, list | tuple):
            raise ValueError
        return tuple(map(one, raw))

    def one(raw: object) -> object:
        try:
            return parse(raw)
        except ValueError as problem:
            raise ValueError(str(problem) or f"{raw!r:.60} is not {what}, such as {example}") from None

    def of_text(text: str) -> list[str]:
        return [part.strip() for part in text.split(",")] if text.strip() else []

    return SettingKind(f"a list of values, each {what}, such as {example}", each, of_text)


def _yes_no(raw: object) -> bool:
    if not isinstance(raw, bool):
        raise ValueError
    return raw


def _log(raw: object) -> str:
    text = _text(raw)
    parts = urlsplit(text)
    if parts.scheme not in ("https", "http", "file") or not (parts.hostname or parts.scheme == "file"):
        raise ValueError
    return text.rstrip("/")


def _network(raw: object) -> str:
    try:
        return str(ipaddress.ip_network(_text(raw)))
    except ValueError as error:
        raise ValueError(f"{raw!r:.60} is no network: {error}" if "host bits" in str(error) else "") from None


def _resolver(raw: object) -> str:
    """An address, with a port if it is not 53: what resolves names cannot itself be found by a name."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9.]+))(?::([0-9]{1,5}))?|([0-9A-Fa-f:.]+)", _text(raw))
    if not match or int(match[3] or 53) not in range(1, 65536):
        raise ValueError
    ipaddress.ip_address(match[1] or match[2] or match[4])
    return match[0]


def _domain(raw: object) -> str:
    if not re.fullmatch(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*", _text(raw)):
        raise ValueError
    return _text(raw)


def address_of(scheme: str) -> SettingKind:
    """A URL that others are to use: a scheme, a host and perhaps a port; paths below it are ours."""

    def parse(raw: object) -> str:
        text = _text(raw).removesuffix("/")
        if text and not re.fullmatch(rf"{scheme}://([a-z0-9.-]+|\[[0-9a-f:.]+\])(:[0-9]{{1,5}})?", text):
            raise ValueError
        return text

    return SettingKind(
        f"{scheme}://host or {scheme}://host:port in lower case, such as {scheme}://ca.example.internal", parse
    )


def _public_url(raw: object) -> str:
    text = address_of("https?").parse(raw)
    problem = public_address.refusal(text) if text else None
    if problem:
        raise ValueError(problem)
    return str(text)


def _issuer_url(raw: object) -> str:
    """A provider's name is compared as it is, slash at the end and all."""
    text = _text(raw)
    if text and not re.fullmatch(r"https://[!-~]+|http://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?(/[!-~]*)?", text):
        raise ValueError
    return text


def _group_rule(raw: object) -> str:
    if group_rule(_text(raw)) is None:
        raise ValueError("expected group=role, group=role:owner other-owner or group=admin+export")
    return _text(raw)


def _url(raw: object) -> str:
    if _text(raw) and not re.fullmatch(r"https?://[!-~]+", _text(raw)):
        raise ValueError
    return _text(raw)


def _syslog(raw: object) -> str:
    text = _text(raw)
    parts = urlsplit(text)
    remote = parts.scheme in ("udp", "tcp") and bool(parts.hostname) and parts.path in ("", "/")
    if text and not remote and not (parts.scheme == "unix" and parts.path.startswith("/") and not parts.netloc):
        raise ValueError
    _ = parts.port if remote else None  # ValueError if it is none
    return text


def _ca_name(raw: object) -> str:
    if not re.fullmatch(r"|[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?", _text(raw)):
        raise ValueError
    return _text(raw)


TEXT: Final = SettingKind("text on one line, such as replica-1", _text)
PATH: Final = SettingKind("a path, such as /var/lib/holdfast", _path)
ADDRESS: Final = SettingKind("host:port, such as 127.0.0.1:8630 or [::1]:8630", _address)
LISTEN_OR_NOT: Final = SettingKind("host:port, such as 0.0.0.0:443 or [::]:443, or nothing", _address_or_none)
SECRET: Final = SettingKind("a secret, given by its variable or its file", _secret, secret=True)
POOLER: Final = choice("none", "transaction")
STORE_URL: Final = SettingKind("postgresql://user@host/database or sqlite:///file", _store_url, secret=True)
PUBLIC_URL: Final = SettingKind(
    "https://host or https://host:port in lower case, such as https://holdfast.example.com", _public_url
)
ISSUER_URL: Final = SettingKind("a URL, such as https://login.example.com/realms/main", _issuer_url)
URL: Final = SettingKind("a URL, such as https://example.internal/terms", _url)
SYSLOG: Final = SettingKind("unix:///dev/log, udp://host:514 or tcp://host:601", _syslog)
YES_NO: Final = SettingKind("true or false", _yes_no, lambda text: {"true": True, "false": False}.get(text, text))
PORT: Final = whole(1, 65535)
COUNT: Final = whole(0, 1_000_000_000)
CA_NAME: Final = SettingKind("1 to 32 of a-z, 0-9 and -, such as default, or nothing", _ca_name)
INTERVAL: Final = duration(least="1s")  # a loop that turns faster than this is a mistake in the unit
LOGS: Final = several("the address of a log", _log, "https://log.example.com/2026h1")
NETWORKS: Final = several("a network", _network, "10.0.0.0/8")
RESOLVERS: Final = several("an address, with or without a port", _resolver, "192.0.2.53:53")
GROUP_RULES: Final = several("a rule for a group", _group_rule, "pki-team=admin")
WORDS: Final = several("a word", _text, "openid")
DOMAINS: Final = several("a domain in lower case", _domain, "ca.example.internal")
