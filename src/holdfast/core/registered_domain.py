"""The registered domain of a name (eTLD+1), by the Public Suffix List that comes with the product."""

from __future__ import annotations

import ipaddress
from functools import cache

from publicsuffixlist import PublicSuffixList


@cache
def _list() -> PublicSuffixList:
    """Read when it is first needed; a release of ours brings a newer one."""
    return PublicSuffixList(accept_unknown=True)


def registered_domain(name: str) -> str:
    """What CAs count by: "a.b.example.co.uk" gives "example.co.uk". A suffix is its own.

    An IPv4 address is its own too; of IPv6 a whole /64 is one, as whoever has one address there has them all.
    """
    bare = name.lower().removeprefix("*.").rstrip(".")
    if bare.replace(".", "").isdigit():
        return bare
    if ":" in bare:
        return str(ipaddress.ip_network((bare, 64), strict=False))
    return _list().privatesuffix(bare) or bare
