"""Apache's mod_md, a web server that gets its own certificates: http-01 and tls-alpn-01."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.interop.packages import Debian
from tests.interop.site import ALPN, ISSUE, RENEW, Client, ClientFailed, Site
from tests.support.reaper import until

MODULES: Final = ("mpm_event", "authz_core", "watchdog", "socache_shmcb", "http2", "ssl", "md")
BUILT_IN: Final = frozenset({"watchdog"})  # in Debian's binary


def configuration(site: Site, name: str, challenge: str, more: Sequence[str]) -> str:
    folder = site.tool.folder / "usr" / "lib" / "apache2" / "modules"
    modules = [f"LoadModule {each}_module {folder}/mod_{each}.so" for each in MODULES if each not in BUILT_IN]
    lines = [
        f"ServerRoot {site.folder}", f"DefaultRuntimeDir {site.folder}", f"PidFile {site.folder}/pid",
        f"ServerName {name}", *modules, "Listen 127.0.0.1:80", "Listen 127.0.0.1:443", "ErrorLog /dev/stderr",
        "LogLevel warn md:trace2", "User www-data", "Group www-data", "Protocols h2 http/1.1 acme-tls/1",
        f"MDStoreDir {site.folder}/md", f"MDCertificateAuthority {site.server.directory}",
        f"MDCACertificateFile {site.server.trust}", "MDCertificateAgreement accepted",
        "MDContactEmail interop@apache.test", f"MDCAChallenges {challenge}", "MDInitialDelay 0", *more,
        f"MDomain {name}", "<VirtualHost 127.0.0.1:443>", f"ServerName {name}", "SSLEngine on", "</VirtualHost>",
        "<VirtualHost 127.0.0.1:80>", f"ServerName {name}", "</VirtualHost>",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def apache(site: Site, name: str, challenge: str, *more: str) -> str:
    """Run it until it has obtained a chain, then restart it, which is when it begins to serve it."""
    config = site.folder / f"{name}.conf"
    config.write_text(configuration(site, name, challenge, more))
    command = [site.program("apache2"), "-X", "-f", str(config)]
    staged = site.folder / "md" / "staging" / name / "job.json"
    with site.serving(*command) as output:
        try:
            until(lambda: '"finished": true' in _text(staged), f"mod_md to obtain {name}", seconds=120, every=0.2)
        except TimeoutError as error:
            raise ClientFailed(f"{output.read_text(errors='replace')}\n{error}") from None
    config.write_text(configuration(site, name, challenge, ["MDRenewMode manual"]))
    with site.serving(*command) as output:
        return site.served(name, output, bool)


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def issue(site: Site) -> str:
    return apache(site, site.name(ISSUE), "http-01")


def renew(site: Site) -> str:
    return apache(site, site.name(ISSUE), "http-01", "MDRenewWindow 3650d", "MDRenewViaARI off")


def alpn(site: Site) -> str:
    return apache(site, site.name(ALPN), "tls-alpn-01")


CLIENT: Final = Client("apache", Debian(("apache2", "apache2-bin")), {ISSUE: issue, RENEW: renew, ALPN: alpn})
