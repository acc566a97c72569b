"""Tokens: made once and shown once, known by a hash, refused when they are old, and revoked for good."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

from holdfast.core import base64url
from holdfast.errors import UserError
from holdfast.operations.access import RIGHTS, Principal, Role
from holdfast.ports import Random
from holdfast.secret import Secret
from holdfast.store import journal, tokens
from holdfast.store.database import Store
from holdfast.store.marks import brief, relaxed
from holdfast.store.tokens import TokenRow
from holdfast.store.tx import Tx

MARK: Final = "hf"  # by which scanners of logs and repositories find one
_FORM: Final = re.compile(rf"{MARK}_([0-9a-z]{{1,40}})_([A-Za-z0-9_-]{{43}})")
_NAME: Final = re.compile(r"[\w.@+-]{1,80}", re.ASCII)
KINDS: Final = ("human", "robot", "agent")
FIRST_FOR: Final = timedelta(days=1)
USED_EVERY: Final = timedelta(minutes=1)  # last use is known this well, and costs one write in that time


class Unauthenticated(UserError):
    status, code = 401, "unauthenticated"

    def __init__(self, problem: str = "This needs a token that is known here and neither expired nor revoked.") -> None:
        super().__init__(problem)
        self.hint = "Set HOLDFAST_TOKEN. On the server's machine: holdfast token create NAME"


class NoSuchToken(UserError):
    status, code = 404, "no-such-token"

    def __init__(self, token: str) -> None:
        super().__init__(f"There is no token {token!r:.60}.")
        self.hint = "See what there is: holdfast token ls"


class TokenRefused(UserError):
    status, code = 400, "token-refused"

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.hint = hint or "See: holdfast token create --help"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What a token is to stand for."""

    name: str
    role: Role
    kind: str = ""  # left out: an agent for the role of one, else a human
    rights: frozenset[str] = frozenset()
    owners: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    lives_for: timedelta | None = timedelta(days=90)

    def check(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise TokenRefused("The name of a token's user has 1 to 80 letters, digits and . @ + _ -")
        if self.kind not in ("", *KINDS) or self.role is Role.FIRST:
            raise TokenRefused(f"There is no {self.kind!r:.20} with role {self.role.value!r}.")
        if not self.rights <= RIGHTS:
            raise TokenRefused("There is no such right.", f"There are: {', '.join(sorted(RIGHTS))}.")
        if self.role is Role.AGENT and not (self.owners or self.labels):
            raise TokenRefused("An agent's token is for some certificates only.", "Give it an owner or a label.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    row: TokenRow
    token: Secret[str]  # shown once


async def create(db: Store, random: Random, grant: Grant, *, by: Principal | str) -> Made:
    """Nobody gives what they do not have: what an admin who is confined makes is confined as well."""
    grant.check()
    if isinstance(by, Principal):
        _within(grant, by)
    token_id, token = _drawn(random)

    def write(tx: Tx) -> TokenRow:
        actor = by if isinstance(by, str) else by.actor
        row = _row(tx, token_id, token, grant, actor)
        tokens.insert(tx, row)
        journal.audit(
            tx, "token_created", row.id, actor=actor, after=_decided(row), name=row.name, role=row.role,
            rights=sorted(row.rights),
            owners=list(row.owners), labels=dict(row.labels),
            expires=None if row.expires_at is None else row.expires_at.isoformat(),
        )  # fmt: skip
        journal.event(tx, "token.created", row.id, user=row.name, role=row.role)
        if tokens.revoke_first(tx):
            journal.audit(tx, "token_revoked", "first", actor=actor, why="somebody was let in")
        return row

    return Made(row=await db.write(write), token=token)


def _within(grant: Grant, by: Principal) -> None:
    if by.role is Role.FIRST:
        if grant.role is not Role.ADMIN:
            raise TokenRefused("The first token lets an admin in.", "That admin can make all others.")
        return
    if not grant.rights <= by.rights:
        raise TokenRefused("You do not have the right that you want to give.", "Somebody who has it can give it.")
    if by.confined:
        raise TokenRefused("Your token is confined, and those that it would make are not.", "Ask another admin.")


def _drawn(random: Random) -> tuple[str, Secret[str]]:
    token_id = random.new_id("t").removeprefix("t_")
    return token_id, Secret(f"{MARK}_{token_id}_{base64url.encode(random.token(32))}")


def _row(tx: Tx, token_id: str, token: Secret[str], grant: Grant, actor: str) -> TokenRow:
    now = tx.now()
    return TokenRow(
        id=token_id,
        hash=_hash(token),
        name=grant.name,
        kind=grant.kind or ("agent" if grant.role is Role.AGENT else "human"),
        role=grant.role.value,
        rights=grant.rights,
        owners=grant.owners,
        labels=grant.labels,
        created_by=actor,
        created_at=now,
        expires_at=None if grant.lives_for is None else now + grant.lives_for,
    )


def _decided(row: TokenRow) -> dict[str, Any]:
    """Of this the audit log has digests; its hash is nobody's business, not even as a digest."""
    good = row.revoked_at is None
    return {"name": row.name, "role": row.role, "rights": row.rights, "owners": row.owners, "labels": row.labels,
            "expires": row.expires_at, "good": good}  # fmt: skip


def _hash(token: Secret[str]) -> str:
    """A plain hash is enough for 256 random bits: there is nothing to guess."""
    return hashlib.sha256(token.reveal().encode()).hexdigest()


async def first(db: Store, random: Random) -> Secret[str] | None:
    """On a store that nobody was let into yet: a token that makes one admin, within a day; else None."""
    token_id, token = _drawn(random)
    grant = Grant(name="first", role=Role.FIRST, lives_for=FIRST_FOR)

    def write(tx: Tx) -> bool:
        if tokens.any_made(tx):
            return False
        tokens.revoke_first(tx)  # one that was shown at an earlier start, to nobody
        made = tokens.insert(tx, _row(tx, token_id, token, grant, journal.SYSTEM))
        if made:
            journal.audit(tx, "token_created", token_id, name="first", role="first")
        return made

    return token if await db.write(write) else None


async def authenticate(db: Store, token: Secret[str]) -> Principal:
    """Whom a token stands for; Unauthenticated for every other text, without saying why."""
    form = _FORM.fullmatch(token.reveal())
    if form is None:
        raise Unauthenticated

    def read(tx: Tx) -> tuple[TokenRow | None, bool]:
        row, now = tokens.get(tx, form[1]), tx.now()
        good = row is not None and hmac.compare_digest(row.hash, _hash(token)) and row.good_at(now)
        stale = row is not None and (row.last_used_at is None or now - row.last_used_at > USED_EVERY)
        return (row, stale) if good else (None, False)

    row, stale = await db.read(brief(read))
    if row is None:
        raise Unauthenticated
    if stale:
        await db.write(relaxed(lambda tx: tokens.used(tx, row.id, tx.now())))
    return Principal(
        id=row.id,
        name=row.name,
        kind=row.kind,
        role=Role(row.role),
        rights=row.rights,
        owners=row.owners,
        labels=row.labels,
    )


def check_still_good(tx: Tx, principal: Principal) -> None:
    """For whoever was let in a while ago. Nobody revokes a user of this machine but the machine."""
    if principal.kind != "local":
        row = tokens.get(tx, principal.id)
        if row is None or not row.good_at(tx.now()):
            raise Unauthenticated


async def is_good(db: Store, token: Secret[str]) -> bool:
    """Whether it would let somebody in now; looking is not using it."""
    form = _FORM.fullmatch(token.reveal())
    if form is None:
        return False

    def read(tx: Tx) -> bool:
        row = tokens.get(tx, form[1])
        return row is not None and hmac.compare_digest(row.hash, _hash(token)) and row.good_at(tx.now())

    return await db.read(read)


async def listed(db: Store, *, after: str = "", limit: int = 100) -> list[TokenRow]:
    return await db.read(lambda tx: tokens.page(tx, after=after, limit=limit))


async def revoke(db: Store, token: str, *, actor: str) -> TokenRow:
    """For good; repeating it changes nothing."""

    def write(tx: Tx) -> TokenRow:
        row = tokens.get(tx, token) or tokens.by_prefix(tx, token)
        if row is None:
            raise NoSuchToken(token)
        if tokens.revoke(tx, row.id):
            after = replace(row, revoked_at=tx.now())
            journal.audit(
                tx, "token_revoked", row.id, actor=actor, before=_decided(row), after=_decided(after), name=row.name
            )
            journal.event(tx, "token.revoked", row.id, user=row.name)
        return tokens.get(tx, row.id) or row

    return await db.write(write)
