"""Finds the kinds of issuers, channels, solvers and deployers that are installed, by entry point.

Ours and those of other packages register in the same way, in pyproject.toml:

    [project.entry-points."holdfast.issuers"]
    vault = "holdfast.issuers.vault:VAULT"

The installed kinds are a fact of this Python, as its modules are: they are read once in a process. A kind is imported
when it is first asked for. One that cannot be imported is a value with the name of its package, and does not stop the
others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from holdfast.core.kind import Kind
from holdfast.errors import UserError

ISSUERS: Final = "holdfast.issuers"
NOTIFIERS: Final = "holdfast.notifiers"
SOLVERS: Final = "holdfast.solvers"
DEPLOYERS: Final = "holdfast.deployers"
GROUPS: Final = (ISSUERS, NOTIFIERS, SOLVERS, DEPLOYERS)

AnyKind = Kind[Any, Any, Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A plugin that is installed and cannot be used."""

    group: str
    name: str
    value: str  # module:object
    package: str  # with its version
    error: str

    def __str__(self) -> str:
        return f"The plugin {self.name} ({self.value}, {self.group}) of {self.package} cannot be used: {self.error}."


class PluginsClash(UserError):
    """Two packages offer a kind of one name: a stored row could mean either."""

    status, code = 500, "plugins-clash"

    def __init__(self, group: str, name: str, offers: list[EntryPoint]) -> None:
        named = " and ".join(f"{package_of(each)} ({each.value})" for each in offers)
        super().__init__(f"Two plugins in {group} are named {name!r}: {named}.")
        self.hint = "Uninstall one of these packages, then start again."


def package_of(entry: EntryPoint) -> str:
    return "an unknown package" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


class Kinds(Mapping[str, AnyKind]):
    """The kinds of one group, by name; each is imported when it is first asked for. KeyError: not there, or broken."""

    def __init__(self, group: str, offers: Mapping[str, EntryPoint]) -> None:
        self.group = group
        self._offers = offers
        self._loaded: dict[str, AnyKind | Broken] = {}

    def __getitem__(self, name: str) -> AnyKind:
        found = self._load(name)
        if isinstance(found, Broken):
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        """Those that can be used; to find out, all are imported."""
        return (name for name in self._offers if not isinstance(self._load(name), Broken))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def broken(self) -> list[Broken]:
        """Those that cannot be used, with the reason; to find out, all are imported."""
        return [found for name in self._offers if isinstance(found := self._load(name), Broken)]

    def problem(self, name: str) -> str:
        """Why there is no kind of this name, as a sentence without its stop."""
        found = self._loaded.get(name)
        if isinstance(found, Broken):
            return str(found).rstrip(".")
        return f"no installed package has a kind {name!r:.40} in {self.group}"

    def _load(self, name: str) -> AnyKind | Broken:
        if name not in self._loaded:
            self._loaded[name] = _loaded(self._offers[name])
        return self._loaded[name]


def _loaded(entry: EntryPoint) -> AnyKind | Broken:
    """Whatever a stranger's module raises while it is imported is told, and stays there."""
    try:
        found = entry.load()
    except (Exception, SystemExit) as error:
        said = " ".join(str(error).split())[:300].rstrip(".")
        return _broken(entry, f"{type(error).__name__}: {said}" if said else type(error).__name__)
    if not isinstance(found, Kind):
        return _broken(entry, f"it is a {type(found).__name__}, and must be a holdfast.core.kind.Kind")
    if found.name != entry.name:
        return _broken(entry, f"its kind is named {found.name!r:.40}, other than the entry point")
    return found


def _broken(entry: EntryPoint, error: str) -> Broken:
    return Broken(group=entry.group, name=entry.name, value=entry.value, package=package_of(entry), error=error)


@cache
def kinds(group: str) -> Kinds:
    """The kinds that are installed; PluginsClash if two have one name."""
    offers: dict[str, EntryPoint] = {}
    for entry in sorted(entry_points(group=group), key=lambda each: (each.name, each.value)):
        if entry.name in offers:
            raise PluginsClash(group, entry.name, [offers[entry.name], entry])
        offers[entry.name] = entry
    return Kinds(group, offers)


def broken() -> list[Broken]:
    """All that cannot be used, of all groups. PluginsClash if two plugins of a group have one name."""
    return [each for group in GROUPS for each in kinds(group).broken()]
