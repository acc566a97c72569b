"""Drains one channel: sends its notifications, and records each answer before the next one is sent.

One job for a channel: its lease is why two replicas never both send, and why an alert comes before its all-clear.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from holdfast.core import backoff
from holdfast.core.issuers import breaker
from holdfast.core.issuers.breaker import Breaker
from holdfast.core.notifications import notification
from holdfast.core.notifications.channel import ChannelRow, ChannelState
from holdfast.core.notifications.notification import (
    CRASHES_TO_POISON,
    OPENS_AFTER,
    Delivery,
    Message,
    Missed,
    Notification,
    Why,
)
from holdfast.core.work.job import Again, Done, Outcome, Spec
from holdfast.engine.kind import JobKind, Work
from holdfast.engine.settle import insist
from holdfast.errors import KeyMissing, KeyUnusable, LeaseLost, Refused, TryLater
from holdfast.notifiers.base import RATE_LIMITED, Sender
from holdfast.operations import kinds
from holdfast.operations.notifications import undelivered
from holdfast.operations.notifications.routing import NOTIFY
from holdfast.ports import Clock, Random
from holdfast.store import issuances, journal
from holdfast.store.database import Store
from holdfast.store.notifications import channels, deliveries, notifications
from holdfast.store.tx import Tx
from holdfast.store.work import budgets, jobs
from holdfast.telemetry import Telemetry

PAGE: Final = 20  # notifications in memory at a time
RUN_FOR: Final = 20.0  # seconds after which others have their turn, and a stop need not wait
NEAR: Final = 2.0  # seconds
SEND_FOR: Final = 60.0  # seconds that one send may take
LIMITED_FOR: Final = timedelta(minutes=1)  # where a channel says "too many" and names no time
DOWN_AFTER_LIMITS: Final = 6  # times in a row that it says "too many": by then a quarter of an hour has passed
SOONEST: Final = timedelta(seconds=1)
LATEST: Final = timedelta(hours=1)  # of a wait that a channel asks for
WAITING: Final = "WAITING"  # for the next time of a notification, and nothing else

MakeSender = Callable[[ChannelRow], Awaitable[Sender]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryServices:
    """The dependencies of a drain."""

    db: Store
    make_sender: MakeSender
    clock: Clock
    random: Random
    telemetry: Telemetry
    pages: str = ""  # the address of the pages, for links


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing can be sent before `at`; None: no notification waits."""

    at: datetime | None
    reason: str = WAITING


