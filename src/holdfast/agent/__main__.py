"""`python -m holdfast.agent`: the agent's process. `holdfast agent run` becomes it, and leaves the commands behind."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from holdfast.agent.identity import Membership
from holdfast.agent.items import Worker
from holdfast.agent.line import AgentTransport
from holdfast.agent.log import AgentLog
from holdfast.agent.run import AgentLoop, Pace
from holdfast.agent.state import AgentFolder
from holdfast.errors import UserError
from holdfast.machine import LocalFiles, SystemRandom
from holdfast.system_clock import SystemClock
from holdfast.undumpable import forbid_core_dumps


async def _run(state: Path, config: Path, pace: Pace) -> int:
    clock = SystemClock()
    folder = AgentFolder(path=state, files=LocalFiles())
    membership = Membership(folder=folder, transport=AgentTransport(), clock=clock, random=SystemRandom())
    log = AgentLog(clock)
    worker = Worker(folder=folder, config=config, log=log, clock=clock)
    loop = AgentLoop(membership=membership, log=log, worker=worker, pace=pace)
    running = asyncio.ensure_future(loop.run())

    def asked() -> None:
        loop.stop.set()
        running.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asked)
    try:
        return await running
    except asyncio.CancelledError:
        return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="holdfast agent run")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--host-file", dest="config", type=Path, default=Path("/etc/holdfast/agent.toml"))
    parser.add_argument("--start-within", type=float, default=Pace().start)
    parser.add_argument("--reconnect-within", type=float, default=Pace().reconnect)
    given = parser.parse_args()
    forbid_core_dumps()
    try:
        pace = Pace(start=given.start_within, reconnect=given.reconnect_within)
        return asyncio.run(_run(given.state, given.config, pace))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
