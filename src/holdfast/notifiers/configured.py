"""Senders made of what an operator configured: a kind, its settings, and its credentials.

Whatever is wrong is refused in a sentence that names the setting, before a channel is kept and whenever it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast.core.notice import Why
from holdfast.errors import Refused
from holdfast.notifiers import email_settings, opsgenie, pagerduty
from holdfast.notifiers.apprise import EXTRA, AppriseSender, installed
from holdfast.notifiers.base import Sender
from holdfast.notifiers.settings import Configured, Secrets, SenderTools
from holdfast.notifiers.slack import Slack
from holdfast.notifiers.teams import Teams
from holdfast.notifiers.webhook import Webhook, signing_key
from holdfast.secret import Secret


@dataclass(frozen=True, slots=True)
class _Kind:
    make: Callable[[Configured], Sender]
    settings: Mapping[str, tuple[type, ...]]
    needed: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    may: tuple[str, ...] = ()  # secrets that it can do without


def make(channel: str, kind: str, settings: Mapping[str, Any], secrets: Secrets, tools: SenderTools) -> Sender:
    """The sender of a channel. Refused says what is wrong with it, and where."""
    asked = Configured(channel=channel, settings=settings, secrets=secrets, tools=tools)
    if kind not in KINDS:
        asked.wrong(f"there is no kind {kind!r:.40}; there are {', '.join(KINDS)}")
    found = KINDS[kind]
    _known(asked, kind, found)
    missing = [f"the setting {name}" for name in found.needed if not settings.get(name)]
    missing += [f"the credential {name}" for name in found.secrets if not secrets.get(name)]
    if missing:
        asked.wrong(f"{kind} needs {' and '.join(missing)}")
    return found.make(asked)


def _known(asked: Configured, kind: str, found: _Kind) -> None:
    for name, value in asked.settings.items():
        if name in found.secrets + found.may:
            asked.wrong(f"{name} is a credential, not a setting: whoever sees it could write there")
        if name not in found.settings:
            asked.wrong(f"{kind} has no setting {name!r:.40}; it has {', '.join(found.settings)}")
        if not isinstance(value, found.settings[name]) or isinstance(value, bool):
            words = " or ".join(_TYPES[each] for each in found.settings[name])
            asked.wrong(f"the setting {name} must be {words}")
    for name in asked.secrets:
        if name not in found.secrets + found.may:
            known = ", ".join(found.secrets + found.may)
            asked.wrong(f"{kind} has no credential {name!r:.40}; it has {known}")


async def check(channel: str, kind: str, settings: Mapping[str, Any], secrets: Secrets, tools: SenderTools) -> None:
    """Whether such a channel could be used; nothing is sent."""
    sender = make(channel, kind, settings, secrets, tools)
    if isinstance(sender, AppriseSender):
        try:
            await sender.check()
        except ValueError as error:
            raise Refused(f"Channel {channel}: its credential url {error}.", reason=Why.CHANNEL_MISCONFIGURED) from None


# ── Kinds ──


def _webhook(asked: Configured) -> Sender:
    keys = [_key(asked, name) for name in ("secret", "old_secret") if asked.secrets.get(name)]
    return Webhook(line=asked.line(), url=asked.url(), keys=tuple(keys))


def _key(asked: Configured, name: str) -> Secret[bytes]:
    try:
        return signing_key(asked.secrets[name])
    except ValueError as error:
        asked.wrong(f"the credential {name} {error}")


def _pagerduty(asked: Configured) -> Sender:
    url = asked.service(pagerduty.ADDRESSES)
    return pagerduty.PagerDuty(line=asked.line(), url=url, routing_key=asked.token("routing_key"))


def _opsgenie(asked: Configured) -> Sender:
    url = asked.service(opsgenie.ADDRESSES)
    return opsgenie.Opsgenie(line=asked.line(), url=url, api_key=asked.token("api_key"))


def _apprise(asked: Configured) -> Sender:
    if not installed():
        asked.wrong(EXTRA.rstrip("."))
    return AppriseSender(channel=asked.channel, url=asked.secrets["url"])


_TYPES: Final[Mapping[type, str]] = {str: "a text", int: "a whole number", list: "a list of texts"}
_TEXT: Final = (str,)
_SERVICE: Final = {"region": _TEXT, "url": _TEXT, "roots": _TEXT}
KINDS: Final[Mapping[str, _Kind]] = {
    "email": _Kind(
        email_settings.sender_of,
        {
            "host": _TEXT, "port": (int,), "security": _TEXT, "from": _TEXT, "to": (str, list), "username": _TEXT,
            "roots": _TEXT, "hello": _TEXT,
        },
        needed=("host", "from", "to"),
        may=("password",),
    ),
    "webhook": _Kind(_webhook, {"roots": _TEXT}, secrets=("url", "secret"), may=("old_secret",)),
    "slack": _Kind(lambda asked: Slack(line=asked.line(), url=asked.url()), {"roots": _TEXT}, secrets=("url",)),
    "teams": _Kind(lambda asked: Teams(line=asked.line(), url=asked.url()), {"roots": _TEXT}, secrets=("url",)),
    "pagerduty": _Kind(_pagerduty, _SERVICE, secrets=("routing_key",)),
    "opsgenie": _Kind(_opsgenie, _SERVICE, secrets=("api_key",)),
    "apprise": _Kind(_apprise, {}, secrets=("url",)),
}  # fmt: skip
