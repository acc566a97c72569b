"""The timeline of a certificate: stored events as attempts with their steps, back-off as gaps, and the future above."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby, pairwise
from typing import Any, Final

from holdfast.core.backoff import issuance_ladder, issuance_wait
from holdfast.pages import words


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    at: datetime
    says: str
    folded: int = 0  # so many equal ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    at: datetime
    kind: str  # future next end good bad note gap now
    title: str
    says: str = ""
    took_s: float | None = None
    reason: str = ""
    steps: tuple[Step, ...] = ()
    formula: str = ""
    group: str = "attempts"  # attempts deployments notifications approvals changes


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One issuance as its events tell it."""

    id: str
    events: list[Any] = field(default_factory=list)
    number: int = 0  # in its row of failures

    @property
    def end(self) -> Any:
        return next((each for each in reversed(self.events) if each.name in _ENDS), None)

    @property
    def begun_at(self) -> datetime:
        at: datetime = self.events[0].at
        return at


_ENDS: Final = ("certificate.activated", "issuance.failed", "issuance.cancelled")
_SAYS: Final[Mapping[str, str]] = {
    "issuance.begun": "Begun at {issuer}, because of {cause}",
    "issuance.key_stored": "Key made and sealed, CSR signed",
    "issuance.ordered": "Order placed at the issuer",
    "issuance.proving": "Challenge responses published",
    "issuance.proved": "The issuer accepted the challenge responses",
    "issuance.finalizing": "CSR handed in",
    "issuance.waiting": "The issuer is at work",
    "issuance.waits": "Looked: {why} {error}",
    "issuance.moved_on": "Goes on at {to}",
    "issuance.failed": "Given up: {error}",
    "issuance.cancelled": "Cancelled: {why}",
    "certificate.activated": "Version in use, serial {serial}",
    "certificate.requested": "Requested by {by}",
    "certificate.changed": "Changed by {by}: {what}",
    "certificate.paused": "Paused by {by}",
    "certificate.resumed": "Resumed by {by}",
    "certificate.archived": "Archived by {by}",
    "certificate.adopted": "Taken over by {by}",
    "certificate.expires": "Expires soon: people were told",
    "approval.asked": "A second person was asked to approve",
    "approval.approved": "Approved by {by}",
    "approval.rejected": "Rejected by {by}",
    "approval.timed_out": "The approval lapsed",
    "revocation.asked": "Revocation asked for by {by}",
    "version.revoked": "The issuer revoked version {serial}",
    "key.exported": "Key exported by {by}",
    "certificate.discarded": "A certificate that is not needed was put away",
}


def said(name: str, details: Mapping[str, Any]) -> str:
    """An event in words; one that is not known here says its name."""
    text = _SAYS.get(name, name.replace(".", " ").replace("_", " ").capitalize())
    known = {key: ", ".join(map(str, value)) if isinstance(value, list) else value for key, value in details.items()}
    return words.plain(text.format_map(_Blank(known)).strip().removesuffix(":"))


