"""What a host reports of itself: certificates that were found there, by a command on it or by an agent."""

from __future__ import annotations

import base64
import binascii
from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, Field, StringConstraints

from holdfast.core.discovery import judgement
from holdfast.core.discovery.find import FindSource
from holdfast.operations.access import Action
from holdfast.operations.context import Context
from holdfast.operations.discovery import recording
from holdfast.operations.discovery.recording import NewId, Recorded, Spot
from holdfast.operations.inputs import Input, Instant, Short
from holdfast.operations.operation import Face, operation
from holdfast.operations.scopes import INSTALLATION
from holdfast.pki.facts import Unreadable, facts_of
from holdfast.store import journal
from holdfast.store.tx import Tx

HostName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$")]
Der = Annotated[str, Field(max_length=90_000)]  # base64


class ReportedFind(Input):
    chain: list[Der] = Field(min_length=1, max_length=20, description="Certificates in DER, as base64, the leaf first.")
    place: Annotated[str, Field(min_length=1, max_length=500)] = Field(description="A path, or tls://ADDRESS:PORT.")
    served: bool = Field(default=False, description="It was shown in a handshake.")
    program: Short | None = Field(default=None, description="That listens there, or that is told to serve the file.")
    notes: Annotated[str, Field(max_length=600)] = Field(default="", description="Such as mode and owner of its key.")


class HostReport(Input):
    host: HostName = Field(description="The name of the host.")
    finds: list[ReportedFind] = Field(default=[], max_length=50)
    whole_since: Instant | None = Field(
        default=None, description="The last part of a report that began then: what was not in it is gone."
    )


class HostReported(BaseModel):
    at: datetime = Field(description="The time of the server: the next parts, and whole_since, refer to the first one.")
    recorded: int
    new: int
    unmanaged: int = Field(description="Of the new ones: served, and not managed here.")
    unreadable: int
    more: bool = Field(description="There is more to mark as gone: send the last part again.")


@operation(
    "discovery.report",
    "POST /discovery/host",
    command="discover host",
    action=Action.DISCOVER,
    scope=INSTALLATION,
    keyed=False,
    example="holdfast discover host --folder /srv/tls",
    not_on={Face.MCP: "It reads the files of a host, which an assistant cannot."},
)
def report(tx: Tx, ctx: Context, asked: HostReport) -> HostReported:
    """Look for certificates on this host: what listens, what daemons are configured with, and folders.

    Private keys are never read: of a key file, mode and owner are reported. Repeating a report is harmless, and an
    Idempotency-Key is not kept here.
    """
    return recorded(tx, asked, ctx.ids.new, actor=ctx.actor)


def recorded(tx: Tx, asked: HostReport, new_id: NewId, *, actor: str) -> HostReported:
    """One part of a report, for agents as for the command."""
    discovery = f"host:{asked.host}"
    found = [_one(tx, each, discovery, asked.host, new_id) for each in asked.finds]
    good = [each for each in found if each is not None]
    unmanaged = sum(each.new and each.find.unmanaged and each.find.served for each in good)
    more = False
    if asked.whole_since is not None:
        more = recording.left(tx, discovery, min(asked.whole_since, tx.now()))
        journal.audit(tx, "host_reported", discovery, actor=actor, host=asked.host)
    if unmanaged:
        journal.event(tx, "discovery.finished", discovery, source="host", unmanaged=unmanaged, called=asked.host)
    return HostReported(
        at=tx.now(),
        recorded=len(good),
        new=sum(each.new for each in good),
        unmanaged=unmanaged,
        unreadable=len(found) - len(good),
        more=more,
    )


def _one(tx: Tx, asked: ReportedFind, discovery: str, host: str, new_id: NewId) -> Recorded | None:
    try:
        chain = [base64.b64decode(each, validate=True) for each in asked.chain]
        facts = facts_of(chain, alone=not asked.served)
    except (binascii.Error, Unreadable):
        return None
    spot = Spot(
        source=FindSource.HOST,
        place=_printable(f"{host}: {asked.place}"),
        discovery=discovery,
        served=asked.served,
        program=_printable(asked.program or ""),
        notes=_printable(asked.notes),
        manager=judgement.manager_of(asked.place),
    )
    return recording.record(tx, facts, spot, new_id)


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)
