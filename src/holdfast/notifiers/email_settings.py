"""The settings of a channel by e-mail: where letters are handed in, as whom, and to whom they go."""

from __future__ import annotations

import re
from typing import Any, Final

from holdfast.notifiers.email import PORTS, Email, Security, Server
from holdfast.notifiers.settings import HOST, Configured, is_here

MOST_RECIPIENTS: Final = 50
_ATOM: Final = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LABEL: Final = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_ADDRESS: Final = re.compile(rf"{_ATOM}(?:\.{_ATOM})*@{_LABEL}(?:\.{_LABEL})*")
_LONGEST: Final = 254  # characters of an address
_USER: Final = re.compile(r"[ -~]{1,320}")


def sender_of(asked: Configured) -> Email:
    sender = _mailbox(asked, "from", asked.settings["from"])
    hello = str(asked.settings.get("hello") or sender.rpartition("@")[2])
    if not HOST.fullmatch(hello):
        asked.wrong("the setting hello must be a host name")
    return Email(
        channel=asked.channel,
        server=_server(asked, hello),
        sender=sender,
        recipients=_recipients(asked, asked.settings["to"]),
        clock=asked.tools.clock,
    )


def _server(asked: Configured, hello: str) -> Server:
    settings, security = asked.settings, _security(asked)
    port = settings.get("port", PORTS[security])
    if not 0 < port < 65536:
        asked.wrong("the setting port must be between 1 and 65535")
    username, password = str(settings.get("username") or ""), asked.secrets.get("password")
    if bool(username) != bool(password):
        asked.wrong("the setting username and the credential password go together")
    if username and not _USER.fullmatch(username):
        asked.wrong("the setting username must be of visible ASCII characters")
    return Server(
        host=str(settings["host"]),
        port=port,
        security=security,
        username=username,
        password=password,
        roots=asked.roots(),
        hello=hello,
    )


def _security(asked: Configured) -> Security:
    """Without encryption a letter, and the password, go no further than this machine."""
    host, given = str(asked.settings["host"]), asked.settings.get("security", "starttls")
    if not HOST.fullmatch(host):
        asked.wrong("the setting host must be a host name or an address")
    found = next((each for each in PORTS if each == given), None)
    if found is None:
        asked.wrong(f"the setting security must be one of {', '.join(PORTS)}")
    if found == "none" and not is_here(host):
        asked.wrong("the setting security may be none for this machine only (127.0.0.1, ::1, localhost)")
    return found


def _recipients(asked: Configured, given: str | list[Any]) -> tuple[str, ...]:
    listed = given.split(",") if isinstance(given, str) else given
    found = tuple(dict.fromkeys(_mailbox(asked, "to", each) for each in listed))
    if not 0 < len(found) <= MOST_RECIPIENTS:
        asked.wrong(f"the setting to must have 1 to {MOST_RECIPIENTS} addresses")
    return found


def _mailbox(asked: Configured, name: str, value: Any) -> str:
    text = value.strip() if isinstance(value, str) else ""
    if not _ADDRESS.fullmatch(text) or len(text) > _LONGEST:
        asked.wrong(f"the setting {name} must hold addresses such as ops@example.com, without names")
    return text
