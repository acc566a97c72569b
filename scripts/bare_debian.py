"""A bare Debian in a folder, made with debootstrap, to try things in that this machine does not have; needs root."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

# What a program inside needs of this machine to reach the network as this machine does.
_OURS: Final = ("etc/resolv.conf", "etc/ssl/certs/ca-certificates.crt")


def make(root: Path, suite: str, packages: str) -> None:
    debootstrap = shutil.which("debootstrap")
    if debootstrap is None:
        sys.exit("There is no debootstrap: apt-get install debootstrap")
    run(debootstrap, "--variant=minbase", f"--include={packages}", suite, str(root), _mirror())
    for each in _OURS:
        if Path("/", each).exists():
            shutil.copy(Path("/", each), root / each)


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")


def inside(root: Path, *command: str) -> None:
    run("/usr/sbin/chroot", str(root), *command)


def _mirror() -> str:
    """Where this machine gets its own packages from."""
    for path in sorted(Path("/etc/apt").rglob("*.sources")) + sorted(Path("/etc/apt").rglob("*.list")):
        if found := re.search(r"^(?:URIs: *|deb (?:\[[^]]*\] )?)(\S+/debian)/?\s", path.read_text(), re.MULTILINE):
            return found[1]
    sys.exit("The sources of this machine name no Debian mirror.")
