"""Keys for external account binding: each lets one ACME account in."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field

from holdfast.core import base64url
from holdfast.core.own_ca.acme import EabKey as EabKeyRow
from holdfast.operations.access import Action
from holdfast.operations.context import Context, Transaction
from holdfast.operations.inputs import (
    Input,
    Option,
    OwnerName,
    Page,
    Paged,
    Short,
    from_row,
    paged,
)
from holdfast.operations.installation.secret_store import eab_mac
from holdfast.operations.operation import Face, operation
from holdfast.operations.own_ca import manage as making
from holdfast.operations.own_ca.clients import AlreadySo, CaFilter, Id, NotFound, check_filter
from holdfast.operations.own_ca.manage import CaRefused, check_pattern
from holdfast.operations.scopes import INSTALLATION
from holdfast.secret import Secret
from holdfast.store import journal, secrets
from holdfast.store.acme import accounts
from holdfast.store.tx import Tx

MAC_SIZE: Final = 32  # octets: what HS256 can use (RFC 8555 §7.3.4)
MAX_NOTE: Final = 200


class NewEabKey(Input):
    ca: Annotated[Short, Option(argument=True)] = Field(
        max_length=100, description="The CA that its account will belong to."
    )
    names: list[Annotated[str, Field(max_length=300)]] = Field(
        default=[],
        max_length=1000,
        description="Patterns of names that a CA of mode trust gives its account without a challenge.",
    )
    owner: OwnerName = Field(default="", description="Whose its account will be: policies of this owner hold for it.")
    note: str = Field(default="", max_length=1000, description="Whom it is for.")
    lives_for_s: Annotated[int | None, Option(flag="--lifetime", read="duration")] = Field(
        default=None, ge=1, le=10**10, description="An account can be bound with it for so long."
    )


class ListEabKeys(Paged):
    ca: CaFilter = None


class EabKeyRef(Input):
    kid: Annotated[Id, Option(help="The key id, as `ca eab ls` shows it.")]


class EabKeyView(BaseModel):
    kid: str
    ca: str
    state: Literal["free", "bound", "revoked"]
    account: str | None
    names: list[str]
    owner: str
    note: str
    created_at: datetime
    expires_at: datetime | None


class EabKeyCreated(EabKeyView):
    mac: str = Field(description="The HMAC key in base64url. It is shown only now; empty if it was only tried.")


def _eab_key(row: EabKeyRow) -> EabKeyView:
    state = "revoked" if row.revoked_at else "bound" if row.account else "free"
    return from_row(EabKeyView, row, state=state, names=list(row.names))


@operation(
    "eab.create",
    "POST /acme/eab-keys",
    command="ca eab create",
    action=Action.CHANGE_ACME_CLIENTS,
    scope=INSTALLATION,
    status=201,
    keyed=False,  # a kept answer would hold the MAC key
    offline=True,
    not_on={Face.MCP: "It returns a MAC key, which must not pass through an assistant."},
    example="holdfast ca eab create internal --name '*.example.internal' --note 'web team'",
)
async def create_eab_key(ctx: Context, asked: NewEabKey) -> Transaction[EabKeyCreated]:
    """Create a key for external account binding: it lets one account in. Its MAC key is shown only now.

    So an Idempotency-Key is not kept here.
    """
    for pattern in asked.names:
        check_pattern(pattern)
    if len(asked.note) > MAX_NOTE or not asked.note.isprintable():
        raise CaRefused(f"A note has at most {MAX_NOTE} printable characters.")
    await ctx.read(lambda tx: making.found(tx, asked.ca))
    mac = Secret(ctx.certificate_context.random.token(MAC_SIZE))
    kid = ctx.ids.new("eab")
    sealed = await ctx.certificate_context.secret_store.seal(mac, eab_mac(kid))

    def write(tx: Tx) -> EabKeyCreated:
        making.found(tx, asked.ca)
        secrets.put(tx, sealed)
        row = EabKeyRow(
            kid=kid,
            ca=asked.ca,
            secret_id=sealed.id,
            names=tuple(pattern.lower() for pattern in asked.names),
            owner=asked.owner,
            note=asked.note,
            created_at=tx.now(),
            expires_at=None if asked.lives_for_s is None else tx.now() + timedelta(seconds=asked.lives_for_s),
        )
        accounts.insert_eab_key(tx, row)
        facts = {"ca": asked.ca, "names": list(row.names), "owner": asked.owner, "note": asked.note}
        journal.audit(tx, "eab_key_created", row.kid, actor=ctx.actor, after={"good": True, **facts}, **facts)
        told = "" if ctx.dry_run else base64url.encode(mac.reveal())
        return EabKeyCreated(**dict(_eab_key(row)), mac=told)

    return write


@operation(
    "eab.list",
    "GET /acme/eab-keys",
    command="ca eab ls",
    action=Action.SEE_CAS,
    scope=INSTALLATION,
    offline=True,
    example="holdfast ca eab ls internal",
)
def list_eab_keys(tx: Tx, ctx: Context, asked: ListEabKeys) -> Page[EabKeyView]:
    """List the keys for external account binding, without their MAC keys."""
    check_filter(tx, asked.ca)
    read = lambda after, most: accounts.eab_key_page(tx, asked.ca, after=after, limit=most)  # noqa: E731
    return paged(asked, read, lambda row: row.kid, _eab_key)


@operation(
    "eab.revoke",
    "POST /acme/eab-keys/{kid}/revoke",
    command="ca eab revoke",
    action=Action.CHANGE_ACME_CLIENTS,
    scope=INSTALLATION,
    destructive=True,
    offline=True,
    example="holdfast ca eab revoke eab_01",
)
def revoke_eab_key(tx: Tx, ctx: Context, asked: EabKeyRef) -> EabKeyView:
    """Revoke an EAB key: no account can be bound with it any more. An account that is bound stays."""
    found = accounts.get_eab_key(tx, asked.kid)
    if found is None:
        raise NotFound(f"EAB key {asked.kid}", "See what there is: holdfast ca eab ls")
    if found.revoked_at is not None:
        raise AlreadySo(f"EAB key {asked.kid} is revoked already.")
    accounts.revoke_eab_key(tx, asked.kid)
    journal.audit(tx, "eab_key_revoked", asked.kid, actor=ctx.actor, before={"good": True}, after={"good": False})
    return _eab_key(accounts.get_eab_key(tx, asked.kid) or found)
