"""The whole product in a process that dies where it is told to: `holdfast serve` with the Points port of a harness.

    python -m tests.support.acme_child --store holdfast.sqlite --folder f --report f/r --address 127.9.0.1 \\
        --http-port 8402 --strike kill:job.settling:2
"""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

from holdfast.app import App
from holdfast.config import (
    KEY_NAME,
    Acme,
    EngineSettings,
    Keys,
    ReplicaSettings,
    Scheduler,
    ServerSettings,
    Settings,
    StoreSettings,
)
from holdfast.secret import Secret
from tests.support.child import Passages, Report, Strike, die_with_parent

CA: Final = "ca1"
PORT: Final = 8631
BASE_URL: Final = f"https://localhost:{PORT}"  # the same for all replicas; their clients know the way to each
DIRECTORY: Final = f"{BASE_URL}/acme/{CA}/directory"
TRIES: Final = 2  # of one challenge
SOON: Final = timedelta(seconds=1)


def settings_of(wishes: argparse.Namespace) -> Settings:
    """What an operator in a hurry would set."""
    shared = "://" in wishes.store
    own: Path = wishes.folder / wishes.name if shared else wishes.folder  # its socket lies there
    return Settings(
        server=ServerSettings(listen=f"{wishes.address}:{PORT - 1}"),
        replica=ReplicaSettings(name=wishes.name),
        store=StoreSettings(data_dir=own, url=Secret(wishes.store if shared else "")),
        keys=Keys(file=wishes.folder / KEY_NAME),
        scheduler=Scheduler(retry_interval=SOON, reconcile_interval=SOON),
        engine=EngineSettings(
            lease_ttl=timedelta(seconds=wishes.ttl), poll_interval=timedelta(seconds=wishes.poll), drain=2 * SOON
        ),
        acme=Acme(
            listen=f"{wishes.address}:{PORT}",
            base_url=BASE_URL,
            publish_url=f"http://localhost:{PORT - 1}",
            first_ca=CA,
            networks=("127.0.0.0/8",),
            http_port=wishes.http_port,
            validation_timeout=60 * SOON,
            validation_tries=TRIES,
        ),
    )


async def live(wishes: argparse.Namespace, report: Report) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await App(settings_of(wishes), points=Passages(report, wishes.strike)).run(stop)
    report.say("ended")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.support.acme_child", description=__doc__.partition("\n")[0])
    parser.add_argument("--store", required=True, help="a PostgreSQL URL, or the path of an SQLite file")
    parser.add_argument("--folder", required=True, type=Path, help="where the key file is, and the SQLite file")
    parser.add_argument("--report", required=True, type=Path, help="file for one line per passage")
    parser.add_argument("--address", required=True, help="the loopback address to answer on")
    parser.add_argument("--http-port", required=True, type=int, help="where http-01 challenges are answered")
    parser.add_argument("--name", default="child", help="the replica's name, as people see it")
    parser.add_argument("--strike", action="append", type=Strike.read, default=[], help="kill|stop:POINT:N")
    parser.add_argument("--ttl", type=float, default=3.0)
    parser.add_argument("--poll", type=float, default=1.0)
    return parser


def main(argv: Sequence[str]) -> None:
    wishes = parser().parse_args(argv)
    report = Report(wishes.report)
    log = os.open(f"{wishes.report}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, sys.stderr.fileno())
    os.close(log)
    die_with_parent()
    asyncio.run(live(wishes, report))


if __name__ == "__main__":
    main(sys.argv[1:])