@dataclass(frozen=True, slots=True)
class Batch:
    channel: ChannelRow
    deliveries: Sequence[Delivery]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a channel to one delivery."""

    outcome: str  # as the metric counts it: delivered, failed, limited, refused
    error: str = ""
    missed: Missed | None = None  # the recipients that a delivered message did not reach
    why: str = Why.ATTEMPTS_USED_UP.value
    after: timedelta | None = None


def kind(services: DeliveryServices) -> JobKind:
    """Jobs of this kind have a channel as subject."""

    async def handler(work: Work) -> Outcome:
        drain = Drain(services=services, work=work)
        try:
            return await drain.go()
        finally:
            await drain.close()

    return JobKind(name=NOTIFY, handler=handler, slots=16, timeout=timedelta(minutes=5), in_quarantine=True)


@dataclass(slots=True, kw_only=True)
class Drain:
    """One claim of one channel's job."""

    services: DeliveryServices
    work: Work
    _sender: Sender | None = None
    _version: int = 0
    _wrong: Exception | None = field(default=None)  # why there is no sender

    @property
    def name(self) -> str:
        return self.work.claim.subject

    async def go(self) -> Outcome:
        until = self.services.clock.monotonic() + RUN_FOR
        while self.services.clock.monotonic() < until:
            found = await self.services.db.write(self._pick)
            if isinstance(found, Rest):
                if not await self._turn_comes(found):
                    return self._rest(found)
                continue
            await self._deliver_all(found, until)
        return Again(after=timedelta(0), reason="MORE")

    async def _deliver_all(self, found: Batch, until: float) -> None:
        for number, delivery in enumerate(found.deliveries, 1):
            rest = found.deliveries[number:]
            if not await self._deliver(found.channel, delivery, rest):
                return  # the state of the channel is read again
            if (
                rest and self.services.clock.monotonic() >= until
            ):  # a slow channel: the rest waits until other jobs had their turn
                await self._write_down(partial(self._put_back, which=rest))
                return

    async def _turn_comes(self, found: Rest) -> bool:
        """Wait here for a turn that is near: giving the job back and claiming it again would take longer."""
        if found.at is None or found.reason != "BUDGET":
            return False
        now = await self.services.db.read(lambda tx: tx.now())
        left = (found.at - now).total_seconds()
        if left <= NEAR:
            await self.services.clock.sleep(max(left, 0.0))
        return left <= NEAR

    async def close(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            try:
                await sender.close()
            except Exception as error:  # an error at the end undoes no delivery
                self.services.telemetry.log.warning("channel.not_closed", channel=self.name, error=str(error))

    def _rest(self, found: Rest) -> Outcome:
        job = self.services.random.new_id("job")

        def write(tx: Tx) -> None:
            """A transaction that owes more waits for our lock on the job, or was committed before this look."""
            if not notifications.came_meanwhile(tx, self.name):
                return
            if found.at is None:
                jobs.owe(tx, Spec(id=job, kind=NOTIFY, subject=self.name))
            else:
                jobs.bring_forward(tx, NOTIFY, self.name, tx.now())

        looks = found.reason == WAITING
        if found.at is None:
            return Done(write=write if looks else None)
        return Again(at=found.at, reason=found.reason, write=write if looks else None)

    # ── Picking ──

    def _pick(self, tx: Tx) -> Rest | Batch:
        self._still_ours(tx)
        now, row = tx.now(), channels.get(tx, self.name, lock=True)
        if row is None:
            more = undelivered.of_gone(tx, self.name, now)
            return Rest(now if more else None, "CHANNEL_GONE")
        if row.state is ChannelState.PAUSED:
            return Rest(None, "PAUSED")
        if undelivered.while_down(tx, row, now):
            return Rest(now, "CHANNEL_DOWN")  # a page was given up or passed on: there may be more
        admitted, until = breaker.admit(row.breaker, self.name, now)
        if until is not None:
            return Rest(until, "CHANNEL_DOWN" if row.down_since else "RATE_LIMITED")
        if admitted != row.breaker:
            channels.save_breaker(tx, row.name, admitted, row.down_since)
        return self._paid(tx, row, now)

    def _paid(self, tx: Tx, row: ChannelRow, now: datetime) -> Rest | Batch:
        """The due deliveries that the budget of the channel pays for."""
        probing = row.breaker.until is not None
        found = deliveries.pick(tx, row.name, now, PAGE, probe=probing, size=kinds.channel_limits(row.kind).digest_size)
        poison = [each for delivery in found for each in delivery.notifications if each.begun >= CRASHES_TO_POISON]
        if poison:
            why = f"the replica that sent it died, {CRASHES_TO_POISON} times in a row"
            undelivered.give_up(tx, row, poison, Why.POISON, why, now)
            return Rest(now, "POISON")
        if not found:
            at = notifications.next_due(tx, row.name)
            return Rest(None if at is None else max(at, now + SOONEST))
        paid, turn = budgets.take_some(tx, row.budget, row.limit, len(found))
        deliveries.put_back(tx, found[paid:])
        return Batch(row, found[:paid]) if paid else Rest(turn, "BUDGET")

    # ── Sending ──

    async def _deliver(self, row: ChannelRow, delivery: Delivery, others: Sequence[Delivery]) -> bool:
        """Send one delivery and record the answer. False if it was not delivered: then the others are put back."""
        first = delivery.notifications[0]
        message = (
            notification.message_of(first, self.services.pages)
            if delivery.digest is None
            else notification.digest_of(delivery.digest, delivery.notifications)
        )
        answer = await self._send(row, message)
        self.work.point("job.effect-done")
        await self._write_down(lambda tx: self._record(tx, delivery, answer, others))
        self.services.telemetry.metrics.notification_deliveries.labels(channel=row.name, outcome=answer.outcome).inc()
        if answer.outcome != "delivered":
            self.services.telemetry.log.warning(
                "notification.not_delivered",
                channel=row.name,
                notification=message.id,
                outcome=answer.outcome,
                error=answer.error,
            )
        return answer.outcome == "delivered"

    async def _write_down(self, record: Callable[[Tx], None]) -> None:
        """Record an answer. While the store is away this is retried as long as the lease lasts."""
        await insist(self.services.clock, self.work.claim.id, lambda: self.services.db.write(record), self.work.check)

    async def _send(self, row: ChannelRow, message: Message) -> Answer:
        try:
            sender = await self._sender_of(row)
            self.work.check()
            async with asyncio.timeout(SEND_FOR):
                missed = await sender.send(message)
        except LeaseLost:
            raise
        except TryLater as why:
            outcome = "limited" if why.reason == RATE_LIMITED else "failed"
            return Answer(outcome, str(why), after=why.after)
        except Refused as why:
            return Answer("refused", str(why), why=why.reason if why.reason in set(Why) else Why.REFUSED.value)
        except TimeoutError:
            return Answer("failed", f"no answer within {SEND_FOR:g} s")
        except Exception as error:
            self.services.telemetry.log.error("channel.crashed", channel=row.name, exc_info=error)
            return Answer("failed", f"{type(error).__name__}: {error}")
        return Answer("delivered", "" if missed is None else missed.said, missed=missed)

    async def _sender_of(self, row: ChannelRow) -> Sender:
        """The sender of this claim; made anew when the channel was changed meanwhile."""
        if self._version != row.version:
            await self.close()
            self._version, self._wrong = row.version, None
            try:
                self._sender = await self.services.make_sender(row)
            except KeyMissing as why:
                self._wrong = TryLater(str(why))  # another replica may hold it
            except KeyUnusable as why:
                self._wrong = Refused(str(why), reason=Why.CHANNEL_MISCONFIGURED.value)
            except (Refused, TryLater) as why:
                self._wrong = why
        if self._wrong is not None:
            raise self._wrong
        if self._sender is None:
            raise TryLater("the channel was closed")
        return self._sender

    # ── Writing down ──

    def _still_ours(self, tx: Tx) -> None:
        if not jobs.still_ours(tx, self.work.claim):
            raise LeaseLost(self.work.claim.id)

    def _put_back(self, tx: Tx, which: Sequence[Delivery]) -> None:
        self._still_ours(tx)
        deliveries.put_back(tx, which)

    def _record(self, tx: Tx, delivery: Delivery, answer: Answer, others: Sequence[Delivery]) -> None:
        self._still_ours(tx)
        if answer.outcome != "delivered":
            deliveries.put_back(tx, others)
        now, row = tx.now(), channels.get(tx, self.name, lock=True)
        found = notifications.many(tx, [each.id for each in delivery.notifications])
        # Not those that were resolved meanwhile, nor those whose answer is already recorded (its COMMIT was not heard).
        fresh = [each for each in found if each.state in notification.WAITING and each.begun > 0]
        if row is None:
            return  # the channel was deleted while we were sending: its notifications are dead letters already
        error = issuances.storable(answer.error)
        match answer.outcome:
            case "delivered":
                self._arrived(tx, row, delivery, fresh, answer, now)
                undelivered.works(tx, row, now)
            case "limited":
                notifications.tried(tx, fresh, error, now)
                until = now + min(answer.after or LIMITED_FOR, LATEST)
                after = breaker.limited(row.breaker, now, until, error)
                self._save_breaker(tx, row, after, now, down=after.limits >= DOWN_AFTER_LIMITS)
            case "refused" if answer.why != Why.CHANNEL_MISCONFIGURED and delivery.digest is not None:
                notifications.tried(
                    tx, fresh, error, now
                )  # perhaps one line of it, or its length: each is asked about alone
                deliveries.take_apart(tx, fresh, now)
            case "refused" if answer.why != Why.CHANNEL_MISCONFIGURED:  # the message, and not the channel
                self._count(tx, row, fresh, error, now, Why.REFUSED)
                channels.save_error(tx, row, error)
            case "refused" if not row.proven:
                undelivered.refused(tx, row, fresh, answer.why, error, now)
                channels.save_error(tx, row, error)
            case (
                _
            ):  # also a refusal by a channel that worked with these settings: the fault is the channel's, and may pass
                self._failed(tx, row, delivery, fresh, error, now)

    def _arrived(
        self, tx: Tx, row: ChannelRow, delivery: Delivery, fresh: Sequence[Notification], answer: Answer, now: datetime
    ) -> None:
        """Recipients that answered "later" are tried again, without the others, as long as attempts last."""
        missed, error = answer.missed, issuances.storable(answer.error)
        wait = backoff.notification_wait(max((each.tries for each in fresh), default=0) + 1)
        if missed is not None and missed.again and wait is not None:
            notifications.missed(tx, fresh, missed.again, error, now, now + wait)
            _tell(tx, fresh, "notification.missed_some", error=error, digest=delivery.digest)
        else:
            notifications.delivered(tx, fresh, now)
            _tell(tx, fresh, "notification.sent", digest=delivery.digest)
        if missed is not None and (missed.never or not missed.again or wait is None):
            journal.event(tx, "channel.recipients_missed", row.name, error=error)

    def _failed(
        self, tx: Tx, row: ChannelRow, delivery: Delivery, fresh: Sequence[Notification], error: str, now: datetime
    ) -> None:
        """While the breaker of the channel is open, a failure does not count as an attempt of the notification."""
        if delivery.digest is not None:
            wait = backoff.notification_wait(1) or timedelta(0)
            deliveries.digest_failed(tx, fresh, error, now, now + wait)
            _tell(tx, fresh, "notification.failed", error=error, digest=delivery.digest)
        elif row.breaker.until is not None or row.down_since is not None:
            notifications.tried(tx, fresh, error, now)
        else:
            self._count(tx, row, fresh, error, now)
        after = breaker.failed(row.breaker, now, error, opens_after=OPENS_AFTER)
        self._save_breaker(tx, row, after, now, down=after.open_at(now))

    def _save_breaker(self, tx: Tx, row: ChannelRow, after: Breaker, now: datetime, *, down: bool) -> None:
        opened = down and row.down_since is None
        channels.save_breaker(tx, row.name, after, now if opened else row.down_since)
        if opened:
            journal.audit(tx, "channel_down", row.name, error=after.error or "")
            journal.event(tx, "channel.down", row.name, error=after.error or "")

    def _count(
        self, tx: Tx, row: ChannelRow, fresh: Sequence[Notification], error: str, now: datetime,
        why: Why = Why.ATTEMPTS_USED_UP,
    ) -> None:  # fmt: skip
        """An attempt that counts against the notification; after the last of them it is dead."""
        died = []
        for each in fresh:
            retry = notification.after_failure(each.retry_count + 1)
            at = None if retry.wait is None else now + retry.wait
            notifications.failed(tx, each, retry.event, error, now, at=at, why=why.value)
            if at is None:
                died.append(each)
        _tell(tx, [each for each in fresh if each not in died], "notification.failed", error=error)
        if died:
            undelivered.record_dead(tx, row, [undelivered.tried(each) for each in died], why, error, now)


def _tell(tx: Tx, which: Sequence[Notification], name: str, **facts: str | None) -> None:
    told = {key: value for key, value in facts.items() if value}
    for each in which:
        journal.event(tx, name, each.id, channel=each.channel, about=each.subject, attempt=each.retry_count + 1, **told)


# ── The reconciler and the retry sweep ──


def owed(random: Random) -> Callable[[Tx], Sequence[Spec]]:
    """Channels that have notifications waiting and no job that drains them."""

    def specs(tx: Tx) -> Sequence[Spec]:
        waiting = [each for each in notifications.waiting_channels(tx, tx.now()) if jobs.live(tx, NOTIFY, each) is None]
        return [Spec(id=random.new_id("job"), kind=NOTIFY, subject=each) for each in waiting]

    return specs


async def retry(db: Store, random: Random) -> int:
    """The retry sweep: wakes the job of each channel whose notifications are due."""
    return await db.write(
        lambda tx: sum(_take_up(tx, each, random) for each in notifications.waiting_channels(tx, tx.now()))
    )


def _take_up(tx: Tx, channel: str, random: Random) -> bool:
    job = jobs.live(tx, NOTIFY, channel)
    if job is None:
        return jobs.enqueue(tx, Spec(id=random.new_id("job"), kind=NOTIFY, subject=channel)) != ""
    # A job that waits for its channel to recover, or for its budget, is not late.
    return job.reason == WAITING and jobs.bring_forward(tx, NOTIFY, channel, tx.now())
