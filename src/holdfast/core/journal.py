"""Events of the timeline, and the hash chain of audit entries."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """One audit row as stored: `details` is canonical JSON, `hash` covers all of it and the row before."""

    seq: int
    at: int
    actor: str
    action: str
    subject: str
    details: str
    hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainVerdict:
    """What a walk over the chain found: how many rows held, and the first that did not, with the reason."""

    verified: int  # the number of the last row that held
    last_hash: str = ""
    bad_seq: int | None = None
    problem: str = ""
    archived: int = 0  # the number of the last row that was archived: the walk began after it

    @property
    def ok(self) -> bool:
        return self.bad_seq is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """The last row that was archived: the chain goes on from its hash. Without an archive, the start of the chain."""

    seq: int = 0
    hash: str = ""


START: Final = Anchor()
ARCHIVED: Final = "audit_archived"  # the audit entry that tells of an anchor, whose number is its subject
_CANONICAL: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical(details: Mapping[str, object]) -> str:
    """One text for one meaning: sorted keys, no white space; ASCII, so that no store refuses what a remote said."""
    return _CANONICAL.encode(details)


def digest(value: object) -> str:
    """What a thing was, without saying it: equal things have equal digests, and nothing can be read from one."""
    plain = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
    return hashlib.sha256(json.dumps(plain, sort_keys=True, default=_plain).encode()).hexdigest()


def _plain(value: object) -> object:
    match value:
        case Enum():
            return value.value
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Mapping():
            return dict(value)
        case set() | frozenset():
            return sorted(value)
        case _ if is_dataclass(value) and not isinstance(value, type):
            return asdict(value)
    raise TypeError(f"a {type(value).__name__} has no digest")


def entry_line(entry: AuditRow) -> str:
    """A row as one line of JSON: all that its hash covers, so that the chain can be checked elsewhere."""
    at = datetime.fromtimestamp(entry.at // 1_000_000, UTC).replace(microsecond=entry.at % 1_000_000)
    shown = {"seq": entry.seq, "at": at.isoformat(), "at_us": entry.at, "actor": entry.actor, "action": entry.action,
             "subject": entry.subject, "details": json.loads(entry.details), "hash": entry.hash}  # fmt: skip
    return json.dumps(shown, separators=(",", ":"))


def parsed_entry(text: str) -> AuditRow:
    """A row from such a line; ValueError for any other text."""
    try:
        row = json.loads(text)
        fields = {name: row[name] for name in ("seq", "actor", "action", "subject", "hash")}
        return AuditRow(at=int(row["at_us"]), details=canonical(row["details"]), **fields)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"this is no line of an audit log: {error}") from None


def anchor_line(anchor: Anchor) -> str:
    """The first line of an archive: the row that its chain goes on from."""
    return json.dumps({"after_seq": anchor.seq, "after_hash": anchor.hash}, separators=(",", ":"))


def parsed_copy(lines: Sequence[str]) -> tuple[Anchor | None, list[AuditRow]]:
    """The rows of a copy, and the anchor before them if it is an archive; ValueError for any other text."""
    first = json.loads(lines[0]) if lines else None
    if not isinstance(first, dict) or "after_seq" not in first:
        return None, [parsed_entry(line) for line in lines]
    anchor = Anchor(seq=int(first["after_seq"]), hash=str(first.get("after_hash", "")))
    return anchor, [parsed_entry(line) for line in lines[1:]]


def link(previous: str, seq: int, at: int, actor: str, action: str, subject: str, details: str) -> str:
    """The hash of a row. JSON framing keeps fields apart: no two different rows give the same text."""
    text = json.dumps([previous, seq, at, actor, action, subject, details], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def verify_copy(entries: Sequence[AuditRow], after: Anchor | None = None) -> ChainVerdict:
    """Of rows that were copied, after an anchor or from whichever on. What comes before the first is not there."""
    if not entries:
        return ChainVerdict(verified=0)
    first, last = entries[0], entries[-1]
    if after is None and first.seq != 1:
        after, entries = Anchor(seq=first.seq, hash=first.hash), entries[1:]
    after = after or START
    return chain_verdict(
        entries, newest_seq=last.seq, newest_hash=last.hash, after_seq=after.seq, after_hash=after.hash
    )


def differs_from_store(entries: Sequence[AuditRow], kept: Mapping[int, str], archived: int) -> int | None:
    """The first row of a copy whose chain holds that the store does not confirm; None if it confirms all.

    `kept`: the hashes of rows that the store has, and of its anchors. A row that was archived is confirmed by the next
    anchor in the copy, because the hash of that covers it.
    """
    other, confirmed = None, False
    for row in reversed(entries):
        known = kept.get(row.seq)
        confirmed = known == row.hash or (known is None and confirmed and row.seq <= archived)
        other = other if confirmed else row.seq
    return other


def chain_verdict(
    entries: Iterable[AuditRow], *, newest_seq: int, newest_hash: str, after_seq: int = 0, after_hash: str = ""
) -> ChainVerdict:
    """Check numbering, every link, and that the chain ends where its head says; from the start, or after a good row."""
    seq, previous = after_seq, after_hash

    def bad(number: int, problem: str) -> ChainVerdict:
        return ChainVerdict(verified=seq, last_hash=previous, bad_seq=number, problem=problem)

    for entry in entries:
        if entry.seq != seq + 1:
            return bad(seq + 1, f"row {seq + 1} is missing")
        expected = link(previous, entry.seq, entry.at, entry.actor, entry.action, entry.subject, entry.details)
        if entry.hash != expected:
            return bad(entry.seq, f"row {entry.seq} was altered")
        seq, previous = entry.seq, entry.hash
    if seq != newest_seq:
        return bad(seq + 1, f"row {seq + 1} is missing: {newest_seq} were written")
    if previous != newest_hash:
        return bad(seq, f"row {seq} is not the row that was written last")
    return ChainVerdict(verified=seq, last_hash=previous)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened, as shown on a timeline."""

    id: int
    at: datetime
    name: str
    subject: str
    job: str
    details: Mapping[str, Any]
