"""The servers that this user logged in to, by name, with a token each; in a file that only this user can read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from holdfast.errors import UserError

FILE: Final = Path("holdfast") / "login.json"  # in the folder of this user's settings
Context = Mapping[str, str]  # server and token


class NoContext(UserError):
    status, code = 404, "no-such-context"

    def __init__(self, name: str, known: Mapping[str, Context]) -> None:
        super().__init__(f"There is no context {name!r:.60}.")
        self.hint = f"There are: {', '.join(known)}." if known else "Make one: holdfast login URL --name NAME"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contexts:
    current: str = ""
    known: Mapping[str, Context] = field(default_factory=dict)

    def get(self, name: str) -> Context:
        try:
            return self.known[name]
        except KeyError:
            raise NoContext(name, self.known) from None

    def using(self, name: str) -> Contexts:
        self.get(name)
        return replace(self, current=name)

    def with_(self, name: str, server: str, token: str) -> Contexts:
        return Contexts(current=name, known={**self.known, name: {"server": server, "token": token}})

    def without(self, name: str) -> Contexts:
        left = {each: context for each, context in self.known.items() if each != name}
        return Contexts(current=self.current if self.current in left else next(iter(left), ""), known=left)


def _file() -> Path:
    """Where XDG_CONFIG_HOME says, if it is an absolute path, as the XDG base directories ask; else ~/.config."""
    from holdfast.cli.installation.config import environment

    folder = Path(environment("XDG_CONFIG_HOME") or "")
    return (folder if folder.is_absolute() else Path.home() / ".config") / FILE


def read() -> Contexts:
    from holdfast.world import LocalFiles

    kept = LocalFiles().read(_file())
    found = {} if kept is None else json.loads(kept)
    if "server" in found:  # as it was written before there were names
        return Contexts(current="default", known={"default": {"server": found["server"], "token": found["token"]}})
    return Contexts(current=found.get("current", ""), known=found.get("contexts", {}))


def write(contexts: Contexts) -> None:
    from holdfast.world import LocalFiles

    content = json.dumps({"current": contexts.current, "contexts": dict(contexts.known)}, indent=1)
    LocalFiles().write_private(_file(), content.encode(), replace=True)


def in_force(named: str | None) -> Context:
    """The one that is named, or else the current one; nothing if this user never logged in."""
    kept = read()
    if named:
        return kept.get(named)
    return kept.known.get(kept.current, {})
