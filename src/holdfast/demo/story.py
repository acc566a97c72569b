"""The story of the demo as values: certificates of one company, their versions, attempts, alerts and people."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast.core.access import Approval
from holdfast.core.backoff import issuance_next_at, spread
from holdfast.core.certificate import (
    Certificate,
    CertificateSpec,
    CertificateState,
    Failing,
    Version,
    VersionState,
)
from holdfast.core.issuance import Issuance, IssuanceState
from holdfast.core.issuers.budget import Budget, Limit
from holdfast.core.issuers.issuer import IssuerRow, IssuerState
from holdfast.core.notifications.channel import ChannelRow
from holdfast.core.notifications.notification import Notification, NotificationState, Routing, Severity
from holdfast.core.own_ca.acme import Identifier
from holdfast.core.reasons import MEANINGS, Reason
from holdfast.core.renewal import lifetime_due
from holdfast.core.work.job import Job, JobState, Priority
from holdfast.demo import serving

NUMBER: Final = 300
_YEAR: Final = timedelta(days=365)
_OWNERS: Final = ("web", "payments", "platform", "identity", "network", "banking", "data", "lab")
_WORDS: Final = (
    "www",
    "api",
    "pay",
    "cdn",
    "media",
    "search",
    "login",
    "img",
    "help",
    "status",
    "docs",
    "shop",
    "cart",
    "mail",
    "git",
    "ci",
    "grafana",
    "vault",
    "ldap",
    "wiki",
    "ntp",
    "proxy",
    "edge",
    "auth",
    "queue",
    "cache",
    "metrics",
    "logs",
    "backup",
    "registry",
    "files",
    "chat",
    "video",
    "forms",
    "maps",
    "news",
    "blog",
    "events",
    "jobs",
    "crm",
)
_DOMAINS: Final = (
    "shop.example",
    "corp.example",
    "bank.example",
    "edge.example.net",
    "lab.example",
    "media.example.org",
)
_LIVES: Final = {"letsencrypt": 90, "zerossl": 90, "digicert": 199, "corp": 30, "vault-lab": 14}


@dataclass(slots=True)
class Story:
    """All rows of the demo, in the order in which they refer to each other."""

    now: datetime
    rows: list[Any] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    events: list[tuple[datetime, str, str, dict[str, Any]]] = field(default_factory=list)
    deeds: list[tuple[datetime, str, str, str, dict[str, Any]]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What is wrong with one certificate of the story."""

    name: str
    names: int = 1
    issuer: str = "letsencrypt"
    owner: str = "payments"
    left: timedelta  # until it expires
    attempts: int = 0
    last: timedelta = timedelta()  # since the last attempt failed
    reason: Reason | None = None
    error: str = ""
    under_way: IssuanceState | None = None
    state: CertificateState = CertificateState.ACTIVE
    revoked: bool = False
    approval: bool = False
    waits: str = ""


_H: Final = timedelta(hours=1)
_D: Final = timedelta(days=1)
TROUBLES: Final = (
    Trouble(
        name="pay.shop.example",
        left=28 * _H,
        attempts=11,
        last=0.7 * _H,
        reason=Reason.CAA_FORBIDS,
        error='urn:ietf:params:acme:error:caa: a CAA record prevents issuance: 0 issue "zerossl.com"',
    ),
    Trouble(
        name="old.bank.example",
        left=-2 * _H,
        attempts=9,
        last=3 * _H,
        reason=Reason.VALIDATION_FAILED,
        owner="banking",
        error="urn:ietf:params:acme:error:connection: 192.0.2.44: Connection refused",
    ),
    Trouble(
        name="api.shop.example",
        names=2,
        left=14.8 * _D,
        attempts=3,
        last=0.8 * _H,
        reason=Reason.DNS_TXT_NOT_VISIBLE,
        error="_acme-challenge.api.shop.example is missing at ns3.dns.example and ns4.dns.example",
    ),
    Trouble(
        name="smtp.corp.example",
        issuer="zerossl",
        owner="platform",
        left=6.45 * _D,
        attempts=5,
        last=6.6 * _H,
        reason=Reason.PROOF_NOT_VISIBLE,
        error="http://smtp.corp.example/.well-known/acme-challenge/… answers 404 from outside",
    ),
    Trouble(
        name="idp.corp.example",
        names=3,
        issuer="corp",
        owner="identity",
        left=4.1 * _D,
        under_way=IssuanceState.AWAITING_APPROVAL,
        approval=True,
    ),
    Trouble(
        name="sso.corp.example",
        issuer="corp",
        owner="identity",
        left=6 * _D,
        under_way=IssuanceState.AWAITING_APPROVAL,
        approval=True,
    ),
    Trouble(
        name="hsm.bank.example",
        issuer="corp",
        owner="banking",
        left=8 * _D,
        under_way=IssuanceState.AWAITING_APPROVAL,
        approval=True,
    ),
    Trouble(name="registry.corp.example", issuer="corp", owner="platform", left=12 * _D, revoked=True),
    Trouble(
        name="git.corp.example", issuer="zerossl", owner="platform", left=15.2 * _D, under_way=IssuanceState.WAITING
    ),
    Trouble(name="*.edge.example.net", names=2, owner="network", left=16.5 * _D, under_way=IssuanceState.PROVING),
    Trouble(name="media.shop.example", owner="web", left=8 * _D, under_way=IssuanceState.REQUESTED, waits="BUDGET"),
    Trouble(
        name="cdn.shop.example", names=4, owner="web", left=8.2 * _D, under_way=IssuanceState.REQUESTED, waits="BUDGET"
    ),
    Trouble(name="legacy.bank.example", issuer="digicert", owner="banking", left=10.3 * _D, waits="ISSUER_PAUSED"),
    Trouble(name="tms.bank.example", issuer="digicert", owner="banking", left=12.3 * _D, waits="ISSUER_PAUSED"),
    Trouble(name="ntp.lab.example", issuer="vault-lab", owner="lab", left=9.3 * _D, state=CertificateState.PAUSED),
    Trouble(name="probe.lab.example", issuer="vault-lab", owner="lab", left=11.3 * _D, state=CertificateState.PAUSED),
    Trouble(
        name="stage.shop.example",
        owner="web",
        left=21 * _D,
        attempts=1,
        last=0.5 * _H,
        reason=Reason.CA_DOWN,
        error="https://acme.letsencrypt.example/directory answered 503 Service Unavailable",
    ),
    Trouble(
        name="beta.shop.example",
        owner="web",
        left=22 * _D,
        attempts=2,
        last=1.1 * _H,
        reason=Reason.NONCES_REFUSED,
        error="urn:ietf:params:acme:error:badNonce",
    ),
)


