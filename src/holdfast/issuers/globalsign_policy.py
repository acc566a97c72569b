"""The validation policy of a GlobalSign account; an order is cut to fit it before it is sent.

A field that the policy fixes or forbids is a refusal (422) if it is sent all the same.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from holdfast.core.reasons import Reason
from holdfast.errors import Refused
from holdfast.issuers.base import OrderRequest
from holdfast.issuers.reading import words
from holdfast.pki import keys
from holdfast.pki.keys import PublicKey

_SERVER_AUTH: Final = "1.3.6.1.5.5.7.3.1"
_LONGEST_COMMON_NAME: Final = 64
_OUR_CLOCK_MAY_BE_FAST: Final = 60  # seconds
_WANTED, _ASKABLE = "REQUIRED", ("REQUIRED", "OPTIONAL")


@dataclass(frozen=True, slots=True)
class GlobalSignPolicy:
    """As the account's /validationpolicy shows it; a field of an unexpected shape counts as absent."""

    value: Mapping[str, Any]

    def part(self, *names: str) -> Mapping[str, object]:
        found: object = self.value
        for name in names:
            found = found.get(name) if isinstance(found, Mapping) else None
        return found if isinstance(found, Mapping) else {}

    def number(self, *names: str) -> int:
        return _count(self.part(*names[:-1]), names[-1])

    def takes_csr(self) -> bool:
        return bool(self.part("public_key").get("key_format") == "PKCS10")

    def wants_signature(self) -> bool:
        return not self.takes_csr() and self.value.get("public_key_signature") in _ASKABLE


def _count(rule: Mapping[str, object], name: str) -> int:
    found = rule.get(name)
    return found if isinstance(found, int) else 0


def _texts(rule: Mapping[str, object]) -> list[str]:
    found = rule.get("list")
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


def body(
    request: OrderRequest, policy: GlobalSignPolicy, *, subject: Mapping[str, str], now: datetime
) -> dict[str, object]:
    """An order, without the signature of the key; Refused says what the account does not allow."""
    key = _key(request, policy)
    order = {
        "validity": _validity(request, policy, now),
        "subject_dn": _subject(request, policy, subject),
        "san": _names(request, policy),
        "extended_key_usages": _uses(policy),
        "signature": _signature(policy),
        "public_key": _csr_pem(request.csr) if policy.takes_csr() else _key_pem(key),
    }
    return {name: value for name, value in order.items() if value or name == "subject_dn"}


# ── When ──


def _validity(request: OrderRequest, policy: GlobalSignPolicy, now: datetime) -> dict[str, int]:
    start = int(now.timestamp()) - min(policy.number("validity", "not_before_negative_skew"), _OUR_CLOCK_MAY_BE_FAST)
    if request.not_after is None:
        return {"not_before": start, "not_after": 0}  # the longest that the policy allows
    lasts = int(request.not_after.timestamp()) - start
    shortest, longest = policy.number("validity", "secondsmin"), policy.number("validity", "secondsmax")
    if lasts < shortest:
        raise _refused(f"The account issues for {shortest} seconds at least; ask for a longer lifetime.")
    return {"not_before": start, "not_after": 0 if longest and lasts > longest else start + lasts}


# ── Who ──


def _subject(request: OrderRequest, policy: GlobalSignPolicy, given: Mapping[str, str]) -> dict[str, object]:
    said: dict[str, object] = {}
    for field, rule in policy.part("subject_dn").items():
        if not isinstance(rule, Mapping) or field == "extra_attributes":
            continue
        value = given.get(field) or (_common_name(request, rule) if field == "common_name" else None)
        listed = "mincount" in rule or "maxcount" in rule
        askable = not rule.get("static") and rule.get("maxcount") != 0 if listed else rule.get("presence") in _ASKABLE
        needed = askable and (_count(rule, "mincount") > 0 if listed else rule.get("presence") == _WANTED)
        if needed and not value:
            raise _refused(f"The account wants {field} in the subject. Set it: subject.{words(field, 60)}.")
        if askable and value:
            said[field] = [value] if listed else value
    return said


