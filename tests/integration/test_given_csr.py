"""A certificate for a CSR that openssl made: the key is never here, and renewals say who acts next."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from tests.integration.test_new_users import Site
from tests.support.processes import Served

NAME = "device.corp.internal"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("csr-site")
    with Served(folder, {}) as server:
        server.wait_until_ready()
        yield Site(server, folder)


def a_csr(folder: Path, name: str, *names: str) -> Path:
    file, listed = folder / f"{name}.csr", ",".join(f"DNS:{each}" for each in names)
    make = ["openssl", "req", "-new", "-newkey", "rsa:2048", "-nodes", "-keyout", folder / f"{name}.key", "-out", file]
    subprocess.run([*make, "-subj", "/", "-addext", f"subjectAltName={listed}"], check=True, capture_output=True)
    return file


def key_of(site: Site, name: str = NAME) -> x509.Certificate:
    return x509.load_pem_x509_certificate(site.ok("fetch", name).encode())


def test_a_certificate_is_issued_and_renewed_for_the_key_of_a_csr(site: Site, tmp_path: Path) -> None:
    first = a_csr(tmp_path, "first", NAME, "alias.corp.internal")
    given = x509.load_pem_x509_csr(first.read_bytes())
    site.ok("issue", "--csr", first, "--wait")
    assert key_of(site).public_key() == given.public_key()
    row = site.data("get", NAME)
    assert (row["names"], row["reuse_key"]) == ([NAME, "alias.corp.internal"], True)
    assert "of a given CSR" in site.ok("get", NAME)
    refused = site.type("fetch", NAME, "--form", "pem", "--to", tmp_path)
    assert (refused.returncode, "issued for a CSR" in refused.stderr) == (5, True)
    assert "key_exported" not in site.ok("audit", "ls")
    site.ok("renew", NAME, "--wait")
    assert key_of(site).public_key() == given.public_key()
    site.ok("issue", "--csr", first)  # once more is no mistake


def test_a_renewal_with_a_new_key_waits_for_a_new_csr(site: Site, tmp_path: Path) -> None:
    name = "rotating.corp.internal"
    first, second = (a_csr(tmp_path, each, name) for each in ("one", "two"))
    site.ok("issue", "--csr", first, "--new-key", "--wait")
    failed = site.type("renew", name, "--wait")
    assert failed.returncode == 1
    assert "CSR_NEEDED" in failed.stdout
    assert "(you act next)" in failed.stdout
    assert site.type("status", "--check").returncode == 10
    site.ok("change", name, "--csr", second, "--wait")
    assert key_of(site, name).public_key() == x509.load_pem_x509_csr(second.read_bytes()).public_key()
    assert site.data("get", name)["status"]["phase"] == "ok"


def test_a_csr_that_does_not_fit_is_refused_at_the_prompt(site: Site, tmp_path: Path) -> None:
    file = a_csr(tmp_path, "fit", "fit.corp.internal")
    other = site.type("issue", "other.corp.internal", "--csr", file)
    assert "The CSR is for other names: fit.corp.internal." in other.stderr
    (tmp_path / "not.csr").write_text("-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n")
    assert site.type("issue", "--csr", tmp_path / "not.csr").returncode != 0
    assert "at least one name" in site.type("issue").stderr
