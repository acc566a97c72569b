"""The TLS certificate of our own ACME server: ordered from our own CA like any other, renewed in time, loaded alive."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from holdfast.core.key_kind import KeyKind
from holdfast.core.own_ca.acme import Identifier, Order, OrderState
from holdfast.operations.acme import names
from holdfast.operations.acme import orders as verbs
from holdfast.operations.acme.context import AcmeContext, by_current
from holdfast.operations.installation.secret_store import listener_key
from holdfast.operations.own_ca.authorities import Authority
from holdfast.pki import csr, keys
from holdfast.secret import Secret
from holdfast.store import secrets
from holdfast.store.acme import orders
from holdfast.store.own_ca import certificates
from holdfast.store.own_ca.certificates import ListenerCertificate
from holdfast.store.secrets import KeptSecret
from holdfast.store.tx import Tx
from holdfast.telemetry import Telemetry

Load = Callable[[bytes, Secret[bytes]], None]  # chain and key, both PEM

RENEW_AFTER: Final = 2 / 3  # of its life
PATIENCE: Final = timedelta(minutes=10)  # with an order that is under way, and after one that failed
ISSUED_WITHIN: Final = 30.0  # seconds to wait for a new order; after that, the next look finds it


def names_of(base_url: str) -> tuple[str, tuple[Identifier, ...]]:
    """The host in the addresses of the directory, and the names that the listener's certificate needs."""
    host = urlsplit(base_url).hostname or "localhost"
    if host == "localhost":
        return host, (Identifier("dns", host), Identifier("ip", "127.0.0.1"), Identifier("ip", "::1"))
    try:
        return host, (Identifier("ip", str(ipaddress.ip_address(host))),)
    except ValueError:
        return host, (Identifier("dns", host),)


def usable(ordered: ListenerCertificate, now: datetime) -> bool:
    """Whether a client would accept it now."""
    if ordered.not_before is None or ordered.not_after is None or ordered.revoked:
        return False
    return ordered.not_before <= now < ordered.not_after


def wanting(recent: Sequence[ListenerCertificate], now: datetime) -> str | None:
    """Why another certificate is to be ordered now, in words; None if not. `recent` has the newest first."""
    waiting = [each for each in recent if each.certificate is None and now - each.created_at < PATIENCE]
    good = [each for each in recent if usable(each, now)]
    if waiting:
        return None  # one is under way, or the last one failed a moment ago
    if not good:
        return "there is none"
    begins, ends = good[0].not_before, good[0].not_after
    if begins is None or ends is None:
        raise AssertionError("a usable certificate has dates")
    due = begins + (ends - begins) * RENEW_AFTER
    return f"two thirds of its life were over at {due:%F %T}Z" if now >= due else None


def strayed(recent: Sequence[ListenerCertificate], now: datetime, *, home: str) -> str | None:
    """Why to go back to the CA that clients trust us by; None if the newest is of it, or one is under way."""
    if any(each.certificate is None and now - each.created_at < PATIENCE for each in recent):
        return None
    newest = next((each for each in recent if usable(each, now)), None)
    if newest is None or newest.ca == home:
        return None
    return f"it is of CA {newest.ca}, and CA {home} can sign for us again"


def under_way(recent: Sequence[ListenerCertificate], now: datetime) -> str | None:
    """An order, perhaps of another replica, that is about to be decided: worth waiting for."""
    open_still = (OrderState.READY, OrderState.PROCESSING)
    waiting = (each.order for each in recent if each.state in open_still and now - each.created_at < PATIENCE)
    return next(waiting, None)


