"""A CRL says what was revoked, which shard it is and how new, and is the same bytes when it is made again."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st
from tests.support.pki import DAY, NOW, a_signer, an_issuer, intermediate

from holdfast.core.key_kind import KeyKind
from holdfast.core.revocation_reason import RevocationReason
from holdfast.pki import crl
from holdfast.pki.crl import Revoked
from holdfast.pki.signing import SigningCertificate

ISSUER = an_issuer()
SINGLE = replace(ISSUER, crl_url="http://ca.example.internal/one.crl", shards=1)


def made(
    revoked=(),
    *,
    issuer: SigningCertificate = ISSUER,
    kind: KeyKind = KeyKind.EC_P256,
    shard: int | None = 2,
    number: int = 7,
):
    der = crl.sign(
        issuer, a_signer(kind), number=number, this_update=NOW, next_update=NOW + 7 * DAY, revoked=revoked, shard=shard
    )
    return x509.load_der_x509_crl(der)


def value(found: x509.CertificateRevocationList, kind):
    return found.extensions.get_extension_for_class(kind).value


def test_a_list_says_who_made_it_when_and_under_which_number():
    found = made()
    assert found.issuer == ISSUER.certificate.subject
    assert (found.last_update_utc, found.next_update_utc) == (NOW, NOW + 7 * DAY)
    assert value(found, x509.CRLNumber).crl_number == 7
    assert value(found, x509.AuthorityKeyIdentifier).key_identifier == ISSUER.key_identifier
    assert found.is_signature_valid(intermediate().public_key())  # type: ignore[arg-type]


def test_a_shard_names_itself_critically_by_the_address_in_its_certificates():
    found = made(shard=2).extensions.get_extension_for_class(x509.IssuingDistributionPoint)
    assert found.critical
    assert [name.value for name in found.value.full_name or ()] == [ISSUER.url_of(2)]
    assert found.value.only_contains_user_certs


def test_a_shard_names_itself_by_every_address_its_certificates_ever_had():
    earlier = ["http://old.example/pki/ca1/{shard}.crl", str(ISSUER.crl_url)]
    signer = a_signer()
    der = crl.sign(
        ISSUER, signer, number=1, this_update=NOW, next_update=NOW + DAY, revoked=(), shard=2, earlier=earlier
    )
    place = value(x509.load_der_x509_crl(der), x509.IssuingDistributionPoint)
    assert [name.value for name in place.full_name or ()] == [ISSUER.url_of(2), "http://old.example/pki/ca1/2.crl"]
    assert "http://old.example/pki/ca1/{shard}.crl" in crl.places_of(der, 2)


def test_the_only_list_of_a_ca_names_no_address_so_that_it_is_in_scope_wherever_it_is_said_to_be():
    with pytest.raises(x509.ExtensionNotFound):
        value(made(issuer=replace(ISSUER, shards=1), shard=0), x509.IssuingDistributionPoint)


def test_a_list_that_is_not_in_shards_covers_everything():
    with pytest.raises(x509.ExtensionNotFound):
        value(made(issuer=SINGLE, shard=None), x509.IssuingDistributionPoint)


def test_a_shard_without_its_number_is_not_made():
    with pytest.raises(ValueError, match="number of its shard"):
        made(shard=None)


@pytest.mark.parametrize("kind", [KeyKind.EC_P256, KeyKind.RSA_2048, KeyKind.ED25519])
def test_the_same_list_is_the_same_bytes_in_whatever_order_it_is_given(kind: KeyKind):
    entries = [Revoked(2**100 + n, NOW - n * DAY, RevocationReason.SUPERSEDED) for n in range(20)]
    first, again = (made(each, issuer=an_issuer(kind), kind=kind) for each in (entries, reversed(entries)))
    assert first == again


@given(st.dictionaries(st.integers(1, 2**159 - 1), st.sampled_from(RevocationReason), max_size=30))
def test_every_entry_is_found_again_with_its_date_and_reason(entries: dict[int, RevocationReason]):
    found = made([Revoked(serial, NOW - DAY, reason) for serial, reason in entries.items()])
    assert len(found) == len(entries)
    for serial, reason in entries.items():
        entry = found.get_revoked_certificate_by_serial_number(serial)
        assert entry is not None
        assert entry.revocation_date_utc == NOW - DAY
        reasons = [each.value.reason for each in entry.extensions if isinstance(each.value, x509.CRLReason)]
        assert [each.name for each in reasons] == (
            [reason.name.lower()] if reason is not RevocationReason.UNSPECIFIED else []
        )


def test_a_serial_is_listed_once():
    assert len(made([Revoked(5, NOW), Revoked(5, NOW + DAY)])) == 1


def test_many_entries_do_not_take_the_square_of_their_number():
    """The library's own way copies all entries for each one: 30 000 would take ten times as long as this."""
    assert len(made([Revoked(2**100 + n, NOW) for n in range(30_000)])) == 30_000


@pytest.mark.parametrize("number", [-1, 2**159])
def test_a_number_that_does_not_fit_is_not_written(number: int):
    with pytest.raises(ValueError, match="CRL number"):
        made(number=number)


def test_a_crl_expires_after_it_begins():
    with pytest.raises(ValueError, match="expires after"):
        crl.prepare(ISSUER, number=1, this_update=NOW, next_update=NOW, revoked=[], shard=0)


# ── When ──


def test_a_list_is_made_anew_after_a_third_of_its_life():
    assert crl.regenerate_at(NOW, NOW + 9 * DAY) == NOW + 3 * DAY


def test_an_entry_stays_until_a_list_was_made_after_the_certificates_end():
    later = NOW + timedelta(seconds=1)
    assert not crl.may_be_left_out(NOW, None, later)
    assert not crl.may_be_left_out(NOW, NOW, later)
    assert crl.may_be_left_out(NOW, later, later)


def test_an_entry_that_was_on_a_list_from_the_future_stays_until_its_certificate_has_ended():
    assert not crl.may_be_left_out(NOW + DAY, NOW + 9 * DAY, NOW)


def test_the_reasons_are_those_of_acme_that_an_end_certificate_can_have():
    assert {each.number for each in RevocationReason} == {0, 1, 3, 4, 5, 9}
