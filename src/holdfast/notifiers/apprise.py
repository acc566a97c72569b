"""Everything that Apprise can reach, by one adapter: one target for each channel, asked on a thread of its own.

Apprise says only whether it went well. So every failure is one to try again, until the attempts are used up.
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
from typing import TYPE_CHECKING, ClassVar, Final, NoReturn, TypeVar

from holdfast.core.notice import Why
from holdfast.errors import Refused, TryLater
from holdfast.notifiers.base import Message, Severity
from holdfast.notifiers.plain import plain, unmarked
from holdfast.notifiers.rendering import Rendered, render
from holdfast.secret import MASK, Secret

if TYPE_CHECKING:
    from apprise import AppriseResult, NotifyBase

T = TypeVar("T")
EXTRA: Final = "Apprise is not installed here. Install it with: pip install 'holdfast[notify]'"
DEADLINE: Final = 20.0  # seconds that a service is given; Apprise keeps to it, give or take
_QUOTED: Final = 200
_TYPES: Final = {Severity.INFO: "info", Severity.WARNING: "warning", Severity.CRITICAL: "failure"}


async def on_a_thread(work: Callable[[], T]) -> T:
    """On one of its own, which ends with the process: a service that hangs must hold up no pool, and no stop."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Callable[[], T]] = loop.create_future()

    def run() -> None:
        try:
            found = work()
            answer: Callable[[], T] = lambda: found  # noqa: E731
        except BaseException as error:
            answer = partial(_raise, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
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

    kind: ClassVar[str] = "apprise"
    channel: str
    url: Secret[str]
    deadline_for: float = DEADLINE

    async def send(self, message: Message) -> None:
        """A service that hangs is left to its thread, which Apprise's own deadline ends."""
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
        """ValueError says what is wrong with the address."""
        await on_a_thread(self._service)

    def _sent(self, said: Rendered) -> str | None:
        """On a thread. None if it went well, else what Apprise says about it."""
        from apprise import Apprise, NotifyFormat

        try:
            service = self._service()
        except ValueError as error:
            why = f"Channel {self.channel}: its credential url {error}."
            raise Refused(why, reason=Why.CHANNEL_MISCONFIGURED) from None
        one = Apprise(asset=service.asset)
        one.add(service)
        text = unmarked(said.text) if not said.link else unmarked(said.text.removesuffix(said.link)) + said.link
        kind = "success" if said.resolved else _TYPES[said.severity]
        result = one.notify(text, title=unmarked(said.heading), notify_type=kind, body_format=NotifyFormat.TEXT)
        return None if result else self._problem(result)

    def _service(self) -> NotifyBase:
        if not installed():
            raise ValueError(f"cannot be used: {EXTRA}")
        from apprise import Apprise, AppriseAsset, NotifyBase, OverflowMode

        for name in ("apprise", "urllib3"):  # below that level they write down what is sent, and to which address
            logging.getLogger(name).setLevel(logging.WARNING)
        logging.getLogger("apprise").propagate = False  # what went wrong is in its result
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
        service.retry = 0  # the engine tries again, and it alone
        if "overflow_mode" not in vars(service):  # the address does not say what becomes of a text that is too long
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