def tell(now: datetime, key_secret: str, pem: str) -> Story:
    """Everything, as of now; the same wherever it is told."""
    story = Story(now=now)
    _remotes(story)
    for trouble in TROUBLES:
        _troubled(story, trouble, key_secret, pem)
    for number in range(NUMBER - len(TROUBLES)):
        _well(story, number, key_secret, pem)
    _letters(story)
    serving.tell(story.now, story.rows)
    _budgets(story)
    _deeds(story)
    return story


# ── Issuers and channels ──


def _remotes(story: Story) -> None:
    began = story.now - _YEAR
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


# ── Certificates ──


def _spec(name: str, names: int, issuer: str, owner: str, *, approval: bool = False) -> CertificateSpec:
    stem, _, domain = name.partition(".")
    more = [f"{stem.replace('*', 'all')}-{n}.{domain}" for n in range(2, names + 1)]
    env = "prod" if spread(name) < 0.8 else "stage"
    return CertificateSpec(
        name=name,
        identifiers=tuple(Identifier("dns", each) for each in (name, *more)),
        issuers=(issuer,),
        owner=owner,
        labels={"env": env, "team": owner},
        approval_required=approval,
    )


def _well(story: Story, number: int, key_secret: str, pem: str) -> None:
    word, domain = _WORDS[number % len(_WORDS)], _DOMAINS[number * 7 // len(_WORDS) % len(_DOMAINS)]
    name = f"{word}{number // len(_WORDS) + 1}.{domain}"
    issuer = ("letsencrypt", "letsencrypt", "letsencrypt", "zerossl", "corp", "corp", "digicert", "vault-lab")[
        number % 8
    ]
    owner = _OWNERS[int(spread(name) * len(_OWNERS))]
    life = timedelta(days=_LIVES[issuer])
    # At a steady pace: somewhere between its beginning and the time of its renewal.
    began = story.now - life * 0.6 * spread(f"age {name}") - timedelta(minutes=7)
    spec = _spec(name, 1 + int(4 * spread(f"names {name}") ** 3), issuer, owner)
    spec = replace(spec, targets=serving.TARGETS if number % 5 == 0 else ())
    held, row = _kept(story, spec, began, life, key_secret, pem)
    plan = lifetime_due(row, held)
    story.rows.insert(0, replace(row, next_action_at=max(plan, story.now + _H), next_cause="DUE_LIFETIME"))


def _kept(
    story: Story, spec: CertificateSpec, began: datetime, life: timedelta, key_secret: str, pem: str
) -> tuple[Version, Certificate]:
    """A certificate with the versions of a year: each was renewed at two thirds of its life."""
    certificate = _id("certificate", spec.name)
    starts, at = list[datetime](), began
    while at > story.now - _YEAR and len(starts) < 12:
        starts.append(at)
        at -= life * (0.6 + 0.05 * spread(f"{spec.name} {at}"))
    made: list[Version] = []
    for place, start in enumerate(reversed(starts), 1):
        made.append(_issued(story, spec, certificate, place, start, life, key_secret, pem, last=start is starts[0]))
    created = made[0].issued_at - timedelta(minutes=2)
    story.events.append(
        (created, "certificate.requested", certificate, {"by": "human:platform", "certificate": spec.name})
    )
    story.deeds.append((created, "human:platform", "certificate_requested", certificate, {"name": spec.name}))
    row = Certificate(
        id=certificate,
        wanted=spec,
        state=CertificateState.ACTIVE,
        generation=1,
        version=len(made) + 1,
        fingerprint=spec.fingerprint(),
        changed_by="human:platform",
        created_at=created,
        current_version=made[-1].id,
    )
    return made[-1], row


def _issued(
    story: Story,
    spec: CertificateSpec,
    certificate: str,
    place: int,
    start: datetime,
    life: timedelta,
    key_secret: str,
    pem: str,
    *,
    last: bool,
) -> Version:
    key = f"{spec.name} {place}"
    took = timedelta(seconds=6 + 90 * spread(f"took {key}") ** 3)
    issuance, version, issuer = _id("issuance", key), _id("version", key), spec.issuers[0]
    if spread(f"failed {key}") < 0.12 and not last:
        _failed(story, spec, certificate, f"{key} before", start - _H, Reason.CA_DOWN, "The CA answered 503.")
    begun = start - took
    story.rows.append(
        Issuance(
            id=issuance,
            certificate=certificate,
            generation=1,
            state=IssuanceState.ISSUED,
            issuer=issuer,
            cause="FIRST" if place == 1 else "DUE_LIFETIME",
            identifiers=spec.identifiers,
            requested_by="system",
            started_at=begun,
            ended_at=start,
        )
    )
    made = Version(
        id=version,
        certificate=certificate,
        generation=1,
        issuance=issuance,
        key_secret=key_secret,
        chain_pem=pem,
        state=VersionState.ACTIVE if last else VersionState.SUPERSEDED,
        serial=f"{int(spread(key) * 2**62):016x}",
        not_before=start - _H,
        not_after=start - _H + life,
        issuer=issuer,
        account=None,
        spki_sha256=f"{int(spread('k' + key) * 2**62):064x}",
        issued_at=start,
    )
    story.rows.append(made)
    cause = {"cause": "FIRST" if place == 1 else "DUE_LIFETIME", "issuer": issuer}
    done = {"issuer": issuer, "serial": made.serial, "took_s": took.total_seconds(), "version": version}
    steps: list[tuple[str, datetime, dict[str, Any]]] = [
        ("issuance.begun", begun, cause),
        ("issuance.key_stored", begun + took * 0.02, {}),
        ("issuance.ordered", begun + took * 0.1, {}),
        ("issuance.proving", begun + took * 0.3, {}),
        ("certificate.activated", start, done),
    ]
    story.events += [(at, name, certificate, {**told, "issuance": issuance}) for name, at, told in steps]
    return made


def _failed(
    story: Story, spec: CertificateSpec, certificate: str, key: str, at: datetime, reason: Reason, error: str
) -> None:
    """An attempt that came to nothing; what was polled meanwhile is there, too."""
    issuance, took = _id("issuance", key), timedelta(seconds=70 + 4 * spread(key))
    story.rows.append(
        Issuance(
            id=issuance,
            certificate=certificate,
            generation=1,
            state=IssuanceState.FAILED,
            issuer=spec.issuers[0],
            cause="DUE_LIFETIME",
            identifiers=spec.identifiers,
            requested_by="system",
            started_at=at - took,
            ended_at=at,
            error=error,
            reason=reason.value,
        )
    )
    begun = at - took
    story.events.append(
        (
            begun,
            "issuance.begun",
            certificate,
            {"issuance": issuance, "cause": "DUE_LIFETIME", "issuer": spec.issuers[0]},
        )
    )
    story.events.append((begun + timedelta(seconds=1), "issuance.ordered", certificate, {"issuance": issuance}))
    for n in range(7):
        waited = {"issuance": issuance, "why": reason.value, "error": error}
        story.events.append((begun + timedelta(seconds=4 + n * 9), "issuance.waits", certificate, waited))
    story.events.append(
        (
            at,
            "issuance.failed",
            certificate,
            {
                "issuance": issuance,
                "issuer": spec.issuers[0],
                "reason": reason.value,
                "error": error,
                "took_s": took.total_seconds(),
            },
        )
    )


def _troubled(story: Story, trouble: Trouble, key_secret: str, pem: str) -> None:
    life = timedelta(days=_LIVES[trouble.issuer])
    spec = _spec(trouble.name, trouble.names, trouble.issuer, trouble.owner, approval=trouble.approval)
    held, row = _kept(story, spec, story.now + trouble.left - life + _H, life, key_secret, pem)
    changes: dict[str, Any] = {"state": trouble.state}
    if trouble.reason is not None:
        changes |= _failing(story, trouble, spec, row, held)
    elif trouble.under_way is not None:
        _under_way(story, trouble, spec, row)
    elif trouble.waits:
        changes |= {"next_action_at": story.now + 6 * _H, "next_cause": trouble.waits}
    elif trouble.state is CertificateState.ACTIVE and not trouble.revoked:
        changes |= {"next_action_at": story.now + _H, "next_cause": "DUE_LIFETIME"}
    if trouble.revoked:
        changes |= {"next_action_at": story.now + timedelta(minutes=3), "next_cause": "REVOKED"}
        story.rows.remove(held)
        story.rows.append(
            replace(
                held,
                state=VersionState.REVOKED,
                revoke_asked_at=story.now - _H,
                revoked_at=story.now - 0.9 * _H,
                revoke_reason=4,
            )
        )
        story.events.append((story.now - _H, "revocation.asked", row.id, {"by": "human:platform", "version": held.id}))
    story.rows.insert(0, replace(row, **changes))


def _failing(story: Story, trouble: Trouble, spec: CertificateSpec, row: Certificate, held: Version) -> dict[str, Any]:
    last, at = story.now - trouble.last, story.now - trouble.last
    times = [at]
    for n in range(trouble.attempts - 1, 0, -1):
        at -= min(_H * 2 ** (n - 1), 32 * _H) + timedelta(seconds=61)
        times.append(at)
    reason = trouble.reason or Reason.INTERNAL
    for n, when in enumerate(reversed(times), 1):
        _failed(story, spec, row.id, f"{trouble.name} failure {n}", when, reason, trouble.error)
    failing = Failing(
        attempts=trouble.attempts, last_at=last, first_at=times[-1], error=trouble.error, reason=reason.value
    )
    again = issuance_next_at(last, trouble.attempts, left_at_first_failure=held.not_after - times[-1])
    return {
        "failing": failing,
        "next_action_at": max(again, story.now + timedelta(minutes=41)),
        "next_cause": "BACKOFF",
    }


def _under_way(story: Story, trouble: Trouble, spec: CertificateSpec, row: Certificate) -> None:
    begun = story.now - timedelta(minutes=26 if trouble.approval else 2)
    state = trouble.under_way or IssuanceState.REQUESTED
    issuance = _id("issuance", f"{trouble.name} now")
    story.rows.append(
        Issuance(
            id=issuance,
            certificate=row.id,
            generation=1,
            state=state,
            issuer=trouble.issuer,
            cause="DUE_LIFETIME",
            identifiers=spec.identifiers,
            requested_by="robot:ci-identity" if trouble.approval else "system",
            started_at=begun,
            reason="CA_STILL_PENDING" if state is IssuanceState.WAITING else None,
        )
    )
    story.events.append(
        (begun, "issuance.begun", row.id, {"issuance": issuance, "cause": "DUE_LIFETIME", "issuer": trouble.issuer})
    )
    if trouble.approval:
        ends = story.now + 5.6 * _H + timedelta(hours=spread(trouble.name) * 20)
        story.rows.append(
            Approval(
                id=_id("approval", trouble.name),
                issuance=issuance,
                certificate=row.id,
                requested_by="robot:ci-identity",
                asked_at=begun,
                expires_at=ends,
            )
        )
        return
    due = story.now + (timedelta(hours=3 + 3 * spread(trouble.name)) if trouble.waits else timedelta(seconds=40))
    story.jobs.append(
        Job(
            id=_id("job", trouble.name),
            kind="issue",
            subject=issuance,
            state=JobState.READY,
            priority=Priority.NORMAL,
            due_at=due,
            attempts=1,
            max_attempts=20,
            crashes=0,
            holder=None,
            lease_until=None,
            reason=trouble.waits or ("CA_STILL_PENDING" if state is IssuanceState.WAITING else None),
            last_error=None,
        )
    )


# ── Notifications ──


def _letters(story: Story) -> None:
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
        id=_id("notification", key),
        message=_id("msg", key),
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
            (at, who[n % 5], what[int(spread(f"deed {n}") * 5)], _id("certificate", about), {"name": about})
        )
    story.deeds.append((story.now - 2 * _D, "human:pki-team", "issuer_paused", "digicert", {"why": "contract renewal"}))


def _id(kind: str, key: str) -> str:
    """The same for the same thing, wherever the story is told."""
    alphabet = "0123456789abcdefghjkmnpqrstvwxyz"
    value, text = int(spread(f"{kind} {key}") * 2**53) << 60 | int(spread(f"{key} {kind}") * 2**53), ""
    for _ in range(22):
        value, digit = divmod(value, 32)
        text = alphabet[digit] + text
    return f"{kind}_01kd{text}"
