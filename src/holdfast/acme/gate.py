"""Who is let in (RFC 8555 §6.2 to §6.5): a JWS of the right kind, for this URL, signed, with a nonce not yet used."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final, Literal

from holdfast.acme import jws
from holdfast.acme.call import Face, Signed
from holdfast.acme.jws import Unverified
from holdfast.acme.place import Place
from holdfast.core.problem import AcmeError
from holdfast.errors import StoreError
from holdfast.operations import acme_accounts, acme_certificates

Signer = Literal["account", "key", "either", "nobody"]
INVALID: Final = "JWS has an invalid anti-replay nonce"  # acme.sh knows badNonce only by these words of Boulder's
JOSE: Final = b"application/jose+json"
NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,120}")  # every id that we ever gave out


async def admit(face: Face, place: Place, signer: Signer, url: str, media: bytes, body: bytes) -> Signed:
    """The request, once everything about it has been checked that does not depend on its content."""
    try:
        _check_media_type(media)
        claim = jws.parse(body)
    except AcmeError:
        await _void(face, jws.nonce_in(body))
        raise
    try:
        signed = await _checked(face, place, signer, url, claim)
    except AcmeError:
        await _void(face, claim.nonce)
        raise
    await _redeem(face, signed)
    return signed


async def _void(face: Face, nonce: str) -> None:
    """It has appeared in a request, so it is good for no other, however bad that request was (§6.5)."""
    if nonce:
        with suppress(StoreError):  # what is wrong with the request is of more use to the client
            await face.nonces.redeem(nonce)


def _check_media_type(value: bytes) -> None:
    if value.partition(b";")[0].strip().lower() != JOSE:
        raise AcmeError.malformed("The Content-Type of a signed request is application/jose+json.", status=415)


async def _checked(face: Face, place: Place, signer: Signer, url: str, claim: Unverified) -> Signed:
    if claim.url != url:
        raise AcmeError.unauthorized("The url in the protected header is not the URL of this request.")
    if claim.jwk is not None:
        if signer == "account":
            raise AcmeError.malformed("This request must name its account: kid instead of jwk.")
        jws.check(claim, claim.jwk)
        return Signed(claim, claim.jwk, None)
    if signer == "key":
        raise AcmeError.malformed("This request must contain its key: jwk instead of kid.")
    account = (claim.kid or "").removeprefix(place.account_root)
    if account == claim.kid or not NAME.fullmatch(account):
        raise AcmeError.account_does_not_exist("The kid is not the URL of an account of this CA.")
    return Signed(claim, *await face.keys.check(place.ca.id, account, claim))


async def still_in(face: Face, signed: Signed) -> None:
    """Whose account has ended is told so, whatever else is wrong (§7.3.6): the key that let them in may be outdated."""
    if signed.who is not None:
        await acme_accounts.update(face.desk, signed.who, None)


async def _redeem(face: Face, signed: Signed) -> None:
    minted = await face.nonces.redeem(signed.jws.nonce)
    if minted is None:
        raise AcmeError.bad_nonce(f"{INVALID}: not one of ours, too old, or used before.")
    if minted.note and signed.who is not None:  # the nonce of a download has come back
        acme_certificates.acknowledged(face.desk, signed.who.account, minted.note)
    if face.chaos.refuses(signed.key.thumbprint, signed.jws.url, face.desk.random):
        raise AcmeError.bad_nonce(f"{INVALID}: refused to see what the client does.")
