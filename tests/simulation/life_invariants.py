"""The promises about certificates: held against the CAs' own truth, while faults rage and after they stop."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from holdfast.core import renewal
from holdfast.core.certificate import Certificate, Version
from holdfast.core.issuers.budget import Limit
from holdfast.core.issuers.ca_limits import registered_domain
from holdfast.pki import keys
from holdfast.pki.chain import parse_bundle
from holdfast.store import certificates, secrets, versions
from holdfast.store.tx import Tx
from tests.simulation import target_invariants
from tests.simulation.invariants import Violation, chain_and_waits

if TYPE_CHECKING:
    from tests.simulation.authority import Authority, Order
    from tests.simulation.life_stage import LifeStage

SLACK: Final = timedelta(seconds=1)
AT_LEAST: Final = timedelta(minutes=15)  # the longest step between two attempts that fail, however little is left
SHARE_LEFT: Final = 1 / 8  # of the time until it expires
_OVER: Final = "('issued', 'failed', 'cancelled')"


def now_and_then(stage: LifeStage) -> None:
    chain_and_waits(stage)
    stage.truth.look(nothing_expired)
    stage.truth.look(_one_attempt_each)
    stage.truth.look(_every_step_has_its_audit_row)
    stage.truth.look(_nobody_is_forgotten)
    stage.truth.look(lambda tx: target_invariants.served_means_served(tx, stage))
    for ca in stage.cas.values():
        one_order_each(stage, ca)
        inside_the_budget(ca, stage.rewound_at)


# ── I9, and what all this is for ──


def nothing_expired(tx: Tx) -> None:
    row = tx.row(
        """SELECT certificates.name FROM certificates
             JOIN certificate_versions ON certificate_versions.id = certificates.current_version
            WHERE certificates.state = 'active' AND certificate_versions.not_after <= (SELECT now_us()) LIMIT 1"""
    )
    if row is not None:
        raise Violation(f"{row['name']} has expired")


def _nobody_is_forgotten(tx: Tx) -> None:
    """I9: each has an attempt under way, whose job has a time and a reason; or a time of its own, and no later than is
    safe."""
    rows = tx.rows(
        f"""SELECT {certificates.TABLE.of("certificates")}, jobs.due_at AS due_at, jobs.state AS job,
                   jobs.reason AS why, issuances.id AS attempt
              FROM certificates
              LEFT JOIN issuances ON issuances.certificate = certificates.id AND issuances.state NOT IN {_OVER}
              LEFT JOIN jobs ON jobs.kind = 'issue' AND jobs.subject = issuances.id AND jobs.state <> 'dead'
             WHERE certificates.state = 'active'"""
    )
    held = versions.many(tx, [row["current_version"] for row in rows if row["current_version"] is not None])
    for row in rows:
        if row["attempt"] is None:
            found = certificates.TABLE.read(row)
            _planned_in_time(found, held.get(found.current_version or ""), tx)


def _planned_in_time(found: Certificate, current: Version | None, tx: Tx) -> None:
    if found.next_action_at is None or found.next_cause is None:
        raise Violation(f"I9: nobody can see when {found.name} is next, and why")
    if current is not None and found.next_action_at > max(_safe(found, current), tx.now()) + SLACK:
        raise Violation(f"I9: {found.name} is next at {found.next_action_at}, later than is safe")


def _safe(found: Certificate, current: Version) -> datetime:
    """The last safe moment; of an attempt that failed after it, a while that is short beside what is left."""
    safe, failing = renewal.safe_until(current), found.failing
    if failing is None or failing.last_at < safe:
        return safe
    return failing.last_at + max(AT_LEAST, (current.not_after - failing.last_at) * SHARE_LEFT)


# ── I2, I7 ──


def _one_attempt_each(tx: Tx) -> None:
    row = tx.row(
        f"""SELECT certificate FROM issuances WHERE state NOT IN {_OVER}
             GROUP BY certificate HAVING COUNT(*) > 1 LIMIT 1"""
    )
    if row is not None:
        raise Violation(f"I2: two attempts are under way for {row['certificate']}")


def _every_step_has_its_audit_row(tx: Tx) -> None:
    told = {row["action"]: row["n"] for row in tx.rows("SELECT action, COUNT(*) AS n FROM audit GROUP BY action")}
    ended = {row["state"]: row["n"] for row in tx.rows("SELECT state, COUNT(*) AS n FROM issuances GROUP BY state")}
    issued = tx.rows("SELECT COUNT(*) AS n FROM certificate_versions WHERE issuance IS NOT NULL")[0]["n"]
    for action, number in (
        ("issuance_begun", sum(ended.values())),
        ("issuance_failed", ended.get("failed", 0)),
        ("issuance_cancelled", ended.get("cancelled", 0)),
        ("certificate_activated", issued),
    ):
        if told.get(action, 0) != number:
            raise Violation(f"I7: {number} × {action} happened, and {told.get(action, 0)} are in the audit log")


# ── I3, I8: the CA's side ──


def one_order_each(stage: LifeStage, ca: Authority) -> None:
    """Whoever deletes the row of a job that runs lets a second begin while the first is still at the CA's door."""
    for issuance, number in ca.ordered.items():
        if number > 1 and issuance not in stage.excused and issuance not in stage.vandalised_at:
            raise Violation(f"I3: {issuance} was ordered {number} times from {ca.name}")


