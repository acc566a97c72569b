"""One look at a watched endpoint: what should be seen there, what the sightings mean, and writing it down."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from holdfast.core import endpoint as rules
from holdfast.core import endpoint_watch as watch
from holdfast.core.certificate import CertificateState, Version
from holdfast.core.endpoint import Endpoint, Expected, KeyFamily, Sighting, Verdict
from holdfast.core.endpoint_watch import LastLook, WatchedEndpoint
from holdfast.core.work.job import Priority, Spec
from holdfast.operations.deployment import planning
from holdfast.pki import chain as chains
from holdfast.store import certificates, endpoints, journal, versions
from holdfast.store.deployments import deployments
from holdfast.store.tx import Tx

WATCH: Final = "watch"  # the job that looks at an endpoint, for ever; its subject is the endpoint
Look = Callable[[Endpoint], Awaitable[Sequence[Sighting]]]


async def nothing_seen(endpoint: Endpoint) -> Sequence[Sighting]:
    """The look of a process that has no network, such as a command on the store itself."""
    return ()


def job(job_id: str, endpoint: str) -> Spec:
    return Spec(id=job_id, kind=WATCH, subject=endpoint, priority=Priority.BACKGROUND)


def expected_of(version: Version, label: str) -> Expected:
    """What must be seen where a version is served."""
    chain = chains.without_root(chains.parse_bundle(version.chain_pem.encode()))
    leaf, *rest = [each.fingerprint(hashes.SHA256()).hex() for each in chain]
    return Expected(label=label, leaf=leaf, chain=tuple(rest), key=key_family(chain[0]), not_after=version.not_after)


def key_family(certificate: x509.Certificate) -> KeyFamily | None:
    match certificate.public_key():
        case rsa.RSAPublicKey():
            return "rsa"
        case ec.EllipticCurvePublicKey():
            return "ecdsa"
    return None


def leaves_of(tx: Tx, certificate: str) -> set[str]:
    """SHA-256 of all versions of a certificate."""
    leaves = [x509.load_pem_x509_certificate(each.chain_pem.encode()) for each in versions.of(tx, certificate)]
    return {each.fingerprint(hashes.SHA256()).hex() for each in leaves}


def judge(tx: Tx, row: WatchedEndpoint, sightings: Sequence[Sighting]) -> Verdict:
    """What is expected is read after the look: a version that was deployed meanwhile is no drift."""
    expected, previous = list[Expected](), set[str]()
    for each in row.certificates:
        found = certificates.get(tx, each)
        current = None if found is None else versions.get(tx, found.current_version)
        if found is None or current is None or found.state is CertificateState.ARCHIVED:
            continue
        expected.append(expected_of(current, f"the current version of {found.name}"))
    known = {each.leaf for each in expected}
    if expected and any(each.leaf and each.leaf not in known for each in sightings):
        for each in row.certificates:
            previous |= leaves_of(tx, each) - known
    return rules.judge(expected, previous, sightings, now=tx.now(), name=row.place.name)


def record(tx: Tx, row: WatchedEndpoint, verdict: Verdict) -> WatchedEndpoint | None:
    """Write a look down, with its event if it is worth one; None if the endpoint was changed or deleted meanwhile."""
    last = watch.looked(row.last, verdict, tx.now())
    if not endpoints.save_look(tx, row, last):
        return None
    if watch.news(row.last, last):
        ends = None if last.ends is None else (last.ends - last.at).total_seconds()
        journal.event(
            tx,
            watch.event_of(last.reason),
            row.id,
            reason=last.reason.value,
            error=last.sentence,
            left_s=ends,
            called=row.name,
        )
    _deploy_again(tx, row, last)
    return replace(row, last=last)


def _deploy_again(tx: Tx, row: WatchedEndpoint, last: LastLook) -> None:
    """A target that shows an earlier version, though it showed the current one, was restored or never reloaded.

    What another put there is only reported: the name may lead to another machine by now, and a deployment that
    is not seen would be rolled back.
    """
    found = None if row.certificate is None else certificates.get(tx, row.certificate)
    if not row.target or found is None or found.current_version is None:
        return
    there = deployments.in_place(tx, found.id, row.target)
    if there is None or there.certificate_version != found.current_version:
        return  # a newer one is on its way, or held
    if watch.deploy_again(last, there, tx.now()) and deployments.wanted(tx, found.id, row.target) is None:
        planning.want(tx, found, row.target, found.current_version, cause="drift", actor=journal.SYSTEM, again=True)
