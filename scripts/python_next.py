"""Runs the tests with the Python of another Debian release: `make python-next` (NEXT=trixie: 3.13, sid: a newer one).

The release is made once, in a cache folder, and used again. It needs root, debootstrap and the network; nothing of it
is installed on this machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from scripts import bare_debian

TOP: Final = Path(__file__).parent.parent
CACHE: Final = TOP / ".cache" / "debian"
PACKAGES: Final = "python3,python3-venv,python3-dev,ca-certificates,gcc,libc6-dev,openssl,git,make"
# In a mount namespace of its own, so that nothing stays mounted: processes started by tests want /proc and /dev.
INSIDE: Final = 'mount --bind /proc "$0/proc" && mount --bind /dev "$0/dev" && exec chroot "$0" sh -c "$1"'
KEPT: Final = ("PIP_", "http_proxy", "https_proxy", "no_proxy")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.python_next", description=__doc__)
    parser.add_argument("suite", nargs="?", default="trixie", help="a Debian release")
    parser.add_argument("tests", nargs="*", default=["tests/unit"], help="what pytest is given")
    asked = parser.parse_args()
    root = CACHE / asked.suite
    if not (root / "made").exists():
        root.mkdir(parents=True, exist_ok=True)
        bare_debian.make(root, asked.suite, PACKAGES)
        (root / "made").touch()
    copied(root / "src")
    words = " ".join(asked.tests)
    sys.exit(
        inside(root, f"cd /src && make -s .venv/.dev && .venv/bin/python --version && .venv/bin/pytest -q {words}")
    )


def copied(to: Path) -> None:
    """The files that git knows, as they are here now."""
    to.mkdir(exist_ok=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=TOP, capture_output=True, check=True).stdout
    packed = subprocess.run(["tar", "--null", "-T", "-", "-c"], cwd=TOP, input=listed, capture_output=True, check=True)
    subprocess.run(["tar", "-x"], cwd=to, input=packed.stdout, check=True)


def inside(root: Path, script: str) -> int:
    env = {name: value for name, value in os.environ.items() if name.startswith(KEPT)}
    env |= {"HOME": "/root", "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}
    return subprocess.run(
        ["unshare", "--mount", "sh", "-ec", INSIDE, str(root), script], env=env, check=False
    ).returncode


if __name__ == "__main__":
    main()
