"""Whether this program and the server are of the same version."""

from __future__ import annotations

from typing import Final

from holdfast import __version__
from holdfast.cli.calling import connected
from holdfast.cli.terminal import say

DIFFERENT: Final = 10  # exit code


def show() -> int:
    """Print the versions of the server's replicas; the exit code."""
    with connected(None, None) as client:
        found = client.get("/cluster")
    versions = sorted({str(row["version"]) for row in found["replicas"]})
    print("\n".join(f"server {each}" for each in versions))
    others = [each for each in versions if each != __version__]
    if others:
        say(f"This program is {__version__}, the server {', '.join(others)}: upgrade the older of them.")
    return DIFFERENT if others else 0
