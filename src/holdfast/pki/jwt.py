"""Signed tokens of an OpenID provider (RFC 7519): read strictly, believed only for a key that it publishes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.core.own_ca.problem import AcmeError
from holdfast.pki import jwk, strict_json
from holdfast.pki.jwk import AccountKey

LONGEST: Final = 32 * 1024  # characters
# The algorithm is the key's own: `none` has no key, and a MAC with a public key as its secret fits none.
ALGORITHMS: Final = jwk.ALGORITHMS


class TokenWrong(Exception):
    """The token is malformed, or not signed by a key that fits; the text says which."""


@dataclass(frozen=True, slots=True)
class PublishedKey:
    kid: str | None
    key: AccountKey


@dataclass(frozen=True, slots=True, kw_only=True)
class UnverifiedToken:
    alg: str
    kid: str | None
    claims: Mapping[str, Any]
    signing_input: bytes
    signature: bytes


def published_keys(document: Mapping[str, Any]) -> list[PublishedKey]:
    """The keys of a JWKS that may sign; those that are weak, of other kinds or for encryption are left out."""
    found = []
    listed = document.get("keys")
    for each in listed[:50] if isinstance(listed, list) else []:
        if not isinstance(each, dict) or each.get("use", "sig") != "sig":
            continue
        try:
            key = jwk.parse(each)
        except AcmeError:
            continue
        if each.get("alg", key.alg) == key.alg:
            found.append(PublishedKey(each["kid"] if isinstance(each.get("kid"), str) else None, key))
    return found


def parse(token: str) -> UnverifiedToken:
    """Nothing of it may be believed before `verify`."""
    parts = token.split(".") if len(token) <= LONGEST else []
    if len(parts) != 3:
        raise TokenWrong("it is no signed token")
    try:
        header = strict_json.loads_object(strict_json.decode(parts[0]), "The header")
        claims = strict_json.loads_object(strict_json.decode(parts[1]), "The content")
        signature = strict_json.decode(parts[2])
    except (AcmeError, ValueError) as why:
        raise TokenWrong(f"it cannot be read: {why}") from None
    alg, kid = header.get("alg"), header.get("kid")
    if alg not in ALGORITHMS or "crit" in header:
        raise TokenWrong(f"its algorithm {alg!r:.20} is not accepted")
    return UnverifiedToken(
        alg=str(alg),
        kid=kid if isinstance(kid, str) else None,
        claims=claims,
        signing_input=f"{parts[0]}.{parts[1]}".encode(),
        signature=signature,
    )


def key_of(token: UnverifiedToken, keys: Sequence[PublishedKey]) -> AccountKey | None:
    """The key that the token names; or the only one of its algorithm, if it names none."""
    fit = [each for each in keys if each.key.alg == token.alg and token.kid in (None, each.kid)]
    return fit[0].key if len(fit) == 1 else None


def verify(token: UnverifiedToken, key: AccountKey) -> Mapping[str, Any]:
    if not key.verify(token.alg, token.signature, token.signing_input):
        raise TokenWrong("its signature is wrong")
    return token.claims
