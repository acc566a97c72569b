"""A fake CA that keeps its own truth: what it was asked, when, and what it issued. The witness against the store."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from holdfast.core.issuers.budget import Limit


def key_of(path: str) -> str:
    """The key that a request is about: /orders/<key>, or /certificates/ref-<n>-<key>."""
    name = path.rpartition("/")[2]
    return name.split("-", 2)[2] if name.startswith("ref-") else name


@dataclass(slots=True)
class Order:
    key: str
    ref: str
    ready_at: float


@dataclass(slots=True)
class FakeCa:
    """Orders are idempotent by key. `violations` are requests beyond the published limit, in any window."""

    limit: Limit
    issue_after: float = 20.0
    storm_until: float = 0.0  # answers 429 until then
    down_until: float = 0.0  # answers 503 until then
    told_until: dict[str, float] = field(default_factory=dict)  # key → until when it was told to stay away
    refused: set[str] = field(default_factory=set)
    orders: dict[str, Order] = field(default_factory=dict)
    certificates: dict[str, int] = field(default_factory=dict)  # key → how many were issued
    requests: int = 0
    over_limit: list[str] = field(default_factory=list)
    _tat: float = 0.0

    def answer(self, method: str, path: str, now: float, *, late: bool = False) -> tuple[int, dict[str, str], bytes]:
        """What the CA says. A late request is not counted: what it was paid from is not the budget of today."""
        self.requests += 1
        if not late:
            self._count(now)
        what, _, name = path.strip("/").partition("/")
        if now < self.down_until:
            return 503, {}, b"down for maintenance"
        if now < self.storm_until:
            self.told_until[key_of(path)] = self.storm_until
            return 429, {"retry-after": str(int(self.storm_until - now) + 1)}, b""
        if what == "orders" and method == "POST":
            return self._order(name, now)
        if what == "certificates" and method == "GET":
            return self._collect(name, now)
        return 404, {}, b""

    def _count(self, now: float) -> None:
        """The same law as ours, kept independently: at most burst + elapsed / every in any window (as a bucket)."""
        every, burst = self.limit.every.total_seconds(), self.limit.burst
        owed = max(0.0, self._tat - now)
        if owed > every * (burst - 1) + 1e-6:
            self.over_limit.append(f"request {self.requests} at {now:.3f} s: {owed / every:.2f} owed of {burst}")
            return
        self._tat = max(self._tat, now) + every

    def forgive(self, requests: float) -> None:
        """A fault made the product forget that it sent so many (clock set, commits lost): forget them likewise."""
        self._tat -= requests * self.limit.every.total_seconds()

    def _order(self, key: str, now: float) -> tuple[int, dict[str, str], bytes]:
        if key in self.refused:
            return 410, {}, b""
        order = self.orders.get(key)
        if order is None:
            order = self.orders[key] = Order(key, f"ref-{len(self.orders)}-{key}", now + self.issue_after)
            self.certificates[key] = 1
        return 200, {}, json.dumps({"ref": order.ref}).encode()

    def _collect(self, ref: str, now: float) -> tuple[int, dict[str, str], bytes]:
        order = next((order for order in self.orders.values() if order.ref == ref), None)
        if order is None:
            return 404, {}, b""
        certificate = f"certificate of {order.key}" if now >= order.ready_at else None
        return 200, {}, json.dumps({"certificate": certificate}).encode()
