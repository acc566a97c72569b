"""The corpus of bad requests, continued: well signed, and wrong in what they say."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any, Final

import httpx2
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from holdfast.core.own_ca.acme import Identifier
from holdfast.pki import der
from tests.support import pki
from tests.support.acme_client import UNSET, Signer, b64, es256, flattened
from tests.support.acme_corpus import MALFORMED, Case, Ground, Send
from tests.support.acme_desk import a_csr
from tests.support.acme_face import LOCAL, csr_for

# ── Accounts ──


def account_cases() -> Iterator[Case]:
    payloads = {
        "empty": b"",
        "null": b"null",
        "an array": b"[]",
        "a text": b'"x"',
        "not JSON": b"x",
        "not UTF-8": b"\xff",
    }
    for what, payload in payloads.items():
        yield Case(f"newAccount with a payload that is {what}", _new_account(payload), *MALFORMED)
    fields: dict[str, tuple[dict[str, Any], str]] = {
        "contact a text": ({"contact": "mailto:a@example.com"}, "malformed"),
        "contact of numbers": ({"contact": [7]}, "malformed"),
        "contact by telephone": ({"contact": ["tel:123"]}, "unsupportedContact"),
        "contact without a scheme": ({"contact": ["a@example.com"]}, "invalidContact"),
        "contact with two addresses": ({"contact": ["mailto:a@example.com,b@example.com"]}, "invalidContact"),
        "contact with header fields": ({"contact": ["mailto:a@example.com?cc=b@example.com"]}, "invalidContact"),
        "contact without a domain": ({"contact": ["mailto:a"]}, "invalidContact"),
        "contact with a NUL": ({"contact": ["mailto:a\0@example.com"]}, "malformed"),
        "contact with a line break": ({"contact": ["mailto:a%0d%0ab@example.com"]}, "invalidContact"),
        "fifty contacts": ({"contact": [f"mailto:a{n}@example.com" for n in range(50)]}, "invalidContact"),
        "terms agreed by a text": ({"termsOfServiceAgreed": "true"}, "malformed"),
        "terms agreed by a number": ({"termsOfServiceAgreed": 1}, "malformed"),
        "onlyReturnExisting a text": ({"onlyReturnExisting": "true"}, "malformed"),
        "only an existing account": ({"onlyReturnExisting": True}, "accountDoesNotExist"),
        "binding a text": ({"externalAccountBinding": "x"}, "malformed"),
        "binding an array": ({"externalAccountBinding": []}, "malformed"),
        "binding empty": ({"externalAccountBinding": {}}, "malformed"),
        "binding with a signature of ours": ({"externalAccountBinding": _odd_binding()}, "badSignatureAlgorithm"),
    }
    for what, (content, error) in fields.items():
        yield Case(f"newAccount: {what}", _new_account(content), 400, error)
    yield Case("another's account", lambda g: g.other.get(g.url), 403, "unauthorized")
    yield Case(
        "ending another's account", lambda g: g.other.post(g.url, {"status": "deactivated"}), 403, "unauthorized"
    )
    yield Case("another's orders", lambda g: g.other.get(f"{g.url}/orders"), 403, "unauthorized")
    yield Case("a page of orders never named", lambda g: g.client.get(f"{g.url}/orders?after=%27"), 404, "malformed")
    yield Case("an account with a number as contact", lambda g: g.client.post(g.url, {"contact": 7}), *MALFORMED)
    for what, payload in {"an array": b"[]", "a text": b'"x"'}.items():
        yield Case(f"an account update that is {what}", _update(payload), *MALFORMED)
    yield from _key_change_cases()


def _odd_binding() -> dict[str, str]:
    return flattened(es256(), {"alg": "ES256", "kid": "x", "url": "x"}, {})


def _new_account(payload: Any) -> Send:
    return lambda g: g.stranger.post(g.stranger.urls["newAccount"], payload, jwk=True)


def _update(payload: bytes) -> Send:
    return lambda g: g.client.post(g.url, payload)


def _key_change_cases() -> Iterator[Case]:
    new = es256()
    wrong: dict[str, tuple[Callable[[Ground], dict[str, Any]], str]] = {
        "inner nonce": (lambda g: {"inner": {"nonce": "AAAA"}}, "malformed"),
        "inner kid": (lambda g: {"inner": {"jwk": UNSET, "kid": g.url}}, "malformed"),
        "inner url of another resource": (lambda g: {"inner": {"url": g.client.urls["newOrder"]}}, "malformed"),
        "inner signature of the old key": (lambda g: {"inner_signer": g.client.signer}, "malformed"),
        "inner alg none": (lambda g: {"inner": {"alg": "none"}}, "badSignatureAlgorithm"),
        "inner key weak": (lambda g: {"inner": {"jwk": {"kty": "oct", "k": "AAAA"}}}, "badPublicKey"),
        "another account": (lambda g: {"change": {"account": g.other.kid}}, "malformed"),
        "no account": (lambda g: {"change": {"account": UNSET}}, "malformed"),
        "another old key": (lambda g: {"change": {"oldKey": g.other.signer.jwk}}, "malformed"),
        "no old key": (lambda g: {"change": {"oldKey": UNSET}}, "malformed"),
    }
    for what, (changes, error) in wrong.items():
        yield Case(f"keyChange: {what}", _change_key(new, changes), 400, error)
    yield Case("keyChange: a key in use", lambda g: g.client.change_key(g.other.signer), 409, "malformed")
    yield Case("keyChange: its own key", lambda g: g.client.change_key(g.client.signer), 409, "malformed")
    yield Case("keyChange: no JWS inside", lambda g: g.client.post(g.client.urls["keyChange"], {}), *MALFORMED)


def _change_key(new: Signer, changes: Callable[[Ground], dict[str, Any]]) -> Send:
    return lambda g: g.client.change_key(new, **changes(g))


# ── Orders ──

NAMES: Final[dict[str, str]] = {
    "empty": "", "a dot": ".", "a star": "*", "a star and a dot": "*.", "two stars": "*.*.example",
    "a star inside": "a.*.example", "half a star": "a*.example", "a dot at the end": "a.example.",
    "a dot in front": ".a.example", "two dots": "a..example", "an underscore": "_a.example", "a space": "a b.example",
    "a line break": "a\n.example", "a slash": "a/b.example", "a port": "a.example:443", "a URL": "https://a.example",
    "a user": "me@a.example", "a hyphen in front": "-a.example", "a hyphen behind": "a-.example",
    "a long label": "a" * 64 + ".example", "a long name": "a." * 130 + "example", "not ASCII": "ä.example",
    "a broken A-label": "xn--a.example", "an empty A-label": "xn--.example", "a reserved label": "ab--c.example",
    "an A-label of ASCII": "xn--abc-.example", "an address": "192.0.2.1", "an IPv6 address": "2001:db8::1",
    "a number": "4096", "a hexadecimal number": "a.0x7f", "a hidden character": "a\u200b.example",
    "a right-to-left mark": "a\u202e.example", "a full-width letter": "\uff41.example", "a quote": "a'.example",
    "a percent": "a%00.example", "ten thousand characters": "a" * 10000,
}  # fmt: skip
ADDRESSES: Final[dict[str, str]] = {
    "empty": "", "a name": "a.example", "a network": "192.0.2.0/24", "with zeros": "192.0.02.1", "short": "192.0.2",
    "a number": "3221225985", "hexadecimal": "0xc0000201", "too large": "192.0.2.256", "a wildcard": "*.192.0.2.1",
    "in upper case": "2001:DB8::1", "not compressed": "2001:db8:0:0:0:0:0:1", "with zeros in a group": "2001:db8::0001",
    "in brackets": "[2001:db8::1]", "with a zone": "fe80::1%eth0", "mapped": "::ffff:192.0.2.1",
    "unspecified": "0.0.0.0", "multicast": "224.0.0.1", "broadcast": "255.255.255.255", "with a port": "192.0.2.1:80",
    "with a space": " 192.0.2.1",
}  # fmt: skip


def order_cases() -> Iterator[Case]:
    for what, value in NAMES.items():
        yield Case(f"dns name: {what}", _order([{"type": "dns", "value": value}]), 400, "rejectedIdentifier")
    for what, value in ADDRESSES.items():
        yield Case(f"ip address: {what}", _order([{"type": "ip", "value": value}]), 400, "rejectedIdentifier")
    for kind in ("email", "DNS", "", "TNAuthList", "permanent-identifier"):
        yield Case(f"identifier type {kind!r}", _order([{"type": kind, "value": "a"}]), 400, "unsupportedIdentifier")
    lists: dict[str, Any] = {
        "missing": UNSET, "null": None, "empty": [], "an object": {}, "a text": "a.example", "a number": 7,
        "of texts": ["a.example"], "of arrays": [[]], "of nulls": [None], "without type": [{"value": "a.example"}],
        "without value": [{"type": "dns"}], "with a number": [{"type": "dns", "value": 7}],
        "with a list": [{"type": ["dns"], "value": "a.example"}],
        "of 101": [{"type": "dns", "value": f"n{n}.example"} for n in range(101)],
    }  # fmt: skip
    for what, value in lists.items():
        yield Case(f"identifiers {what}", _order(value), *MALFORMED)
    for name in ("notBefore", "notAfter"):
        for what, at in {
            "a number": 1893456000, "a date": "2030-01-01", "without a zone": "2030-01-01T00:00:00",
            "with an odd zone": "2030-01-01T00:00:00+25:00", "in February": "2030-02-30T00:00:00Z", "a word": "now",
            "long ago": "1999-01-01T00:00:00Z", "in five digits": "12030-01-01T00:00:00Z",
            "a leap second": "2030-06-30T23:59:60Z",
        }.items():  # fmt: skip
            yield Case(f"{name} {what}", _wish(**{name: at}), *MALFORMED)
    yield Case("notAfter in a hundred years", _wish(notAfter="2126-01-01T00:00:00Z"), *MALFORMED)
    yield Case("profile a number", _wish(profile=7), *MALFORMED)
    yield Case("profile unknown", _wish(profile="x"), 400, "invalidProfile")
    yield Case("profile with a path", _wish(profile="../default"), 400, "invalidProfile")
    for what, name in {
        "a number": 7,
        "nonsense": "x",
        "of zeros": "AAAA.AA",
        "unknown": "AAAA.AQ",
        "padded": "AA==.AQ==",
    }.items():
        yield Case(f"replaces {what}", _wish(replaces=name), *MALFORMED)
    for what, payload in {
        "empty": b"",
        "an array": b"[]",
        "not JSON": b"x",
        "twice": b'{"identifiers":[],"identifiers":[]}',
    }.items():
        yield Case(f"newOrder with a payload that is {what}", _new_order(payload), *MALFORMED)
    yield from _resource_cases()


def _order(identifiers: Any) -> Send:
    content = {} if identifiers is UNSET else {"identifiers": identifiers}
    return lambda g: g.client.post(g.client.urls["newOrder"], content)


def _wish(**fields: Any) -> Send:
    return lambda g: g.client.order("wish.example", **fields)


def _new_order(payload: bytes) -> Send:
    return lambda g: g.client.post(g.client.urls["newOrder"], payload)


def _resource_cases() -> Iterator[Case]:
    for kind in ("order", "authz", "challenge", "certificate", "account"):
        status, error = (403, "unauthorized") if kind == "account" else (404, "malformed")
        yield Case(f"no such {kind}", _look(f"{kind}/{kind}_x"), status, error)
    yield Case("another's order", lambda g: g.other.get(g.ready["url"]), 403, "unauthorized")
    yield Case("another's authorization", lambda g: g.other.get(g.authz), 403, "unauthorized")
    yield Case("another's challenge", lambda g: g.other.get(g.challenge), 403, "unauthorized")
    yield Case("answering another's challenge", lambda g: g.other.post(g.challenge, {}), 403, "unauthorized")
    yield Case("another's certificate", lambda g: g.other.get(g.valid["certificate"]), 403, "unauthorized")
    yield Case("a chain that is not there", lambda g: g.client.get(f"{g.valid['certificate']}/1"), 404, "malformed")
    yield Case("an order with a payload", lambda g: g.client.post(g.ready["url"], {}), *MALFORMED)
    yield Case("a certificate with a payload", lambda g: g.client.post(g.valid["certificate"], {}), *MALFORMED)
    for what, payload in {
        "nothing of use": {},
        "a list": {"status": ["deactivated"]},
        "valid": {"status": "valid"},
    }.items():
        yield Case(f"an authorization is told {what}", _tell_authz(payload), *MALFORMED)
    for what, raw in {"an array": b"[]", "null": b"null", "not JSON": b"{", "a text": b'"x"'}.items():
        yield Case(f"a challenge is answered by {what}", _answer(raw), *MALFORMED)


def _look(path: str) -> Send:
    return lambda g: g.client.get(g.front.directory.replace("directory", path))


def _tell_authz(payload: Any) -> Send:
    return lambda g: g.client.post(g.authz, payload)


def _answer(payload: bytes) -> Send:
    return lambda g: g.client.post(g.challenge, payload)


# ── Certificate signing requests ──


def csr_cases() -> Iterator[Case]:
    good = a_csr(Identifier("ip", LOCAL))
    text = base64.encodebytes(good).decode()
    pem = f"-----BEGIN CERTIFICATE REQUEST-----\n{text}-----END CERTIFICATE REQUEST-----\n".encode()
    for what, content in {
        "missing": {}, "a number": {"csr": 7}, "null": {"csr": None}, "padded": {"csr": b64(good) + "="},
        "in the other alphabet": {"csr": "+/+/"}, "with a space": {"csr": f" {b64(good)}"},
        "in lines": {"csr": f"{b64(good[:30])}\n{b64(good[30:])}"}, "a list": {"csr": [b64(good)]},
    }.items():  # fmt: skip
        yield Case(f"csr {what}", _finalize(content), *MALFORMED)
    local = pki.der.tlv(0x87, bytes([127, 0, 0, 1]))
    weak = pki.crafted(pki.san(local), spki=pki.rsa_spki(pki.SOUND >> 1024))
    asked: dict[str, bytes] = {
        "empty": b"", "nonsense": b"nonsense", "in PEM": pem, "an empty sequence": b"\x30\x00", "cut": good[:-1],
        "with a byte more": good + b"\0", "with a bad signature": good[:-1] + bytes([good[-1] ^ 1]),
        "for another address": a_csr(Identifier("ip", "127.0.0.2")),
        "for one address more": a_csr(Identifier("ip", LOCAL), Identifier("ip", "127.0.0.2")),
        "for a name more": a_csr(Identifier("ip", LOCAL), Identifier("dns", "a.example")),
        "for a name instead": a_csr(Identifier("dns", "a.example")),
        "without a name": pki.crafted(),
        "without a name but its subject": pki.crafted(subject=[pki.common_name("a.example")]),
        "with a short key": weak, "with a key off the curve": pki.crafted(
            pki.san(local), spki=pki.ec_spki("1.2.840.10045.3.1.7", b"\x04" + b"\1" * 64)),
        "with a key on secp256k1": pki.crafted(pki.san(local), spki=pki.ec_spki("1.3.132.0.10", b"\x04" + b"\1" * 64)),
        "with an e-mail address": pki.crafted(pki.san(local, pki.der.tlv(0x81, b"a@example.com"))),
        "for a CA": pki.crafted(pki.san(local), pki.extension("2.5.29.19", der.sequence(b"\x01\x01\xff"))),
        "with an unknown extension": pki.crafted(pki.san(local), pki.extension("1.2.3.4", b"\x05\x00", critical=True)),
        "with a name twice": pki.crafted(pki.san(local), pki.san(local)),
        "with must-staple": pki.crafted(pki.san(local), pki.extension("1.3.6.1.5.5.7.1.24", b"\x30\x03\x02\x01\x05")),
        "a certificate": pki.root().public_bytes(Encoding.DER),
        "of 40 KB": pki.crafted(pki.san(*(pki.dns(f"n{n}.example") for n in range(2300)))),
    }  # fmt: skip
    for what, content in asked.items():
        yield Case(f"csr {what}", _finalize({"csr": b64(content)}), 400, "badCSR")
    yield Case("csr signed with SHA-1", lambda g: _post_csr(g, _sha1()), 400, "badCSR")
    yield Case("csr of the account's key", lambda g: _post_csr(g, _own_key(g)), 400, "badCSR")
    for state, what in (("pending", "pending"), ("valid", "valid")):
        yield Case(f"csr for a {what} order", _not_ready(state), 403, "orderNotReady")
    yield Case("csr for another's order", lambda g: _foreign_csr(g), 403, "unauthorized")
    yield Case("csr for no order", lambda g: _nowhere(g), 404, "malformed")
    yield Case("finalize with nothing", lambda g: g.client.get(g.ready["finalize"]), *MALFORMED)


def _finalize(content: dict[str, Any]) -> Send:
    return lambda g: g.client.post(g.ready["finalize"], content)


async def _post_csr(g: Ground, content: bytes) -> httpx2.Response:
    return await g.client.post(g.ready["finalize"], {"csr": b64(content)})


async def _foreign_csr(g: Ground) -> httpx2.Response:
    return await g.other.post(g.ready["finalize"], {"csr": csr_for(g.ready)})


async def _nowhere(g: Ground) -> httpx2.Response:
    url = g.front.directory.replace("directory", "order/order_x/finalize")
    return await g.client.post(url, {"csr": csr_for(g.ready)})


def _not_ready(state: str) -> Send:
    return lambda g: g.client.post(getattr(g, state)["finalize"], {"csr": csr_for(getattr(g, state))})


def _own_key(g: Ground) -> bytes:
    assert isinstance(g.client.signer.private, ec.EllipticCurvePrivateKey)
    return a_csr(Identifier("ip", LOCAL), key=g.client.signer.private)


def _sha1() -> bytes:
    """The library refuses to make one."""
    made = rsa.generate_private_key(65537, 2048)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a.example")])
    csr = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(made, hashes.SHA256())
    content = csr.public_bytes(Encoding.DER)
    sha256, sha1 = der.object_identifier("1.2.840.113549.1.1.11"), der.object_identifier("1.2.840.113549.1.1.5")
    assert content.count(sha256) == 1
    return content.replace(sha256, sha1)


# ── Revocation and renewal ──


def certificate_cases() -> Iterator[Case]:
    for what, content in {
        "missing": {}, "a number": {"certificate": 7}, "null": {"certificate": None}, "empty": {"certificate": ""},
        "nonsense": {"certificate": b64(b"nonsense")}, "padded": {"certificate": "AAAA===="},
        "a CSR": {"certificate": b64(a_csr(Identifier("dns", "a.example")))},
    }.items():  # fmt: skip
        yield Case(f"revoke: {what}", _revoke(lambda g, content=content: content), *MALFORMED)
    foreign = pki.root().public_bytes(Encoding.DER)
    yield Case("revoke: a foreign certificate", _revoke(lambda g: {"certificate": b64(foreign)}), 404, "malformed")
    yield Case("revoke: a certificate with a bit changed", _revoke(_bit_changed), 404, "malformed")
    for reason in (-1, 2, 6, 7, 8, 10, 11, 2**40):
        yield Case(f"revoke for reason {reason}", _revoke(_for_reason(reason)), 400, "badRevocationReason")
    for reason in ("1", 1.5, True, [], {}):
        yield Case(f"revoke for reason {reason!r}", _revoke(_for_reason(reason)), *MALFORMED)
    yield Case("revoke: by another account", _revoke(_for_reason(1), by="other"), 403, "unauthorized")
    yield Case("revoke: by a key of nobody", _revoke_by_key, 403, "unauthorized")
    for name in ("x", "x.y", "AAAA.AA", "AAAA.gA", "AAAA.AAE", "AAAA.AQ.AQ", "%2E.AQ", "AAAA.A" * 12):
        status = 404 if "%" in name else 400
        yield Case(f"renewal information of {name:.20}", _renewal(name), status, "malformed")
    yield Case("renewal information of another CA", _renewal("aYhba4dGQEHhs3uEe6CuLN4ByNQ.AIdlQyE"), 404, "malformed")
    yield Case(
        "renewal information by POST", lambda g: g.client.get(g.client.urls["renewalInfo"] + "/x.y"), 405, "malformed"
    )


def _revoke(content: Callable[[Ground], dict[str, Any]], *, by: str = "client") -> Send:
    return lambda g: getattr(g, by).post(g.client.urls["revokeCert"], content(g))


def _bit_changed(g: Ground) -> dict[str, Any]:
    return {"certificate": b64(g.certificate[:-1] + bytes([g.certificate[-1] ^ 1]))}


def _for_reason(reason: Any) -> Callable[[Ground], dict[str, Any]]:
    return lambda g: {"certificate": b64(g.certificate), "reason": reason}


async def _revoke_by_key(g: Ground) -> httpx2.Response:
    return await g.stranger.post(g.client.urls["revokeCert"], {"certificate": b64(g.certificate)}, jwk=True)


def _renewal(name: str) -> Send:
    return lambda g: g.http.get(f"{g.client.urls['renewalInfo']}/{name}")
