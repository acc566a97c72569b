"""What must be true of a CA once its orders are decided: one certificate each, or a problem, and a record of both."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from holdfast.store import journal
from holdfast.store.tx import Row, Tx
from tests.support.acme_patient import Held
from tests.support.grounds import Ground, look

OPEN_ORDERS = "SELECT id, state FROM acme_orders WHERE state NOT IN ('valid', 'invalid')"
OPEN_JOBS = """SELECT id, kind, subject, state FROM jobs
                WHERE kind IN ('acme.issue', 'acme.validate') AND state <> 'dead'"""  # the dead are for people to see


def under_way(ground: Ground) -> list[str]:
    """What is still open; an order that stays here for ever is stuck."""

    def rows(tx: Tx) -> list[str]:
        return [str(dict(row)) for row in (*tx.rows(OPEN_ORDERS), *tx.rows(OPEN_JOBS))]

    return look(ground, rows)


def two_certificates(ground: Ground) -> int:
    """Orders that have more than one certificate, counted in every place that would tell of a second one."""

    def count(tx: Tx) -> int:
        found: set[str] = set()
        for table in ("ca_certificates", "ca_issuances"):
            repeated = f"SELECT order_id FROM {table} GROUP BY order_id HAVING COUNT(*) > 1"
            found |= {row["order_id"] for row in tx.rows(repeated)}
        told = Counter(_detail(row, "order") for row in tx.rows(_AUDITED, action="certificate_issued"))
        return len(found | {order for order, times in told.items() if times > 1})

    return look(ground, count)


def problems(ground: Ground, held: Iterable[Held]) -> list[str]:
    """Everything that is wrong, as sentences; nothing when all is well."""
    return look(ground, lambda tx: [*_in_the_store(tx, ground.engine), *_as_told(tx, held)])


def _in_the_store(tx: Tx, engine: str) -> Iterator[str]:
    if engine == "sqlite":
        for row in tx.rows("PRAGMA integrity_check"):
            if row["integrity_check"] != "ok":
                yield f"the file is damaged: {row['integrity_check']}"
    for row in (*tx.rows(OPEN_ORDERS), *tx.rows(OPEN_JOBS)):
        yield f"still under way: {dict(row)}"
    orders = tx.rows("SELECT id, state, csr, error, certificate FROM acme_orders")
    certificates = tx.rows("SELECT id, ca, serial, order_id, der FROM ca_certificates")
    intents = tx.rows("SELECT order_id, ca, serial FROM ca_issuances")
    by_order = {row["order_id"]: row for row in certificates}
    for order in orders:
        yield from _about(order, by_order.get(order["id"]), [row for row in intents if row["order_id"] == order["id"]])
    yield from _in_the_records(tx, orders, certificates)


def _about(order: Row, certificate: Row | None, intents: list[Row]) -> Iterator[str]:
    name = f"order {order['id']}"
    if order["state"] == "invalid":
        if order["error"] is None:
            yield f"{name} is invalid without a problem"
        if certificate is not None:
            yield f"{name} is invalid and has a certificate"
        return
    if certificate is None or order["certificate"] != certificate["id"]:
        yield f"{name} is {order['state']} and has no certificate of its own"
        return
    if [(row["ca"], row["serial"]) for row in intents] != [(certificate["ca"], certificate["serial"])]:
        yield f"{name} was not meant to have the serial {certificate['serial']}: {[row['serial'] for row in intents]}"
    signed = x509.load_der_x509_certificate(bytes(certificate["der"]))
    if f"{signed.serial_number:x}" != certificate["serial"]:
        yield f"{name}: {signed.serial_number:x} was signed, {certificate['serial']} is recorded"
    asked = x509.load_der_x509_csr(bytes(order["csr"]))
    if _spki(signed.public_key()) != _spki(asked.public_key()):
        yield f"{name}: the certificate has another key than the CSR"


def _in_the_records(tx: Tx, orders: list[Row], certificates: list[Row]) -> Iterator[str]:
    """Each certificate has an order, each step was audited once, and the chain of the audit log holds."""
    known = {row["id"] for row in orders}
    for row in certificates:
        if row["order_id"] not in known:
            yield f"certificate {row['id']} belongs to no order"
    for row in tx.rows(
        "SELECT order_id FROM ca_certificates WHERE order_id NOT IN (SELECT order_id FROM ca_issuances)"
    ):
        yield f"order {row['order_id']} has a certificate without an intent"
    issued = Counter(row["subject"] for row in tx.rows(_AUDITED, action="certificate_issued"))
    if issued != Counter(row["id"] for row in certificates):
        yield f"certificates in the audit log: {issued}"
    told = Counter(row["subject"] for row in tx.rows("SELECT subject FROM events WHERE name = 'certificate.issued'"))
    if told != issued:
        yield f"certificates in the events: {told}"
    finalized = Counter(row["subject"] for row in tx.rows(_AUDITED, action="order_finalized"))
    if finalized != Counter(row["order_id"] for row in tx.rows("SELECT order_id FROM ca_issuances")):
        yield f"finalized orders in the audit log: {finalized}"
    verdict = journal.verify(tx)
    if not verdict.ok:
        yield f"the audit chain does not verify: {verdict.problem}"


def _as_told(tx: Tx, held: Iterable[Held]) -> Iterator[str]:
    """What the client was told is what is kept."""
    for each in held:
        row = tx.row(_KEPT, id=each.url.rpartition("/")[2])
        if row is None or row["state"] != each.status:
            yield f"{each.name}: the client was told {each.status}, the store has {row and row['state']}"
        elif each.certificate is not None:
            if bytes(row["der"] or b"") != each.certificate.public_bytes(Encoding.DER):
                yield f"{each.name}: the client has another certificate than the store"
            if _spki(each.certificate.public_key()) != _spki(each.key.public_key()):
                yield f"{each.name}: the certificate is not for the client's key"


_KEPT = """SELECT state, der FROM acme_orders LEFT JOIN ca_certificates ON order_id = acme_orders.id
            WHERE acme_orders.id = :id"""
_AUDITED = "SELECT subject, details FROM audit WHERE action = :action"


def _detail(row: Row, name: str) -> str:
    details = row["details"]
    return str((json.loads(details) if isinstance(details, str) else details)[name])


def _spki(key: PublicKeyTypes) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
