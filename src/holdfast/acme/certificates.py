"""Certificates: download, revoke (RFC 8555 §7.4.2, §7.6), and when to renew (RFC 9773)."""

from __future__ import annotations

from binascii import b2a_base64
from functools import partial
from typing import Final

from holdfast.acme.answer import AcmeAnswer, Header, json_answer, link, retry_after, rfc3339
from holdfast.acme.request import AcmeRequest, AcmeServices
from holdfast.acme.resources import CaUrls
from holdfast.core.own_ca.problem import AcmeError
from holdfast.operations.acme import certificates
from holdfast.pki import keys, strict_json

CHAIN: Final = "application/pem-certificate-chain"
SINGLE: Final = "application/pkix-cert"


# ── Download ──


async def certificate(services: AcmeServices, request: AcmeRequest) -> AcmeAnswer:
    request.only_look()
    place, certificate_id = request.place, request.args[0]
    number = _chain_number(request)
    found = await certificates.download(services.acme_context, request.who, certificate_id)
    others = [n for n in range(len(place.ca.alternates) + 1) if n != number]
    headers = [link(place.certificate(certificate_id, n), "alternate") for n in others]
    media, body = CHAIN, _pem(found.der) + _chain(place, number)
    if wants_single(request.accept):
        media, body = SINGLE, found.der
        headers.append(link(services.acme_context.policy.issuer_url(place.ca.id), "up"))
    return AcmeAnswer(
        200,
        body,
        media.encode(),
        tuple(headers),
        note=certificate_id,
        sent=partial(certificates.fetched, services.acme_context, request.who.account, certificate_id),
    )


def _chain_number(request: AcmeRequest) -> int:
    """0 is the chain that clients get first; alternates have a number of their own."""
    if len(request.args) == 1:
        return 0
    numbers = {str(n): n for n in range(1, len(request.place.ca.alternates) + 1)}
    if request.args[1] not in numbers:
        raise AcmeError.malformed("There is no such chain.", status=404)
    return numbers[request.args[1]]


def _chain(place: CaUrls, number: int) -> bytes:
    return place.ca.chain_pem if number == 0 else place.ca.alternates[number - 1]


def _pem(der: bytes) -> bytes:
    """The strict encoding of RFC 7468: lines of 64 characters, and no other text (§9.1)."""
    text = b2a_base64(der, newline=False)
    lines = (text[n : n + 64] for n in range(0, len(text), 64))
    return b"-----BEGIN CERTIFICATE-----\n" + b"\n".join(lines) + b"\n-----END CERTIFICATE-----\n"


def wants_single(accept: str) -> bool:
    """Whether a client prefers the certificate alone, in DER. For any other media type, it gets the chain."""
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


async def revoke_cert(services: AcmeServices, request: AcmeRequest) -> AcmeAnswer:
    """Signed by an account, or by the certificate's own key; the operation decides whether that one may revoke."""
    content = request.content
    try:
        der = strict_json.decode(content.get("certificate"))
    except ValueError:
        raise AcmeError.malformed("certificate is not a text in base64url without padding.") from None
    signed = request.signed
    who = None if signed is None else signed.who
    spki = keys.spki(request.key.public) if who is None else None
    await certificates.revoke(
        services.acme_context, request.place.ca, der, _reason(content.get("reason")), who=who, key_spki=spki
    )
    return AcmeAnswer(200)


def _reason(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise AcmeError.malformed("reason is not a number.")
    return value


# ── Renewal information ──


async def renewal_info(services: AcmeServices, request: AcmeRequest) -> AcmeAnswer:
    window = await certificates.renewal_info(services.acme_context, request.place.ca, request.args[0])
    shown = {"suggestedWindow": {"start": rfc3339(window.start), "end": rfc3339(window.end)}}
    wait: Header = retry_after(certificates.RENEWAL_RETRY_AFTER)
    return json_answer(shown, wait)
