"""certbot, by the EFF: standalone for http-01, manual hooks for dns-01."""

from typing import Final

from tests.interop.packages import Pip
from tests.interop.site import ISSUE, RENEW, REVOKE, WILDCARD, Client, Site


def certbot(site: Site, *words: str) -> str:
    common = ["--server", site.server.directory, "--config-dir", "c", "--work-dir", "w", "--logs-dir", "l", "-n"]
    trust = {"REQUESTS_CA_BUNDLE": str(site.server.trust)}
    return site.run(site.program("certbot"), *words, *common, env=trust)


REGISTER: Final = ("--agree-tos", "--register-unsafely-without-email")


def chain(site: Site, name: str) -> str:
    return (site.folder / "c" / "live" / name / "fullchain.pem").read_text()


def issue(site: Site) -> str:
    name = site.name(ISSUE)
    certbot(site, "certonly", *REGISTER, "--standalone", "--http-01-address", "127.0.0.1", "-d", name)
    return chain(site, name)


def renew(site: Site) -> str:
    certbot(site, "renew", "--force-renewal", "--no-random-sleep-on-renew", "--cert-name", site.name(ISSUE))
    return chain(site, site.name(ISSUE))


def revoke(site: Site) -> None:
    certbot(site, "revoke", "--cert-name", site.name(ISSUE), "--reason", "superseded", "--no-delete-after-revoke")


def wildcard(site: Site) -> str:
    name = site.name(WILDCARD)
    hooks = ["--manual-auth-hook", str(site.hook("certbot", "set"))]
    hooks += ["--manual-cleanup-hook", str(site.hook("certbot", "clear"))]
    names = ["-d", name, "-d", f"*.{name}"]
    certbot(site, "certonly", *REGISTER, "--manual", "--preferred-challenges", "dns", *hooks, *names)
    return chain(site, name)


CLIENT: Final = Client(
    "certbot",
    Pip("certbot==5.8.0"),
    {ISSUE: issue, RENEW: renew, REVOKE: revoke, WILDCARD: wildcard},
)
