"""acme-client of the npm registry, by a script of ours: http-01, dns-01, revocation."""

from pathlib import Path
from typing import Final

from tests.interop.packages import Npm
from tests.interop.site import ISSUE, RENEW, REVOKE, WILDCARD, Client, Site

SCRIPT: Final = Path(__file__).with_name("npm_acme_client.js")


def script(site: Site, verb: str, *names: str) -> str:
    env = {
        "NODE_EXTRA_CA_CERTS": str(site.server.trust),
        "NODE_PATH": str(site.tool.folder / "node_modules"),
        "DIRECTORY": site.server.directory,
        "PROOFS": str(site.proofs),
    }
    with site.webserver():
        site.run("node", SCRIPT, verb, *names, env=env)
    return (site.folder / "fullchain.pem").read_text()


def issue(site: Site) -> str:
    return script(site, "http-01", site.name(ISSUE))


def revoke(site: Site) -> None:
    script(site, "revoke")


def wildcard(site: Site) -> str:
    return script(site, "dns-01", site.name(WILDCARD), f"*.{site.name(WILDCARD)}")


CLIENT: Final = Client(
    "npm-acme-client",
    Npm("acme-client@5.4.0"),
    {ISSUE: issue, RENEW: issue, REVOKE: revoke, WILDCARD: wildcard},
)
