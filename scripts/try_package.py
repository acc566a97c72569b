"""Installs the Debian package into a bare Debian, uses it there, and purges it. `make packages`; needs root."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

TOP: Final = Path(__file__).parent.parent
TRIAL: Final = """
export HOLDFAST_STORE_DATA_DIR=/tmp/d HOLDFAST_SERVER_LISTEN=127.0.0.1:0 HOLDFAST_ACME_LISTEN=127.0.0.1:0
holdfast --version && holdfast serve --stop-after 8 2>/tmp/log || { cat /tmp/log; exit 1; }
grep -q holdfast.serving /tmp/log && grep -q holdfast.stopped /tmp/log
"""


def main() -> None:
    debootstrap = shutil.which("debootstrap")
    if debootstrap is None:
        sys.exit("There is no debootstrap: apt-get install debootstrap")
    [package] = (TOP / "dist").glob("*.deb")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        include = "--include=python3,ca-certificates,passwd"
        _run(debootstrap, "--variant=minbase", include, "bookworm", str(root), _mirror())
        shutil.copy(package, root / "tmp")
        _inside(root, "dpkg", "-i", f"/tmp/{package.name}")
        _inside(root, "sh", "-ec", TRIAL)
        _inside(root, "getent", "passwd", "holdfast")
        _inside(root, "sh", "-c", "mkdir -p /var/lib/holdfast && touch /var/lib/holdfast/holdfast.key")
        _inside(root, "dpkg", "--purge", "holdfast")
        left = [each for each in ("usr/bin/holdfast", "usr/lib/holdfast", "etc/holdfast") if (root / each).exists()]
        kept = (root / "var/lib/holdfast/holdfast.key").exists()
    if left or not kept:
        sys.exit(f"After the purge: left {left}, key kept: {kept}")
    print("The package was installed in a bare Debian, served, and was purged; the key was kept.")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")


def _inside(root: Path, *command: str) -> None:
    _run("/usr/sbin/chroot", str(root), *command)


def _mirror() -> str:
    """Where this machine gets its own packages from."""
    for path in sorted(Path("/etc/apt").rglob("*.sources")) + sorted(Path("/etc/apt").rglob("*.list")):
        if found := re.search(r"^(?:URIs: *|deb (?:\[[^]]*\] )?)(\S+/debian)/?\s", path.read_text(), re.MULTILINE):
            return found[1]
    sys.exit("The sources of this machine name no Debian mirror.")


if __name__ == "__main__":
    main()
