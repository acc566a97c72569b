"""Logs of Certificate Transparency: certificates for names that are kept here, whoever ordered them.

A log is read on from where the last round ended. Its head may never go back: a log that shows less than before, or
another tree of the same size, is not read on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from holdfast.core.discovery.ct import matches
from holdfast.core.discovery.discovery import Discovery
from holdfast.core.discovery.find import FindSource
from holdfast.ct.entries import LogEntry
from holdfast.ct.heads import NotTrusted, TreeHead
from holdfast.ct.logs import Log
from holdfast.ct.reading import Malformed
from holdfast.engine.discovery.rounds import Sighted, Step, StepResult
from holdfast.errors import Refused
from holdfast.operations.discovery.recording import Spot
from holdfast.pki.facts import Unreadable, facts_of
from holdfast.store import certificates
from holdfast.store.database import Store

MOST_NAMES: Final = 100_000
OpenLog = Callable[[Discovery], Log]


def read(db: Store, open_log: OpenLog) -> Step:
    async def step(row: Discovery) -> StepResult:
        try:
            return await _step(db, open_log(row), row)
        except (Malformed, NotTrusted) as why:
            raise Refused(f"The log {row.settings['log']} cannot be read on: {why}.") from None

    return step


async def _step(db: Store, log: Log, row: Discovery) -> StepResult:
    place: dict[str, Any] = dict(row.position.get("log") or {})
    if "until" not in row.position:
        head = await log.head()
        _check_growth(place, head)
        first = place.get("next", head.size if row.settings.get("start") is None else int(row.settings["start"]))
        place = {"next": min(first, head.size), "size": head.size, "root": head.root, "signed": head.signed}
        return StepResult(
            position={"log": place, "until": head.size, "done": 0},
            total=head.size - place["next"],
            over=place["next"] >= head.size,
            whole=False,
        )
    until, done = int(row.position["until"]), int(row.position.get("done", 0))
    found = await log.entries(int(place["next"]), until)
    asked: list[str] = row.settings.get("domains") or []
    domains = asked or await db.read(lambda tx: certificates.kept_names(tx, MOST_NAMES))
    sighted, counts = _sighted(row, found, frozenset(domains))
    after = int(place["next"]) + len(found)
    return StepResult(
        position={"log": {**place, "next": after}, "until": until, "done": done + len(found)},
        sighted=sighted,
        counts=counts,
        over=after >= until,
        whole=False,
    )


def _check_growth(place: dict[str, Any], head: TreeHead) -> None:
    if not place:
        return
    if head.size < int(place["size"]):
        raise Malformed(f"it had {place['size']} entries, and shows {head.size} now")
    if head.size == int(place["size"]) and head.root != place["root"]:
        raise Malformed(f"it shows two different trees of {head.size} entries")


def _sighted(
    row: Discovery, found: Sequence[LogEntry], domains: Collection[str]
) -> tuple[list[Sighted], Counter[str]]:  # fmt: skip
    """Those for our names. An entry that cannot be read is counted: logs hold what CAs made, well or badly."""
    sighted, counts = list[Sighted](), Counter[str](tried=len(found))
    for entry in found:
        try:
            facts = facts_of([entry.certificate], precertificate=entry.precertificate, alone=True)
        except Unreadable:
            counts["unreadable"] += 1
            continue
        if any(matches(each, domains) for each in facts.names):
            where = f"{row.settings['log']} entry {entry.index}"
            spot = Spot(source=FindSource.CT, place=where, discovery=row.id, notes=_kind(entry))
            sighted.append(Sighted(facts=facts, spot=spot))
    return sighted, counts


def _kind(entry: LogEntry) -> str:
    return "precertificate" if entry.precertificate else "certificate"
