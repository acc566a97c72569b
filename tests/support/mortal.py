"""`holdfast serve` that dies by SIGKILL at the n-th passing of a point: python -m tests.support.mortal POINT N."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from holdfast.app import App
from holdfast.config import load
from tests.support.reaper import PATIENCE


class Strike:
    def __init__(self, point: str, at: int) -> None:
        self._point, self._left = point, at

    def __call__(self, name: str) -> None:
        self._left -= name == self._point
        if self._left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)


async def main(point: str, at: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(PATIENCE, stop.set)
    await App(load(None, os.environ, Path.read_bytes), points=Strike(point, at)).run(stop)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
