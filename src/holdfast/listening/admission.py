"""Which connections one listener holds, which of them makes room for a newcomer, and what operators are told of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Final

from holdfast.listening.bounds import Bounds, RefusalReason
from holdfast.telemetry import Telemetry

Asks = Callable[[], bool]  # whether what came so far asks for what probes ask for
FREED_AT_ONCE: Final = 16  # connections that are ended when the process has no descriptor left


class Tally:
    """Counts refused and held connections of a listener; this one keeps no count."""

    def refused(self, reason: RefusalReason) -> None: ...

    def held(self, connections: int) -> None: ...


@dataclass(slots=True, eq=False)
class Seat:
    """The place of one connection, from its acceptance to its end."""

    leave: Callable[[], None]  # ends the connection
    address: str  # that it counts for; empty: for none
    waiting_since: float
    only_probes: bool = False  # it is beyond the cap


class Admission:
    """All seats of one listener. A connection is waiting while its client owes us bytes, and at work otherwise.

    A full listener ends a connection that waits: one of the address that holds most, if the newcomer's holds fewer; or
    else the one it has waited for longest, if that is too long for an honest client's handshake. If it refused the
    newcomer instead, a thousand silent connections would keep all other clients out.
    """

    def __init__(self, bounds: Bounds, tally: Tally) -> None:
        self.bounds, self.tally = bounds, tally
        self._loop = asyncio.get_running_loop()
        self._seats: dict[Seat, None] = {}
        self._probes: dict[Seat, None] = {}
        self._of_address: Counter[str] = Counter()
        self._waiting: dict[Seat, None] = {}  # of both; the longest wait first
        self._waiting_of: dict[str, dict[Seat, None]] = {}  # by address, without probes; likewise

    def enter(
        self, host: str, leave: Callable[[], None], is_probe: Callable[[], bool] = lambda: False
    ) -> Seat | RefusalReason:
        """Give a newcomer a seat, if need be that of a connection that keeps us waiting; or say why it is refused.

        `is_probe` says whether it has already asked for what probes ask for.
        """
        seat = Seat(leave, self._counted(host), self._loop.time())
        reason = self._full_for(seat)
        if reason is None:
            self._seats[seat] = None
            self._of_address[seat.address] += 1
        elif self._room_for_probe(is_probe):
            seat.only_probes = True
            self._probes[seat] = None
        else:
            return reason
        self.waits(seat)
        self.tally.held(len(self))
        return seat

    def at_work(self, seat: Seat) -> None:
        """Its request is complete: from now on the client waits for us."""
        if self._waiting.pop(seat, seat) is None and not seat.only_probes:
            of_address = self._waiting_of[seat.address]
            del of_address[seat]
            if not of_address:
                del self._waiting_of[seat.address]

    def waits(self, seat: Seat) -> None:
        """Its client owes us bytes, from now on."""
        if seat not in self:
            return  # it was displaced, and has not ended yet
        self.at_work(seat)
        seat.waiting_since = self._loop.time()
        self._waiting[seat] = None
        if not seat.only_probes:
            self._waiting_of.setdefault(seat.address, {})[seat] = None

    def release(self, seat: Seat) -> None:
        """The connection has ended, or is about to."""
        self.at_work(seat)
        if seat in self._seats:
            del self._seats[seat]
            self._of_address[seat.address] -= 1
            if not self._of_address[seat.address]:
                del self._of_address[seat.address]
        self._probes.pop(seat, None)
        self.tally.held(len(self))

    def free_descriptors(self) -> None:
        """The process has none left, and the engine needs some: end those that we have waited for longest."""
        for seat in list(self._waiting)[:FREED_AT_ONCE]:
            self._displace(seat)

    def __len__(self) -> int:
        return len(self._seats) + len(self._probes)

    def __contains__(self, seat: Seat) -> bool:
        return seat in self._seats or seat in self._probes

    def _full_for(self, seat: Seat) -> RefusalReason | None:
        most, mine = self.bounds.per_address if seat.address else 0, self._of_address[seat.address]
        if most and mine >= most and not self._one_leaves(self._waiting_of.get(seat.address, ())):
            return RefusalReason.ADDRESS_FULL
        if len(self._seats) < self.bounds.connections:
            return None
        if self._one_of_a_crowd_leaves(mine if seat.address else 0) or self._one_leaves(self._waiting):
            return None
        return RefusalReason.LISTENER_FULL

    def _one_of_a_crowd_leaves(self, mine: int) -> bool:
        """The address that holds most, if the newcomer's would still hold fewer with one more."""
        crowd = max(filter(None, self._waiting_of), key=self._of_address.__getitem__, default="")
        if not crowd or self._of_address[crowd] <= mine + 1:
            return False
        self._displace(next(iter(self._waiting_of[crowd])))
        return True

    def _one_leaves(self, candidates: Iterable[Seat]) -> bool:
        """They are in the order of their waits: if the first has not waited long enough, none has."""
        first = next((seat for seat in candidates if not seat.only_probes), None)
        if first is None or self._loop.time() - first.waiting_since < self.bounds.displaced_after:
            return False
        self._displace(first)
        return True

    def _room_for_probe(self, is_probe: Asks) -> bool:
        """In a full reserve, one that has not asked yet makes room for one that has."""
        if len(self._probes) < self.bounds.probes:
            return True
        first = next((seat for seat in self._probes if seat in self._waiting), None)
        if first is None or not is_probe():
            return False
        self._displace(first)
        return True

    def _displace(self, seat: Seat) -> None:
        self.tally.refused(RefusalReason.DISPLACED)
        self.release(seat)
        seat.leave()

    def _counted(self, host: str) -> str:
        """The address that it counts for; empty: a proxy's, or a socket in the file system."""
        address = _address(host)
        if address is None or any(address in network for network in self.bounds.uncounted):
            return ""
        return _one_customer(address)


@lru_cache(maxsize=4096)  # a flood comes from few addresses, and must be cheap to refuse
def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address


@lru_cache(maxsize=4096)
def _one_customer(address: IPv4Address | IPv6Address) -> str:
    """Of IPv6 the network that one customer has."""
    return str(address) if isinstance(address, IPv4Address) else str(IPv6Network((address, 64), strict=False))


# ── Metrics and log lines ──
# Metrics of every refused connection, and a line of the log now and then.


LOGGED_EVERY: Final = 60.0  # seconds, for each reason: a flood of connections must not become one of log lines


class ToldTally(Tally):
    """Reports for one listener, named as operators search for it: server, acme, local, tls_alpn."""

    def __init__(self, listener: str, telemetry: Telemetry) -> None:
        self._listener, self._log = listener, telemetry.log
        self._held = telemetry.metrics.connections.labels(listener=listener)
        self._refused = {
            reason: telemetry.metrics.connections_refused.labels(listener=listener, reason=reason.value)
            for reason in RefusalReason
        }
        self._unsaid: Counter[RefusalReason] = Counter()
        self._said_at: dict[RefusalReason, float] = {}

    def refused(self, reason: RefusalReason) -> None:
        self._refused[reason].inc()
        self._unsaid[reason] += 1
        now = asyncio.get_running_loop().time()
        if now - self._said_at.get(reason, -LOGGED_EVERY) >= LOGGED_EVERY:
            self._said_at[reason] = now
            self._log.warning(
                "listener.refused", listener=self._listener, reason=reason.value, connections=self._unsaid.pop(reason)
            )

    def held(self, connections: int) -> None:
        self._held.set(connections)
