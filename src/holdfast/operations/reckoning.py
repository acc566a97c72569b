"""Long work that a request may ask for: forecasts, plans, exports of everything.

One piece at a time, on a thread of its own: signatures, exports of keys and CRLs never wait behind it. It ends when it
is done, when its time is over, or when its asker is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

from holdfast.errors import UserError
from holdfast.pki.in_thread import Aside, OneThread

WITHIN: Final = timedelta(seconds=20)
PATIENCE: Final = timedelta(seconds=10)  # of an asker, while another's is under way


class Occupied(UserError):
    status, code = 429, "occupied"
    hint = "Ask again soon. Forecasts, plans and exports are made one after the other."
    after = 5.0  # seconds

    def __init__(self) -> None:
        super().__init__("This server is at work on another forecast, plan or export.")


class TookTooLong(UserError):
    status, code = 503, "took-too-long"
    hint = "Ask for less: fewer months, fewer certificates, or a part of the document."
    after = 60.0

    def __init__(self, within: timedelta) -> None:
        super().__init__(f"This was not done within {within.total_seconds():g} seconds, and was stopped.")


class Reckoning:
    """Of one process."""

    def __init__(self, *, within: timedelta = WITHIN, patience: timedelta = PATIENCE) -> None:
        self._within, self._patience = within, patience
        self._thread = OneThread("reckoning")
        self._turn = asyncio.Lock()
        self.kept: object = None  # what the last piece of work read, for the next one: only within a turn

    @property
    def busy(self) -> bool:
        return self._turn.locked()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Aside]:
        """Wait for our turn. What is read for the work is read within it: a queue of askers holds no reader."""
        try:
            async with asyncio.timeout(self._patience.total_seconds()):
                await self._turn.acquire()
        except TimeoutError:
            raise Occupied from None
        try:
            async with asyncio.timeout(self._within.total_seconds()):
                yield self._thread.run
        except TimeoutError:
            raise TookTooLong(self._within) from None
        finally:
            self._turn.release()