def inside_the_budget(ca: Authority, since: float) -> None:
    if ca.orders_limit is not None:
        check_pace([order.paid_at for order in ca.orders.values() if order.paid_at > since], ca.orders_limit, ca.name)
    made = [order for order in ca.orders.values() if order.csr and order.paid_at > since]
    if ca.set_limit is not None:
        _check_each(((" ".join(sorted(order.names)), order) for order in made), ca.set_limit, ca.name)
    if ca.domain_limit is not None:
        named = ((domain, order) for order in made for domain in {registered_domain(each) for each in order.names})
        _check_each(named, ca.domain_limit, ca.name)


def _check_each(made: Iterable[tuple[str, Order]], limit: Limit, ca: str) -> None:
    """Of certificates that are counted by what they are for."""
    times: dict[str, list[float]] = {}
    for key, order in made:
        times.setdefault(key, []).append(order.paid_at)
    for key, paid in times.items():
        check_pace(paid, limit, f"{ca}, for {key},")


def check_pace(times: Iterable[float], limit: Limit, name: str) -> None:
    """No stretch of time, however placed, has more orders than its burst and what was refilled meanwhile."""
    every, owed_until = limit.every.total_seconds(), float("-inf")
    for at in sorted(times):
        if owed_until - at > every * (limit.burst - 1) + 1e-3:
            owed = (owed_until - at) / every
            raise Violation(f"I8: {name} had {owed:.1f} orders outstanding at {at:.0f} s, of {limit.burst}")
        owed_until = max(owed_until, at) + every


# ── at the end ──


def all_is_well(stage: LifeStage) -> None:
    """I12, and what can only be said when nothing is under way: keys fit, nothing was bought in vain."""
    now_and_then(stage)
    stage.truth.look(lambda tx: _keys_fit(tx, stage))
    stage.truth.look(lambda tx: _what_was_issued_is_held(tx, stage))
    stage.truth.look(_no_secret_in_what_is_told)
    stage.truth.look(lambda tx: _revoked_means_revoked(tx, stage))


def unfinished(tx: Tx, since: timedelta = timedelta(0)) -> list[str]:
    """What has been due for so long, or is failing, or has been under way, or is to be revoked."""
    then = tx.now() - since
    rows = tx.rows(
        f"""SELECT name FROM certificates WHERE state = 'active' AND (current_version IS NULL
                 OR last_failure_at IS NOT NULL OR next_action_at <= :then)
             UNION SELECT certificate FROM issuances WHERE state NOT IN {_OVER} AND started_at <= :then
             UNION SELECT id FROM certificate_versions WHERE revoke_asked_at IS NOT NULL AND revoked_at IS NULL""",
        then=then,
    )
    return [row["name"] for row in rows]


def _keys_fit(tx: Tx, stage: LifeStage) -> None:
    """I4: the key of everything that was ever in use is in the store, and is the certificate's."""
    keyring = next(iter(stage.keepers.values())).secret_store.keyring
    for row in tx.rows("SELECT id, key_secret, chain_pem FROM certificate_versions"):
        sealed = secrets.get(tx, row["key_secret"])
        if sealed is None:
            raise Violation(f"I4: {row['id']} is kept, and its key is gone")
        key = keys.from_pem(keyring.open(sealed, **secrets.place(row["key_secret"])))
        if parse_bundle(row["chain_pem"].encode())[0].public_key() != key.public_key():
            raise Violation(f"I4: {row['id']} is kept with a key that is not its own")


def _what_was_issued_is_held(tx: Tx, stage: LifeStage) -> None:
    """I3: a certificate that a CA made is a version here; or its attempt was stopped, or the answer was wrong."""
    held = {row["issuance"] for row in tx.rows("SELECT issuance FROM certificate_versions")}
    ended = {row["id"]: row for row in tx.rows("SELECT id, state, reason FROM issuances")}
    for ca in stage.cas.values():
        for order in ca.by_serial.values():
            if order.issuance not in held and not _explained(order, ended.get(order.issuance), stage):
                row = ended[order.issuance]
                raise Violation(
                    f"I3: {order.ref} was issued for {order.issuance}, which {row['state']}: {row['reason']}"
                )


def _explained(order: Order, row: object, stage: LifeStage) -> bool:
    if row is None or order.issuance in stage.excused:
        return True  # it was lost with the commits of a failover
    given_up = order.erred and row["state"] == "failed"  # type: ignore[index]
    return given_up or row["state"] == "cancelled" or row["reason"] == "WRONG_CERTIFICATE"  # type: ignore[index, no-any-return]


def _no_secret_in_what_is_told(tx: Tx) -> None:
    """I5"""
    row = tx.row(
        """SELECT seq AS what FROM audit WHERE details LIKE '%PRIVATE KEY%'
            UNION ALL SELECT id FROM events WHERE details LIKE '%PRIVATE KEY%' LIMIT 1"""
    )
    if row is not None:
        raise Violation(f"I5: a private key is in entry {row['what']} of the journal")


def _revoked_means_revoked(tx: Tx, stage: LifeStage) -> None:
    rows = tx.rows("SELECT serial, issuer FROM certificate_versions WHERE revoked_at IS NOT NULL")
    for row in rows:
        if row["serial"] not in stage.cas[row["issuer"]].revoked:
            raise Violation(f"I10: {row['serial']} is revoked here, and its CA has not heard of it")
