"""The extensions of a certificate as they stand in it: OID, critical or not, and the bytes.

`cryptography` reads all of them or none, and refuses certificates for extensions that a proof has nothing to do with:
`basicConstraints = CA:FALSE, pathlen:0`, for one, which a widespread client puts into every challenge certificate.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from cryptography import x509

_EXTENSIONS: Final = 0xA3  # [3], after all that is not optional (RFC 5280 §4.1)
_OID, _BOOLEAN, _OCTETS = 0x06, 0x01, 0x04
_TRUE: Final = b"\xff"


class Extension(NamedTuple):
    critical: bool
    content: bytes


class _Part(NamedTuple):
    tag: int
    content: bytes


def read(certificate: x509.Certificate) -> dict[bytes, Extension]:
    """By the encoded OID. ValueError if it is no list of extensions, or names one twice (RFC 5280 §4.2)."""
    [content] = _parts(certificate.tbs_certificate_bytes)
    found = dict[bytes, Extension]()
    for listed in (part for part in _parts(content.content) if part.tag == _EXTENSIONS):
        [each] = _parts(listed.content)
        for extension in _parts(each.content):
            oid, read = _extension(extension)
            if oid in found:
                raise ValueError("an extension comes twice")
            found[oid] = read
    return found


def _extension(part: _Part) -> tuple[bytes, Extension]:
    oid, *critical, content = _parts(part.content)
    if [oid.tag, *(each.tag for each in critical), content.tag] not in ([_OID, _OCTETS], [_OID, _BOOLEAN, _OCTETS]):
        raise ValueError("an extension is of another form")
    return oid.content, Extension(critical == [_Part(_BOOLEAN, _TRUE)], content.content)


def _parts(data: bytes) -> list[_Part]:
    """What stands side by side, each with its tag (X.690 §8.1); lengths of up to three octets."""
    found, at = [], 0
    while at < len(data):
        tag, size, at = data[at], data[at + 1] if at + 1 < len(data) else 0x80, at + 2
        if size >= 0x80:
            octets = size & 0x7F
            if not 0 < octets <= 3:
                raise ValueError("a length is of another form")
            size, at = int.from_bytes(data[at : at + octets], "big"), at + octets
        if at + size > len(data):
            raise ValueError("a part is longer than the whole")
        found.append(_Part(tag, data[at : at + size]))
        at += size
    return found
