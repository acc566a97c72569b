"""Tokens: made and shown once, known by a hash, refused after they expire, revoked for good; and the first token."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import BaseModel, Field, StringConstraints

from holdfast.core import base64url
from holdfast.core.access import Role, TokenKind, TokenRow
from holdfast.errors import UserError
from holdfast.operations.access import RIGHTS, Action, Principal
from holdfast.operations.context import Context
from holdfast.operations.inputs import Input, Labels, Nothing, OneOf, Option, OwnerName, Page, Paged, from_row, paged
from holdfast.operations.operation import Face, operation
from holdfast.operations.scopes import INSTALLATION
from holdfast.ports import Files, Random
from holdfast.secret import Secret
from holdfast.store import access, journal, people
from holdfast.store.database import Store
from holdfast.store.marks import inline, no_fsync
from holdfast.store.tx import Tx

MARK: Final = "hf"  # by which scanners of logs and repositories find one
_FORM: Final = re.compile(rf"{MARK}_([0-9a-z]{{1,40}})_([A-Za-z0-9_-]{{43}})")
_NAME: Final = re.compile(r"[\w.@+-]{1,80}", re.ASCII)
FIRST_FOR: Final = timedelta(days=1)
USED_EVERY: Final = timedelta(minutes=1)  # last use is known this well, and costs one write in that time


class Unauthenticated(UserError):
    status, code = 401, "unauthenticated"

    def __init__(self, problem: str = "The token is missing, unknown, expired or revoked.") -> None:
        super().__init__(problem)
        self.hint = "Log in, or set HOLDFAST_TOKEN to a good one. On the server's machine: holdfast token create NAME"


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
        if self.kind not in ("", *TokenKind) or self.role is Role.FIRST:
            raise TokenRefused(f"There is no {self.kind!r:.20} with role {self.role.value!r}.")
        if not self.rights <= RIGHTS:
            raise TokenRefused("There is no such right.", f"There are: {', '.join(sorted(RIGHTS))}.")
        if self.role is Role.AGENT and not (self.owners or self.labels):
            raise TokenRefused("An agent's token is for some certificates only.", "Give it an owner or a label.")


class NewSecret(NamedTuple):
    """A token before it is kept: drawn outside the transaction, which may run more than once."""

    id: str
    token: Secret[str]  # shown once


def create(tx: Tx, made: NewSecret, grant: Grant, *, by: Principal | str) -> TokenRow:
    """No admin gives what that admin does not have: what a confined admin would make is refused."""
    grant.check()
    if isinstance(by, Principal):
        check_still_good(tx, by)
        _within(grant, by)
    actor = by if isinstance(by, str) else by.actor
    row = _row(tx, made.id, made.token, grant, actor)
    access.insert_token(tx, row)
    journal.audit(
        tx, "token_created", row.id, actor=actor, after=_decided(row), name=row.name, role=row.role,
        rights=sorted(row.rights),
        owners=list(row.owners), labels=dict(row.labels),
        expires=None if row.expires_at is None else row.expires_at.isoformat(),
    )  # fmt: skip
    journal.event(tx, "token.created", row.id, user=row.name, role=row.role)
    used = access.revoke_first_token(tx)
    if used:
        journal.audit(tx, "token_revoked", "first", actor=actor, why="another token was made")
    elif isinstance(by, Principal) and by.role is Role.FIRST:
        raise Unauthenticated  # another request used it, in a transaction beside this one
    return row


def _within(grant: Grant, by: Principal) -> None:
    if by.role is Role.FIRST:
        if grant.role is not Role.ADMIN:
            raise TokenRefused("The first token lets an admin in.", "That admin can make all others.")
        return
    if not grant.rights <= by.rights:
        raise TokenRefused("You do not have the right that you want to give.", "A user who has this right can give it.")
    if by.confined:
        raise TokenRefused("Your token is confined, and those that it would make are not.", "Ask another admin.")


def drawn(random: Random) -> NewSecret:
    token_id = random.new_id("t").removeprefix("t_")
    return NewSecret(token_id, Secret(f"{MARK}_{token_id}_{base64url.encode(random.token(32))}"))


def _row(tx: Tx, token_id: str, token: Secret[str], grant: Grant, actor: str) -> TokenRow:
    now = tx.now()
    return TokenRow(
        id=token_id,
        hash=_hash(token),
        name=grant.name,
        kind=TokenKind(grant.kind or (TokenKind.AGENT if grant.role is Role.AGENT else TokenKind.HUMAN)),
        role=grant.role,
        rights=grant.rights,
        owners=grant.owners,
        labels=grant.labels,
        created_by=actor,
        created_at=now,
        expires_at=None if grant.lives_for is None else now + grant.lives_for,
    )


def _decided(row: TokenRow) -> dict[str, object]:
    """The fields of a token that the audit log has digests of; its hash is not among them."""
    good = row.revoked_at is None
    return {"name": row.name, "role": row.role, "rights": row.rights, "owners": row.owners, "labels": row.labels,
            "expires": row.expires_at, "good": good}  # fmt: skip


def _hash(token: Secret[str]) -> str:
    """A plain hash is enough for 256 random bits: there is nothing to guess."""
    return hashlib.sha256(token.reveal().encode()).hexdigest()


async def first(db: Store, random: Random) -> Secret[str] | None:
    """On a store without tokens, make the first token: within a day, it can make one admin. Else None."""
    token_id, token = drawn(random)
    grant = Grant(name="first", role=Role.FIRST, lives_for=FIRST_FOR)

    def write(tx: Tx) -> bool:
        if access.any_token_made(tx):
            return False
        access.revoke_first_token(tx)  # one of an earlier start, which was never used
        made = access.insert_token(tx, _row(tx, token_id, token, grant, journal.SYSTEM))
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
        row, now = access.get_token(tx, form[1]), tx.now()
        good = row is not None and hmac.compare_digest(row.hash, _hash(token)) and row.good_at(now)
        stale = row is not None and (row.last_used_at is None or now - row.last_used_at > USED_EVERY)
        return (row, stale) if good else (None, False)

    row, stale = await db.read(inline(read))
    if row is None:
        raise Unauthenticated
    if stale:
        await db.write(no_fsync(lambda tx: access.token_used(tx, row.id, tx.now())))
    return Principal(
        id=row.id,
        name=row.name,
        kind=row.kind,
        role=row.role,
        rights=row.rights,
        owners=row.owners,
        labels=row.labels,
    )


def check_still_good(tx: Tx, principal: Principal) -> None:
    """Raise Unauthenticated if the principal's token or session is no longer good. A local user has neither."""
    if principal.by_session:
        if not people.session_lives(tx, principal.id):
            raise Unauthenticated
    elif principal.kind != "local":
        row = access.get_token(tx, principal.id)
        if row is None or not row.good_at(tx.now()):
            raise Unauthenticated


