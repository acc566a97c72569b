"""Turns what a transaction tells people into notices, as one of its last acts: they are owed, or nothing happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast.core import notice, renewal, telling, telling_orders
from holdfast.core.job import Spec
from holdfast.core.notice import ONE_BY_ONE, Notice, Severity, State, Why
from holdfast.core.telling import About, Told
from holdfast.store import certificates, channels, issuances, jobs, notices, outages, versions
from holdfast.store.channels import ChannelRow
from holdfast.store.outages import Outage
from holdfast.store.tx import Tx

_AT_ONCE: Final = timedelta(minutes=1)  # an outage and its first word are of one transaction, not of one instant
NOTIFY: Final = "notify"  # the job that drains a channel; its subject is the channel's name


def route(tx: Tx) -> None:
    """Called by the store before it pays the jobs and seals the journal. Nothing told: no statement."""
    if not tx.alerts:
        return
    alerts, tx.alerts = tx.alerts, []
    now, rows = tx.now(), channels.all_channels(tx)
    owed = [
        each
        for number, (event, subject, details) in enumerate(alerts)  # a microsecond apart: they stay in their order
        for each in _notices(tx, event, subject, details, rows, now + number * timedelta.resolution)
    ]
    if owed:
        notices.insert(tx, owed)
        wake(tx, {each.channel for each in owed if each.state is State.PENDING})


def wake(tx: Tx, names: set[str]) -> None:
    """See to it that these channels are drained soon. The lock of bring_forward waits for a drain that just ends."""
    now = tx.now()
    for name in sorted(names):
        jobs.bring_forward(tx, NOTIFY, name, now)
        jobs.owe(tx, Spec(id=notices.job_id(now, name), kind=NOTIFY, subject=name))


def _notices(
    tx: Tx, event: str, subject: str, details: Mapping[str, Any], rows: Sequence[ChannelRow], now: datetime
) -> list[Notice]:
    about = _about(tx, event, subject, details)
    told = telling.tell(event, _with_words(tx, event, subject, details), about)
    if told is None:
        return []
    told = replace(told, key=issuances.storable(told.key), gate=issuances.storable(told.gate))
    if told.of:  # everybody's, whoever owns the certificate by which it was noticed
        subject, about = told.of, About(subject=told.of, name=told.of)
    if told.mode == "clears":
        over = outages.close(tx, told.key)
        if over is None:
            return []
        told = replace(told, severity=over.severity)
        return _to_all_who_heard(tx, first(event, about, told, now), over, rows, told.not_to)
    if told.mode != "plain":
        new = [
            outages.open_or_count(tx, key, event=event, severity=told.severity, subject=subject, name=about.name)
            for key in (told.key, told.gate)
            if key
        ]
        if told.mode == "opens" and not any(new):
            return []
    return addressed(first(event, about, told, now), rows, told.not_to)


def _to_all_who_heard(tx: Tx, told: Notice, over: Outage, rows: Sequence[ChannelRow], not_to: str) -> list[Notice]:
    """An all-clear goes where its outage was told, whatever a channel asks to hear by now, and nowhere else.

    If nobody had word of it, it is kept in reserve: somebody may requeue what did not arrive.
    """
    heard = notices.heard_of(tx, told.key, over.opened_at - _AT_ONCE)
    if not heard:
        return addressed(told, rows, not_to)  # nothing is known of who was told
    if told_to := [each for each in rows if heard.get(each.name) and each.name != not_to]:
        return [_to(told, each, told.created_at) for each in told_to]
    return [replace(to_channel(told, ""), state=State.RESOLVED, note="nobody had word of what it clears")]


def owe_ends(tx: Tx, requeued: Sequence[Notice], now: datetime) -> list[Notice]:
    """What these tell of may be over: then its end is owed after them, or it would seem to last for good.

    Returned are those ends that had been sent or settled before.
    """
    alerts = [each for each in requeued if not each.clears]
    ends = notices.ends_of(tx, {each.key for each in alerts})
    again: dict[str, Notice] = {}
    for each in alerts:
        after = [end for end in ends if end.key == each.key and end.created_at > each.created_at]
        own = next((end for end in after if end.channel == each.channel), None)
        if own is not None and own.state not in notice.WAITING:
            again[own.id] = own
        elif own is None and after:
            notices.insert(tx, [_also_to(afresh(after[0], now), each.channel, now)])
    notices.requeue(tx, list(again.values()), now)
    return list(again.values())


def _also_to(end: Notice, channel: str, now: datetime) -> Notice:
    return replace(end, channel=channel, id=notices.notice_id(now, end.message, channel))


def _with_words(tx: Tx, event: str, subject: str, details: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of a job that was to tell a CA something: which one it is, and what it died of."""
    owed = event in telling.OF_JOB and details.get("kind") in telling_orders.UNHEARD
    job = jobs.dead(tx, str(details["kind"]), subject) if owed else None
    return details if job is None else {**details, "job": job.id, "error": job.last_error or ""}


