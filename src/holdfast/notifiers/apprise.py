"""Channels of Apprise: one target for each channel, called on a thread of its own.

Apprise reports success or failure without a class. So every failure is retried until the attempts are used up.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

from holdfast.core.kind import Credential, Kind
from holdfast.core.notifications.notification import ChannelLimits, Why
from holdfast.errors import Refused, TryLater
from holdfast.kind_settings import KindSettings
from holdfast.notifiers.base import Message, Severity
from holdfast.notifiers.kind import ChannelKind, SenderParts
from holdfast.notifiers.rendering import Rendered, plain, render, unmarked
from holdfast.secret import MASK, Secret

if TYPE_CHECKING:
    from apprise import AppriseResult, NotifyBase

T = TypeVar("T")
EXTRA: Final = "Apprise is not installed here. Install it with: pip install 'holdfast[notify]'"
DEADLINE: Final = 20.0  # seconds that a service is given; Apprise keeps to it, give or take
_QUOTED: Final = 200
_TYPES: Final = {Severity.INFO: "info", Severity.WARNING: "warning", Severity.CRITICAL: "failure"}


async def on_a_thread(work: Callable[[], T]) -> T:
    """Run on a daemon thread of its own, so that a service that hangs delays neither other threads nor the shutdown."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Callable[[], T]] = loop.create_future()

    def run() -> None:
        try:
            found = work()
            answer: Callable[[], T] = lambda: found  # noqa: E731
        except BaseException as error:
            answer = partial(_raise, error)
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(lambda: None if ended.done() else ended.set_result(answer))

    threading.Thread(target=run, name="apprise", daemon=True).start()
    return (await ended)()


def _raise(error: BaseException) -> NoReturn:
    raise error


def installed() -> bool:
    return importlib.util.find_spec("apprise") is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class AppriseSender:
    """The address is the credential: it holds the tokens of its service."""

    channel: str
    url: Secret[str]
    deadline_for: float = DEADLINE

    async def send(self, message: Message) -> None:
        """Send one message. A call that hangs is abandoned; its thread ends by the deadline of Apprise."""
        try:
            async with asyncio.timeout(2 * self.deadline_for):
                problem = await on_a_thread(lambda: self._sent(render(message)))
        except TimeoutError:
            why = f"Channel {self.channel}: its service did not answer in {2 * self.deadline_for:g} s."
            raise TryLater(why, reason=Why.CHANNEL_DOWN) from None
        if problem is not None:
            why = f"Channel {self.channel}: its service did not take the message{problem}."
            raise TryLater(why, reason=Why.CHANNEL_DOWN)

    async def close(self) -> None:
        """There is nothing open."""

    async def check(self) -> None:
        """Check that Apprise accepts the address, without sending; Refused gives the reason."""
        try:
            await on_a_thread(self._service)
        except ValueError as error:
            raise self._misconfigured(error) from None

    def _sent(self, said: Rendered) -> str | None:
        """Runs on a thread. None on success, else the error text of Apprise."""
        from apprise import Apprise, NotifyFormat

        try:
            service = self._service()
        except ValueError as error:
            raise self._misconfigured(error) from None
        one = Apprise(asset=service.asset)
        one.add(service)
        text = unmarked(said.text) if not said.link else unmarked(said.text.removesuffix(said.link)) + said.link
        kind = "success" if said.resolved else _TYPES[said.severity]
        result = one.notify(text, title=unmarked(said.heading), notify_type=kind, body_format=NotifyFormat.TEXT)
        return None if result else self._problem(result)

    def _misconfigured(self, error: ValueError) -> Refused:
        return Refused(f"Channel {self.channel}: its credential url {error}.", reason=Why.CHANNEL_MISCONFIGURED)

    def _service(self) -> NotifyBase:
        if not installed():
            raise ValueError(f"cannot be used: {EXTRA}")
        from apprise import Apprise, AppriseAsset, NotifyBase, OverflowMode

        for name in ("apprise", "urllib3"):  # below that level they log messages and addresses
            logging.getLogger(name).setLevel(logging.WARNING)
        logging.getLogger("apprise").propagate = False  # its errors are in the result
        asset = AppriseAsset(
            app_id="Holdfast",
            app_desc="Holdfast",
            plugin_paths=[],
            storage_mode="memory",
            service_timeout=self.deadline_for,
            allow_templates=False,
            http_redirects=False,
        )
        found = Apprise(asset=asset)
        found.add(self.url.reveal().strip())
        services = [each for each in found if isinstance(each, NotifyBase)]
        if len(services) != 1:
            number = "no" if not services else "more than one"
            raise ValueError(f"names {number} target that Apprise knows; a channel has exactly one")
        [service] = services
        if not service.verify_certificate:
            raise ValueError("switches the check of certificates off; take verify=no out of it")
        if service.optional:
            raise ValueError("takes a failure for a success; take optional=yes out of it")
        service.retry = 0  # only the engine retries
        if "overflow_mode" not in vars(service):  # the address sets no overflow mode
            service.overflow_mode = OverflowMode.SPLIT
        return service

    def _problem(self, result: AppriseResult) -> str:
        logs = [entry.message for each in result.results for attempt in each.attempts for entry in attempt.logs]
        said = logs[-1] if logs else ""
        for secret in self._hidden():
            said = said.replace(secret, MASK)
        return f": {plain(said, _QUOTED).rstrip('.')}" if said else ""

    def _hidden(self) -> list[str]:
        text = self.url.reveal()
        for mark in "/:@?&=,":
            text = text.replace(mark, " ")
        host = self.url.reveal().partition("://")[2].rpartition("@")[2].partition("/")[0].partition(":")[0]
        return sorted({each for each in text.split() if len(each) >= 6 and each != host}, key=len, reverse=True)


def _make(settings: KindSettings, parts: SenderParts) -> AppriseSender:
    if not installed():
        parts.wrong(EXTRA.rstrip("."))
    return AppriseSender(channel=parts.channel, url=parts.credentials["url"])


APPRISE: Final[ChannelKind[KindSettings]] = Kind(
    name="apprise",
    summary="Whatever Apprise can reach, by one of its addresses (the extra notify).",
    settings=KindSettings,
    credentials=(Credential(name="url", summary="An address of Apprise, which holds the tokens of its service."),),
    limits=ChannelLimits(digest_size=1500),
    address="url",
    make=_make,
)
