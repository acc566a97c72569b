"""What a channel must be able to do. Senders neither sleep, retry, log nor touch the store: the engine does."""

from __future__ import annotations

from typing import Protocol

from holdfast.core.notice import Message, Missed, Severity

__all__ = ["RATE_LIMITED", "Message", "Missed", "Sender", "Severity"]

RATE_LIMITED = "RATE_LIMITED"  # reason of a TryLater that is about our pace, not about the message


class Sender(Protocol):
    """One channel, ready to be used; made anew for each batch, closed after it.

    Returning means delivered; Missed says whom it did not reach of those behind the channel. TryLater(after=…): not
    now; with reason RATE_LIMITED it costs the message no attempt.
    Refused: never, the channel is misconfigured (reason CHANNEL_MISCONFIGURED) or this message cannot go (REFUSED).
    """

    @property
    def kind(self) -> str: ...

    async def send(self, message: Message) -> Missed | None:
        """Deliver once. A message that comes again has the same id: where the channel can drop it, it is told so."""

    async def close(self) -> None:
        """End the connection, if there is one."""
