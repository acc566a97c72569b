"""The registered domain of a name (eTLD+1), by the Public Suffix List that comes with the product."""

from __future__ import annotations

from functools import cache

from publicsuffixlist import PublicSuffixList


@cache
def _list() -> PublicSuffixList:
    """Read when it is first needed; a release of ours brings a newer one."""
    return PublicSuffixList(accept_unknown=True)


def registered_domain(name: str) -> str:
    """What CAs count by: "a.b.example.co.uk" gives "example.co.uk". An address, or a suffix itself, is its own."""
    bare = name.lower().removeprefix("*.").rstrip(".")
    if ":" in bare or bare.replace(".", "").isdigit():
        return bare
    return _list().privatesuffix(bare) or bare
