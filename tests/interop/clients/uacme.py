"""uacme, in C: one hook for everything, and its companion ualpn for tls-alpn-01."""

import shlex
from typing import Final

from tests.interop.packages import Debian
from tests.interop.site import ALPN, ISSUE, RENEW, REVOKE, WILDCARD, Client, Site
from tests.support.reaper import until

BUNDLE: Final = "/etc/ssl/certs/ca-certificates.crt"
# Debian's own ualpn.sh, without the assumption that ualpn is on the PATH with its default socket.
HOOK: Final = """#!/bin/sh
[ "$2" = tls-alpn-01 ] || exit 1
case "$1" in begin) line="auth $3 $5" ;; *) line="unauth $3" ;; esac
[ "$(echo "$line" | {ualpn})" = OK ]
"""


def uacme(site: Site, *words: str, challenge: str = ISSUE) -> None:
    """It trusts the machine's bundle alone: for this one process, that is the server's root."""
    command = [site.program("uacme"), "-v", "-c", "c", "-a", site.server.directory, "-y", *words]
    bind = shlex.join(["mount", "--bind", str(site.server.trust), BUNDLE])
    env = {"INTEROP_PROOFS": str(site.proofs), "INTEROP_CHALLENGE": challenge}
    site.run("unshare", "--mount", "sh", "-c", f"{bind} && exec {shlex.join(command)}", env=env)


def new_account(site: Site) -> None:
    """It keeps no note of having one, and would ask again."""
    if not (site.folder / "registered").exists():
        uacme(site, "-t", "EC", "new")
        (site.folder / "registered").touch()


def chain(site: Site, name: str) -> str:
    return (site.folder / "c" / name / "cert.pem").read_text()


def issue(site: Site) -> str:
    new_account(site)
    with site.webserver():
        uacme(site, "-h", str(site.hook("uacme")), "-t", "EC", "issue", site.name(ISSUE))
    return chain(site, site.name(ISSUE))


def renew(site: Site) -> str:
    with site.webserver():
        uacme(site, "-f", "-h", str(site.hook("uacme")), "-t", "EC", "issue", site.name(ISSUE))
    return chain(site, site.name(ISSUE))


def revoke(site: Site) -> None:
    uacme(site, "revoke", f"c/{site.name(ISSUE)}/cert.pem")


def wildcard(site: Site) -> str:
    name = site.name(WILDCARD)
    new_account(site)
    uacme(site, "-h", str(site.hook("uacme")), "-t", "EC", "issue", name, f"*.{name}", challenge=WILDCARD)
    return chain(site, name)


def alpn(site: Site) -> str:
    """Its companion answers on port 443, told what by way of a socket."""
    name, socket = site.name(ALPN), site.folder / "ualpn.sock"
    ualpn = [site.program("ualpn"), "-v", "-s", str(socket)]
    hook = site.folder / "hook-ualpn"
    hook.write_text(HOOK.format(ualpn=shlex.join(ualpn)))
    hook.chmod(0o755)
    new_account(site)
    with site.serving(*ualpn, "-4", "-b", "127.0.0.1@443", "-c", "127.0.0.1@8443", "-n", "1"):
        until(socket.exists, "ualpn to listen")
        uacme(site, "-h", str(hook), "-t", "EC", "issue", name)
    return chain(site, name)


CLIENT: Final = Client(
    "uacme",
    Debian(("uacme",)),
    {ISSUE: issue, RENEW: renew, REVOKE: revoke, WILDCARD: wildcard, ALPN: alpn},
)
