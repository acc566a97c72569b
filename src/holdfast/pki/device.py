"""The address of a key in a device, as RFC 7512 writes it: pkcs11:token=…;object=…?module-path=…&pin-source=…"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

from holdfast.pki.hsm import Place
from holdfast.pki.refused import SignerRefused
from holdfast.secret import Secret

EXAMPLE = "pkcs11:token=ca;object=issuer?module-path=/usr/lib/softhsm/libsofthsm2.so&pin-source=file:/etc/holdfast/pin"


def place_of(address: str, read: Callable[[Path], bytes | None]) -> Place:
    """Where the key is, with the PIN from the file that the address names: the PIN itself never stands in it."""
    if not address.startswith("pkcs11:"):
        raise _malformed()
    path, _, query = address.removeprefix("pkcs11:").partition("?")
    named = {**_pairs(path, ";"), **_pairs(query, "&")}
    if "pin-value" in named:
        raise SignerRefused("hsm-address", "A PIN may not stand in the address.", "Name its file with pin-source.")
    try:
        library, token, key, source = (named[name] for name in ("module-path", "token", "object", "pin-source"))
    except KeyError:
        raise _malformed() from None
    return Place(library=library, token=token, key=key, pin=_pin(Path(source.removeprefix("file:")), read))


def _pairs(text: str, separator: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.split(separator) if part)
    return {name: unquote(value) for name, _, value in pairs}


def _pin(file: Path, read: Callable[[Path], bytes | None]) -> Secret[str]:
    try:
        content = read(file)
    except OSError as error:
        raise SignerRefused("hsm-pin", f"The PIN cannot be read from {file}: {error.strerror or error}.") from None
    if not content or not (pin := content.decode(errors="replace").strip()):
        raise SignerRefused("hsm-pin", f"There is no PIN in {file}.")
    return Secret(pin)


def _malformed() -> SignerRefused:
    return SignerRefused("hsm-address", "This is not the address of a key in a device.", f"Write it so: {EXAMPLE}")