class Listener:
    """Looks now and then; every replica loads, and whichever sees the need first orders for all."""

    def __init__(
        self, *, acme_context: AcmeContext, telemetry: Telemetry, load: Load, first_ca: str, backdate: timedelta
    ) -> None:
        self.loaded = asyncio.Event()
        self._acme_context = acme_context
        self._telemetry = telemetry
        self._load = load
        self._first_ca = first_ca
        self._backdate = backdate
        self._host, self._identifiers = names_of(acme_context.policy.base_url)
        self._current = ""  # the order whose certificate is in use
        self._told_of_none = False  # that no CA may sign for us

    async def tend(self) -> None:
        """Load the newest certificate, and see to it that there is one."""
        recent, now = await self._look()
        await self._use(recent, now)
        order = under_way(recent, now)
        if order is None:
            order = await self._order_if_wanted(recent, now)
        if order is not None and await self._ended(order):
            await self._use(*await self._look())

    async def _order_if_wanted(self, recent: Sequence[ListenerCertificate], now: datetime) -> str | None:
        ca, why = self._authority(now), wanting(recent, now)
        if why is None and ca is not None and ca.id == self._first_ca:
            why = strayed(recent, now, home=ca.id)
        self._tell_of_none(ca, why)
        if why is None or ca is None:
            return None
        self._warn_of_another_root(recent, ca)
        order = await self._order(ca)
        self._telemetry.log.info("listener.ordered", host=self._host, ca=ca.id, order=order, why=why)
        return order

    def _tell_of_none(self, ca: Authority | None, why: str | None) -> None:
        """Once, not at every look."""
        if why is not None and ca is None and not self._told_of_none:
            fix = (
                f"let one: holdfast ca set {self._first_ca or 'CA'} --permit {self._host}, or holdfast ca open; "
                "or give one that has ended a later end: holdfast ca renew"
            )
            self._telemetry.log.error("listener.no_ca", host=self._host, why=why, fix=fix)
        self._told_of_none = why is not None and ca is None

    def _warn_of_another_root(self, recent: Sequence[ListenerCertificate], ca: Authority) -> None:
        """Log that clients which trust only the old root will refuse the listener's certificate."""
        before = self._acme_context.authorities.get(recent[0].ca) if recent else None
        if before is not None and before.root_pem != ca.root_pem:
            facts = {"before": before.id, "ca": ca.id, "fix": f"let clients trust: holdfast ca chain {ca.id} --root"}
            self._telemetry.log.warning("listener.root_changes", host=self._host, **facts)

    async def _look(self) -> tuple[list[ListenerCertificate], datetime]:
        return await self._acme_context.db.read(lambda tx: (certificates.newest_for_listener(tx, self._host), tx.now()))

    def _authority(self, now: datetime) -> Authority | None:
        """The CA that signs for us: the one of the settings, or any that is open; neither for names it may not.

        The first one signs even while it is closed: that shuts others out, and its root is the one clients know us by.
        """
        preferred = self._acme_context.authorities.get(self._first_ca)
        others = [each for each in self._acme_context.authorities.all() if not each.closed]
        candidates = [*([preferred] if preferred else []), *others]
        living = (each for each in candidates if not each.ended(now))
        return next(
            (each for each in living if not names.not_allowed(each.options, each.issuer, self._identifiers)), None
        )

    async def _use(self, recent: Sequence[ListenerCertificate], now: datetime) -> None:
        for each in recent:
            ca = self._acme_context.authorities.get(each.ca)
            if ca is None or not usable(each, now):
                continue
            if each.order != self._current:
                await self._load_it(each, ca)
            return

    async def _load_it(self, ordered: ListenerCertificate, ca: Authority) -> None:
        leaf = x509.load_der_x509_certificate(ordered.der).public_bytes(Encoding.PEM)
        store, owner = self._acme_context.authorities.secret_store, listener_key(ordered.host)
        self._load(leaf + ca.chain_pem, await store.reveal(ordered.key_secret, owner))
        self._current = ordered.order
        self.loaded.set()
        self._acme_context.delivered("deployed", ordered.certificate or "", ordered.account)
        until = f"{ordered.not_after:%F %T}Z"
        self._telemetry.log.info("listener.loaded", host=self._host, ca=ca.id, order=ordered.order, until=until)

    async def _order(self, ca: Authority) -> str:
        """The key is kept in the transaction that asks for its certificate: neither is ever without the other."""
        key = await keys.generate(KeyKind.EC_P256)
        dns, ips = names.split(self._identifiers)
        content = csr.build(dns, key, ips=ips)
        kept = await self._acme_context.authorities.secret_store.seal(keys.to_pem(key), listener_key(self._host))

        async def place(ca: Authority) -> Order:
            return await verbs.place_internal(
                self._acme_context,
                ca,
                account=f"acct_listener_{ca.id}",
                identifiers=self._identifiers,
                content=content,
                backdate=self._backdate,
                also=lambda tx, order: _note(tx, order.id, self._host, kept),
            )

        return (await by_current(self._acme_context, ca, place)).id

    async def _ended(self, order: str) -> bool:
        """Wait until the order is decided; False if that takes too long."""
        try:
            async with asyncio.timeout(ISSUED_WITHIN):
                while True:
                    found = await self._acme_context.db.read(lambda tx: orders.get(tx, order))
                    if found is None or found.state is OrderState.INVALID:
                        self._refused(found)
                        return False
                    if found.state is OrderState.VALID:
                        return True
                    await self._acme_context.changes.wait(order, 1.0)
        except TimeoutError:
            return False

    def _refused(self, order: Order | None) -> None:
        problem = order.error.detail if order is not None and order.error is not None else "it is gone"
        again = f"in {PATIENCE}"
        self._telemetry.log.error("listener.not_issued", host=self._host, problem=problem, again=again)


def _note(tx: Tx, order: str, host: str, key: KeptSecret) -> None:
    secrets.put(tx, key)
    certificates.insert_for_listener(tx, order=order, host=host, key_secret=key.id)
    for old in certificates.forget_old_for_listener(tx, host):
        secrets.delete(tx, old)
