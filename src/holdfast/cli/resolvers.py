"""Which name servers a command asks: those of the settings, or of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from holdfast.config import Settings

RESOLV_CONF: Final = Path("/etc/resolv.conf")


def resolvers(chosen: Settings) -> tuple[str, ...]:
    from holdfast.world import LocalFiles

    lines = [line.split() for line in (LocalFiles().read(RESOLV_CONF) or b"").decode(errors="replace").splitlines()]
    found = [words[1] for words in lines if len(words) > 1 and words[0] == "nameserver" and "%" not in words[1]]
    return chosen.acme.resolvers or tuple(found) or ("127.0.0.1",)