class _Blank(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return ""


# ── The past ──


def past(events: Sequence[Any], letters: Sequence[Any], first: datetime | None, ends: datetime | None) -> list[Entry]:
    """Newest first; back-off stands between two attempts of one row of failures."""
    attempts: dict[str, Attempt] = {}
    notes = list[Entry]()
    for event in events:
        issuance = str(event.details.get("issuance", ""))
        if issuance and event.name.startswith(("issuance.", "certificate.activated")):
            attempts.setdefault(issuance, Attempt(id=issuance)).events.append(event)
        else:
            group = "approvals" if event.name.startswith("approval.") else "deployments" if event.name.startswith(
                ("deployment.", "endpoint.")) else "changes"  # fmt: skip
            notes.append(Entry(at=event.at, kind="note", title=said(event.name, event.details), group=group))
    ordered = sorted(attempts.values(), key=lambda each: each.begun_at)
    _number(ordered)
    found = [*notes, *(_told(each) for each in letters), *(_entry(each) for each in ordered)]
    found += _gaps(ordered, first, ends)
    return sorted(found, key=lambda each: (each.at, each.kind == "gap"), reverse=True)


def _number(ordered: Sequence[Attempt]) -> None:
    """Failures in a row are counted; a success begins anew."""
    count = 0
    for attempt in ordered:
        count += 1
        attempt.number = count
        end = attempt.end
        if end is not None and end.name == "certificate.activated":
            count = 0


def _entry(attempt: Attempt) -> Entry:
    end, steps = attempt.end, tuple(_steps(attempt.events))
    if end is None:
        return Entry(at=attempt.events[-1].at, kind="next", title=f"Attempt {attempt.number} is under way", steps=steps)
    took = float(end.details.get("took_s") or (end.at - attempt.begun_at).total_seconds())
    issuer = attempt.events[0].details.get("issuer", "")
    match end.name:
        case "certificate.activated":
            title = "Issued" if attempt.number == 1 else f"Issued on attempt {attempt.number}"
            return Entry(at=end.at, kind="good", title=title, says=f"by {issuer}", took_s=took, steps=steps)
        case "issuance.failed":
            code = str(end.details.get("reason") or "")
            text = words.plain(str(end.details.get("error") or ""))
            return Entry(
                at=end.at, kind="bad", title=f"Attempt {attempt.number} failed", says=text, took_s=took, reason=code,
                steps=steps,
            )  # fmt: skip
    return Entry(at=end.at, kind="note", title="Cancelled", says=said(end.name, end.details), steps=steps)


def _steps(events: Sequence[Any]) -> Iterator[Step]:
    """Equal looks fold into one line."""
    for (_, text), group in groupby(events, key=lambda each: (each.name, said(each.name, each.details))):
        same = list(group)
        if len(same) < 3:
            yield from (Step(at=each.at, says=text) for each in same)
        else:
            over = words.span(same[-1].at - same[0].at)
            yield Step(
                at=same[0].at, says=f"{len(same)} looks in {over}: {text.removeprefix('Looked: ')}", folded=len(same)
            )


def _gaps(ordered: Sequence[Attempt], first: datetime | None, ends: datetime | None) -> Iterator[Entry]:
    for attempt, after in pairwise(ordered):
        end = attempt.end
        if end is not None and end.name == "issuance.failed" and after.number == attempt.number + 1:
            left = None if first is None or ends is None else ends - first
            at = end.at + (after.begun_at - end.at) / 2
            yield Entry(at=at, kind="gap", title="Back-off", formula=formula(attempt.number, left))


def formula(failures: int, left: timedelta | None) -> str:
    """1 h × 2^(3-1) = 4 h, at most 32 h"""
    ladder = issuance_ladder(left)
    wait, first, cap = ladder.rung(failures), words.wait(ladder.first), words.wait(ladder.cap)
    return f"{first} × 2^({failures}-1) = {words.wait(wait)}, at most {cap}" if failures > 1 else f"{first}"


def _told(letter: Any) -> Entry:
    how = {"sent": "was told", "pending": "is about to be told", "failed": "is tried again", "dead": "was not reached",
           "resolved": "was settled by hand"}[letter.state]  # fmt: skip
    title = f"{letter.channel or 'No channel'} {how}"
    return Entry(at=letter.created_at, kind="note", title=title, says=words.plain(letter.title), group="notifications")


# ── The future ──


def future(status: Any, now: datetime) -> list[Entry]:
    """What is to come, the latest first."""
    found = list[Entry]()
    if status.expires_at and status.expires_at > now:
        found.append(Entry(at=status.expires_at, kind="end", title="Expires"))
    if status.safe_until and now < status.safe_until != status.expires_at:
        found.append(
            Entry(at=status.safe_until, kind="future", title="Safe until then", says="the last attempt that fits")
        )
    if status.approval_ends_at and status.approval_ends_at > now:
        found.append(Entry(at=status.approval_ends_at, kind="future", title="The request for approval lapses"))
    if status.next_attempt_at and status.next_attempt_at >= now and not status.approval_ends_at:
        title = f"Attempt {status.attempt + 1}" if status.attempt else "Renewal"
        found.append(Entry(at=status.next_attempt_at, kind="next", title=title, says=_why(status)))
    return sorted(found, key=lambda each: each.at, reverse=True)


def _why(status: Any) -> str:
    return "" if not status.next_attempt_cause else f"because of {status.next_attempt_cause}"


# ── The life line ──


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeLine:
    """Where each mark stands: above the whole life, below the time around now."""

    width: float
    now: float
    fails: tuple[float, ...]
    dots: tuple[float, ...]  # attempts that still fit
    next: float | None
    safe: float
    zoom: Zoom | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Zoom:
    left: float  # where the cone begins on the upper track
    right: float
    now: float
    fails: tuple[tuple[float, int], ...]
    gaps: tuple[tuple[float, float, str], ...]
    next: float
    number: int
    then: tuple[float, str]  # the attempt after that, and how long until then
    ticks: tuple[tuple[float, str], ...]


WIDTH: Final = 1078.0


def life_line(found: Any, attempts: Sequence[Any], now: datetime) -> LifeLine | None:
    """None while there is no version that has a life."""
    begun, ends, status = found.not_before, found.not_after, found.status
    if begun is None or ends is None or ends <= begun:
        return None

    def x(at: datetime) -> float:
        share: float = (at - begun) / (ends - begun)
        return round(WIDTH * min(1.0, max(0.0, share)), 1)

    failed = [each for each in attempts if each.state == "failed" and each.ended_at and each.ended_at >= begun]
    recent = sorted(each.ended_at for each in failed)[-max(status.attempt, 0) :] if status.attempt else []
    again = status.next_attempt_at
    return LifeLine(
        width=WIDTH,
        now=x(now),
        fails=tuple(x(each) for each in recent),
        dots=tuple(x(each) for each in _later(status, again, ends)),
        next=None if again is None or status.phase in ("paused", "archived") else x(again),
        safe=x(status.safe_until or ends),
        zoom=None if not recent or again is None or again <= now else _zoom(status, recent, again, ends, now, x),
    )


def _later(status: Any, again: datetime | None, ends: datetime) -> Iterator[datetime]:
    """When further attempts would be made, if all fail."""
    if not status.attempt or again is None or status.safe_until is None or status.since is None:
        return
    at, failures, left = again, status.attempt, ends - status.since
    for _ in range(40):
        failures += 1
        at += issuance_wait(failures, left_at_first_failure=left)
        if at >= status.safe_until:
            return
        yield at


def _zoom(status: Any, recent: Sequence[datetime], again: datetime, ends: datetime, now: datetime, x: Any) -> Zoom:
    shown = recent[-4:]
    left = ends - (status.since or recent[0])
    wait = issuance_wait(status.attempt + 1, left_at_first_failure=left)
    reach = max(again - shown[0], timedelta(minutes=10))
    begin, after = shown[0] - reach * 0.12, again + min(wait, reach * 0.8)
    end = after + reach * 0.08
    span = end - begin

    def z(at: datetime) -> float:
        return round(WIDTH * ((at - begin) / span), 1)

    first = status.attempt - len(shown) + 1
    stops = [*shown, again]
    gaps = [
        (
            z(a),
            z(b),
            words.wait(issuance_wait(first + n, left_at_first_failure=left))
            if n + 1 < len(shown)
            else formula(status.attempt, left).split(",")[0],
        )
        for n, (a, b) in enumerate(pairwise(stops))
    ]
    return Zoom(
        left=x(begin),
        right=x(end),
        now=z(now),
        fails=tuple((z(each), first + n) for n, each in enumerate(shown)),
        gaps=tuple(gaps),
        next=z(again),
        number=status.attempt + 1,
        then=(z(after), words.wait(wait)),
        ticks=tuple(_ticks(begin, end, z)),
    )


_EVERY: Final = tuple(timedelta(minutes=each) for each in (5, 10, 30, 60, 120, 360, 720, 1440, 2880, 10080))


def _ticks(begin: datetime, end: datetime, z: Any) -> Iterator[tuple[float, str]]:
    step = next((each for each in _EVERY if (end - begin) / each <= 10), _EVERY[-1])
    midnight = begin.replace(hour=0, minute=0, second=0, microsecond=0)
    at = midnight + step * (int((begin - midnight) / step) + 1)
    while at < end:
        yield z(at), f"{at:%H:%M}" if step < timedelta(days=1) else f"{at.day} {at:%b}"
        at += step
