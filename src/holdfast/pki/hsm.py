"""A CA key in a hardware security module, through PKCS#11 (the extra `hsm`): the key never enters this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from holdfast.errors import TryLater
from holdfast.pki import keys
from holdfast.pki.der import bit_string, object_identifier, sequence
from holdfast.pki.keys import PublicKey
from holdfast.pki.refused import KeyRefused, SignerRefused
from holdfast.pki.signing import Algorithm, algorithm_of
from holdfast.secret import Secret

# Errors that a second try does not mend. A wrong PIN least of all: the third one locks the token.
_FOR_A_PERSON: Final = {
    "PinIncorrect": "the PIN is wrong",
    "PinInvalid": "the PIN is wrong",
    "PinLenRange": "the PIN is wrong",
    "PinLocked": "the PIN is locked",
    "PinExpired": "the PIN is expired",
    "UserPinNotInitialized": "the token has no user PIN yet",
    "NoSuchKey": "there is no such key (a private and a public one are needed, under the same label)",
    "MultipleObjectsReturned": "there are several keys of this label",
    "MultipleTokensReturned": "there are several tokens of this label",
    "MechanismInvalid": "it cannot sign with this kind of key",
    "KeyTypeInconsistent": "it cannot sign with this kind of key",
    "FunctionNotSupported": "it cannot sign with this kind of key",
}


class _Library:
    """A vendor's library in this process. It is initialized without threads: one thread at a time calls it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.starts = 0  # a new start ends the sessions of all who use it


_LIBRARIES: Final[dict[str, _Library]] = {}  # by path; a library is loaded once for a process


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAddress:
    """Where the key is: the vendor's library, a token in it, and the label that the key pair has there."""

    library: str
    token: str
    key: str
    pin: Secret[str]


