"""Where the clients come from: each into a folder of its own in a cache, with nothing installed on the machine."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
STATUS: Final = Path("/var/lib/dpkg/status")
PATIENCE: Final = 600  # seconds for one download


class CannotBeHad(Exception):
    """This package is not to be had on this machine, and why."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A package in its folder: where its programs are, and what they need in their environment."""

    folder: Path
    programs: tuple[Path, ...]
    version: str
    environment: Mapping[str, str] = field(default_factory=dict)

    def program(self, name: str) -> str:
        for folder in self.programs:
            if (folder / name).is_file():
                return str(folder / name)
        raise CannotBeHad(f"the package came without {name}")


class Package(Protocol):
    """One way to get a client."""

    @property
    def folder(self) -> str:
        """Its folder in the cache; another version has another folder."""

    def install(self, folder: Path) -> None:
        """Fill this empty folder, or raise CannotBeHad."""

    def tool(self, folder: Path) -> Tool:
        """What install() has made of the folder."""


def obtain(package: Package, cache: Path) -> Tool:
    """From the cache, or from where packages come from; a folder without its mark is one that was interrupted."""
    folder = cache / package.folder
    mark = folder / ".complete"
    if not mark.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        package.install(folder)
        mark.touch()
    return package.tool(folder)


@dataclass(frozen=True, slots=True)
class Pip:
    """A package of PyPI, in a virtual environment of its own."""

    requirement: str  # name==version

    @property
    def folder(self) -> str:
        return _plain("pip", self.requirement)

    def install(self, folder: Path) -> None:
        _run([sys.executable, "-m", "venv", str(folder)])
        _run([str(folder / "bin" / "pip"), "install", "-q", "--disable-pip-version-check", self.requirement])

    def tool(self, folder: Path) -> Tool:
        return Tool(folder, (folder / "bin",), self.requirement.rpartition("==")[2])


@dataclass(frozen=True, slots=True)
class Npm:
    """A package of the npm registry."""

    requirement: str  # name@version

    @property
    def folder(self) -> str:
        return _plain("npm", self.requirement)

    def install(self, folder: Path) -> None:
        npm = shutil.which("npm")
        if npm is None:
            raise CannotBeHad("there is no npm on this machine")
        _run([npm, "install", "--ignore-scripts", "--no-save", "--prefix", str(folder), self.requirement])

    def tool(self, folder: Path) -> Tool:
        return Tool(folder, (), self.requirement.rpartition("@")[2])


@dataclass(frozen=True, slots=True)
class Debian:
    """Packages of Debian, unpacked and not installed, so that neither root nor a change to the machine is needed.

    Without a suite they are those of the machine's own release, with the libraries that it lacks. With one they come
    from there alone: for scripts and static programs, whose newer version is wanted.
    """

    names: tuple[str, ...]
    suite: str | None = None

    @property
    def folder(self) -> str:
        return _plain("debian", self.suite or "host", *self.names)

    def install(self, folder: Path) -> None:
        apt = shutil.which("apt-get")
        if apt is None or not KEYRING.exists():
            raise CannotBeHad("this is no Debian: there is no apt-get, or no keyring")
        for each in ("lists/partial", "archives/partial", "tree"):
            (folder / each).mkdir(parents=True)
        command = [apt, *self._options(folder)]
        _run([*command, "update"])
        if self.suite is None:
            fetch = ["install", "-y", "--no-install-recommends", "--download-only", "--reinstall"]  # also if it is here
            _run([*command, *fetch, *self.names])
        else:
            _run([*command, "download", *self.names], cwd=folder / "archives")
        for archive in sorted((folder / "archives").glob("*.deb")):
            _run(["dpkg-deb", "-x", str(archive), str(folder / "tree")])
        shutil.rmtree(folder / "lists")  # large, and stale tomorrow

    def _options(self, folder: Path) -> list[str]:
        status = STATUS
        options = {"Dir::State::lists": folder / "lists", "Dir::Cache::archives": folder / "archives"}
        if self.suite is not None:
            sources, status = folder / "sources.list", folder / "status"
            status.touch()
            sources.write_text(f"deb [signed-by={KEYRING}] {_mirror()} {self.suite} main\n")
            options |= {"Dir::Etc::sourcelist": sources, "Dir::Etc::sourceparts": Path("-")}
        options["Dir::State::status"] = status
        plain = ["Dir::Cache::pkgcache=", "Dir::Cache::srcpkgcache=", "Debug::NoLocking=1"]
        if os.geteuid() == 0:
            plain.append("APT::Sandbox::User=root")  # apt's own user cannot write to the cache
        return [word for line in (*(f"{k}={v}" for k, v in options.items()), *plain) for word in ("-o", line)]

    def tool(self, folder: Path) -> Tool:
        tree = folder / "tree"
        libraries = ":".join(str(path) for path in (tree / "usr" / "lib").glob("*-linux-gnu"))
        programs = tuple(tree / each for each in ("usr/bin", "usr/sbin", "usr/share/acme.sh"))
        version = next((folder / "archives").glob(f"{self.names[0]}_*.deb")).name.split("_")[1]
        return Tool(tree, programs, version, {"LD_LIBRARY_PATH": libraries} if libraries else {})


def _mirror() -> str:
    """Where this machine gets its own packages from."""
    for path in sorted(Path("/etc/apt").rglob("*.sources")) + sorted(Path("/etc/apt").rglob("*.list")):
        if found := re.search(r"^(?:URIs: *|deb (?:\[[^]]*\] )?)(\S+/debian)/?\s", path.read_text(), re.MULTILINE):
            return found[1]
    raise CannotBeHad("this machine's sources name no Debian mirror")


def _plain(*words: str) -> str:
    return "-".join(re.sub(r"[^A-Za-z0-9.]+", "-", word) for word in words)


def _run(command: Sequence[str], cwd: Path | None = None) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        raise CannotBeHad(f"{Path(command[0]).name} took more than {PATIENCE} s") from None
    if done.returncode != 0:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip() and " log " not in line]
        raise CannotBeHad(f"{Path(command[0]).name}: {said[-1] if said else f'exit {done.returncode}'}")
