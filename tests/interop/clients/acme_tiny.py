"""acme-tiny, 200 lines of Python: keys and request made beforehand, files for http-01, RSA accounts."""

from typing import Final

from tests.interop.packages import Pip
from tests.interop.site import ISSUE, RENEW, Client, Site


def prepare(site: Site, name: str) -> None:
    for key in ("account.key", "domain.key"):
        site.run("openssl", "genrsa", "-out", key, "2048")
    request = ["-subj", "/", "-addext", f"subjectAltName=DNS:{name}", "-out", "domain.csr"]
    site.run("openssl", "req", "-new", "-sha256", "-key", "domain.key", *request)


def acme_tiny(site: Site) -> str:
    words = ["--account-key", "account.key", "--csr", "domain.csr", "--acme-dir", str(site.proofs), "--quiet"]
    server = ["--directory-url", site.server.directory]
    with site.webserver():
        return site.run(site.program("acme-tiny"), *words, *server, env={"SSL_CERT_FILE": str(site.server.trust)})


def issue(site: Site) -> str:
    prepare(site, site.name(ISSUE))
    return acme_tiny(site)


CLIENT: Final = Client("acme-tiny", Pip("acme-tiny==5.0.3"), {ISSUE: issue, RENEW: acme_tiny})
