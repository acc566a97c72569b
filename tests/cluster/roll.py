"""A rolling upgrade under load: replicas of an earlier version are replaced one by one, there and back again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.cluster import faults
from tests.cluster.replicas import ROOT, Replica, Replicas


def replace(replica: Replica, source: Path) -> int:
    """As an operator does it: stop, install, start, wait until it is ready. The exit code of the stop."""
    code = replica.stop()
    replica.source = source
    replica.start()
    replica.wait_until_ready()
    return code


def parked(held: Replica, meanwhile: Callable[[], None]) -> None:
    """While a replica stands still with all that it was about to do, others go on, and take it over."""
    held.freeze(frozen=True)
    meanwhile()
    faults.lasts(12)  # longer than its leases
    held.freeze(frozen=False)


def there(replicas: Replicas, before: Path) -> list[int]:
    """From the earlier version to this one, with jobs that either version parked left to the other."""
    first, second, third = replicas.all
    codes = list[int]()
    parked(third, lambda: codes.append(replace(first, ROOT / "src")))  # what an old one held is done by a new one
    parked(first, lambda: faults.lasts(1))  # and the other way round
    codes.append(replace(second, ROOT / "src"))
    codes.append(replace(third, ROOT / "src"))
    return codes


def back(replicas: Replicas, before: Path) -> list[int]:
    """To the earlier version again, as somebody does who is not content: the schema stays."""
    return [replace(each, before) for each in replicas.all]
