"""Orders that are paid for: kept while they are in doubt or of no use, told to people, and hardly ever placed again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, TypeVar

from holdfast.core import ca_limits, renewal, telling
from holdfast.core.backoff import POLL, POLL_WINDOW, FailureClass
from holdfast.core.issuance import Issuance, State
from holdfast.core.job import Again, Done, Failed, Outcome, Write
from holdfast.core.reasons import Reason
from holdfast.engine.attempt import MOMENT, Attempt
from holdfast.errors import Refused
from holdfast.issuers.base import Pending, Uncertain
from holdfast.store import issuances, outages
from holdfast.store.tx import Tx

Answer = TypeVar("Answer", bound=Again | Done | Failed)
DOUBT_FOR: Final = timedelta(days=1)  # how long an order is looked for, by us and by people, before it is placed again


def also(outcome: Answer, write: Write) -> Answer:
    """The same answer, with one thing more that is written with it."""

    def both(tx: Tx) -> None:
        if outcome.write is not None:
            outcome.write(tx)
        write(tx)

    return replace(outcome, write=both)


@dataclass(slots=True, kw_only=True)
class Paid(Attempt):
    """What an attempt at a CA whose orders bind does about its order (docs/decisions/0014)."""

    # ── Before it is placed again ──

    def _pays_for_lookup(self) -> bool:
        """Whether this claim has paid for looking the order up; the next one will, if it has not."""
        key, paid = ca_limits.request_key(self._row.name), self.work.claim.budgets
        many = ca_limits.reckoned(self._row.kind, self._row.settings)
        first = self.issuance.asked_at is None or self.work.claim.recheck  # who is to recheck now may not be later
        return first or key not in paid or paid.count(key) >= many.order + many.lookup

    async def _doubted(self, found: Uncertain) -> Outcome | None:
        """None: order once more, for the doubt has lasted long enough, or there is no time left for it."""
        since, now = self.issuance.uncertain_since or self.facts.now, self.facts.now
        if found.for_a_person or self.issuance.maybe_twice:
            self.for_a_person = True
            return await self._left_to_a_person(found.why, since)
        current = self.facts.current
        end = since + DOUBT_FOR if current is None else min(since + DOUBT_FOR, renewal.emergency_at(current))
        if now < end:
            return self._poll(None, Reason.ORDER_UNCERTAIN, found.why, uncertain_since=since)
        self.issuance = replace(self.issuance, uncertain_since=since)
        return None

    async def _left_to_a_person(self, why: str, since: datetime) -> Outcome:
        if self._no_time_left() and self._others():
            why = f"{why} There is no time left to wait for a word, and there are other CAs."
            return await self.failed(FailureClass.TRANSIENT, Reason.ORDER_UNCERTAIN, why, withdraw=True)
        return self._poll(None, Reason.ORDER_UNCERTAIN, why, uncertain_since=since)

    # ── An order that is of no use, or that we may not look at ──

    async def _not_as_asked(self, why: str) -> Outcome:
        """The CA issued something else. Where that is paid for, another order is for a person to decide."""
        if not self.binding:
            return await self.failed(FailureClass.REFUSED, Reason.WRONG_CERTIFICATE, why)
        current, now, others = self.facts.current, self.facts.now, self._others()
        if not renewal.leaves_wrong(current, now, others=others) and not await self._may_order_anew():
            by = None if current is None or not others else renewal.short_from(current)
            return self._kept(Reason.WRONG_CERTIFICATE, why, "issuance.not_as_asked", by=by)
        outcome = await self.failed(FailureClass.REFUSED, Reason.WRONG_CERTIFICATE, why)
        return outcome if others else self._flagged(outcome, why)

    async def _unknown_there(self, why: str) -> Outcome:
        """The CA does not know an order that it took. It is placed again, once; then a person looks into it."""
        if self.binding and await self.tools.keeper.db.read(lambda tx: _was_ordered(tx, self.issuance)):
            return self._kept(Reason.ORDER_UNCERTAIN, why, "issuance.barred")
        return await self.failed(FailureClass.TRANSIENT, Reason.ORDER_EXPIRED, why)

    async def _keeps_order(self) -> bool:
        """Whether an order that the CA does not let us look at stays ours: it may be well."""
        if not self.binding:
            return False
        if self._worth_waiting_for():
            return True
        placed = self.issuance.ref is not None and not self._others()
        return placed and not await self._may_order_anew()

    async def _is_the_last(self) -> bool:
        """It was placed after another one was given up, and there is no other CA: a third would be no better."""
        if not self.binding or self.issuance.ref is None or self._others():
            return False
        return await self.tools.keeper.db.read(lambda tx: _was_ordered(tx, self.issuance))

    async def _may_order_anew(self) -> bool:
        """With a certificate about to end: at another CA, or once more at this one, if that was not done already."""
        if not self._no_time_left():
            return False
        return self._others() or not await self.tools.keeper.db.read(lambda tx: _was_ordered(tx, self.issuance))

    def _barred(self, why: Refused) -> Outcome:
        """We may not look at our own order: a key was changed, or a right taken. The order may be well: it is kept."""
        reason = Reason(why.reason) if why.reason in set(Reason) else Reason.CA_REFUSED
        return self._kept(reason, str(why), "issuance.barred")

    def _kept(self, reason: Reason, why: str, event: str, *, by: datetime | None = None) -> Outcome:
        """Looked at again as seldom as one that rests, and soon after `by`; people hear of it once."""
        wait = max(self._next_poll(None)[0], POLL.cap)
        if by is not None:
            wait = min(wait, max(by + MOMENT - self.facts.now, MOMENT))
        again = self._again(wait, reason.value, **self._polled(), reason=reason.value, error=why)
        if self.issuance.reason == reason.value:
            return again
        return also(again, lambda tx: self._tell(tx, event, why=reason.value, error=why, alert=True))

    def _flagged(self, outcome: Answer, why: str) -> Answer:
        return also(outcome, lambda tx: self._tell(tx, "issuance.ordered_again", error=why, alert=True))

    # ── An order that waits for a person ──

    def _telling_of_approval(self, again: Again, look: Pending) -> Again:
        """Told once it lasts: many an order is approved in moments. What was told is cleared when the order goes on."""
        if look.person and self._waited() < min(self._window() or POLL_WINDOW, POLL_WINDOW):
            return again
        key = telling.ca_approval_key(self.issuance.id)

        def write(tx: Tx) -> None:
            if look.person is not outages.is_open(tx, key):
                event = "issuance.needs_approval" if look.person else "issuance.goes_on"
                self._tell(tx, event, issuer=self._row.name, word=look.word, error=look.why if look.person else "")

        return also(again, write)


def _was_ordered(tx: Tx, issuance: Issuance) -> bool:
    """Whether an earlier attempt at this CA ended with its order placed, and no person has decided anything since."""
    for each in issuances.of(tx, issuance.certificate, limit=10):
        if each.id == issuance.id:
            continue
        if each.state is not State.FAILED or each.generation != issuance.generation:
            return False
        if each.issuer == issuance.issuer and each.ref is not None:
            return True
    return False
