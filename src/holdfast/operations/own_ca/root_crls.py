"""The lists of roots whose keys are kept here: signed with each CA made under them, and anew before they end."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from holdfast.core.own_ca.ca import CaRow, RootCrl
from holdfast.core.revocation_reason import RevocationReason
from holdfast.core.work.job import Spec
from holdfast.errors import UserError
from holdfast.operations.installation.secret_store import SecretStore, root_key
from holdfast.pki import crl, keys
from holdfast.pki.keys import PrivateKey
from holdfast.pki.root import Listed, Root, entry, read_list, revocation_list
from holdfast.store import journal
from holdfast.store.own_ca import cas, crls
from holdfast.store.tx import Tx
from holdfast.store.work import jobs

ROOT_CRL: Final = "ca.root_crl"
LIFE: Final = timedelta(days=180)
ATTEMPTS: Final = 1_000_000  # it never gives up: with -crl_check_all, a root's expired CRL is an outage for all clients


class RootListRefused(UserError):
    code = "root-list-refused"

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.hint = hint


def mark_of(root: str) -> str:
    """By what a root is known, given in PEM."""
    return x509.load_pem_x509_certificate(root.encode()).fingerprint(hashes.SHA256()).hex()


def first_list(root: x509.Certificate, key: PrivateKey, now: datetime) -> RootCrl:
    """Sign the first CRL of a root whose key is at hand; keep() writes it, if there is none yet."""
    return _signed(Root(certificate=root, key=key), Listed(0, ()), now, LIFE)


def keep(tx: Tx, made: RootCrl, job: str) -> None:
    """In the transaction of a CA whose certificate says where this list is."""
    if crls.get_root_crl(tx, made.root) is None and crls.put_root_crl(tx, made):
        _plan_next(tx, made, job)


def _plan_next(tx: Tx, made: RootCrl, job: str) -> None:
    due_at = crl.regenerate_at(made.this_update, made.next_update)
    spec = Spec(id=job, kind=ROOT_CRL, subject=made.root, due_at=due_at, max_attempts=ATTEMPTS)
    if jobs.enqueue(tx, spec) != job:  # its job lives for ever; this list may end sooner than the last
        jobs.bring_forward(tx, ROOT_CRL, made.root, due_at)


def _signed(root: Root, before: Listed, now: datetime, life: timedelta) -> RootCrl:
    number = crl.next_number(before.number, now)
    der = revocation_list(root, before.entries, number=number, now=now, life=life)
    mark = root.certificate.fingerprint(hashes.SHA256()).hex()
    return RootCrl(root=mark, number=number, this_update=now, next_update=now + life, der=der)


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoking:
    """An intermediate that is to be on the list."""

    serial: int
    reason: RevocationReason


async def next_list(
    secret_store: SecretStore, row: CaRow, *, revoking: Revoking | None = None, life: timedelta | None = None
) -> RootCrl:
    """The next list of the root of a CA; nothing is written. It says all that the last one said."""
    if row.root_secret is None:
        hint = "Sign its list where its key is: holdfast pki crl --help"
        raise RootListRefused(f"The key of the root of CA {row.id!r} is not kept here.", hint)
    certificate = x509.load_pem_x509_certificate(row.root.encode())
    mark = mark_of(row.root)
    last, now = await secret_store.db.read(lambda tx: (crls.get_root_crl(tx, mark), tx.now()))
    before = Listed(0, ()) if last is None else read_list(last.der, certificate)
    if revoking is not None:
        if revoking.serial in before:
            raise RootListRefused(f"Serial {revoking.serial:x} is on the list already.", "There is nothing left to do.")
        before = Listed(before.number, (*before.entries, entry(revoking.serial, now, revoking.reason)))
    lived = LIFE if last is None else last.next_update - last.this_update
    content = await secret_store.reveal(row.root_secret, root_key(certificate))
    root = Root(certificate=certificate, key=keys.from_pem(content))
    return _signed(root, before, now, life or lived)


def write(tx: Tx, made: RootCrl, *, job: str, actor: str, revoking: Revoking | None = None) -> bool:
    """False if another list came between."""
    if not crls.put_root_crl(tx, made):
        return False
    _plan_next(tx, made, job)
    facts = {} if revoking is None else {"revoked": f"{revoking.serial:x}", "reason": revoking.reason.name.lower()}
    journal.audit(tx, "root_crl_signed", made.root, actor=actor, number=made.number, **facts)
    return True


def under(tx: Tx, root: str) -> list[CaRow]:
    """The CAs of this root whose rows lead to its key."""
    return [row for row in cas.everything(tx) if row.root_secret is not None and mark_of(row.root) == root]


def serials(made: RootCrl) -> list[str]:
    return [f"{each.serial_number:x}" for each in x509.load_der_x509_crl(made.der)]


def cut_off(tx: Tx, root: str, revoking: Revoking | None) -> list[CaRow]:
    """Our CAs that clients do not believe any more once this is on the CRL."""
    if revoking is None:
        return []
    return [row for row in cas.everything(tx) if mark_of(row.root) == root and _serial(row) == revoking.serial]


def _serial(row: CaRow) -> int:
    return x509.load_der_x509_certificate(row.certificate).serial_number
