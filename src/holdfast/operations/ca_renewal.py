"""The issuer of one of our CAs for another span: same name, same key, a later end, at the same addresses."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from holdfast.operations import ca as cas
from holdfast.operations import root_lists
from holdfast.operations.ca import CaRefused
from holdfast.operations.vault import Vault
from holdfast.pki import keys
from holdfast.pki.ceremony import certify_again
from holdfast.pki.chain import ordered, parse_bundle, without_root
from holdfast.pki.issuer import Issuer, open_issuer
from holdfast.store import cas as rows
from holdfast.store import journal
from holdfast.store.cas import CaRow
from holdfast.store.tx import Tx

YEARS: Final = 5


async def renewed(vault: Vault, ca: str, *, years: int, chain: bytes | None, crl_url: str | None = None) -> CaRow:
    """The CA as it would be; nothing is written. Without a chain the root signs, if its key is kept here."""
    row = await cas.get(vault.db, ca)
    now = await vault.db.read(lambda tx: tx.now())
    return await _signed_here(vault, row, years, now, crl_url) if chain is None else _brought(row, chain, now)


async def renew(
    vault: Vault, ca: str, *, years: int, chain: bytes | None, actor: str, crl_url: str | None = None
) -> CaRow:
    """Orders under way are not disturbed: what an issuer gives to a certificate, its name and key, stays.

    If the root signs and `crl_url` says where its list is found, that list is kept from now on.
    """
    row = await renewed(vault, ca, years=years, chain=chain, crl_url=crl_url)
    listed = await root_lists.next_list(vault, row) if chain is None and crl_url is not None else None

    def write(tx: Tx) -> CaRow:
        older = rows.get(tx, ca)
        if older is None or older.version != row.version:
            raise CaRefused(f"CA {ca!r} was changed meanwhile; its issuer is as it was.", "Try again.")
        was, is_now = _ends(older), _ends(row)
        journal.audit(tx, "ca_issuer_renewed", ca, actor=actor, before=was, after=is_now)
        journal.event(tx, "ca.issuer_renewed", ca, **is_now)
        if listed is not None:
            root_lists.keep(tx, listed, vault.keyring.random.new_id("job"))
        return rows.save(tx, row)

    return await vault.db.write(write)


async def _signed_here(vault: Vault, row: CaRow, years: int, now: datetime, crl_url: str | None) -> CaRow:
    if row.root_secret is None:
        hint = f"Where it is: holdfast pki recertify. Then here: holdfast ca renew-issuer {row.id} --chain FILE"
        raise CaRefused(f"The key of the root of CA {row.id!r} is not kept here.", hint)
    root = x509.load_pem_x509_certificate(row.root.encode())
    root_key = keys.from_pem(await vault.reveal(row.root_secret))
    older = x509.load_der_x509_certificate(row.certificate)
    made = certify_again(older, root, root_key, years=years, now=now, random=vault.keyring.random, crl_url=crl_url)
    return replace(row, certificate=made.public_bytes(Encoding.DER))


def _brought(row: CaRow, pem: bytes, now: datetime) -> CaRow:
    """A certificate that was signed elsewhere, with what leads to its root."""
    older = x509.load_der_x509_certificate(row.certificate)
    chain = ordered(parse_bundle(pem))
    issuer, above = chain[0], without_root(chain)[1:]
    if (issuer.subject, issuer.public_key()) != (older.subject, older.public_key()):
        hint = "A new key makes another CA: holdfast ca adopt. The old one's lists go on beside it."
        raise CaRefused(f"This is not the issuer of CA {row.id!r} again: its name or its key is another.", hint)
    if issuer.not_valid_after_utc <= older.not_valid_after_utc:
        raise CaRefused(f"This one ends {_day(issuer)}, and the one in use not before {_day(older)}.")
    root = cas.root_of(chain, dev=row.options.dev)
    open_issuer(Issuer(id=row.id, certificate=issuer, above=above), dev=row.options.dev, now=now)
    return replace(
        row,
        certificate=issuer.public_bytes(Encoding.DER),
        above="".join(map(cas.to_pem, above)),
        root=cas.to_pem(root),
    )


def _ends(row: CaRow) -> dict[str, str]:
    issuer = x509.load_der_x509_certificate(row.certificate)
    return {"serial": f"{issuer.serial_number:x}", "ends": f"{issuer.not_valid_after_utc:%FT%TZ}"}


def _day(certificate: x509.Certificate) -> str:
    return f"{certificate.not_valid_after_utc:%F}"