def _certificate_of(tx: Tx, event: str, subject: str, details: Mapping[str, Any]) -> str | None:
    """A job that was to tell a CA something is about the certificate of the version, or of the attempt."""
    if event in telling.OF_CERTIFICATE:
        return subject
    if event not in telling.OF_JOB or details.get("kind") not in telling_orders.UNHEARD:
        return None
    found = versions.get(tx, subject) if details["kind"] == "revoke" else issuances.get(tx, subject)
    return None if found is None else found.certificate


def _about(tx: Tx, event: str, subject: str, details: Mapping[str, Any]) -> About:
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
        ca_down=outages.is_open(tx, telling.issuer_key(issuer)),
    )


def _issuer_of(tx: Tx, details: Mapping[str, Any]) -> str:
    if details.get("issuer"):
        return str(details["issuer"])
    issuance = issuances.get(tx, str(details.get("issuance") or ""))
    return "" if issuance is None else issuance.issuer


def first(event: str, about: About, told: Told, now: datetime) -> Notice:
    """What is to be told, before it is known to whom."""
    message = notices.message_id(now, event, about.subject, told.key, told.title)
    return Notice(
        id="",
        message=message,
        channel="",
        event=event,
        severity=told.severity,
        subject=about.subject,
        name=about.name,
        owner=about.owner,
        labels=about.labels,
        title=issuances.storable(told.title),  # what others said must not cost the transaction that tells of it
        text=issuances.storable(told.text),
        facts={name: issuances.storable(value) for name, value in told.facts.items() if value},
        reason=told.reason,
        next=issuances.storable(told.next),
        key=told.key or message,
        clears=told.mode == "clears",
        waiting_since=now,
        created_at=now,
    )


def addressed(told: Notice, rows: Sequence[ChannelRow], not_to: str = "") -> list[Notice]:
    """One for each channel that wants it. If none does, it stays visible as a debt that nobody can be paid."""
    now = told.created_at
    wanted = [each for each in rows if each.name != not_to]
    wanted = [each for each in wanted if notice.wants(each.routing, told.severity, told.owner, told.labels)]
    if wanted:
        return [_to(told, each, now) for each in wanted]
    if told.severity is Severity.INFO or told.clears or not_to:
        return []  # it is on the timeline; nobody asked to be told more, or there is no other channel
    why = "no channel wants to hear of it: add one, or widen one (holdfast notify channel add --help)"
    unpaid = replace(told, state=State.DEAD, why=Why.NO_CHANNEL.value, last_error=why)
    return [replace(unpaid, id=notices.notice_id(now, told.message, ""))]


def _to(told: Notice, channel: ChannelRow, now: datetime) -> Notice:
    every = None if channel.kind in ONE_BY_ONE else channel.digest_every
    at = notice.digest_at(now, every, told.severity)
    return replace(to_channel(told, channel.name), digest_at=at)


def to_channel(told: Notice, channel: str) -> Notice:
    return replace(told, id=notices.notice_id(told.created_at, told.message, channel), channel=channel)


def afresh(owed: Notice, now: datetime) -> Notice:
    """One that exists already, as it is owed to one more channel."""
    return replace(owed, state=State.PENDING, why=None, last_error=None, note=None, waiting_since=now)
