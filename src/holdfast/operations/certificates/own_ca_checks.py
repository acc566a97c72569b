"""Whether one of our own CAs would issue a certificate: all of it is known before anything is ordered."""

from __future__ import annotations

from datetime import datetime

from cryptography import x509

from holdfast.core.certificate import CertificateSpec
from holdfast.core.issuers.issuer import IssuerRow
from holdfast.core.key_kind import KeyKind
from holdfast.core.kind import Trait
from holdfast.core.own_ca.ca import CaRow
from holdfast.operations import kinds
from holdfast.operations.acme.names import not_allowed
from holdfast.operations.own_ca.authorities import profile_of
from holdfast.pki.chain import parse_bundle
from holdfast.pki.profile import Profile, check_key_kind, validity
from holdfast.pki.refused import CsrRefused, NameRefused
from holdfast.pki.signing import SigningCertificate
from holdfast.store.own_ca import cas
from holdfast.store.tx import Tx


def check_own_ca(tx: Tx, spec: CertificateSpec, issuer: IssuerRow) -> None:
    """PkiRefused names what the CA behind this issuer would refuse; other issuers are not asked."""
    if not kinds.has(issuer, Trait.OURS):
        return
    ca = cas.get(tx, str(issuer.settings.get("ca") or issuer.name))
    if ca is not None:
        check_by(ca, spec, tx.now())


def check_by(ca: CaRow, spec: CertificateSpec, now: datetime) -> None:
    signs = _signing(ca)
    refused = not_allowed(ca.options, signs, spec.identifiers)
    if refused:
        names = ", ".join(each.value for each in refused[:3])
        hint = f"See which names it issues for: holdfast ca show {ca.id}"
        raise NameRefused("name-not-permitted", f"CA {ca.id} does not issue for {names}.", hint)
    profile = _profile(ca, spec.profile)
    if spec.csr is None:
        check_key_kind(profile, KeyKind(spec.key_kind))
    if spec.lifetime is not None:
        validity(profile, signs, now, None, now + spec.lifetime)


def _signing(ca: CaRow) -> SigningCertificate:
    above = parse_bundle(ca.above.encode()) if ca.above else ()
    certificate = x509.load_der_x509_certificate(ca.certificate)
    return SigningCertificate(id=ca.id, certificate=certificate, above=above)


def _profile(ca: CaRow, name: str | None) -> Profile:
    options = ca.options.profile(name)
    if options is None:
        known = ", ".join(each.name for each in ca.options.profiles)
        raise CsrRefused("profile-unknown", f"CA {ca.id} has no profile {name!r:.80}.", f"It has: {known}.")
    return profile_of(options)
