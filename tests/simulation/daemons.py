"""A fake target that keeps its own truth: for each machine the pair on its disk, the pair it serves, and a backup."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from cryptography.hazmat.primitives import hashes

from holdfast.core.deployment_decision import Written
from holdfast.core.endpoint import Sighting, SightingProblem
from holdfast.core.reasons import Reason
from holdfast.deployers.base import Bundle, later, refused
from holdfast.pki import keys
from holdfast.pki.chain import parse_bundle

AWAY: Final = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A certificate with its key, as a machine has it."""

    number: int
    chain: tuple[str, ...]  # SHA-256 of each certificate, the leaf first
    begins: datetime
    ends: datetime
    fits: bool  # the key is the certificate's
    back: bool = False  # a rollback or a backup put it there: it may be older than what was served

    @property
    def leaf(self) -> str:
        return self.chain[0]


def pair_of(bundle: Bundle) -> Pair:
    found = parse_bundle(bundle.fullchain)
    return Pair(
        number=bundle.number,
        chain=tuple(each.fingerprint(hashes.SHA256()).hex() for each in found),
        begins=bundle.not_before,
        ends=bundle.not_after,
        fits=found[0].public_key() == keys.from_pem(bundle.key).public_key(),
    )


@dataclass(slots=True)
class Machine:
    """One of those that share the work of a target. Pairs are found by the names of their certificates."""

    address: str
    disk: dict[str, Pair] = field(default_factory=dict)
    served: dict[str, Pair] = field(default_factory=dict)
    backup: dict[str, Pair] = field(default_factory=dict)
    reads_at: float | None = None  # it was told to read its disk, and does it then

    def read(self) -> list[str]:
        """Serve what is on the disk; the certificates that are older now than they were, for no reason."""
        older = [name for name, pair in self.disk.items() if not pair.back and _older(pair, self.served.get(name))]
        self.served, self.reads_at = dict(self.disk), None
        return older


def _older(pair: Pair, served: Pair | None) -> bool:
    return served is not None and pair.begins < served.begins


@dataclass(slots=True, kw_only=True)
class Daemon:
    """One target. Moods last until a time; the truth lasts for ever."""

    name: str
    port: int  # where it is seen
    names: tuple[str, ...]  # of the certificates that it serves
    machines: Sequence[Machine]
    accuse: Callable[[str], None] = print  # the stage's own, once there is one
    down_until: float = AWAY  # neither changed nor seen
    full_until: float = AWAY  # no room on its disk
    invalid_until: float = AWAY  # its configuration is not accepted
    refuses_until: float = AWAY  # a reload fails, and the daemon goes on with what it has
    deaf_until: float = AWAY  # a reload succeeds, and changes nothing
    falls_until: float = AWAY  # a reload fails, and nothing listens any more
    lags_until: float = AWAY  # every second machine reads its disk only then
    # what it knows
    shown: set[tuple[str, str]] = field(default_factory=set)  # certificate and leaf, once all machines served it
    reloads: int = 0

    def calm(self) -> None:
        self.down_until = self.full_until = self.invalid_until = self.refuses_until = AWAY
        self.deaf_until = self.falls_until = self.lags_until = AWAY

    # ── what a deployer asks of it ──

    def write(self, bundle: Bundle, now: float) -> Written:
        self._reached(now)
        pair, places = pair_of(bundle), [each.disk.get(bundle.certificate) for each in self.machines]
        if not pair.fits:
            self.accuse(f"I6: {self.name} was given {bundle.certificate} with a key that is not its own")
        if any(there is not None and there.number > pair.number for there in places):
            raise refused("simulated: a newer one is in place", Reason.TARGET_HAS_NEWER)
        self._has_room(now)
        changed = [each for each, there in zip(self.machines, places, strict=True) if not _same(there, pair)]
        for each in self.machines:
            each.disk[bundle.certificate] = pair
        return Written(changed=bool(changed))

    def restore(self, bundle: Bundle, previous: Bundle | None, now: float) -> None:
        self._reached(now)
        if previous is None:
            raise refused("simulated: nothing was there before")
        self._has_room(now)
        pair = replace(pair_of(previous), back=True)
        for each in self.machines:
            there = each.disk.get(bundle.certificate)
            if there is None or there.number == bundle.number:
                each.disk[bundle.certificate] = pair

    def test(self, now: float) -> None:
        self._reached(now)
        if now < self.invalid_until:
            raise refused("simulated: line 12 is not understood", Reason.CONFIG_TEST_FAILED)

    def reload(self, now: float) -> None:
        self._reached(now)
        self.reloads += 1
        if now < self.refuses_until:
            raise refused("simulated: it goes on with what it has", Reason.RELOAD_FAILED)
        if now < self.falls_until:
            for each in self.machines:
                each.served, each.reads_at = {}, None
            raise refused("simulated: it does not run any more", Reason.RELOAD_FAILED)
        if now < self.deaf_until:
            return
        for place, each in enumerate(self.machines):
            each.reads_at = self.lags_until if place % 2 and now < self.lags_until else now
        self.settle(now)

    def _reached(self, now: float) -> None:
        if now < self.down_until:
            raise later("simulated: it cannot be reached")
        self.settle(now)

    def _has_room(self, now: float) -> None:
        if now < self.full_until:
            raise later("simulated: no space left on device", Reason.TARGET_BUSY)

    # ── what happens by itself ──

    def settle(self, now: float) -> None:
        """Those that lag read their disks when it is time."""
        for each in self.machines:
            if each.reads_at is not None and now >= each.reads_at:
                for name in each.read():
                    self.accuse(f"I6: {self.name} serves an older {name} than before, and nobody rolled it back")
        first = self.machines[0].served
        self.shown |= {(name, pair.leaf) for name, pair in first.items() if self.shows_everywhere(name, pair.leaf)}

    def back_up(self) -> None:
        for each in self.machines:
            each.backup = dict(each.disk)

    def restored_from_backup(self, machine: Machine) -> None:
        """Its disk is as it was then, and so is what it serves; what it did not know then, it keeps."""
        old = {name: replace(pair, back=True) for name, pair in machine.backup.items()}
        machine.disk |= old
        machine.read()  # whatever is older for it

    # ── what is seen from outside ──

    def seen(self, name: str, samples: int, now: float) -> tuple[Sighting, ...]:
        self.settle(now)
        return tuple(self._sighting(each, name, now) for each in self.machines for _ in range(samples))

    def _sighting(self, machine: Machine, name: str, now: float) -> Sighting:
        if now < self.down_until:
            why = "it cannot be reached"
            return Sighting(address=machine.address, problem=SightingProblem.UNREACHABLE, why=why)
        pair = machine.served.get(name)
        if pair is None:
            return Sighting(address=machine.address, problem=SightingProblem.REFUSED, why="nobody listens")
        return Sighting(
            address=machine.address, leaf=pair.leaf, chain=pair.chain, names=(name,), issuer="sim",
            not_after=pair.ends, tls="TLSv1.3",
        )  # fmt: skip

    def shows_everywhere(self, name: str, leaf: str) -> bool:
        return all(name in each.served and each.served[name].leaf == leaf for each in self.machines)


def _same(there: Pair | None, pair: Pair) -> bool:
    return there is not None and there.chain == pair.chain
