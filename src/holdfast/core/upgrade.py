"""Whether a version can join the replicas that run: a roll, one after the other, or a stop of all of them first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.core.finding import Finding, Level, bad, note, ok

CONTRACTS: Final = "_contract"  # how the name of a step ends that takes away what the version before it still uses


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Step:
    version: int
    name: str

    @property
    def contracts(self) -> bool:
        return self.name.endswith(CONTRACTS)

    def __str__(self) -> str:
        return f"{self.version:04d}_{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """As it is now, by its database."""

    steps: Sequence[Step]
    replicas: Mapping[str, str]  # those that are alive: name, version
    jobs: Mapping[str, int]  # jobs that are not over, by kind


def check(steps: Sequence[Step], kinds: frozenset[str], version: str, found: Installation) -> list[Finding]:
    """What this version would meet. The first finding is the verdict; it is bad if replicas cannot be replaced one
    after the other."""
    findings = [
        _schema_ahead(steps, found),
        *_schema_behind(steps, found),
        _versions(version, found),
        *_jobs(kinds, found),
    ]
    against = [each for each in findings if each.level is Level.BAD]
    if against:
        return [bad("rolling", f"no: {against[0].saw}", against[0].fix), *findings]
    return [ok("rolling", "yes: replace the replicas one after the other"), *findings]


def _schema_ahead(steps: Sequence[Step], found: Installation) -> Finding:
    """What the first replica of this version does to the schema."""
    ahead = sorted(set(steps) - set(found.steps))
    if contracts := [each for each in ahead if each.contracts]:
        saw = f"step {contracts[0]} takes away what {_of(found)} use"
        return bad("schema", saw, "Stop every replica, start one of this version, then the others.")
    if ahead:
        return ok("schema", f"{len(ahead)} steps ahead, which only add: {', '.join(map(str, ahead))}")
    return ok("schema", "this version needs no change of it")


def _schema_behind(steps: Sequence[Step], found: Installation) -> list[Finding]:
    """Steps of a newer version. It was there already: this is a way back, or half of a roll."""
    newest = max((each.version for each in steps), default=0)
    unknown = sorted(set(found.steps) - set(steps))
    if not unknown:
        return []
    refused = [each for each in unknown if each.contracts or each.version <= newest]
    if refused:
        return [
            bad(
                "newer steps",
                f"the database has step {refused[0]}, beside which this version does not start",
                "Use the version that made it, or restore a backup made before.",
            )
        ]
    saw = f"the database has {len(unknown)} steps of a newer version, which only added"
    return [note("newer steps", saw, "This version works beside them; upgrade it soon.")]


def _versions(version: str, found: Installation) -> Finding:
    others = sorted({each for each in found.replicas.values() if each != version})
    if not found.replicas:
        return ok("replicas", "none is alive")
    if not others:
        return ok("replicas", f"{len(found.replicas)} alive, all of version {version}")
    return ok("replicas", f"{len(found.replicas)} alive, of version {', '.join(others)}; this is {version}")


def _jobs(kinds: frozenset[str], found: Installation) -> list[Finding]:
    """Jobs of kinds that this version does not know are left to those that do."""
    unknown = {kind: number for kind, number in found.jobs.items() if kind.partition("@")[0] not in kinds}
    if not unknown:
        return [ok("jobs", f"{sum(found.jobs.values())} wait or run, all of kinds that this version knows")]
    told = ", ".join(f"{number} of kind {kind}" for kind, number in sorted(unknown.items()))
    saw = f"{told}: this version leaves them to replicas that know them"
    return [note("jobs", saw, "Keep a replica of the newer version until they are done: holdfast jobs ls")]


def _of(found: Installation) -> str:
    versions = sorted(set(found.replicas.values()))
    return f"replicas of version {', '.join(versions)}" if versions else "older replicas"