class Pkcs11Signer:
    """Signs in one session, one signature at a time; a session that went stale is replaced once without a word.

    A device that was away is found again by starting its library anew: many look for devices only at their start.
    """

    quick = False  # a device may be on the network: milliseconds, or its time-out

    def __init__(self, place: DeviceAddress) -> None:
        """Open the token and look for the key; this blocks, so call it through aside()."""
        self._place = place
        self._library = _LIBRARIES.setdefault(place.library, _Library())
        self._start = 0  # of the library, in which the session was opened
        self._session: Any = None
        self._key: Any = None
        with self._talking():
            self._public_key = self._read_public_key()
        self._algorithm = algorithm_of(self._public_key)

    def __repr__(self) -> str:
        return f"Pkcs11Signer({self._place.token}/{self._place.key}, {self._algorithm})"

    @property
    def public_key(self) -> PublicKey:
        return self._public_key

    def sign(self, content: bytes) -> bytes:
        """Try twice: devices drop idle sessions, and a log-out elsewhere in this process ends ours, too."""
        if self._session is not None:
            with suppress(TryLater), self._talking():
                return self._signature(content)
        with self._talking():
            return self._signature(content)

    def close(self) -> None:
        with self._library.lock:
            self._forget_if_over()
            self._hang_up()

    def _signature(self, content: bytes) -> bytes:
        from pkcs11 import Mechanism  # type: ignore[import-not-found, unused-ignore]

        if self._algorithm is Algorithm.RSA_SHA256:
            return bytes(self._key.sign(content, mechanism=Mechanism.SHA256_RSA_PKCS))
        if self._algorithm is Algorithm.ED25519:
            return bytes(self._key.sign(content, mechanism=Mechanism.EDDSA))
        # Hashed here: few devices have the mechanisms that hash and sign in one.
        digest = hashes.Hash(hashes.SHA384() if self._algorithm is Algorithm.ECDSA_SHA384 else hashes.SHA256())
        digest.update(content)
        both: bytes = self._key.sign(digest.finalize(), mechanism=Mechanism.ECDSA)
        half = len(both) // 2
        return encode_dss_signature(int.from_bytes(both[:half], "big"), int.from_bytes(both[half:], "big"))

    def _read_public_key(self) -> PublicKey:
        from pkcs11 import KeyType, ObjectClass
        from pkcs11.util import ec, rsa  # type: ignore[import-not-found, import-untyped, unused-ignore]

        found = self._session.get_key(object_class=ObjectClass.PUBLIC_KEY, label=self._place.key)
        encode = {
            KeyType.RSA: rsa.encode_rsa_public_key,
            KeyType.EC: ec.encode_ec_public_key,
            KeyType.EC_EDWARDS: _encode_ed25519,
        }.get(found.key_type)
        if encode is None:
            raise SignerRefused("signer-key", "Only EC, RSA and Ed25519 keys are used from a device.")
        try:
            key = keys.from_spki(encode(found))
            keys.check_key(key, ed25519_allowed=True)
        except KeyRefused as refused:
            raise SignerRefused(refused.code, f"The CA key in the device: {refused}") from None
        return key

    # ── The session ──

    @contextmanager
    def _talking(self) -> Iterator[None]:
        """Hold the session, opened if need be; close it after any error, and say whether to try again."""
        with self._library.lock:
            self._forget_if_over()
            try:
                if self._session is None:
                    self._dial()
                yield
            except SignerRefused:
                self._hang_up()
                raise
            except ImportError:
                raise SignerRefused(
                    "hsm-missing", "python-pkcs11 is not installed.", "Run: pip install 'holdfast[hsm]'"
                ) from None
            except Exception as error:  # PKCS11Error, and what vendors' libraries raise besides
                self._hang_up()
                raise self._told(error) from error

    def _dial(self) -> None:
        """Try once more with the library started anew, unless the device itself named the error."""
        try:
            self._connect()
        except SignerRefused:
            raise
        except Exception as error:
            if type(error).__name__ in _FOR_A_PERSON:
                raise
            self._hang_up()
            self._start_anew()
            self._connect()

    def _connect(self) -> None:
        from pkcs11 import ObjectClass

        token = self._loaded().get_token(token_label=self._place.token)
        self._session, self._start = _logged_in(token, self._place.pin), self._library.starts
        self._key = self._session.get_key(object_class=ObjectClass.PRIVATE_KEY, label=self._place.key)

    def _loaded(self) -> Any:
        from pkcs11 import lib

        try:
            return lib(self._place.library)
        except ImportError:
            raise
        except Exception as error:
            if type(error).__name__ != "PKCS11Error":  # it was loaded; what it says is about its devices
                raise
            raise SignerRefused("hsm-library", f"The library {self._place.library} cannot be used: {error}.") from error

    def _start_anew(self) -> None:
        library = self._loaded()
        self._library.starts += 1
        with suppress(Exception):  # it may have lost too much to end well
            library.finalize()
        library.initialize()

    def _forget_if_over(self) -> None:
        """A session of an earlier start is not closed: its number may be another signer's by now."""
        if self._start != self._library.starts:
            self._session = self._key = None

    def _hang_up(self) -> None:
        session, self._session, self._key = self._session, None, None
        if session is not None:
            with suppress(Exception):  # it is broken already
                session.close()

    def _told(self, error: Exception) -> SignerRefused | TryLater:
        kind = type(error).__name__
        where = f"Token {self._place.token!r}, key {self._place.key!r}"
        if kind in _FOR_A_PERSON:
            return SignerRefused("hsm-refused", f"{where}: {_FOR_A_PERSON[kind]}.")
        return TryLater(f"{where}: no signature could be had ({kind})", reason="SIGNER_UNAVAILABLE")


def _encode_ed25519(found: Any) -> bytes:
    """The point is 32 octets, bare or in an OCTET STRING: devices differ (RFC 8410 §4 for what comes out)."""
    from pkcs11 import Attribute

    point = bytes(found[Attribute.EC_POINT])
    bare = point[2:] if len(point) == 34 and point[:2] == b"\x04\x20" else point
    return sequence(sequence(object_identifier("1.3.101.112")), bit_string(bare))


def _logged_in(token: Any, pin: Secret[str]) -> Any:
    """A session of a user. A log-in counts for the whole process: another signer of this token may have done it."""
    from pkcs11.exceptions import UserAlreadyLoggedIn  # type: ignore[import-not-found, unused-ignore]

    try:
        return token.open(user_pin=pin.reveal())
    except UserAlreadyLoggedIn:
        return token.open(rw=False)


# ── Addresses ──
# The address of a key in a device, as RFC 7512 writes it: pkcs11:token=…;object=…?module-path=…&pin-source=…


EXAMPLE = "pkcs11:token=ca;object=issuer?module-path=/usr/lib/softhsm/libsofthsm2.so&pin-source=file:/etc/holdfast/pin"


def place_of(address: str, read: Callable[[Path], bytes | None]) -> DeviceAddress:
    """Where the key is, with the PIN from the file that the address names: the PIN is never part of the address."""
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
    return DeviceAddress(library=library, token=token, key=key, pin=_pin(Path(source.removeprefix("file:")), read))


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