def _common_name(request: OrderRequest, rule: Mapping[str, object]) -> str | None:
    names = [each.value for each in request.identifiers if len(each.value) <= _LONGEST_COMMON_NAME]
    return next((name for name in names if _matches(name, rule.get("format"))), None)


def _matches(name: str, pattern: object) -> bool:
    """The policy's patterns are of another dialect: one that cannot be read here is left to the CA."""
    if not isinstance(pattern, str) or not pattern or len(pattern) > 200:
        return True
    try:
        return re.search(pattern, name) is not None
    except re.error:
        return True


def _names(request: OrderRequest, policy: GlobalSignPolicy) -> dict[str, list[str]]:
    kinds = (("dns", "dns_names", "DNS names"), ("ip", "ip_addresses", "addresses"))
    said = {}
    for kind, field, shown in kinds:
        wanted = [each.value for each in request.identifiers if each.type == kind]
        rule = policy.part("san", field)
        if rule.get("static"):
            if {*wanted} != {*_texts(rule)}:
                raise _refused(f"The account has fixed {shown} in all of its certificates.", Reason.NAME_REFUSED)
        elif wanted and rule and len(wanted) > policy.number("san", field, "maxcount"):
            most = policy.number("san", field, "maxcount")
            raise _refused(f"The account allows {most} {shown}; {len(wanted)} were asked for.", Reason.NAME_REFUSED)
        elif wanted:
            said[field] = wanted
    return said


def _uses(policy: GlobalSignPolicy) -> list[str]:
    rule = policy.part("extended_key_usages", "ekus")
    return [_SERVER_AUTH] if not rule.get("static") and policy.number("extended_key_usages", "ekus", "maxcount") else []


def _signature(policy: GlobalSignPolicy) -> dict[str, str]:
    """How the CA signs, where it lets us choose and insists on it."""
    said = {}
    for field, liked in (("algorithm", ""), ("hash_algorithm", "SHA-256")):
        rule = policy.part("signature", field)
        offered = _texts(rule)
        if rule.get("presence") == _WANTED and offered:
            said[field] = liked if liked in offered else offered[0]
    return said


# ── Which key ──


def _key(request: OrderRequest, policy: GlobalSignPolicy) -> PublicKey:
    key = x509.load_der_x509_csr(request.csr).public_key()
    rule = policy.part("public_key")
    kind = {"RSA": rsa.RSAPublicKey, "ECDSA": ec.EllipticCurvePublicKey}.get(str(rule.get("key_type")))
    allowed = rule.get("allowed_lengths")
    lengths = [each for each in allowed if isinstance(each, int)] if isinstance(allowed, list) else []
    size = key.key_size if isinstance(key, rsa.RSAPublicKey | ec.EllipticCurvePublicKey) else None
    if (kind is not None and not isinstance(key, kind)) or (lengths and size not in lengths):
        shown = " or ".join(map(str, lengths)) or "any"
        raise _refused(
            f"The account takes {words(rule.get('key_type'), 20)} keys of {shown} bits only; "
            "ask for the certificate with such a key (--key)."
        )
    return key  # type: ignore[return-value]  # a key of ours


def _csr_pem(der: bytes) -> str:
    return x509.load_der_x509_csr(der).public_bytes(Encoding.PEM).decode().strip()


def _key_pem(key: PublicKey) -> str:
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode().strip()


async def signature(request: OrderRequest) -> str:
    """Of the public key in DER, by the private one, in base64."""
    if request.sign is None:
        raise _refused("The account wants a signature by the certificate's key, and that key is not here.")
    signed = await request.sign(keys.spki(x509.load_der_x509_csr(request.csr).public_key()))  # type: ignore[arg-type]
    return base64.b64encode(signed).decode()


def _refused(why: str, reason: Reason = Reason.CA_REFUSED) -> Refused:
    return Refused(f"GlobalSign: {why}", reason=reason)
