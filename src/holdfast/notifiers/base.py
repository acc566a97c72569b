"""The protocol of senders. A sender neither sleeps, retries, logs nor touches the store: the engine does."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from holdfast.core.notifications.notification import Message, Missed, Severity

__all__ = ["RATE_LIMITED", "Message", "Missed", "Sender", "Severity"]

RATE_LIMITED = "RATE_LIMITED"  # reason of a TryLater that is about our rate, not about the message


class Sender(Protocol):
    """One open channel; made for each batch and closed after it.

    Returning means delivered; Missed names the recipients who did not get it. TryLater(after=…): not now; with
    reason RATE_LIMITED it costs the message no attempt.
    Refused: never; the channel is misconfigured (CHANNEL_MISCONFIGURED) or does not take this message (REFUSED).
    """

    async def send(self, message: Message) -> Missed | None:
        """Deliver once. A repeated message has the same id; it is sent to services that drop repetitions by it."""

    async def close(self) -> None:
        """Close the connection, if there is one."""


@runtime_checkable
class ChecksItself(Protocol):
    """A sender that checks more of its settings than their model does, without sending."""

    async def check(self) -> None:
        """Raise Refused with the reason if a setting is wrong."""
