"""Builds what is released into dist/: wheel, Debian package, chart, bill of materials, checksums. `make release`.

The same commit gives the same bytes: times come from the commit (SOURCE_DATE_EPOCH), owners and modes are fixed.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path
from typing import Any, Final

TOP: Final = Path(__file__).parent.parent
DIST: Final = TOP / "dist"
PROJECT: Final[dict[str, Any]] = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
VERSION: Final[str] = PROJECT["version"]
MADE_FOR: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
LAUNCHER: Final = f"""#!/usr/bin/python{MADE_FOR} -IB
import sys
sys.path.insert(0, "/usr/lib/holdfast")
from holdfast.cli.main import main
sys.exit(main())
"""
SETTINGS: Final = """# Settings of Holdfast: `holdfast config show` lists them all, and where each value comes from.
# [store]
# url = "postgresql://holdfast@db1,db2/holdfast"
"""
POSTINST: Final = """#!/bin/sh
set -e
if [ "$1" = configure ]; then
    if command -v systemd-sysusers >/dev/null; then
        systemd-sysusers holdfast.conf
    elif ! getent passwd holdfast >/dev/null; then
        useradd --system --home-dir /var/lib/holdfast --shell /usr/sbin/nologin holdfast
    fi
    if [ -d /run/systemd/system ]; then systemctl daemon-reload || true; fi
    echo "Holdfast does not start by itself. Look at /etc/holdfast/holdfast.toml, then: systemctl enable --now holdfast"
fi
"""
PRERM: Final = """#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then systemctl disable --now holdfast || true; fi
"""
POSTRM: Final = """#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload || true; fi
if [ "$1" = purge ] && [ -d /var/lib/holdfast ]; then
    echo "/var/lib/holdfast is left: it holds the database and its key. Remove it by hand if you need neither any more."
fi
"""


def main() -> None:
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    when = int(os.environ.get("SOURCE_DATE_EPOCH") or _said("git", "log", "-1", "--format=%ct"))
    os.environ["SOURCE_DATE_EPOCH"] = str(when)
    wheel = _wheel()
    materials = DIST / f"holdfast-{VERSION}.cdx.json"
    materials.write_text(json.dumps(bill_of_materials(), indent=1) + "\n")
    _chart(when)
    with tempfile.TemporaryDirectory() as work:
        _debian(Path(work), wheel, when)
    sums = "".join(f"{_sha256(each)}  {each.name}\n" for each in sorted(DIST.iterdir()))
    (DIST / "SHA256SUMS").write_text(sums)
    print(sums, end="")


def _said(*command: str) -> str:
    return subprocess.run(command, cwd=TOP, check=True, capture_output=True, text=True).stdout.strip()


def _wheel() -> Path:
    _pip("wheel", "--no-deps", "--no-build-isolation", "-w", str(DIST), str(TOP))
    [wheel] = DIST.glob("*.whl")
    return wheel


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *arguments], check=True)


# ── What it is made of ──


def bill_of_materials() -> dict[str, Any]:
    """CycloneDX 1.6, from the lock: every package with its version and the hashes that an installation checks."""
    found = re.findall(
        r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;\\]+)(.*?)(?=^\S|\Z)", _lock(), re.MULTILINE | re.DOTALL
    )
    parts = [
        {
            "type": "library",
            "name": name,
            "version": version,
            "purl": f"pkg:pypi/{name.lower()}@{version}",
            "hashes": [{"alg": "SHA-256", "content": each} for each in re.findall(r"sha256:([0-9a-f]{64})", rest)],
        }
        for name, version, rest in found
    ]
    about = {
        "type": "application",
        "name": "holdfast",
        "version": VERSION,
        "licenses": [{"license": {"id": "Apache-2.0"}}],
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": about},
        "components": parts,
    }


def _lock() -> str:
    return (TOP / "requirements" / "run.txt").read_text()


# ── The chart ──


def _chart(when: int) -> None:
    """As `helm package` makes it; links are followed, as Helm follows them."""
    folder = TOP / "deploy" / "chart"
    files = {f"holdfast/{each.relative_to(folder)}": each.read_bytes() for each in folder.rglob("*") if each.is_file()}
    (DIST / f"holdfast-{VERSION}.tgz").write_bytes(gzip.compress(_tar(files, {}, when), mtime=when))


def _tar(files: dict[str, bytes], modes: dict[str, int], when: int) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name in sorted(files):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(files[name]), when, modes.get(name, 0o644)
            archive.addfile(entry, io.BytesIO(files[name]))
    return made.getvalue()


# ── The Debian package ──


def _debian(work: Path, wheel: Path, when: int) -> None:
    tree = work / "tree"
    library = tree / "usr/lib/holdfast"
    lock = str(TOP / "requirements" / "run.txt")
    only = ("--only-binary", ":all:", "--no-compile", "--target", str(library))
    _pip("install", "--require-hashes", *only, "-r", lock)
    _pip("install", "--no-deps", *only, "--upgrade", str(wheel))
    shutil.rmtree(library / "bin", ignore_errors=True)
    same = ("-q", "--invalidation-mode", "unchecked-hash", "-s", str(tree), "-p", "/", str(library))
    subprocess.run([sys.executable, "-m", "compileall", *same], check=True)
    systemd = TOP / "deploy" / "systemd"
    _put(tree / "usr/bin/holdfast", LAUNCHER, 0o755)
    _put(tree / "lib/systemd/system/holdfast.service", (systemd / "holdfast.service").read_text())
    _put(tree / "usr/lib/sysusers.d/holdfast.conf", (systemd / "holdfast.sysusers").read_text())
    _put(tree / "etc/holdfast/holdfast.toml", SETTINGS)
    documents = tree / "usr/share/doc/holdfast"
    _put(documents / "copyright", (TOP / "LICENSE").read_text())
    _put(documents / "examples/credentials.conf", (systemd / "credentials.conf").read_text())
    _control(tree / "DEBIAN", size=sum(each.stat().st_size for each in tree.rglob("*") if each.is_file()) // 1024)
    for each in tree.rglob("*"):
        os.utime(each, (when, when), follow_symlinks=False)
    out = DIST / f"holdfast_{VERSION}_{_said('dpkg', '--print-architecture')}.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(tree), str(out)],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def _put(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def _control(folder: Path, *, size: int) -> None:
    major, minor = sys.version_info[:2]
    fields = {
        "Package": "holdfast",
        "Version": VERSION,
        "Architecture": _said("dpkg", "--print-architecture"),
        "Maintainer": "The Holdfast maintainers <holdfast@localhost>",
        "Installed-Size": str(size),
        "Depends": f"python3 (>= {major}.{minor}), python3 (<< {major}.{minor + 1}), ca-certificates",
        "Section": "admin",
        "Priority": "optional",
        "Description": f"{PROJECT['description'].partition(':')[0]}\n {PROJECT['description'].partition(': ')[2]}",
    }
    _put(folder / "control", "".join(f"{name}: {value}\n" for name, value in fields.items()))
    _put(folder / "conffiles", "/etc/holdfast/holdfast.toml\n")
    for name, script in (("postinst", POSTINST), ("prerm", PRERM), ("postrm", POSTRM)):
        _put(folder / name, script, 0o755)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
