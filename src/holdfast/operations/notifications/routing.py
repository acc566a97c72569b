"""Routes the alerts of a transaction: one notification for each channel that wants one.

`route` is the before-commit hook of the store (from_settings.py), so an alert and its cause are committed together or
not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast.core import renewal
from holdfast.core.notifications import alert_texts, notification
from holdfast.core.notifications.alert import About, Alert, Outage, issuer_key
from holdfast.core.notifications.channel import ChannelRow
from holdfast.core.notifications.notification import Notification, NotificationState, Severity, Why
from holdfast.core.work.job import Spec
from holdfast.store import certificates, endpoints, issuances, versions
from holdfast.store.notifications import channels, notifications, outages
from holdfast.store.tx import Tx
from holdfast.store.work import jobs

_AT_ONCE: Final = timedelta(
    minutes=1
)  # an outage and its first alert have one transaction, but not the same microsecond
NOTIFY: Final = "notify"  # the job that drains a channel; its subject is the channel's name


def route(tx: Tx) -> None:
    """Owe the notifications of all alerts of this transaction. Without alerts it runs no statement."""
    if not tx.alerts:
        return
    alerts, tx.alerts = tx.alerts, []
    now, rows = tx.now(), channels.all_channels(tx)
    owed = [
        each
        for number, (event, subject, details) in enumerate(alerts)  # a microsecond apart: they stay in their order
        for each in _notifications(tx, event, subject, details, rows, now + number * timedelta.resolution)
    ]
    if owed:
        notifications.insert(tx, owed)
        wake(tx, {each.channel for each in owed if each.state is NotificationState.PENDING})


def wake(tx: Tx, names: set[str]) -> None:
    """Have these channels drained soon. The lock of bring_forward waits for a drain that is just ending."""
    now = tx.now()
    for name in sorted(names):
        jobs.bring_forward(tx, NOTIFY, name, now)
        jobs.owe(tx, Spec(id=notifications.job_id(now, name), kind=NOTIFY, subject=name))


def _notifications(
    tx: Tx, event: str, subject: str, details: Mapping[str, Any], rows: Sequence[ChannelRow], now: datetime
) -> list[Notification]:
    about = _about(tx, event, subject, details)
    alert = alert_texts.tell(event, _with_dead_job(tx, event, subject, details), about)
    if alert is None:
        return []
    alert = replace(alert, key=issuances.storable(alert.key), gate=issuances.storable(alert.gate))
    if alert.of:  # about an issuer: it has no owner, unlike the certificate of the event
        subject, about = alert.of, About(subject=alert.of, name=alert.of)
    if alert.mode == "clears":
        over = outages.close(tx, alert.key)
        if over is None:
            return []
        alert = replace(alert, severity=over.severity)
        return _to_channels_that_were_told(tx, first(event, about, alert, now), over, rows, alert.not_to)
    if alert.mode != "plain":
        new = [
            outages.open_or_count(tx, key, event=event, severity=alert.severity, subject=subject, name=about.name)
            for key in (alert.key, alert.gate)
            if key
        ]
        if alert.mode == "opens" and not any(new):
            return []
    return addressed(first(event, about, alert, now), rows, alert.not_to)


def _to_channels_that_were_told(
    tx: Tx, told: Notification, over: Outage, rows: Sequence[ChannelRow], not_to: str
) -> list[Notification]:
    """Address an all-clear to the channels that were sent alerts of its outage, whatever their routing is now.

    If no alert was sent, the all-clear is stored as resolved: a person may still requeue the alerts.
    """
    heard = notifications.heard_of(tx, told.key, over.opened_at - _AT_ONCE)
    if not heard:
        return addressed(told, rows, not_to)  # no alert of this outage is stored
    if told_to := [each for each in rows if heard.get(each.name) and each.name != not_to]:
        return [_to(told, each, told.created_at) for each in told_to]
    return [
        replace(
            to_channel(told, ""), state=NotificationState.RESOLVED, note="no channel was sent the alerts that it clears"
        )
    ]


def owe_ends(tx: Tx, requeued: Sequence[Notification], now: datetime) -> list[Notification]:
    """Owe the all-clear after requeued alerts whose outage is over; without it the outage would seem to last.

    Returns the all-clears that had been sent or resolved before.
    """
    alerts = [each for each in requeued if not each.clears]
    ends = notifications.ends_of(tx, {each.key for each in alerts})
    again: dict[str, Notification] = {}
    for each in alerts:
        after = [end for end in ends if end.key == each.key and end.created_at > each.created_at]
        own = next((end for end in after if end.channel == each.channel), None)
        if own is not None and own.state not in notification.WAITING:
            again[own.id] = own
        elif own is None and after:
            notifications.insert(tx, [_also_to(afresh(after[0], now), each.channel, now)])
    notifications.requeue(tx, list(again.values()), now)
    return list(again.values())


def _also_to(end: Notification, channel: str, now: datetime) -> Notification:
    return replace(end, channel=channel, id=notifications.notification_id(now, end.message, channel))


def _with_dead_job(tx: Tx, event: str, subject: str, details: Mapping[str, object]) -> Mapping[str, object]:
    """Add the id and the last error of a dead job that was to tell an issuer something."""
    owed = event in alert_texts.OF_JOB and details.get("kind") in alert_texts.CA_JOBS
    job = jobs.dead(tx, str(details["kind"]), subject) if owed else None
    return details if job is None else {**details, "job": job.id, "error": job.last_error or ""}


def _certificate_of(tx: Tx, event: str, subject: str, details: Mapping[str, object]) -> str | None:
    """The certificate of an event; of a job, the certificate of its version or its issuance."""
    if event in alert_texts.OF_CERTIFICATE:
        return subject
    if event not in alert_texts.OF_JOB or details.get("kind") not in alert_texts.CA_JOBS:
        return None
    found = versions.get(tx, subject) if details["kind"] == "revoke" else issuances.get(tx, subject)
    return None if found is None else found.certificate


def _about(tx: Tx, event: str, subject: str, details: Mapping[str, object]) -> About:
    if event in alert_texts.OF_ENDPOINT and (endpoint := endpoints.get(tx, subject)) is not None:
        return About(subject=subject, name=endpoint.name, owner=endpoint.owner, labels=endpoint.labels)
    certificate = _certificate_of(tx, event, subject, details)
    found = None if certificate is None else certificates.get(tx, certificate)
    if found is None:
        return About(subject=subject, name=issuances.storable(str(details.get("called") or subject)))
    current = versions.get(tx, found.current_version)
    issuer = _issuer_of(tx, details) or ("" if current is None else current.issuer)
    return About(
        subject=found.id,
        name=found.wanted.name,
        owner=found.wanted.owner,
        labels=found.wanted.labels,
        safe_until=None if current is None else renewal.good_until(current),
        issuer=issuer,
        ca_down=outages.is_open(tx, issuer_key(issuer)),
    )


def _issuer_of(tx: Tx, details: Mapping[str, object]) -> str:
    if details.get("issuer"):
        return str(details["issuer"])
    issuance = issuances.get(tx, str(details.get("issuance") or ""))
    return "" if issuance is None else issuance.issuer


def first(event: str, about: About, alert: Alert, now: datetime) -> Notification:
    """The notification of an alert, before it is addressed to channels."""
    message = notifications.message_id(now, event, about.subject, alert.key, alert.title)
    return Notification(
        id="",
        message=message,
        channel="",
        event=event,
        severity=alert.severity,
        subject=about.subject,
        name=about.name,
        owner=about.owner,
        labels=about.labels,
        title=issuances.storable(alert.title),  # a text from a CA must not fail the transaction
        text=issuances.storable(alert.text),
        facts={name: issuances.storable(value) for name, value in alert.facts.items() if value},
        reason=alert.reason,
        next=issuances.storable(alert.next),
        key=alert.key or message,
        clears=alert.mode == "clears",
        waiting_since=now,
        created_at=now,
    )


def addressed(told: Notification, rows: Sequence[ChannelRow], not_to: str = "") -> list[Notification]:
    """One notification for each channel that wants it. If none does, one dead letter without a channel."""
    now = told.created_at
    wanted = [each for each in rows if each.name != not_to]
    wanted = [each for each in wanted if notification.wants(each.routing, told.severity, told.owner, told.labels)]
    if wanted:
        return [_to(told, each, now) for each in wanted]
    if told.severity is Severity.INFO or told.clears or not_to:
        return []  # the event is in the timeline; no dead letter is needed
    why = "no channel wants it: add a channel, or widen the routing of one (holdfast notify channel add --help)"
    unpaid = replace(told, state=NotificationState.DEAD, why=Why.NO_CHANNEL.value, last_error=why)
    return [replace(unpaid, id=notifications.notification_id(now, told.message, ""))]


def _to(told: Notification, channel: ChannelRow, now: datetime) -> Notification:
    at = notification.digest_at(now, channel.digest_every, told.severity)
    return replace(to_channel(told, channel.name), digest_at=at)


def to_channel(told: Notification, channel: str) -> Notification:
    return replace(told, id=notifications.notification_id(told.created_at, told.message, channel), channel=channel)


def afresh(owed: Notification, now: datetime) -> Notification:
    """An existing notification, as it is owed to one more channel."""
    return replace(owed, state=NotificationState.PENDING, why=None, last_error=None, note=None, waiting_since=now)
