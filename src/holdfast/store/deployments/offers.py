"""Bundles that targets fetch by themselves: standing offers, and handovers that can be fetched once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.store.tx import Tx, instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One version of one certificate for one target."""

    target: str
    certificate: str  # its id
    certificate_version: str
    number: int
    content_id: str = ""
    fetched_at: datetime | None = None


_COLUMNS = "target, certificate, certificate_version, number, content_id, fetched_at"


def put(tx: Tx, offer: Offer) -> None:
    """Let it take the place of the one before."""
    tx.run(
        """INSERT INTO offers (target, certificate, certificate_version, number, content_id, offered_at)
           VALUES (:target, :certificate, :version, :number, :content, :now)
           ON CONFLICT (target, certificate) DO UPDATE SET certificate_version = :version, number = :number,
                  content_id = :content, offered_at = :now, fetched_at = NULL""",
        target=offer.target,
        certificate=offer.certificate,
        version=offer.certificate_version,
        number=offer.number,
        content=offer.content_id,
        now=tx.now(),
    )


def of_target(tx: Tx, target: str) -> Sequence[Offer]:
    rows = tx.rows(f"SELECT {_COLUMNS} FROM offers WHERE target = :target ORDER BY number DESC", target=target)
    return [_read(row) for row in rows]


def get(tx: Tx, target: str, certificate: str) -> Offer | None:
    row = tx.row(
        f"SELECT {_COLUMNS} FROM offers WHERE target = :target AND certificate = :certificate",
        target=target,
        certificate=certificate,
    )
    return None if row is None else _read(row)


def fetched(tx: Tx, offer: Offer) -> bool:
    """Note that it was fetched; whether this was the first time."""
    done = tx.run(
        """UPDATE offers SET fetched_at = :now
            WHERE target = :target AND certificate = :certificate AND number = :number AND fetched_at IS NULL""",
        now=tx.now(),
        target=offer.target,
        certificate=offer.certificate,
        number=offer.number,
    )
    return done > 0


def _read(row: Any) -> Offer:
    at = row["fetched_at"]
    return Offer(
        target=row["target"],
        certificate=row["certificate"],
        certificate_version=row["certificate_version"],
        number=row["number"],
        content_id=row["content_id"],
        fetched_at=None if at is None else instant(at),
    )


# ── Handovers ──


def hand_over(tx: Tx, digest: str, offer: Offer, expires_at: datetime) -> None:
    """Those that expired are forgotten on the way."""
    tx.run("DELETE FROM handovers WHERE expires_at < :now", now=tx.now())
    tx.run(
        """INSERT INTO handovers (digest, target, certificate, certificate_version, number, expires_at)
           VALUES (:digest, :target, :certificate, :version, :number, :expires)""",
        digest=digest,
        target=offer.target,
        certificate=offer.certificate,
        version=offer.certificate_version,
        number=offer.number,
        expires=expires_at,
    )


def take(tx: Tx, digest: str) -> Offer | None:
    """The one of this token, which nobody can take again; None if there is none, or it is over."""
    now = tx.now()
    taken = tx.run(
        "UPDATE handovers SET fetched_at = :now WHERE digest = :digest AND fetched_at IS NULL AND expires_at > :now",
        digest=digest,
        now=now,
    )
    row = tx.row(
        "SELECT target, certificate, certificate_version, number FROM handovers WHERE digest = :digest", digest=digest
    )
    return None if row is None or not taken else Offer(**dict(row))
