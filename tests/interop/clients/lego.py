"""lego, in Go: all three challenges."""

from typing import Final

from tests.interop.packages import Debian
from tests.interop.site import ALPN, ISSUE, RENEW, REVOKE, WILDCARD, Client, Site

HTTP: Final = ("--http", "--http.port", "127.0.0.1:80")


def lego(site: Site, *words: str) -> None:
    common = ["--server", site.server.directory, "--accept-tos", "--email", "interop@lego.test", "--path", "p"]
    env = {"LEGO_CA_CERTIFICATES": str(site.server.trust), "EXEC_PATH": str(site.hook("lego"))}
    env |= {
        "EXEC_SEQUENCE_INTERVAL": "1",
        "EXEC_POLLING_INTERVAL": "1",
    }  # seconds; it would wait a minute a name
    site.run(site.program("lego"), *common, *words, env=env)


def chain(site: Site, name: str) -> str:
    return (site.folder / "p" / "certificates" / f"{name}.crt").read_text()


def issue(site: Site) -> str:
    lego(site, *HTTP, "-d", site.name(ISSUE), "run")
    return chain(site, site.name(ISSUE))


def renew(site: Site) -> str:
    lego(site, *HTTP, "-d", site.name(ISSUE), "renew", "--days", "10000", "--no-random-sleep")
    return chain(site, site.name(ISSUE))


def revoke(site: Site) -> None:
    lego(site, "-d", site.name(ISSUE), "revoke", "--reason", "4", "--keep")


def wildcard(site: Site) -> str:
    name = site.name(WILDCARD)
    dns = ["--dns", "exec", "--dns.disable-cp", "--dns.resolvers", "127.0.0.1:53"]
    lego(site, *dns, "-d", name, "-d", f"*.{name}", "run")
    return chain(site, name)


def alpn(site: Site) -> str:
    lego(site, "--tls", "--tls.port", "127.0.0.1:443", "-d", site.name(ALPN), "run")
    return chain(site, site.name(ALPN))


CLIENT: Final = Client(
    "lego",
    Debian(("lego",)),
    {ISSUE: issue, RENEW: renew, REVOKE: revoke, WILDCARD: wildcard, ALPN: alpn},
)
