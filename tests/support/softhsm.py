"""A device for CA keys: a SoftHSM token in a folder of its own, with a key pair of each kind."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.pki.hsm import DeviceAddress
from holdfast.secret import Secret
from tests.support.secrets_planted import TOKEN_PIN

LIBRARIES = [
    Path("/usr/lib/softhsm/libsofthsm2.so"),
    Path("/usr/lib64/softhsm/libsofthsm2.so"),
    Path("/usr/lib64/pkcs11/libsofthsm2.so"),
    Path("/usr/local/lib/softhsm/libsofthsm2.so"),
]
LIBRARY = next((path for path in LIBRARIES if path.exists()), None)
PIN = Secret(TOKEN_PIN)
needs_softhsm = pytest.mark.skipif(
    LIBRARY is None or shutil.which("softhsm2-util") is None, reason="SoftHSM is not installed: apt install softhsm2"
)


@contextmanager
def token(folder: Path) -> Iterator[DeviceAddress]:
    """Labels: p256, p384, p521, rsa, ed25519."""
    pkcs11 = pytest.importorskip("pkcs11", reason="python-pkcs11 is not installed: pip install 'holdfast[hsm]'")
    (folder / "tokens").mkdir()
    settings = folder / "softhsm2.conf"
    settings.write_text(f"directories.tokendir = {folder}/tokens\nobjectstore.backend = file\nlog.level = ERROR\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTHSM2_CONF", str(settings))
        words = ["--init-token", "--free", "--label", "ca", "--so-pin", "1234", "--pin", PIN.reveal()]
        subprocess.run(["softhsm2-util", *words], check=True, capture_output=True)
        library = pkcs11.lib(str(LIBRARY))
        library.reinitialize()  # another test of this process may have had a token elsewhere
        with library.get_token(token_label="ca").open(user_pin=PIN.reveal(), rw=True) as session:
            _fill(session, pkcs11)
        yield DeviceAddress(library=str(LIBRARY), token="ca", key="p256", pin=PIN)


def _fill(session, pkcs11) -> None:  # type: ignore[no-untyped-def]
    from pkcs11.util.ec import encode_named_curve_parameters as curve_of

    for label, curve in (("p256", "secp256r1"), ("p384", "secp384r1"), ("p521", "secp521r1")):
        parameters = {pkcs11.Attribute.EC_PARAMS: curve_of(curve)}
        domain = session.create_domain_parameters(pkcs11.KeyType.EC, parameters, local=True)
        domain.generate_keypair(store=True, label=label)
    session.generate_keypair(pkcs11.KeyType.RSA, 2048, store=True, label="rsa")
    edwards = {pkcs11.Attribute.EC_PARAMS: curve_of("1.3.101.112")}
    domain = session.create_domain_parameters(pkcs11.KeyType.EC_EDWARDS, edwards, local=True)
    domain.generate_keypair(store=True, label="ed25519", mechanism=pkcs11.Mechanism.EC_EDWARDS_KEY_PAIR_GEN)
