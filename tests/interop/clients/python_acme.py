"""Python's acme, the library under certbot, by a script of ours: http-01, dns-01, revocation, ES256 accounts."""

from pathlib import Path
from typing import Final

from tests.interop.packages import Pip
from tests.interop.site import ISSUE, RENEW, REVOKE, WILDCARD, Client, Site

SCRIPT: Final = Path(__file__).with_name("python_acme_script.py")


def script(site: Site, verb: str, *names: str) -> str:
    env = {"DIRECTORY": site.server.directory, "TRUST": str(site.server.trust), "PROOFS": str(site.proofs)}
    with site.webserver():
        site.run(site.program("python"), SCRIPT, verb, *names, env=env)
    return (site.folder / "fullchain.pem").read_text()


def issue(site: Site) -> str:
    return script(site, "http-01", site.name(ISSUE))


def revoke(site: Site) -> None:
    script(site, "revoke")


def wildcard(site: Site) -> str:
    return script(site, "dns-01", site.name(WILDCARD), f"*.{site.name(WILDCARD)}")


CLIENT: Final = Client(
    "python-acme",
    Pip("acme==5.9.0"),
    {ISSUE: issue, RENEW: issue, REVOKE: revoke, WILDCARD: wildcard},
)
