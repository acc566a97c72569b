"""Whether this installation may act; what was lost and found again; and its release by a person."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime

from pydantic import BaseModel, Field

from holdfast.core.installation import Mode
from holdfast.errors import UserError
from holdfast.operations.access import Action
from holdfast.operations.context import Context
from holdfast.operations.inputs import Input, NoteText, Nothing
from holdfast.operations.installation import quarantine
from holdfast.operations.operation import operation
from holdfast.operations.scopes import INSTALLATION
from holdfast.store import installation, journal
from holdfast.store.database import Database
from holdfast.store.own_ca import lost
from holdfast.store.tx import Tx


class NotInQuarantine(UserError):
    status, code = 409, "not-in-quarantine"
    hint = "There is nothing to release: holdfast restore show"

    def __init__(self, mode: str) -> None:
        super().__init__(f"This installation is not in quarantine: its mode is {mode}.")


class ReplayView(BaseModel):
    replica: str
    certificates: int = Field(description="That were signed, and were missing in the database.")
    revocations: int = Field(description="That were missing, and are applied again.")
    serials: int = Field(description="Known by their number only; holdfast ca revoke takes them.")
    damaged: int = Field(description="Lines of the witness that could not be read.")


class RestoreView(BaseModel):
    mode: str = Field(description="normal, recovering (after a failover) or quarantine (until it is released).")
    since: datetime
    why: str
    installation: str = Field(description="Its id, which copies share.")
    place: str = Field(description="Which server and database, or which file, it is in.")
    missing_s: int = Field(description="Seconds whose commits may be missing, when this was noticed.")
    replays: list[ReplayView] = Field(description="What each replica found again since.")
    serials: int = Field(description="All certificates of which only the serial number is known.")
    audit_seq: int = Field(description="The number of the newest audit entry.")


@operation(
    "restore.get",
    "GET /restore",
    command="restore show",
    action=Action.SEE_CLUSTER,
    scope=INSTALLATION,
    offline=True,
    example="holdfast restore show",
)
def show(tx: Tx, ctx: Context, asked: Nothing) -> RestoreView:
    """Show whether this installation may act, and what was found again after commits were lost."""
    return view(tx)


def view(tx: Tx) -> RestoreView:
    row = installation.get(tx)
    seq, _ = journal.audit_head(tx)
    if row is None:  # the first start of this version is still to come
        return RestoreView(mode=Mode.NORMAL, since=tx.now(), why="", installation="", place=tx.place, missing_s=0,
                           replays=[], serials=0, audit_seq=seq)  # fmt: skip
    found = [
        ReplayView(replica=each.name, certificates=each.certificates, revocations=each.revocations,
                   serials=each.serials, damaged=each.damaged)
        for each in installation.replays(tx, row.generation)
    ]  # fmt: skip
    return RestoreView(
        mode=row.mode,
        since=row.since,
        why=row.why,
        installation=row.id,
        place=row.place,
        missing_s=int(row.facts.get("missing_s", 0)),
        replays=found,
        serials=lost.serials_known(tx),
        audit_seq=seq,
    )


class Release(Input):
    why: NoteText = Field(default="", description="The reason, for the audit log.")


@operation(
    "restore.release",
    "POST /restore/release",
    command="restore release",
    action=Action.BACK_UP,
    scope=INSTALLATION,
    destructive=True,
    asks="This installation acts again: it issues, renews, deploys, revokes and tells people. No other copy may.",
    in_quarantine=True,
    example="holdfast restore release --why 'restored after the disk failed'",
    done="The installation acts again.",
)
def release(tx: Tx, ctx: Context, asked: Release) -> RestoreView:
    """Release an installation from quarantine, once its differences from the world were looked at."""
    row = installation.get(tx)
    if row is None or row.mode is not Mode.QUARANTINE:
        raise NotInQuarantine(Mode.NORMAL if row is None else row.mode)
    quarantine.released(tx, row, actor=ctx.actor)
    if asked.why:
        journal.audit(tx, "installation_noted", "installation", actor=ctx.actor, text=asked.why)
    db = ctx.certificate_context.db
    if isinstance(db, Database) and db.witness is not None:
        ctx.after_commit(_opened(db))
    return view(tx)


def _opened(db: Database) -> Callable[[], Awaitable[None]]:
    async def open_gate() -> None:
        if db.witness is not None:
            db.witness.open_gate()

    return open_gate
