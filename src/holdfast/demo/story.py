"""The story of the demo as values: certificates of one company, their versions, attempts, alerts and people."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from holdfast.core.backoff import spread
from holdfast.core.issuers.budget import Budget, Limit
from holdfast.core.issuers.issuer import IssuerRow, IssuerState
from holdfast.core.notifications.channel import ChannelRow
from holdfast.core.notifications.notification import Routing, Severity
from holdfast.demo import serving
from holdfast.demo.cast import DAY, TROUBLES, YEAR, Story, made_id
from holdfast.demo.certificates import troubled, well
from holdfast.demo.letters import letters

NUMBER: Final = 300


def tell(now: datetime, key_secret: str, pem: str) -> Story:
    """Everything, as of now; the same wherever it is told."""
    story = Story(now=now)
    _remotes(story)
    for trouble in TROUBLES:
        troubled(story, trouble, key_secret, pem)
    for number in range(NUMBER - len(TROUBLES)):
        well(story, number, key_secret, pem)
    letters(story)
    serving.tell(story.now, story.rows)
    _budgets(story)
    _deeds(story)
    return story


# ── Issuers and channels ──


def _remotes(story: Story) -> None:
    began = story.now - YEAR
    limits = {"orders": [300, 36], "per_domain": [50, 12096]}
    letsencrypt = {"directory": "https://acme.letsencrypt.example/directory", "limits": limits}
    story.rows += [
        IssuerRow(name="letsencrypt", kind="acme", settings=letsencrypt, created_at=began),
        IssuerRow(
            name="zerossl",
            kind="acme",
            settings={"directory": "https://acme.zerossl.example/v2/DV90", "limits": {"orders": [200, 432]}},
            created_at=began,
        ),
        IssuerRow(
            name="digicert",
            kind="digicert",
            settings={"organization_id": 48211},
            state=IssuerState.PAUSED,
            created_at=began,
        ),
        IssuerRow(name="corp", kind="local", settings={"ca": "own"}, created_at=began),
        IssuerRow(
            name="vault-lab",
            kind="vault",
            settings={"base_url": "https://vault.lab.example", "mount": "pki"},
            created_at=began,
        ),
        ChannelRow(name="ops-chat", kind="slack", proven=True, created_at=began),
        ChannelRow(name="ops-mail", kind="email", fallback="ops-chat", created_at=began),
        ChannelRow(
            name="shop-hook", kind="webhook", routing=Routing(owners=("web", "payments")), proven=True, created_at=began
        ),
        ChannelRow(
            name="oncall-pager",
            kind="pagerduty",
            routing=Routing(severities=frozenset({Severity.CRITICAL})),
            proven=True,
            created_at=began,
        ),
    ]


# ── Budgets and the audit log ──


def _budgets(story: Story) -> None:
    def budget(key: str, burst: int, every_s: float, left: int) -> Budget:
        every = timedelta(seconds=every_s)
        return Budget(key=key, limit=Limit(burst=burst, every=every), tat=story.now + every * (burst - left))

    story.rows += [
        budget("ca/letsencrypt/orders", 300, 36, 292),
        budget("ca/letsencrypt/domain/shop.example", 50, 12096, 9),
        budget("ca/letsencrypt/domain/corp.example", 50, 12096, 37),
        budget("ca/zerossl/orders", 200, 432, 188),
    ]


def _deeds(story: Story) -> None:
    who = ("human:platform", "human:payments", "robot:ci", "human:pki-team", "system")
    what = ("certificate_changed", "certificate_renewed", "token_used", "issuer_changed", "notification_resolved")
    for n in range(160):
        at = story.now - timedelta(hours=1 + n * 7.3)
        about = TROUBLES[n % len(TROUBLES)].name
        story.deeds.append(
            (at, who[n % 5], what[int(spread(f"deed {n}") * 5)], made_id("certificate", about), {"name": about})
        )
    story.deeds.append(
        (story.now - 2 * DAY, "human:pki-team", "issuer_paused", "digicert", {"why": "contract renewal"})
    )
