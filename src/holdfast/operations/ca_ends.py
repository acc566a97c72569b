"""When the issuers of our own CAs end, as their rows tell it."""

from __future__ import annotations

from cryptography import x509

from holdfast.core.ca_end import IssuerEnd, needed
from holdfast.store import cas
from holdfast.store.cas import CaRow
from holdfast.store.tx import Tx


def all_of(tx: Tx) -> list[IssuerEnd]:
    """Of those that are open: one that is closed signs nothing that its end could cut."""
    return [end_of(row) for row in cas.everything(tx) if row.state == "active"]


def end_of(row: CaRow) -> IssuerEnd:
    issuer = x509.load_der_x509_certificate(row.certificate)
    return IssuerEnd(
        ca=row.id,
        serial=f"{issuer.serial_number:x}",
        not_after=issuer.not_valid_after_utc,
        needs=needed(row.options),
        root_here=row.root_secret is not None,
    )