async def is_good(db: Store, token: Secret[str]) -> bool:
    """Whether a token is good now. This does not count as a use of it."""
    form = _FORM.fullmatch(token.reveal())
    if form is None:
        return False

    def read(tx: Tx) -> bool:
        row = access.get_token(tx, form[1])
        return row is not None and hmac.compare_digest(row.hash, _hash(token)) and row.good_at(tx.now())

    return await db.read(read)


# ── Operations ──


class TokenRef(Input):
    token: Annotated[str, Option(metavar="TOKEN")] = Field(
        max_length=100, description="The token's id, or a prefix of it; never the token itself."
    )


RoleName = Literal["admin", "operator", "viewer", "auditor", "agent"]


class Token(BaseModel):
    id: str
    name: str
    kind: str
    role: str
    rights: list[str]
    owners: list[str]
    labels: dict[str, str]
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None


class NewToken(Input):
    name: Annotated[
        str, StringConstraints(pattern=r"^[A-Za-z0-9_.@+-]{1,80}$"), Option(argument=True, metavar="NAME")
    ] = Field(description="Who will use it.")
    role: RoleName = Field(default="viewer", description="What it may do.")
    kind: Annotated[str, OneOf(TokenKind)] | None = Field(
        default=None, description="Who will use it; left out: an agent for the role agent, else a human."
    )
    rights: list[Literal["export"]] = Field(default=[], max_length=1, description="export: it may export private keys.")
    owners: list[OwnerName] = Field(default=[], max_length=32, description="Only for certificates of this owner.")
    labels: Annotated[Labels, Option(short="-l")] = Field(
        default={}, description="Only for certificates with this label."
    )
    expires_in_s: Annotated[int | None, Option(flag="--expires", read="duration")] = Field(
        default=90 * 86400, gt=0, le=10**9, description="When it expires, such as 90d; null or never: it does not."
    )


