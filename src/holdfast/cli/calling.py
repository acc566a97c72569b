"""What commands about certificates begin with; light, so that their help pages are quick."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.config import settings
from holdfast.config import SERVER_VARIABLE

if TYPE_CHECKING:
    from holdfast.cli.client import Client
    from holdfast.ports import Clock

ServerOption = Annotated[
    str | None,
    typer.Option("--server", envvar=SERVER_VARIABLE, show_envvar=True, help="Address of a server elsewhere."),
]


@contextmanager
def connected(config: Path | None, server: str | None) -> Iterator[Client]:
    """A line to the server that is named, or else to the one of this machine."""
    from holdfast.cli import client

    with client.elsewhere(server) if server else client.here(settings(config)) as line:
        yield line


def clock() -> Clock:
    from holdfast.system_clock import SystemClock

    return SystemClock()
