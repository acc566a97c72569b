"""Signs what a finalized order committed to: the same intent gives the same bytes, however often this is begun."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from holdfast.core.backoff import SIGNING
from holdfast.core.own_ca.acme import Identifier, Order, OrderState
from holdfast.core.own_ca.ca import IssuedCertificate
from holdfast.core.own_ca.problem import AcmeError, Problem
from holdfast.core.work.job import Again, Done, Outcome, Spec
from holdfast.engine.kind import JobKind, Work
from holdfast.errors import TryLater
from holdfast.operations.acme.context import AcmeContext
from holdfast.operations.acme.orders import ISSUE, StartedOrder
from holdfast.operations.own_ca.authorities import Authority
from holdfast.pki import certify, keys, lint
from holdfast.pki.ari import parse_cert_id
from holdfast.pki.certify import Unsigned
from holdfast.pki.profile import Intent
from holdfast.pki.refused import PkiRefused
from holdfast.ports import Random
from holdfast.store import journal
from holdfast.store.acme import authorizations, orders
from holdfast.store.marks import inline
from holdfast.store.own_ca import certificates
from holdfast.store.tx import Tx

GIVE_UP_AFTER: Final = timedelta(hours=1)  # since the client finalized its order: by then no client waits for it
MOST_TRIES: Final = 30  # that are remembered
GAVE_UP: Final = "The certificate could not be issued; the operator of this CA can see why. Place a new order."

CaaCheck = Callable[[Order, Identifier, str], Awaitable[Problem | None]]  # a name, and how it was proved


def kind(acme_context: AcmeContext, *, caa: CaaCheck, use_pkilint: bool) -> JobKind:
    """Jobs of this kind have an order as subject."""
    if use_pkilint:
        lint.load_pkilint()

    async def handler(work: Work) -> Outcome:
        try:
            return await _issue(acme_context, work, caa=caa, use_pkilint=use_pkilint)
        except PkiRefused as refused:
            return _give_up(work, AcmeError.server_internal(GAVE_UP).problem, str(refused))
        except TryLater as error:
            return await _later(acme_context, work, error)

    return JobKind(
        name=ISSUE,
        handler=handler,
        slots=32,
        timeout=timedelta(minutes=2),
        ladder=SIGNING,
        settled=lambda claim: acme_context.changes.fire(claim.subject),
    )


async def _issue(acme_context: AcmeContext, work: Work, *, caa: CaaCheck, use_pkilint: bool) -> Outcome:
    facts = None if acme_context.policy.caa_identities else work.claim.known
    facts = facts or await acme_context.db.read(inline(lambda tx: _facts(tx, acme_context, work.claim.subject)))
    if facts is None:
        return Done()  # it is over: an earlier run stored the certificate, and we did not hear of it
    order, intent = facts.order, facts.intent
    ca = acme_context.authorities.get(order.ca)
    if ca is None:
        raise TryLater(f"CA {order.ca} cannot sign here now.", reason="CA_NOT_OPEN")
    for identifier, proof in facts.stale:
        if problem := await caa(order, identifier, proof):
            return _give_up(work, problem, problem.detail)
    content = certify.prepare(intent, ca.issuer)
    _lint(content, intent, ca, use_pkilint=use_pkilint)
    work.check()
    der = await acme_context.authorities.sign(ca, content)
    work.point("job.effect-done")
    issued = _issued(order, intent, der, acme_context.random)
    return Done(write=lambda tx: _store(tx, order, issued))


async def _later(acme_context: AcmeContext, work: Work, error: TryLater) -> Outcome:
    """Again soon, and no attempt is used up: a device that is away for minutes must not cost the order."""
    order = work.claim.subject
    found, now = await acme_context.db.read(lambda tx: (certificates.tries(tx, order), tx.now()))
    if found is None:
        return Done()
    before, since = found
    if now - since > GIVE_UP_AFTER:
        return _give_up(work, AcmeError.server_internal(GAVE_UP).problem, str(error))
    seen = [*before[-MOST_TRIES:], {"at": f"{now:%FT%TZ}", "error": str(error), "reason": error.reason}]
    wait = SIGNING.wait(len(seen), order)
    return Again(after=wait, reason=error.reason, write=lambda tx: certificates.tried(tx, order, seen))


def _facts(tx: Tx, acme_context: AcmeContext, order_id: str) -> StartedOrder | None:
    order, content = orders.get(tx, order_id), certificates.intent_of(tx, order_id)
    if order is None or content is None or order.state is not OrderState.PROCESSING:
        return None
    intent = Intent.from_json(content)
    if not acme_context.policy.caa_identities:
        return StartedOrder(order, intent)
    oldest = tx.now() - acme_context.policy.caa_for
    proofs = authorizations.proofs(tx, order.authzs)
    return StartedOrder(order, intent, tuple((name, proof) for name, proof, at in proofs if proof and at < oldest))


def _lint(content: Unsigned, intent: Intent, ca: Authority, *, use_pkilint: bool) -> None:
    """Nothing is signed that was not looked at first."""
    preview = content.preview
    profile = ca.profile(intent.profile)
    if not isinstance(preview, x509.Certificate) or profile is None:
        raise PkiRefused("lint-profile", f"Profile {intent.profile!r} is no longer offered.")
    found = lint.findings(preview, intent, ca.issuer, max_lifetime=profile.max_lifetime)
    if use_pkilint:
        found = [*found, *lint.pkilint_findings(preview.public_bytes(Encoding.DER))]
    if found:
        raise PkiRefused("lint", "; ".join(f"{each.code}: {each.problem}" for each in found))


def _issued(order: Order, intent: Intent, der: bytes, random: Random) -> IssuedCertificate:
    return IssuedCertificate(
        id=random.new_id("cert"),
        ca=order.ca,
        serial=f"{intent.serial:x}",
        order=order.id,
        account=order.account,
        profile=order.profile,
        identifiers=order.identifiers,
        der=der,
        spki_sha256=keys.spki_sha256(intent.spki).hex(),
        not_before=intent.not_before,
        not_after=intent.not_after,
        shard=intent.crl_shard,
        issued_at=order.created_at,
    )


def _store(tx: Tx, order: Order, issued: IssuedCertificate) -> None:
    """The certificate and the order's end, together; of two that signed the same, the first counts."""
    kept, ended = certificates.insert(tx, issued, tx.now(), orders.issued(order.id, issued.id))
    if not kept:
        if ended:
            raise AssertionError(f"order {order.id} has a certificate, and was still under way")
        return
    journal.audit(tx, "certificate_issued", issued.id, order=order.id, ca=issued.ca, serial=issued.serial)
    journal.event(tx, "certificate.issued", issued.id, order=order.id, serial=issued.serial)


def _give_up(work: Work, problem: Problem, why: str) -> Outcome:
    def write(tx: Tx) -> None:
        refuse(tx, work.claim.subject, problem, why)

    return Done(write=write)


def refuse(tx: Tx, order_id: str, problem: Problem, why: str) -> None:
    """processing → invalid. The intent stays: it tells what was never signed."""
    order = orders.get(tx, order_id)
    if order is None or not orders.refuse(tx, order_id, problem):
        return
    if order.replaces is not None:
        certificates.replaced(tx, order.ca, parse_cert_id(order.replaces)[1], None)
    journal.audit(tx, "order_invalid", order_id, problem=problem.brief(), why=why)
    journal.event(tx, "order.invalid", order_id, why=why)


def owed(random: Random) -> Callable[[Tx], Sequence[Spec]]:
    """Orders under way without a job get one; an order whose job died is over, and says so."""

    def specs(tx: Tx) -> Sequence[Spec]:
        found = orders.processing_without_job(tx, ISSUE)
        for order, dead in found:
            if dead:
                refuse(tx, order, AcmeError.server_internal(GAVE_UP).problem, "its job is dead")
        return [Spec(id=random.new_id("job"), kind=ISSUE, subject=order) for order, dead in found if not dead]

    return specs
