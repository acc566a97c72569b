"""The cast of the demo: its company, and what is wrong with some of its certificates."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast.core.backoff import spread
from holdfast.core.certificate import (
    CertificateState,
)
from holdfast.core.issuance import IssuanceState
from holdfast.core.reasons import Reason
from holdfast.core.work.job import Job

YEAR: Final = timedelta(days=365)
OWNERS: Final = ("web", "payments", "platform", "identity", "network", "banking", "data", "lab")
WORDS: Final = (
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
DOMAINS: Final = (
    "shop.example",
    "corp.example",
    "bank.example",
    "edge.example.net",
    "lab.example",
    "media.example.org",
)
LIVES: Final = {"letsencrypt": 90, "zerossl": 90, "digicert": 199, "corp": 30, "vault-lab": 14}


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


HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)
TROUBLES: Final = (
    Trouble(
        name="pay.shop.example",
        left=28 * HOUR,
        attempts=11,
        last=0.7 * HOUR,
        reason=Reason.CAA_FORBIDS,
        error='urn:ietf:params:acme:error:caa: a CAA record prevents issuance: 0 issue "zerossl.com"',
    ),
    Trouble(
        name="old.bank.example",
        left=-2 * HOUR,
        attempts=9,
        last=3 * HOUR,
        reason=Reason.VALIDATION_FAILED,
        owner="banking",
        error="urn:ietf:params:acme:error:connection: 192.0.2.44: Connection refused",
    ),
    Trouble(
        name="api.shop.example",
        names=2,
        left=14.8 * DAY,
        attempts=3,
        last=0.8 * HOUR,
        reason=Reason.DNS_TXT_NOT_VISIBLE,
        error="_acme-challenge.api.shop.example is missing at ns3.dns.example and ns4.dns.example",
    ),
    Trouble(
        name="smtp.corp.example",
        issuer="zerossl",
        owner="platform",
        left=6.45 * DAY,
        attempts=5,
        last=6.6 * HOUR,
        reason=Reason.PROOF_NOT_VISIBLE,
        error="http://smtp.corp.example/.well-known/acme-challenge/… answers 404 from outside",
    ),
    Trouble(
        name="idp.corp.example",
        names=3,
        issuer="corp",
        owner="identity",
        left=4.1 * DAY,
        under_way=IssuanceState.AWAITING_APPROVAL,
        approval=True,
    ),
    Trouble(
        name="sso.corp.example",
        issuer="corp",
        owner="identity",
        left=6 * DAY,
        under_way=IssuanceState.AWAITING_APPROVAL,
        approval=True,
    ),
    Trouble(
        name="hsm.bank.example",
        issuer="corp",
        owner="banking",
        left=8 * DAY,
        under_way=IssuanceState.AWAITING_APPROVAL,
        approval=True,
    ),
    Trouble(name="registry.corp.example", issuer="corp", owner="platform", left=12 * DAY, revoked=True),
    Trouble(
        name="git.corp.example", issuer="zerossl", owner="platform", left=15.2 * DAY, under_way=IssuanceState.WAITING
    ),
    Trouble(name="*.edge.example.net", names=2, owner="network", left=16.5 * DAY, under_way=IssuanceState.PROVING),
    Trouble(name="media.shop.example", owner="web", left=8 * DAY, under_way=IssuanceState.REQUESTED, waits="BUDGET"),
    Trouble(
        name="cdn.shop.example", names=4, owner="web", left=8.2 * DAY, under_way=IssuanceState.REQUESTED, waits="BUDGET"
    ),
    Trouble(name="legacy.bank.example", issuer="digicert", owner="banking", left=10.3 * DAY, waits="ISSUER_PAUSED"),
    Trouble(name="tms.bank.example", issuer="digicert", owner="banking", left=12.3 * DAY, waits="ISSUER_PAUSED"),
    Trouble(name="ntp.lab.example", issuer="vault-lab", owner="lab", left=9.3 * DAY, state=CertificateState.PAUSED),
    Trouble(name="probe.lab.example", issuer="vault-lab", owner="lab", left=11.3 * DAY, state=CertificateState.PAUSED),
    Trouble(
        name="stage.shop.example",
        owner="web",
        left=21 * DAY,
        attempts=1,
        last=0.5 * HOUR,
        reason=Reason.CA_DOWN,
        error="https://acme.letsencrypt.example/directory answered 503 Service Unavailable",
    ),
    Trouble(
        name="beta.shop.example",
        owner="web",
        left=22 * DAY,
        attempts=2,
        last=1.1 * HOUR,
        reason=Reason.NONCES_REFUSED,
        error="urn:ietf:params:acme:error:badNonce",
    ),
)


def made_id(kind: str, key: str) -> str:
    """The same for the same thing, wherever the story is told."""
    alphabet = "0123456789abcdefghjkmnpqrstvwxyz"
    value, text = int(spread(f"{kind} {key}") * 2**53) << 60 | int(spread(f"{key} {kind}") * 2**53), ""
    for _ in range(22):
        value, digit = divmod(value, 32)
        text = alphabet[digit] + text
    return f"{kind}_01kd{text}"
