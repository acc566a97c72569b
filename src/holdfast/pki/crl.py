"""Certificate revocation lists (RFC 5280 §5): numbered, in shards if wanted, and signed like certificates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from cryptography import x509

from holdfast.core.revocation_reason import RevocationReason
from holdfast.pki.certify import Unsigned, authority_key, finish, unsigned
from holdfast.pki.signing import SHARD, Signer, SigningCertificate

FLAGS: Final = {
    RevocationReason.KEY_COMPROMISE: x509.ReasonFlags.key_compromise,
    RevocationReason.AFFILIATION_CHANGED: x509.ReasonFlags.affiliation_changed,
    RevocationReason.SUPERSEDED: x509.ReasonFlags.superseded,
    RevocationReason.CESSATION_OF_OPERATION: x509.ReasonFlags.cessation_of_operation,
    RevocationReason.PRIVILEGE_WITHDRAWN: x509.ReasonFlags.privilege_withdrawn,
}  # unspecified is not written (§5.3.1)


@dataclass(frozen=True, slots=True)
class Revoked:
    serial: int
    revoked_at: datetime
    reason: RevocationReason = RevocationReason.UNSPECIFIED


def next_number(last: int | None, now: datetime) -> int:
    """Grows from CRL to CRL (RFC 5280 §5.2.3), also after a restore or a failover that lost the last ones: the clock
    has passed every number that was ever published."""
    return max(0 if last is None else last + 1, int(now.timestamp()))


def prepare(
    issuer: SigningCertificate,
    *,
    number: int,
    this_update: datetime,
    next_update: datetime,
    revoked: Iterable[Revoked],
    shard: int | None = None,
    earlier: Sequence[str] = (),
    kept: Iterable[x509.RevokedCertificate] = (),
) -> Unsigned:
    """A CRL without its signature. `number` must grow with every CRL of this issuer and shard.

    `earlier` are the addresses, as the issuer's `crl_url` is one, that older certificates name. `kept` are entries
    of an earlier CRL, taken over unchanged.
    """
    if not 0 <= number < 1 << 159:
        raise ValueError("a CRL number is positive and has at most 20 octets")
    this_update, next_update = _whole(this_update), _whole(next_update)
    if not this_update < next_update:
        raise ValueError("a CRL expires after it begins")
    entries = {each.serial: each for each in sorted(revoked, key=lambda each: (each.serial, each.revoked_at))}
    listed = {each.serial_number: each for each in kept} | {each.serial: _entry(each) for each in entries.values()}
    # Through the constructor: add_revoked_certificate copies all entries for each one, so that 100 000 take minutes.
    builder = x509.CertificateRevocationListBuilder(
        issuer.certificate.subject, revoked_certificates=[listed[serial] for serial in sorted(listed)]
    )
    builder = (
        builder.last_update(this_update)
        .next_update(next_update)
        .add_extension(authority_key(issuer), critical=False)
        .add_extension(x509.CRLNumber(number), critical=False)
    )
    if (place := _place(issuer, shard, earlier)) is not None:
        builder = builder.add_extension(place, critical=True)
    return unsigned(builder, issuer.public_key)


def sign(
    issuer: SigningCertificate,
    signer: Signer,
    *,
    number: int,
    this_update: datetime,
    next_update: datetime,
    revoked: Iterable[Revoked],
    shard: int | None = None,
    earlier: Sequence[str] = (),
    kept: Iterable[x509.RevokedCertificate] = (),
) -> bytes:
    """The CRL in DER; the same arguments give the same bytes."""
    content = prepare(
        issuer,
        number=number,
        this_update=this_update,
        next_update=next_update,
        revoked=revoked,
        shard=shard,
        earlier=earlier,
        kept=kept,
    )
    return finish(content, signer)


def _place(
    issuer: SigningCertificate, shard: int | None, earlier: Sequence[str]
) -> x509.IssuingDistributionPoint | None:
    """Names the shard by its certificates' own URLs, so that no CRL can be passed off as another's (§5.2.5).

    By all they ever had: a certificate keeps its URL when the CA moves. A CRL that is the only one names no shard:
    it is in scope for every certificate, at any CRL address.
    """
    if issuer.shards == 1:
        return None
    if shard is None:
        raise ValueError("a CRL in shards needs the number of its shard")
    urls = dict.fromkeys(each.replace(SHARD, str(shard)) for each in (issuer.crl_url or "", *earlier))
    return x509.IssuingDistributionPoint(
        full_name=[x509.UniformResourceIdentifier(url) for url in urls],
        relative_name=None,
        only_contains_user_certs=True,
        only_contains_ca_certs=False,
        only_some_reasons=None,
        indirect_crl=False,
        only_contains_attribute_certs=False,
    )


def places_of(der: bytes, shard: int) -> list[str]:
    """The addresses by which a CRL names its shard, as `earlier` takes them."""
    try:
        found = x509.load_der_x509_crl(der).extensions.get_extension_for_class(x509.IssuingDistributionPoint).value
    except x509.ExtensionNotFound:
        return []
    names = [str(name.value) for name in found.full_name or () if isinstance(name, x509.UniformResourceIdentifier)]
    return [f"{url.removesuffix(end)}/{SHARD}.crl" for url in names if url.endswith(end := f"/{shard}.crl")]


def _entry(revoked: Revoked) -> x509.RevokedCertificate:
    builder = x509.RevokedCertificateBuilder(revoked.serial).revocation_date(_whole(revoked.revoked_at))
    if (flag := FLAGS.get(revoked.reason)) is not None:
        builder = builder.add_extension(x509.CRLReason(flag), critical=False)
    return builder.build()


def _whole(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(microsecond=0)


# ── When to make the next one, and what may be left out of it ──


def regenerate_at(this_update: datetime, next_update: datetime) -> datetime:
    """After a third of its life: two more tries fit in before any client holds a stale CRL."""
    return this_update + (next_update - this_update) / 3


def may_be_left_out(not_after: datetime, listed_at: datetime | None, now: datetime) -> bool:
    """Whether an expired certificate has been on a CRL made after it expired, as §3.3 asks; `listed_at` is the last.

    One that is still good stays, though it was on a CRL from the future: a clock may have been ahead.
    """
    return listed_at is not None and not_after < min(listed_at, now)
