"""dehydrated, in bash: files for http-01, a hook for dns-01."""

from typing import Final

from tests.interop.packages import Debian
from tests.interop.site import ISSUE, RENEW, REVOKE, WILDCARD, Client, Site


def dehydrated(site: Site, *words: str) -> None:
    config = site.folder / "config"
    config.write_text(
        f'CA="{site.server.directory}"\nBASEDIR="{site.folder}"\nWELLKNOWN="{site.proofs}"\n'
        f'CURL_OPTS="--cacert {site.server.trust}"\n'
    )
    site.run(site.program("dehydrated"), "-f", str(config), *words)


def chain(site: Site, name: str) -> str:
    return (site.folder / "certs" / name / "fullchain.pem").read_text()


def issue(site: Site) -> str:
    dehydrated(site, "--register", "--accept-terms")
    with site.webserver():
        dehydrated(site, "-c", "-d", site.name(ISSUE))
    return chain(site, site.name(ISSUE))


def renew(site: Site) -> str:
    with site.webserver():
        dehydrated(site, "-c", "-x", "-d", site.name(ISSUE))
    return chain(site, site.name(ISSUE))


def revoke(site: Site) -> None:
    dehydrated(site, "-r", str(site.folder / "certs" / site.name(ISSUE) / "cert.pem"))


def wildcard(site: Site) -> str:
    name = site.name(WILDCARD)
    dehydrated(site, "--register", "--accept-terms")
    dehydrated(site, "-c", "-d", f"{name} *.{name}", "-t", "dns-01", "-k", str(site.hook("dehydrated")))
    return chain(site, name)


CLIENT: Final = Client(
    "dehydrated",
    Debian(("dehydrated",), suite="trixie"),  # the first Debian whose dehydrated tries again after badNonce
    {ISSUE: issue, RENEW: renew, REVOKE: revoke, WILDCARD: wildcard},
)
