"""A backup: a header that anybody may read, and the rows of the database, encrypted. Pure.

The file begins with two lines: which format it is, and the header as JSON. Then come boxes: four bytes of length, and
so many of AES-256-GCM. Each box is bound to the header, to its place and to whether it is the last: a file that was
cut, altered or put together from two does not open. The key of the boxes is in the header, sealed with the key of the
installation, which is kept elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final

from holdfast.errors import UserError

MAGIC: Final = b"holdfast-backup 1\n"
SUFFIX: Final = ".hfb"
LONGEST_HEADER: Final = 1024 * 1024


class BackupRefused(UserError):
    """A backup that must not be used, or a place that it must not be put into; nothing was changed."""

    code = "backup-refused"

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.hint = hint


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupMade:
    """One that was written."""

    id: str
    at: datetime
    path: str
    size: int
    rows: int
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupHeader:
    id: str
    at: datetime
    version: str  # of the Holdfast that made it
    installation: str
    place: str
    store: str  # sqlite or postgresql
    epoch: int
    audit_seq: int
    audit_hash: str
    crls: Mapping[str, int]  # the number of the newest CRL, by CA and shard
    counts: Mapping[str, int]  # rows of each table
    schema: Mapping[str, str]  # schema steps and their digests
    kek: str  # the key that seals the key of this backup
    checks: tuple[Mapping[str, Any], ...]  # how the keys of the installation are known again
    wrapped: str
    box: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"holdfast-backup-{self.installation}-{self.at:%Y%m%dT%H%M%SZ}{SUFFIX}"


def render(header: BackupHeader) -> bytes:
    return json.dumps({**asdict(header), "at": header.at.isoformat()}, sort_keys=True).encode() + b"\n"


def parse(line: bytes, path: str) -> BackupHeader:
    try:
        plain = json.loads(line)
        return BackupHeader(**{**plain, "at": datetime.fromisoformat(plain["at"]), "checks": tuple(plain["checks"])})
    except (ValueError, TypeError, KeyError):
        raise damaged(path, "its header cannot be read") from None


def damaged(path: str, problem: str) -> BackupRefused:
    return BackupRefused(
        f"The backup {path} cannot be used: {problem}.", "Use another one: holdfast backup verify FILE"
    )


def check_version(header: BackupHeader, known: Mapping[str, str]) -> None:
    """Every schema step of it must be one of ours."""
    for step, digest in header.schema.items():
        if known.get(step) != digest:
            hint = f"Install Holdfast {header.version} or newer, and restore with that."
            raise BackupRefused(f"The backup has schema step {step}, which this Holdfast does not know.", hint)


def table_of(line: bytes) -> str:
    return str(json.loads(line)["table"])
