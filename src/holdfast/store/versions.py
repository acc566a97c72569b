"""Versions of certificates: what was issued, where its key is, and whether it still counts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from holdfast.core.certificate import Version
from holdfast.core.revocation_reason import RevocationReason
from holdfast.store.rows import Table
from holdfast.store.tx import Tx, value_list

PAGE: Final = 200
TABLE: Final = Table(Version, "certificate_versions")


def insert(tx: Tx, version: Version) -> bool:
    """Keep a version; False if its issuance gave one before."""
    return tx.run(f"{TABLE.insert} ON CONFLICT DO NOTHING", **TABLE.values(version)) == 1


def get(tx: Tx, version: str | None) -> Version | None:
    if version is None:
        return None
    row = tx.row(f"SELECT {TABLE.columns} FROM certificate_versions WHERE id = :id", id=version)
    return None if row is None else TABLE.read(row)


def many(tx: Tx, ids: Sequence[str], *, chains: bool = True) -> dict[str, Version]:
    """Without their chains where these are not needed: those of a page are megabytes."""
    if not ids:
        return {}
    text, values = value_list([(each,) for each in ids])
    columns = TABLE.columns if chains else TABLE.columns.replace("chain_pem", "'' AS chain_pem")
    rows = tx.rows(f"SELECT {columns} FROM certificate_versions WHERE id IN ({text})", **values)
    return {row["id"]: TABLE.read(row) for row in rows}


def of(tx: Tx, certificate: str, limit: int = 50) -> list[Version]:
    """The newest first."""
    rows = tx.rows(
        f"""SELECT {TABLE.columns} FROM certificate_versions WHERE certificate = :certificate
             ORDER BY issued_at DESC, id DESC LIMIT :limit""",
        certificate=certificate,
        limit=limit,
    )
    return [TABLE.read(row) for row in rows]


def in_use_at(tx: Tx, certificate: str, at: datetime) -> Version | None:
    """The newest one that was there at that time."""
    row = tx.row(
        f"""SELECT {TABLE.columns} FROM certificate_versions WHERE certificate = :certificate AND issued_at <= :at
             ORDER BY issued_at DESC, id DESC LIMIT 1""",
        certificate=certificate,
        at=at,
    )
    return None if row is None else TABLE.read(row)


def uses_key(tx: Tx, secret: str) -> bool:
    """Whether a version has this key: one that is used again must not go with an attempt that failed."""
    row = tx.row("SELECT 1 AS found FROM certificate_versions WHERE key_secret = :secret LIMIT 1", secret=secret)
    return row is not None


def has_bad_key(tx: Tx, version: Version) -> bool:
    """Whether others may have its key: it is blocked, or a version of this certificate with it was revoked for that."""
    row = tx.row(
        """SELECT 1 AS found WHERE EXISTS (SELECT 1 FROM blocked_keys WHERE spki_sha256 = :key)
               OR EXISTS (SELECT 1 FROM certificate_versions WHERE certificate = :certificate
                             AND spki_sha256 = :key AND revoke_reason = :compromised)""",
        certificate=version.certificate,
        key=version.spki_sha256,
        compromised=RevocationReason.KEY_COMPROMISE.number,
    )
    return row is not None


def supersede(tx: Tx, version: str) -> None:
    tx.run(
        """UPDATE certificate_versions SET state = 'superseded'
            WHERE id = :id AND state IN ('active', 'imported')""",
        id=version,
    )


def ask_revocation(tx: Tx, version: str, reason: int) -> bool:
    """Write down that it is to be revoked; False if that was asked before."""
    changed = tx.run(
        """UPDATE certificate_versions SET revoke_asked_at = now_us(), revoke_reason = :reason
            WHERE id = :id AND revoke_asked_at IS NULL AND revoked_at IS NULL""",
        id=version,
        reason=reason,
    )
    return changed == 1


def change_revocation(tx: Tx, version: str, reason: int) -> None:
    """It is asked for once more, perhaps for another reason."""
    tx.run(
        "UPDATE certificate_versions SET revoke_reason = :reason WHERE id = :id AND revoked_at IS NULL",
        id=version,
        reason=reason,
    )


def revoked(tx: Tx, version: str, at: datetime) -> bool:
    """The CA did it, or says that it is so."""
    changed = tx.run(
        "UPDATE certificate_versions SET state = 'revoked', revoked_at = :at WHERE id = :id AND revoked_at IS NULL",
        id=version,
        at=at,
    )
    return changed == 1


def revoked_here(tx: Tx, serial: str, spki_sha256: str, not_after: datetime, reason: int) -> list[Version]:
    """One of our own CAs revoked it; the versions in use that are this certificate, as they are now."""
    second = timedelta(seconds=1)  # the end is what finds them by an index; a certificate has no fractions of it
    rows = tx.rows(
        f"""UPDATE certificate_versions
               SET state = 'revoked', revoked_at = now_us(), revoke_reason = COALESCE(revoke_reason, :reason)
             WHERE not_after > :after AND not_after < :before AND state IN ('active', 'imported')
               AND serial = :serial AND spki_sha256 = :key AND revoked_at IS NULL
         RETURNING {TABLE.columns}""",
        after=not_after - second,
        before=not_after + second,
        serial=serial,
        key=spki_sha256,
        reason=reason,
    )
    return [TABLE.read(row) for row in rows]


def to_revoke_without_job(tx: Tx, kind: str, limit: int = PAGE) -> dict[str, str]:
    """Those whose CA is to hear of it, and that no job works on, with the names of those CAs."""
    rows = tx.rows(
        """SELECT id, issuer FROM certificate_versions
            WHERE revoke_asked_at IS NOT NULL AND revoked_at IS NULL
              AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.kind = :kind AND jobs.subject = certificate_versions.id)
            ORDER BY id LIMIT :limit""",
        kind=kind,
        limit=limit,
    )
    return {row["id"]: row["issuer"] for row in rows}


def with_serial(tx: Tx, serial: str, limit: int = 20) -> list[Version]:
    """Versions with this serial: several CAs may have given it."""
    rows = tx.rows(
        f"SELECT {TABLE.columns} FROM certificate_versions WHERE serial = :serial ORDER BY id LIMIT :limit",
        serial=serial,
        limit=limit,
    )
    return [TABLE.read(row) for row in rows]
