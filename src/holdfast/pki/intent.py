"""Everything that goes into a certificate, as one value: committed before signing, so that it can be signed again.

Its JSON is canonical (sorted, no spaces): the same intent is the same bytes, and from those, with a signer that
is deterministic, comes the same certificate: after a crash, and in another process.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Final

from holdfast.pki.signer import Algorithm
from holdfast.ports import Random

VERSION: Final = 1
SERIAL_BITS: Final = 159  # 20 octets, positive (RFC 5280 §4.1.2.2)
KEY_USAGES: Final = ("digital_signature", "key_encipherment")
EXTENDED_KEY_USAGES: Final = ("serverAuth", "clientAuth")


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """One certificate that is going to be signed, and no other."""

    issuer_id: str
    issuer_sha256: str  # of the issuer's name and key, in hex: they go into the certificate
    algorithm: Algorithm
    profile: str
    serial: int
    names: tuple[str, ...]
    ips: tuple[str, ...]
    common_name: str | None  # None: the subject is empty, and the names are critical
    spki: bytes
    not_before: datetime
    not_after: datetime
    key_usages: tuple[str, ...]
    extended_key_usages: tuple[str, ...]
    ca_issuers_url: str | None
    crl_url: str | None
    crl_shard: int | None  # fixed here for the certificate's life, however many shards there will be
    must_staple: bool

    def __post_init__(self) -> None:
        if not 0 < self.serial < 1 << SERIAL_BITS:
            raise ValueError("a serial is positive and has at most 159 bits")
        if not self.names and not self.ips:
            raise ValueError("a certificate has at least one name")
        if not self.not_before < self.not_after:
            raise ValueError("a certificate ends after it begins")
        if any(at.tzinfo is not UTC or at.microsecond for at in (self.not_before, self.not_after)):
            raise ValueError("certificates know only whole seconds of UTC")
        if not self.key_usages or set(self.key_usages) - set(KEY_USAGES):
            raise ValueError(f"key usages are some of {KEY_USAGES}")
        if not self.extended_key_usages or set(self.extended_key_usages) - set(EXTENDED_KEY_USAGES):
            raise ValueError(f"extended key usages are some of {EXTENDED_KEY_USAGES}")

    def to_json(self) -> bytes:
        written = {field.name: _CODECS[str(field.type)][0](getattr(self, field.name)) for field in fields(self)}
        return json.dumps({"version": VERSION, **written}, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, content: bytes) -> Intent:
        """Read exactly what to_json wrote; ValueError for anything else."""
        raw = json.loads(content)
        if not isinstance(raw, dict) or raw.pop("version", None) != VERSION:
            raise ValueError(f"this is not an intent of version {VERSION}")
        if raw.keys() != {field.name for field in fields(cls)}:
            raise ValueError("an intent has other fields")
        try:
            read = {field.name: _CODECS[str(field.type)][1](raw[field.name]) for field in fields(cls)}
        except (TypeError, AttributeError) as error:
            raise ValueError(f"a field of an intent has another type: {error}") from None
        intent = cls(**read)
        if intent.to_json() != content:
            raise ValueError("an intent is written in another way")
        return intent


def _same(value: Any) -> Any:
    return value


# For each type of field: how it is written in JSON, and how it is read. That types match is seen by writing it again.
_CODECS: Final[dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]]] = {
    "str": (_same, _same),
    "str | None": (_same, _same),
    "int | None": (_same, _same),
    "bool": (_same, _same),
    "int": ("{:x}".format, lambda text: int(text, 16)),  # JSON's numbers lose digits in other languages
    "bytes": (lambda raw: base64.b64encode(raw).decode(), lambda text: base64.b64decode(text, validate=True)),
    "datetime": (lambda at: at.strftime("%Y-%m-%dT%H:%M:%SZ"), lambda text: _instant(text)),
    "tuple[str, ...]": (list, tuple),
    "Algorithm": (str, Algorithm),
}


def _instant(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)


def new_serial(random: Random) -> int:
    """159 unpredictable bits. Zero is not a serial; it comes up once in 2^159 draws, and is drawn again."""
    return int.from_bytes(random.token(20), "big") >> 1 or new_serial(random)
