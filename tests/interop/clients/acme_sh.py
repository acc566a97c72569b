"""acme.sh, in shell: webroot for http-01, a provider of our own for dns-01."""

from typing import Final

from tests.interop.packages import Debian
from tests.interop.site import ISSUE, RENEW, REVOKE, WILDCARD, Client, Site

PROVIDER: Final = """#!/usr/bin/env sh
dns_interop_add() { printf '%s %s\\n' "$1" "$2" | curl -sf --data-binary @- http://127.0.0.1:8055/set; }
dns_interop_rm() { printf '%s %s\\n' "$1" "$2" | curl -sf --data-binary @- http://127.0.0.1:8055/clear; }
"""


def acme_sh(site: Site, *words: str) -> None:
    home = site.folder / "home"
    home.mkdir(exist_ok=True)
    (home / "dns_interop.sh").write_text(PROVIDER)
    common = ["--home", str(home), "--server", site.server.directory, "--ca-bundle", str(site.server.trust)]
    site.run(site.program("acme.sh"), *words, *common, "--accountemail", "interop@acme-sh.test", "-k", "ec-256")


def chain(site: Site, name: str) -> str:
    return (site.folder / "home" / f"{name}_ecc" / "fullchain.cer").read_text()


def issue(site: Site) -> str:
    with site.webserver():
        acme_sh(site, "--issue", "-d", site.name(ISSUE), "-w", str(site.webroot))
    return chain(site, site.name(ISSUE))


def renew(site: Site) -> str:
    with site.webserver():
        acme_sh(site, "--renew", "--force", "-d", site.name(ISSUE), "--ecc")
    return chain(site, site.name(ISSUE))


def revoke(site: Site) -> None:
    acme_sh(site, "--revoke", "-d", site.name(ISSUE), "--ecc", "--revoke-reason", "4")


def wildcard(site: Site) -> str:
    name = site.name(WILDCARD)
    acme_sh(site, "--issue", "-d", name, "-d", f"*.{name}", "--dns", "dns_interop", "--dnssleep", "1")
    return chain(site, name)


CLIENT: Final = Client(
    "acme.sh",
    Debian(("acme.sh",), suite="trixie"),
    {ISSUE: issue, RENEW: renew, REVOKE: revoke, WILDCARD: wildcard},
)
