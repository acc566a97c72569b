"""`holdfast trust` in real stores: NSS and Java in folders of the test, the system's in a mount namespace."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from tests.support import pki
from tests.support.commands import holdfast
from tests.support.foreign_layouts import SmallCa
from tests.support.processes import environment


@pytest.fixture
def root(tmp_path: Path) -> Path:
    file = tmp_path / "root.pem"
    file.write_bytes(pki.root().public_bytes(Encoding.PEM))
    return file


def needs(*programs: str, package: str) -> None:
    if missing := [each for each in programs if shutil.which(each) is None]:
        pytest.skip(f"{missing[0]} is not here: apt-get install {package}")


def typed(*words: object, home: Path, **env: str) -> tuple[int, str]:
    done = holdfast("trust", *words, env=environment(home, {}) | {"HOME": str(home)} | env)
    return done.returncode, done.stdout + done.stderr


def goes_in_and_out(root: Path, kind: str, home: Path, **env: str) -> None:
    about = ("--root", root, "--store", kind)
    assert typed("status", *about, home=home, **env)[0] == 10
    tried = typed("install", "--plan", *about, home=home, **env)
    assert (tried[0], "would " in tried[1]) == (0, True), tried
    assert typed("status", *about, home=home, **env)[0] == 10, "a dry run changed something"
    assert typed("install", *about, home=home, **env)[0] == 0
    assert typed("status", *about, home=home, **env)[0] == 0
    assert "trusts it already" in typed("install", *about, home=home, **env)[1]
    assert typed("uninstall", *about, home=home, **env)[0] == 0
    assert typed("status", *about, home=home, **env)[0] == 10
    assert "does not have it" in typed("uninstall", *about, home=home, **env)[1]


def test_browsers_trust_it_and_forget_it_again(root: Path, tmp_path: Path) -> None:
    needs("certutil", package="libnss3-tools")
    for profile in (".pki/nssdb", ".mozilla/firefox/abc.default-release"):
        folder = tmp_path / profile
        folder.mkdir(parents=True)
        subprocess.run(["certutil", "-N", "--empty-password", "-d", f"sql:{folder}"], check=True)
    goes_in_and_out(root, "nss", tmp_path)


def test_java_trusts_it_and_forgets_it_again(root: Path, tmp_path: Path) -> None:
    needs("keytool", package="default-jre-headless")
    keystore = tmp_path / "java/lib/security/cacerts"
    keystore.parent.mkdir(parents=True)
    made = ("-genkeypair", "-alias", "other", "-dname", "CN=other", "-keyalg", "EC", "-storepass", "changeit")
    subprocess.run(["keytool", *made, "-keystore", str(keystore)], check=True, capture_output=True)
    goes_in_and_out(root, "java", tmp_path, JAVA_HOME=str(tmp_path / "java"))


def test_the_system_trusts_it_and_forgets_it_again(root: Path, tmp_path: Path) -> None:
    needs("update-ca-certificates", "unshare", package="ca-certificates util-linux")
    if os.geteuid() != 0:
        pytest.skip("a mount namespace of its own takes root")
    bundle = "/etc/ssl/certs/ca-certificates.crt"

    def within(*words: Sequence[str]) -> str:
        """In copies of the folders, which nobody else sees."""
        copies = "".join(
            f"mkdir -p {tmp_path}{each} && cp -a {each}/. {tmp_path}{each} && mount --bind {tmp_path}{each} {each} && "
            for each in ("/usr/local/share/ca-certificates", "/etc/ssl/certs")
        )
        command = f"{sys.executable} -m holdfast.cli.main trust"
        script = copies + " && ".join(f"{command} {' '.join(each)} --root {root} --store system" for each in words)
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", f"{script} && cp {bundle} {tmp_path}/bundle.pem"],
            capture_output=True, text=True, check=False, env=environment(tmp_path, {}),
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stderr

    ours = ssl.PEM_cert_to_DER_cert(root.read_text())

    def trusted() -> bool:
        context = ssl.create_default_context(cafile=str(tmp_path / "bundle.pem"))
        return ours in context.get_ca_certs(binary_form=True)

    within(["install"], ["status"])
    assert trusted()
    within(["install"], ["uninstall"])
    assert not trusted()


def test_what_is_no_root_or_another_root_changes_nothing(root: Path, tmp_path: Path) -> None:
    leaf = tmp_path / "leaf.pem"
    leaf.write_text(SmallCa().issue("www.example.com").leaf)
    code, said = typed("install", "--root", leaf, home=tmp_path)
    assert (code, "not one self-signed CA certificate" in said) == (1, True)
    code, said = typed("install", "--root", root, "--sha256", "00" * 32, home=tmp_path)
    assert (code, "The root has the fingerprint" in said) == (1, True)
