"""Signed requests (RFC 8555 §6.2): from the bytes of a body to a header, a payload and the key that must have signed.

Nothing here may be believed before `check` has returned; the nonce, the URL and the account are the caller's to judge.
"""

from __future__ import annotations

import hmac
import re
from base64 import urlsafe_b64decode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from holdfast.core.own_ca.problem import AcmeError
from holdfast.pki import jwk as jwks
from holdfast.pki import strict_json
from holdfast.pki.jwk import ALGORITHMS, AccountKey
from holdfast.secret import Secret

MAX_BODY: Final = strict_json.MAX_SIZE
# For external account bindings alone; no table that has these is ever asked about a request (§6.2, §7.3.4).
MAC_ALGORITHMS: Final[Mapping[str, str]] = {"HS256": "sha256", "HS384": "sha384", "HS512": "sha512"}
_BASE64URL: Final = re.compile(r"[A-Za-z0-9_-]*")
_SOME_HEADER: Final = re.compile(rb'(?:\A\s*|"protected"\s*:\s*")([A-Za-z0-9_-]+)')  # of any serialization
_SOME_NONCE: Final = re.compile(rb'"nonce"\s*:\s*"([A-Za-z0-9_-]+)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Unverified:
    """The unverified content of a JWS. Exactly one of `kid` and `jwk` is set."""

    alg: str
    nonce: str  # empty in the inner JWS of keyChange and in an external account binding
    url: str
    kid: str | None
    jwk: AccountKey | None
    payload: bytes
    signing_input: bytes
    signature: bytes
    header: Mapping[str, Any]

    @property
    def is_post_as_get(self) -> bool:
        """An empty payload asks to read the resource (§6.3); `{}` does not."""
        return not self.payload


# ── A request ──


def parse(body: bytes) -> Unverified:
    """Read the body of a POST. It raises AcmeError alone, for any bytes."""
    parts = _parts(strict_json.loads(body, limit=MAX_BODY), "the JWS")
    alg = _algorithm(parts, ALGORITHMS)
    if ("jwk" in parts.header) == ("kid" in parts.header):
        raise AcmeError.malformed("The protected header must have either jwk or kid: one, and not both.")
    kid = _text(parts, "kid") if "kid" in parts.header else None
    key = _presented_key(parts, alg) if kid is None else None
    return _claim(parts, alg=alg, kid=kid, jwk=key, nonce=_nonce(parts))


def check(unverified: Unverified, key: AccountKey) -> None:
    """Verify the signature, or raise. The algorithm is the key's own: the header may agree, and decides nothing."""
    if unverified.alg != key.alg:
        raise AcmeError.bad_signature_algorithm(
            f"The JWS says {unverified.alg}, but this key signs with {key.alg}.", algorithms=(key.alg,)
        )
    if not key.verify(key.alg, unverified.signature, unverified.signing_input):
        raise AcmeError.malformed("The signature of the JWS is not one of this key over this content.")


def payload_json(unverified: Unverified) -> dict[str, object]:
    """The payload of a request that must have one."""
    if unverified.is_post_as_get:
        raise AcmeError.malformed("The payload is empty, and a JSON object is needed here.")
    return strict_json.loads_object(unverified.payload, "The payload")


def nonce_in(body: bytes) -> str:
    """The nonce that appears in a body which `parse` has refused; empty if there is none to be seen."""
    header = _SOME_HEADER.search(body)
    if header is None:
        return ""
    padding = b"=" * (-len(header[1]) % 4)
    try:
        found = _SOME_NONCE.search(urlsafe_b64decode(header[1] + padding))
    except ValueError:
        return ""
    return "" if found is None else found[1].decode()


# ── A JWS within a request ──


def parse_inner(envelope: object) -> Unverified:
    """The inner JWS of keyChange (§7.3.5): signed by the new key, which it contains, and without a nonce."""
    parts = _parts(envelope, "the inner JWS")
    alg = _algorithm(parts, ALGORITHMS)
    if "jwk" not in parts.header or "kid" in parts.header:
        raise AcmeError.malformed("The protected header of the inner JWS must have jwk, and not kid.")
    return _claim(parts, alg=alg, kid=None, jwk=_presented_key(parts, alg), nonce=_no_nonce(parts))


def check_inner(inner: Unverified, outer: Unverified) -> AccountKey:
    """The new key, if it signed, and for the same URL as the old one; the rest of §7.3.5 is the caller's."""
    if inner.jwk is None:
        raise AcmeError.malformed("The inner JWS has no jwk.")
    check(inner, inner.jwk)
    if inner.url != outer.url:
        raise AcmeError.malformed("The url of the inner JWS is not that of the outer one.")
    return inner.jwk


def parse_eab(envelope: object) -> Unverified:
    """An external account binding (§7.3.4); its kid says by which MAC key it must be checked."""
    parts = _parts(envelope, "the external account binding")
    alg = _algorithm(parts, MAC_ALGORITHMS)
    if "jwk" in parts.header:
        raise AcmeError.malformed("The protected header of the external account binding must have kid, and not jwk.")
    return _claim(parts, alg=alg, kid=_text(parts, "kid"), jwk=None, nonce=_no_nonce(parts))


def check_eab(eab: Unverified, outer: Unverified, mac_key: Secret[bytes]) -> None:
    """Raise unless the holder of the MAC key bound it to the key of this very request (§7.3.4, steps 2 to 5)."""
    if eab.url != outer.url:
        raise AcmeError.malformed("The url of the external account binding is not that of the request.")
    expected = hmac.digest(mac_key.reveal(), eab.signing_input, MAC_ALGORITHMS[eab.alg])
    if not hmac.compare_digest(expected, eab.signature):
        raise AcmeError.unauthorized("The MAC of the external account binding is wrong.")
    bound = strict_json.loads_object(eab.payload, "The payload of the external account binding")
    if outer.jwk is None or not outer.jwk.is_jwk(bound):
        raise AcmeError.malformed("The external account binding is for another key than the one of the request.")


# ── The parts ──


class _Parts(NamedTuple):
    what: str  # what to call it in an error
    header: dict[str, Any]
    payload: bytes
    signature: bytes
    signing_input: bytes


def _parts(envelope: object, what: str) -> _Parts:
    """Take the flattened serialization apart.

    Members that we do not know are ignored (RFC 7515 §7.2.1). Those of the other serialization and the unprotected
    header are known, and refused (RFC 8555 §6.2): their content is not signed, or signed by another party.
    """
    if not isinstance(envelope, dict):
        raise AcmeError.malformed(f"A flattened JWS is a JSON object, and {what} is not.")
    if "header" in envelope or "signatures" in envelope:
        raise AcmeError.malformed(f"In {what}, an unprotected header or several signatures are not allowed.")
    protected = _octets(envelope, "protected", what)
    header = strict_json.loads_object(protected, f"The protected header of {what}")
    if "crit" in header or "b64" in header:  # we know no extension, and the payload is always encoded (RFC 7797)
        raise AcmeError.malformed(f"In the protected header of {what}, crit and b64 are not allowed.")
    payload, signature = _octets(envelope, "payload", what), _octets(envelope, "signature", what)
    signing_input = f"{envelope['protected']}.{envelope['payload']}".encode()
    return _Parts(what, header, payload, signature, signing_input)


def _claim(parts: _Parts, *, alg: str, kid: str | None, jwk: AccountKey | None, nonce: str) -> Unverified:
    return Unverified(
        alg=alg,
        nonce=nonce,
        url=_text(parts, "url"),
        kid=kid,
        jwk=jwk,
        payload=parts.payload,
        signing_input=parts.signing_input,
        signature=parts.signature,
        header=parts.header,
    )


def _octets(envelope: Mapping[str, object], name: str, what: str) -> bytes:
    if name not in envelope:
        raise AcmeError.malformed(f"{name} is missing in {what}.")
    try:
        return strict_json.decode(envelope[name])
    except ValueError:
        raise AcmeError.malformed(f"{name} of {what} is not base64url without padding.") from None


def _text(parts: _Parts, name: str) -> str:
    value = parts.header.get(name)
    if not isinstance(value, str) or not value:
        raise AcmeError.malformed(f"The protected header of {parts.what} must have {name}, and it must be a text.")
    return value


def _algorithm(parts: _Parts, known: Iterable[str]) -> str:
    alg = _text(parts, "alg")
    if alg not in known:  # among them none, and for requests every MAC: a public key must not become a shared secret
        listed = ", ".join(known)
        raise AcmeError.bad_signature_algorithm(
            f"The algorithm of {parts.what} is not supported; these are: {listed}.", algorithms=tuple(known)
        )
    return alg


def _presented_key(parts: _Parts, alg: str) -> AccountKey:
    presented = parts.header["jwk"]
    if not isinstance(presented, dict):
        raise AcmeError.malformed(f"jwk in {parts.what} is not a JSON object.")
    key = jwks.parse(presented)
    if key.alg != alg:  # §6.2 has this very example for badPublicKey
        raise AcmeError.bad_public_key(f"alg is {alg}, but jwk is a key for {key.alg}.")
    return key


def _nonce(parts: _Parts) -> str:
    """Two errors, as §6.5 and §6.5.2 ask: no nonce is a bad nonce, and one that is not base64url is malformed.

    Unused bits are left to the code that opens the nonce: a nonce of ours with its last character changed is a bad one.
    """
    nonce = parts.header.get("nonce", "")
    if not isinstance(nonce, str) or not _BASE64URL.fullmatch(nonce) or len(nonce) % 4 == 1:
        raise AcmeError.malformed("The nonce is not base64url.")
    if not nonce:
        raise AcmeError.bad_nonce("The protected header has no nonce.")
    return nonce


def _no_nonce(parts: _Parts) -> str:
    if "nonce" in parts.header:
        raise AcmeError.malformed(f"A nonce is not allowed in the protected header of {parts.what}.")
    return ""