class MadeToken(Token):
    token: str = Field(description="Shown this once: only a hash of it is kept.")


class Self(BaseModel):
    actor: str
    role: str
    rights: list[str]
    owners: list[str]
    labels: dict[str, str]


def shown(row: TokenRow) -> Token:
    return from_row(Token, row, **_lists(row))


def _lists(row: TokenRow) -> dict[str, object]:
    return {"rights": sorted(row.rights), "owners": list(row.owners)}


@operation("tokens.self", "GET /self", command="token whoami", action=Action.SEE_SELF, scope=INSTALLATION)
def who_am_i(tx: Tx, ctx: Context, asked: Nothing) -> Self:
    """Show whom your token stands for, and what it may do."""
    who = ctx.principal
    return Self(
        actor=who.actor, role=who.role, rights=sorted(who.rights), owners=list(who.owners), labels=dict(who.labels)
    )


@operation("tokens.list", "GET /tokens", command="token ls", action=Action.SEE_TOKENS, scope=INSTALLATION)
def list_tokens(tx: Tx, ctx: Context, asked: Paged) -> Page[Token]:
    """List the tokens: whom each stands for, when it expires, and when it was last used. Never a token itself."""
    return paged(asked, lambda after, limit: access.token_page(tx, after=after, limit=limit), lambda row: row.id, shown)


@operation(
    "tokens.create",
    "POST /tokens",
    command="token create",
    action=Action.MAKE_TOKENS,
    scope=INSTALLATION,
    status=201,
    example="holdfast token create ci --kind robot --role operator",
    not_on={Face.MCP: "Its result is a secret, and an assistant must not see one."},
)
async def create_token(ctx: Context, asked: NewToken) -> MadeToken:
    """Create a token. It is shown this once: only a hash of it is kept.

    So an Idempotency-Key is not kept here. The first token of an installation expires with this.
    """
    grant = Grant(
        name=asked.name,
        role=Role(asked.role),
        kind=asked.kind or "",
        rights=frozenset(asked.rights),
        owners=tuple(asked.owners),
        labels=dict(asked.labels),
        lives_for=None if asked.expires_in_s is None else timedelta(seconds=asked.expires_in_s),
    )
    new = drawn(ctx.certificate_context.random)
    row = await ctx.write(lambda tx: create(tx, new, grant, by=ctx.principal))
    return from_row(MadeToken, row, **_lists(row), token="" if ctx.dry_run else new.token.reveal())


@operation(
    "tokens.revoke",
    "POST /tokens/{token}/revoke",
    command="token revoke",
    action=Action.REVOKE_TOKENS,
    scope=INSTALLATION,
    destructive=True,
    keyed=False,
    done="Token {id} is revoked.",
)
def revoke_token(tx: Tx, ctx: Context, asked: TokenRef) -> Token:
    """Revoke a token for good, from the next request on.

    Repeating it changes nothing, so an Idempotency-Key is not kept here.
    """
    return shown(revoke(tx, asked.token, actor=ctx.actor))


def revoke(tx: Tx, token: str, *, actor: str) -> TokenRow:
    row = access.get_token(tx, token) or access.token_by_prefix(tx, token)
    if row is None:
        raise NoSuchToken(token)
    if access.revoke_token(tx, row.id):
        after = replace(row, revoked_at=tx.now())
        journal.audit(
            tx, "token_revoked", row.id, actor=actor, before=_decided(row), after=_decided(after), name=row.name
        )
        journal.event(tx, "token.revoked", row.id, user=row.name)
    return access.get_token(tx, row.id) or row


_FIRST_FILE: Final = "first-token"


async def leave_first_token(db: Store, random: Random, files: Files, folder: Path) -> Path | None:
    """Write the first token to a file; None if there is a token already. OSError if the folder cannot be written to."""
    made = await first(db, random)
    if made is None:
        return None
    files.write_private(folder / _FIRST_FILE, f"{made.reveal()}\n".encode(), replace=True)
    return folder / _FIRST_FILE


async def remove_first_token(db: Store, files: Files, folder: Path) -> int:
    """Take the file away once its token is used, too old, or replaced by that of another replica."""
    kept = files.read(folder / _FIRST_FILE)
    if kept is None or await is_good(db, Secret(kept.decode(errors="replace").strip())):
        return 0
    files.remove_within(folder, _FIRST_FILE)
    return 1
