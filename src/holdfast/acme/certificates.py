"""Certificates: download, revoke (RFC 8555 §7.4.2, §7.6), and when to renew (RFC 9773)."""

from __future__ import annotations

from binascii import b2a_base64
from functools import partial
from typing import Any, Final

from holdfast.acme import strict_json
from holdfast.acme.answer import Answer, Header, json_answer, link, retry_after, rfc3339
from holdfast.acme.call import Call, Face
from holdfast.acme.place import Place
from holdfast.core.problem import AcmeError
from holdfast.operations import acme_certificates
from holdfast.pki import keys

CHAIN: Final = "application/pem-certificate-chain"
SINGLE: Final = "application/pkix-cert"


# ── Download ──


async def certificate(face: Face, call: Call) -> Answer:
    call.only_look()
    place, certificate_id = call.place, call.args[0]
    number = _chain_number(call)
    found = await acme_certificates.download(face.desk, call.who, certificate_id)
    others = [n for n in range(len(place.ca.alternates) + 1) if n != number]
    headers = [link(place.certificate(certificate_id, n), "alternate") for n in others]
    media, body = CHAIN, _pem(found.der) + _chain(place, number)
    if wants_single(call.accept):
        media, body = SINGLE, found.der
        headers.append(link(face.desk.policy.issuer_url(place.ca.id), "up"))
    return Answer(
        200,
        body,
        media.encode(),
        tuple(headers),
        note=certificate_id,
        sent=partial(acme_certificates.fetched, face.desk, call.who.account, certificate_id),
    )


def _chain_number(call: Call) -> int:
    """0 is the chain that clients get first; alternates have a number of their own."""
    if len(call.args) == 1:
        return 0
    numbers = {str(n): n for n in range(1, len(call.place.ca.alternates) + 1)}
    if call.args[1] not in numbers:
        raise AcmeError.malformed("There is no such chain.", status=404)
    return numbers[call.args[1]]


def _chain(place: Place, number: int) -> bytes:
    return place.ca.chain_pem if number == 0 else place.ca.alternates[number - 1]


def _pem(der: bytes) -> bytes:
    """The strict encoding of RFC 7468: lines of 64 characters, and no other text (§9.1)."""
    text = b2a_base64(der, newline=False)
    lines = (text[n : n + 64] for n in range(0, len(text), 64))
    return b"-----BEGIN CERTIFICATE-----\n" + b"\n".join(lines) + b"\n-----END CERTIFICATE-----\n"


def wants_single(accept: str) -> bool:
    """Whether a client prefers the certificate alone, in DER. Whatever else it asks for, it gets the chain."""
    if SINGLE not in accept:
        return False
    weights = dict(map(_weight, accept.split(",")))
    chain = next((weights[kind] for kind in (CHAIN, "application/*", "*/*") if kind in weights), 0.0)
    return weights.get(SINGLE, 0.0) > chain


def _weight(offer: str) -> tuple[str, float]:
    kind, _, parameters = offer.partition(";")
    name, _, value = parameters.partition("=")
    try:
        weight = float(value) if name.strip().lower() == "q" else 1.0
    except ValueError:
        weight = 0.0
    return kind.strip().lower(), weight


# ── Revocation ──


async def revoke_cert(face: Face, call: Call) -> Answer:
    """For an account, or for the certificate's own key; who may, the operation knows."""
    content = call.content
    try:
        der = strict_json.decode(content.get("certificate"))
    except ValueError:
        raise AcmeError.malformed("certificate is not a text in base64url without padding.") from None
    signed = call.signed
    who = None if signed is None else signed.who
    spki = keys.spki(call.key.public) if who is None else None
    await acme_certificates.revoke(
        face.desk, call.place.ca, der, _reason(content.get("reason")), who=who, key_spki=spki
    )
    return Answer(200)


def _reason(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise AcmeError.malformed("reason is not a number.")
    return value


# ── Renewal information ──


async def renewal_info(face: Face, call: Call) -> Answer:
    window = await acme_certificates.renewal_info(face.desk, call.place.ca, call.args[0])
    shown = {"suggestedWindow": {"start": rfc3339(window.start), "end": rfc3339(window.end)}}
    wait: Header = retry_after(acme_certificates.RENEWAL_RETRY_AFTER)
    return json_answer(shown, wait)
