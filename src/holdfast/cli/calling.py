"""Connect a command to the server; this module is light, so that help pages are quick."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.cli.everywhere import chosen
from holdfast.cli.installation.config import settings

if TYPE_CHECKING:
    from holdfast.cli.client import Client
    from holdfast.ports import Clock


@contextmanager
def connected(*, offline: bool = False) -> Iterator[Client]:
    """Connect to the server that --server names, or to the one of this machine.

    `offline`: the operation works on the store, too, while no server runs on this machine.
    """
    from holdfast.cli import client

    here, server = client.here_or_store if offline else client.here, chosen().server
    with client.elsewhere(server) if server else here(settings()) as line:
        yield line


def clock() -> Clock:
    from holdfast.system_clock import SystemClock

    return SystemClock()
