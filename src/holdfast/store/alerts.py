"""Turns what a transaction tells people into notices, as one of its last acts: they are owed, or nothing happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast.core import notice, renewal, telling
from holdfast.core.job import Spec
from holdfast.core.notice import Notice, Severity, State, Why
from holdfast.core.telling import About, Told
from holdfast.store import certificates, channels, issuances, jobs, notices, outages, versions
from holdfast.store.channels import ChannelRow
from holdfast.store.tx import Tx

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
    told = telling.tell(event, details, about)
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
    elif told.mode != "plain":
        new = [
            outages.open_or_count(tx, key, event=event, severity=told.severity, subject=subject, name=about.name)
            for key in (told.key, told.gate)
            if key
        ]
        if told.mode == "opens" and not any(new):
            return []
    return addressed(first(event, about, told, now), rows, told.not_to)


def _about(tx: Tx, event: str, subject: str, details: Mapping[str, Any]) -> About:
    found = certificates.get(tx, subject) if event in telling.OF_CERTIFICATE else None
    if found is None:
        return About(subject=subject, name=issuances.storable(str(details.get("called") or subject)))
    current = versions.get(tx, found.current_version)
    issuer = _issuer_of(tx, details) or ("" if current is None else current.issuer)
    return About(
        subject=subject,
        name=found.wanted.name,
        owner=found.wanted.owner,
        labels=found.wanted.labels,
        safe_until=None if current is None else renewal.safe_until(current),
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
    at = notice.digest_at(now, channel.digest_every, told.severity)
    return replace(to_channel(told, channel.name), digest_at=at)


def to_channel(told: Notice, channel: str) -> Notice:
    return replace(told, id=notices.notice_id(told.created_at, told.message, channel), channel=channel)


def afresh(owed: Notice, now: datetime) -> Notice:
    """One that nobody wanted, as it is owed to a channel that does."""
    return replace(owed, state=State.PENDING, why=None, last_error=None, waiting_since=now)
