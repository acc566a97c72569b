"""Cluster: the replicas, what each does, the loops that tick, the leases, and what is worth a look."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final, NamedTuple

from starlette.responses import Response

from holdfast.core.own_ca.ca import expiry_remedy
from holdfast.operations.access import Action
from holdfast.pages import words
from holdfast.pages.visit import Visit

SILENT_AFTER: Final = timedelta(seconds=30)
ODD_CLOCK: Final = 0.25  # seconds
LEADER: Final = "scheduler"  # the lease of the replica that leads
_LEASE: Final = timedelta(seconds=30)


class Note(NamedTuple):
    """Something worth a look: its beginning in bold."""

    icon: str
    family: str
    what: str
    more: str


async def show(visit: Visit) -> Response:
    found = await visit.call("cluster.get")
    silent = [each for each in found.replicas if found.at - each.seen_at > SILENT_AFTER]
    leader = next((each for each in found.leases if each.name == LEADER and each.until > found.at), None)
    names = {each.holder: each.name for each in found.replicas}
    return await visit.show(
        "cluster.html",
        cluster=found,
        alive=len(found.replicas) - len(silent),
        silent=silent,
        draining=[each for each in found.replicas if each.draining and each not in silent],
        leader=leader.holder if leader else "",
        names=names,
        lasts=_LEASE,
        holder=visit.services.holder,
        may=visit.may(Action.CHANGE_CLUSTER) and not visit.principal.confined,
        notes=_notes(found, silent),
        late=[each for each in found.loops if each.next_at and found.at - each.next_at > timedelta(minutes=1)],
        failed=[each for each in found.loops if each.error],
    )


def _notes(found: Any, silent: list[Any]) -> list[Note]:
    notes = [
        Note("failing", "fail", f"{each.name} is silent for {words.span(found.at - each.seen_at)}.",
             "Its leases expire, and the other replicas take its work.")
        for each in silent
    ]  # fmt: skip
    for each in found.replicas:
        if each.clock_ahead_s is not None and abs(each.clock_ahead_s) > ODD_CLOCK:
            side = "ahead" if each.clock_ahead_s > 0 else "behind"
            what = f"The clock of {each.name} is {words.span(abs(each.clock_ahead_s))} {side}."
            more = "Leases use the database's clock and are not affected; its log times are. Check its NTP."
            notes.append(Note("warning", "retry", what, more))
    versions = sorted({each.version for each in found.replicas if each not in silent})
    if len(versions) > 1:
        more = f"{' and '.join(versions)} share one schema. The upgrade is over when all replicas run the newer one."
        notes.append(Note("clock", "planned", f"{len(versions)} versions run side by side.", more))
    for each in found.own_cas:
        left = each.not_after - found.at
        if left.total_seconds() < each.needs_s:
            what = f"The signing certificate of CA {each.name} expires in {words.coarse(left)}."
            notes.append(Note("warning", "retry", what, expiry_remedy(each.name, root_here=each.root_here)))
    return notes


PAGES: Final = [("/cluster", show, "GET")]
