"""The process that attacks: it begins, says so, and goes on until its stdin ends."""

import argparse
import asyncio
import os
import resource
import sys
from contextlib import suppress

import uvloop

from tests.attack.attack import Attack, Target
from tests.attack.everything import ATTACKS


async def go(attack: Attack, target: Target) -> None:
    running = asyncio.ensure_future(attack.run(target))
    print("begun", flush=True)
    told = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await asyncio.wait({running, asyncio.ensure_future(told)}, return_when=asyncio.FIRST_COMPLETED)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running  # it has no end of its own: if it failed, that is shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("attack", choices=ATTACKS)
    parser.add_argument("--server", type=int, required=True)
    parser.add_argument("--acme", type=int, required=True)
    parser.add_argument("--http", type=int, required=True)
    asked = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvloop.run(go(ATTACKS[asked.attack], Target(asked.server, asked.acme, asked.http, os.environ["ATTACKER_TOKEN"])))


if __name__ == "__main__":
    main()
