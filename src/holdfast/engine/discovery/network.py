"""Scans of networks: one step is a handful of handshakes at once, through the one dialer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from holdfast.core.discovery.discovery import Discovery
from holdfast.core.discovery.find import FindSource
from holdfast.core.discovery.network import AT_ONCE, ScanPlan
from holdfast.core.endpoint import Endpoint, is_address
from holdfast.endpoints.probe import Glance, Probe
from holdfast.engine.discovery.rounds import Sighted, Step, StepResult
from holdfast.operations.discovery.recording import Spot
from holdfast.pki.facts import Unreadable, facts_of


def scan(probe: Probe) -> Step:
    """A step of a scan. The probe dials nothing that discovery.networks does not list."""

    async def step(row: Discovery) -> StepResult:
        plan, done = ScanPlan(row.settings["where"], row.settings["ports"]), int(row.position.get("done", 0))
        places = plan.places(done, AT_ONCE)
        looks = await asyncio.gather(*(probe.look_whole(each) for each in places))
        counts, sighted = Counter[str](tried=len(places)), list[Sighted]()
        for place, glances in zip(places, looks, strict=True):
            seen, problems = _seen(row.id, place, glances)
            sighted += seen
            counts.update(problems)
        after = done + len(places)
        return StepResult(
            position={"done": after}, sighted=sighted, counts=counts, total=plan.total, over=after >= plan.total
        )

    return step


def _seen(discovery: str, place: Endpoint, glances: Sequence[Glance]) -> tuple[list[Sighted], list[str]]:
    sighted, problems = list[Sighted](), list[str]()
    for glance in glances:
        if glance.sighting.problem is not None:
            problems.append(glance.sighting.problem.value)
            continue
        try:
            facts = facts_of(glance.shown)
        except Unreadable:
            problems.append("unreadable")
            continue
        where = Spot(source=FindSource.NETWORK, place=_where(place, glance), discovery=discovery, served=True)
        sighted.append(Sighted(facts=facts, spot=where))
    return sighted, problems


def _where(place: Endpoint, glance: Glance) -> str:
    """As people write it; of a name, with the address that showed it."""
    return place.shown if is_address(place.host) else f"{place.shown} at {glance.sighting.address}"
