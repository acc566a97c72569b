"""What every certificate that a client received must stand: three verifiers that are not ours, and the CRL."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.error import URLError

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from tests.interop.servers import Server, fetch
from tests.support.reaper import until

CRL_WITHIN: Final = 60  # seconds from a revocation to the CRL that says so
PKILINT: Final = Path(sys.executable).parent


class Unfit(Exception):
    """A certificate or CRL that somebody else's software does not accept, and why."""


def leaf(chain: str) -> x509.Certificate:
    return x509.load_pem_x509_certificates(chain.encode())[0]


def check(chain: str, names: Sequence[str], server: Server, folder: Path) -> None:
    """The chain leads to the server's root, is good for exactly these names, and the linter is content."""
    certificates = x509.load_pem_x509_certificates(chain.encode())
    found = certificates[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if sorted(found.get_values_for_type(x509.DNSName)) != sorted(names):
        raise Unfit(f"it is for {found.get_values_for_type(x509.DNSName)}, not for {list(names)}")
    paths = [folder / "leaf.pem", folder / "rest.pem"]
    paths[0].write_bytes(certificates[0].public_bytes(Encoding.PEM))
    paths[1].write_bytes(b"".join(each.public_bytes(Encoding.PEM) for each in certificates[1:]))
    for name in names:
        host = name.replace("*", "any")
        _openssl(paths[0], paths[1], server.root, host)
        _python(certificates, server.root, host)
    if server.ours:
        for number, each in enumerate(certificates):
            path = folder / f"chain{number}.pem"
            path.write_bytes(each.public_bytes(Encoding.PEM))
            _lint("lint_pkix_cert", path)


def _openssl(certificate: Path, rest: Path, root: Path, host: str) -> None:
    command = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-verify_hostname", host]
    command += ["-no-CApath", "-CAfile", str(root)]
    command += ["-untrusted", str(rest)] if rest.stat().st_size else []
    done = subprocess.run([*command, str(certificate)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unfit(f"openssl verify: {' '.join((done.stdout + done.stderr).split())}")


def _python(certificates: Sequence[x509.Certificate], root: Path, host: str) -> None:
    store = Store(x509.load_pem_x509_certificates(root.read_bytes()))
    verifier = PolicyBuilder().store(store).build_server_verifier(x509.DNSName(host))
    try:
        verifier.verify(certificates[0], list(certificates[1:]))
    except VerificationError as error:
        raise Unfit(f"cryptography: {error}") from None


def _lint(linter: str, path: Path, *options: str) -> None:
    command = [str(PKILINT / linter), "lint", *options, "-s", "WARNING", "-f", "JSON", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout.startswith("{"):
        raise Unfit(f"{linter} failed: {done.stdout}{done.stderr}")
    found = [each for result in json.loads(done.stdout)["results"] for each in result["finding_descriptions"]]
    if left := [f"{each['code']}: {each['message']}" for each in found if not _is_of_a_wildcard(each)]:
        raise Unfit(f"{linter}: {'; '.join(left)}")


def _is_of_a_wildcard(finding: Mapping[str, str]) -> bool:
    """RFC 5280 leaves wildcards open, and this linter refuses them; its own rules for web servers take that back."""
    return finding["code"] == "pkix.invalid_domain_name_syntax" and '"*.' in finding["message"]


# ── revocation ──


def check_revoked(chain: str, server: Server, folder: Path) -> None:
    """Wait until the CRL that the certificate itself names lists it."""
    certificate, issuer = x509.load_pem_x509_certificates(chain.encode())[:2]
    if not server.ours:
        if not server.admits_revocation(certificate):
            raise Unfit("the client revoked it, and the server says that it is good")
        return
    points = certificate.extensions.get_extension_for_class(x509.CRLDistributionPoints).value
    url = next(name.value for point in points for name in point.full_name or ())
    crl = _crl_that_lists(certificate, url, server)
    if not crl.is_signature_valid(issuer.public_key()):  # type: ignore[arg-type]
        raise Unfit("the CRL is not signed by the issuer of the certificate")
    if crl.next_update_utc is None or crl.next_update_utc <= datetime.now(UTC):
        raise Unfit("the CRL is stale")
    path = folder / "crl.pem"
    path.write_bytes(crl.public_bytes(Encoding.PEM))
    _lint("lint_crl", path, "-t", "CRL", "-p", "PKIX")


def _crl_that_lists(certificate: x509.Certificate, url: str, server: Server) -> x509.CertificateRevocationList:
    found: list[x509.CertificateRevocationList] = []

    def listed() -> bool:
        try:
            crl = x509.load_der_x509_crl(fetch(url, server.trust))
        except (URLError, ConnectionError):
            return False
        if crl.get_revoked_certificate_by_serial_number(certificate.serial_number) is not None:
            found.append(crl)
        return bool(found)

    try:
        until(listed, f"{url} to list {certificate.serial_number:x}", seconds=CRL_WITHIN, every=0.5)
    except TimeoutError as error:
        raise Unfit(str(error)) from None
    return found[0]
