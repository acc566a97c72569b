"""How far the orders and certificates of one of our CAs have come, in numbers, and the CRLs that it has published."""

from __future__ import annotations

from datetime import datetime, timedelta

from cryptography import x509
from pydantic import BaseModel, Field

from holdfast.operations.access import Action
from holdfast.operations.context import Context
from holdfast.operations.operation import operation
from holdfast.operations.own_ca import manage as making
from holdfast.operations.own_ca import root_crls
from holdfast.operations.own_ca.cas import CaRef
from holdfast.operations.scopes import INSTALLATION
from holdfast.store.acme import orders
from holdfast.store.own_ca import certificates, crls
from holdfast.store.tx import Tx

DAY = timedelta(days=1)


class Stage(BaseModel):
    stage: str
    number: int
    oldest_at: datetime | None = Field(description="Since when the oldest is at this stage; null: there is none.")


class PublishedCrl(BaseModel):
    name: str = Field(description="The number of its shard; root: the CRL of the root.")
    number: int
    entries: int
    this_update: datetime
    next_update: datetime


class CaStages(BaseModel):
    orders: list[Stage] = Field(description="Orders under way: pending, ready, processing.")
    deliveries: list[Stage] = Field(description="Certificates of the last 24 hours, by the evidence of their delivery.")
    valid: int = Field(description="Certificates that are neither expired nor revoked.")
    crls: list[PublishedCrl]


@operation(
    "ca.stages",
    "GET /cas/{ca}/stages",
    command="ca stages",
    action=Action.SEE_CAS,
    scope=INSTALLATION,
    offline=True,
    example="holdfast ca stages internal",
)
def show_stages(tx: Tx, ctx: Context, asked: CaRef) -> CaStages:
    """Show how many orders of a CA of ours are at each stage, how certificates are delivered, and its CRLs."""
    row, now = making.found(tx, asked.ca), tx.now()
    under_way = orders.stages(tx, row.id)
    levels = certificates.levels(tx, row.id, since=now - DAY)
    published = [each for shard in range(row.options.shards) if (each := crls.get(tx, row.id, shard)) is not None]
    lists = [_crl(str(each.shard), each.number, each.this_update, each.next_update, each.der) for each in published]
    root = crls.get_root_crl(tx, root_crls.mark_of(row.root)) if row.root else None
    if root is not None:
        lists.append(_crl("root", root.number, root.this_update, root.next_update, root.der))
    return CaStages(
        orders=[Stage(stage=name, number=number, oldest_at=oldest) for name, number, oldest in under_way],
        deliveries=[Stage(stage=name, number=number, oldest_at=oldest) for name, number, oldest in levels],
        valid=certificates.valid(tx, row.id, now),
        crls=lists,
    )


def _crl(name: str, number: int, this_update: datetime, next_update: datetime, der: bytes) -> PublishedCrl:
    entries = len(x509.load_der_x509_crl(der))
    return PublishedCrl(name=name, number=number, entries=entries, this_update=this_update, next_update=next_update)
