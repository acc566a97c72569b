"""Installs the Debian package into a bare Debian, uses it there, and purges it. `make packages`; needs root."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from scripts.bare_debian import inside, make

TOP: Final = Path(__file__).parent.parent
TRIAL: Final = """
export HOLDFAST_STORE_DATA_DIR=/tmp/d HOLDFAST_SERVER_LISTEN=127.0.0.1:0 HOLDFAST_ACME_LISTEN=127.0.0.1:0
holdfast --version && holdfast serve --stop-after 8 2>/tmp/log || { cat /tmp/log; exit 1; }
grep -q holdfast.serving /tmp/log && grep -q holdfast.stopped /tmp/log
"""


def main() -> None:
    [package] = (TOP / "dist").glob("*.deb")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        make(root, "bookworm", "python3,ca-certificates,passwd")
        shutil.copy(package, root / "tmp")
        inside(root, "dpkg", "-i", f"/tmp/{package.name}")
        inside(root, "sh", "-ec", TRIAL)
        inside(root, "getent", "passwd", "holdfast")
        inside(root, "sh", "-c", "mkdir -p /var/lib/holdfast && touch /var/lib/holdfast/holdfast.key")
        inside(root, "dpkg", "--purge", "holdfast")
        left = [each for each in ("usr/bin/holdfast", "usr/lib/holdfast", "etc/holdfast") if (root / each).exists()]
        kept = (root / "var/lib/holdfast/holdfast.key").exists()
    if left or not kept:
        sys.exit(f"After the purge: left {left}, key kept: {kept}")
    print("The package was installed in a bare Debian, served, and was purged; the key was kept.")


if __name__ == "__main__":
    main()
