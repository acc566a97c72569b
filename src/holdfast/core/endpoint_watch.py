"""Watched endpoints: what is remembered of the last look, when to look again, and what is worth an event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from holdfast.core.backoff import spread
from holdfast.core.deployment import Deployment
from holdfast.core.endpoint import EXPIRING_FOR, Endpoint, Seen, Verdict
from holdfast.core.reasons import MEANINGS, Reason

AGAIN_SOON: Final = timedelta(minutes=1)  # after a look that reached nothing: a lost packet is no outage
DEPLOY_AGAIN: Final = timedelta(hours=1)  # at the earliest, where a deployment after drift changed nothing
_OURS: Final = frozenset({Reason.ENDPOINT_OLD, Reason.ENDPOINT_LAGS, Reason.ENDPOINT_EXPIRING})
_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_TELL_AFTER: Final = {Reason.ENDPOINT_UNREACHABLE: 3, Reason.ENDPOINT_TLS_FAILED: 2}  # looks in a row; others: 1
TROUBLES: Final[Mapping[str, int]] = {  # reasons that people are told of, and after how many looks in a row
    each.value: _TELL_AFTER.get(each, 1) for each in Reason if each.startswith("ENDPOINT_") and MEANINGS[each].alert
}
URGENT_FOR: Final = timedelta(days=3)  # before its end, people are told again of a certificate that was not replaced


@dataclass(frozen=True, slots=True, kw_only=True)
class LastLook:
    """The last verdict, and since when it is the same."""

    at: datetime
    reason: Reason
    since: datetime
    times: int  # looks in a row with this reason
    sentence: str
    seen: tuple[Seen, ...] = ()

    @property
    def ends(self) -> datetime | None:
        """The first end of what is served."""
        return min((each.sighting.not_after for each in self.seen if each.sighting.not_after), default=None)

    @property
    def settled(self) -> bool:
        """It was seen so often in a row that it is no accident."""
        return self.times >= _TELL_AFTER.get(self.reason, 1)

    @property
    def troubled(self) -> bool:
        """People are told of it, until it is over."""
        return MEANINGS[self.reason].alert and self.settled


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedEndpoint:
    id: str
    name: str
    place: Endpoint
    certificate: str | None = None  # the certificate that should be seen there; None: any that is in order
    twin: str | None = None  # and the one with the other kind of key, of a server that has both
    target: str = ""  # the target whose deployments are seen there; empty: it stands alone
    owner: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    version: int = 1
    created_at: datetime
    last: LastLook | None = None

    @property
    def certificates(self) -> tuple[str, ...]:
        return tuple(each for each in (self.certificate, self.twin) if each is not None)


def looked(before: LastLook | None, verdict: Verdict, now: datetime) -> LastLook:
    """What is remembered after one more look."""
    same = before is not None and before.reason is verdict.reason
    return LastLook(
        at=now,
        reason=verdict.reason,
        since=before.since if before is not None and same else now,
        times=before.times + 1 if before is not None and same else 1,
        sentence=verdict.sentence,
        seen=verdict.seen,
    )


def news(before: LastLook | None, after: LastLook) -> bool:
    """Whether a look is worth an event: another verdict, once it is settled; or an end that came nearer."""
    if after.settled and (before is None or before.reason is not after.reason or not before.settled):
        return True
    ends = after.ends
    if after.reason is not Reason.ENDPOINT_EXPIRING or before is None or ends is None:
        return False
    return any(before.at < ends - left <= after.at for left in (EXPIRING_FOR, URGENT_FOR, timedelta(0)))


def deploy_again(last: LastLook, there: Deployment, now: datetime) -> bool:
    """Whether a target that served this shows an earlier version: it was restored, or never reloaded.

    Any look that says so decides, not only the first: it may have been so while the deployment was under way, too.
    """
    since = there.served_at or there.changed_at
    return last.reason in _OURS and (there.cause != "drift" or now - since >= DEPLOY_AGAIN)


def event_of(reason: Reason) -> str:
    """The event that tells of a verdict: endpoint.drift."""
    return "endpoint.served" if reason is Reason.OK else reason.value.lower().replace("_", ".", 1)


def next_look(endpoint: str, last: LastLook, every: timedelta) -> datetime:
    """Each endpoint has its own place in the interval, by its id, so that looks stay spread whatever happens."""
    if not last.settled:
        return last.at + min(AGAIN_SOON, every)
    own = _EPOCH + every * spread(endpoint)
    due = own + ((last.at - own) // every + 1) * every
    return due if due - last.at > every / 10 else due + every
