"""The notifications of the demo: delivered, failing, and dead for three causes."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from holdfast.core.backoff import spread
from holdfast.core.certificate import (
    Certificate,
)
from holdfast.core.notifications.notification import Notification, NotificationState, Severity
from holdfast.core.reasons import MEANINGS, Reason
from holdfast.demo.cast import TROUBLES, Story, made_id


def letters(story: Story) -> None:
    rows = {each.name: each for each in story.rows if isinstance(each, Certificate)}
    known = [*(rows.pop(each.name) for each in TROUBLES), *rows.values()]
    for n in range(120):  # what was delivered
        about = known[int(spread(f"sent {n}") * len(known))]
        at = story.now - timedelta(hours=2 + n * 5.7)
        story.rows.append(
            _letter(
                story,
                f"sent {n}",
                about,
                "ops-chat",
                at,
                NotificationState.SENT,
                Reason.NOT_DUE,
                title=f"{about.name} was renewed",
                sent_at=at + timedelta(seconds=1),
                severity=Severity.INFO,
            )
        )
    refused = "535 5.7.8 Error: authentication failed (mail.corp.example:587, user holdfast)"
    for n in range(11):
        about = known[n % len(TROUBLES)]
        at = story.now - timedelta(hours=2.2 + n * 4.6)
        story.rows.append(
            _letter(
                story,
                f"mail {n}",
                about,
                "ops-mail",
                at,
                NotificationState.DEAD,
                _cause(about),
                retry_count=1,
                last_error=refused,
                why="CHANNEL_MISCONFIGURED",
                tried_at=at,
                severity=Severity.CRITICAL if n == 0 else Severity.WARNING,
            )
        )
    for n in range(5):
        about = known[(n + 3) % len(TROUBLES)]
        at = story.now - timedelta(hours=1.5 + n)
        story.rows.append(
            _letter(
                story,
                f"hook {n}",
                about,
                "shop-hook",
                at,
                NotificationState.DEAD,
                _cause(about),
                retry_count=5,
                last_error="https://hooks.shop.example/holdfast answered 503",
                why="ATTEMPTS_USED_UP",
                tried_at=at + timedelta(minutes=15),
            )
        )
    lab = next(each for each in known if each.name == "ntp.lab.example")
    story.rows.append(
        _letter(
            story,
            "lab",
            lab,
            "",
            story.now - timedelta(hours=31),
            NotificationState.DEAD,
            Reason.PAUSED,
            why="NO_CHANNEL",
        )
    )
    for n in range(4):
        about = known[n]
        at = story.now - timedelta(minutes=4 + n)
        story.rows.append(
            _letter(
                story,
                f"failing {n}",
                about,
                "shop-hook",
                at,
                NotificationState.FAILED,
                _cause(about),
                retry_count=2,
                last_error="https://hooks.shop.example/holdfast did not answer in 10 s",
                tried_at=at + timedelta(minutes=2),
                next_retry_at=story.now + timedelta(minutes=1 + n),
            )
        )


def _cause(about: Certificate) -> Reason:
    return Reason(about.failing.reason) if about.failing and about.failing.reason else Reason.DUE_LIFETIME


def _letter(
    story: Story,
    key: str,
    about: Certificate,
    channel: str,
    at: datetime,
    state: NotificationState,
    reason: Reason,
    *,
    title: str = "",
    severity: Severity = Severity.WARNING,
    **more: Any,
) -> Notification:
    words = title or f"{about.name}: {MEANINGS[reason].sentence}"
    return Notification(
        id=made_id("notification", key),
        message=made_id("msg", key),
        channel=channel,
        event="issuance.failed",
        severity=severity,
        subject=about.id,
        name=about.name,
        owner=about.wanted.owner,
        labels=about.wanted.labels,
        title=words,
        text=words,
        reason=reason.value,
        next=f"holdfast explain {about.name}",
        key=f"certificate/{about.id}/{key}",
        state=state,
        waiting_since=at,
        created_at=at,
        **more,
    )
