"""CRLs: one job for each shard of each CA, and for each root kept here; it signs the next CRL and sleeps, for ever."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from holdfast.core.own_ca.ca import Crl, RootCrl
from holdfast.core.revocation_reason import RevocationReason
from holdfast.core.work.job import Again, Outcome, Spec
from holdfast.engine.kind import JobKind, Work
from holdfast.errors import LeaseLost, TryLater, UserError
from holdfast.operations.installation.secret_store import SecretStore
from holdfast.operations.own_ca import root_crls as root_crl_operations
from holdfast.operations.own_ca.authorities import Authorities, Authority
from holdfast.operations.own_ca.manage import CRL_ATTEMPTS
from holdfast.operations.own_ca.revocation import CRL, GATHER_FOR
from holdfast.operations.own_ca.root_crls import ATTEMPTS, ROOT_CRL
from holdfast.pki import crl
from holdfast.pki.crl import Revoked
from holdfast.pki.in_thread import aside
from holdfast.ports import Random
from holdfast.store import journal
from holdfast.store.database import Store
from holdfast.store.own_ca import cas, certificates, crls, lost
from holdfast.store.tx import Tx, from_micros, instant
from holdfast.store.work import jobs
from holdfast.telemetry import Telemetry

NOT_NOW: Final = timedelta(minutes=1)  # until a CA or its device is looked for again
AHEAD: Final = timedelta(seconds=5)  # by so much the clocks of replicas may differ
OVERDUE_AFTER: Final = timedelta(seconds=20)  # a revocation that waits so long was missed: the reconciler sees to it
QUICK: Final = 500  # entries that are put into a list without holding up the event loop


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """What the next list is made of."""

    number: int
    now: datetime
    entries: tuple[Revoked, ...]
    to_note: tuple[str, ...]  # certificates of which must be known that they were listed
    places: tuple[str, ...] = ()  # the addresses that certificates of this CA ever named


def kind(db: Store, authorities: Authorities, telemetry: Telemetry) -> JobKind:
    async def handler(work: Work) -> Outcome:
        ca, _, shard = work.claim.subject.rpartition("/")
        authority = authorities.get(ca)
        if authority is None:
            await authorities.refresh()
            authority = authorities.get(ca)
        if authority is None:
            return Again(after=NOT_NOW, reason="CA_NOT_OPEN")
        facts = await db.read(lambda tx: _facts(tx, ca, int(shard)))
        try:
            made = await _signed(authorities, authority, int(shard), facts)
        except (TryLater, UserError) as why:
            telemetry.log.error("crl.not_signed", ca=ca, shard=shard, problem=str(why), again=f"in {NOT_NOW}")
            return Again(after=NOT_NOW, reason="SIGNER_UNAVAILABLE")
        work.point("job.effect-done")
        telemetry.log.info("crl.signed", ca=ca, shard=shard, number=made.number, entries=len(facts.entries))
        due = crl.regenerate_at(made.this_update, made.next_update)
        return Again(at=due, reason="SCHEDULED", write=partial(_write, made=made, facts=facts))

    return JobKind(name=CRL, handler=handler, slots=4)


def _facts(tx: Tx, ca: str, shard: int) -> _Facts:
    last, now = crls.get(tx, ca, shard), tx.now()
    newest = max(lost.floor(tx, ca, shard), 0 if last is None else last.number)
    rows = [
        row
        for row in certificates.revoked(tx, ca, shard)
        if not crl.may_be_left_out(from_micros(row["not_after"]), instant(row["listed_at"]), now)
    ]
    return _Facts(
        number=crl.next_number(newest or None, now),
        now=now,
        entries=tuple(
            Revoked(int(row["serial"], 16), from_micros(row["revoked_at"]), RevocationReason.of(row["reason"] or 0))
            for row in [*rows, *lost.revoked_serials(tx, ca)]
        ),
        to_note=tuple(row["id"] for row in rows if row["listed_at"] is None or from_micros(row["not_after"]) < now),
        places=_places(tx, ca, shard, last),
    )


def _places(tx: Tx, ca: str, shard: int, last: Crl | None) -> tuple[str, ...]:
    """The addresses that are stored, and those of the last CRL, which may be older."""
    known = cas.addresses(tx, ca)
    told = [] if last is None else crl.places_of(last.der, shard)
    return tuple(dict.fromkeys([*known, *told]))


async def _signed(authorities: Authorities, authority: Authority, shard: int, facts: _Facts) -> Crl:
    ends = facts.now + timedelta(seconds=authority.options.crl_lifetime_s)
    prepare = partial(
        crl.prepare,
        authority.issuer,
        number=facts.number,
        this_update=facts.now,
        next_update=ends,
        revoked=facts.entries,
        shard=shard,
        earlier=facts.places,
    )
    content = prepare() if len(facts.entries) < QUICK else await aside(prepare)
    return Crl(
        ca=authority.id,
        shard=shard,
        number=facts.number,
        this_update=facts.now,
        next_update=ends,
        der=await authorities.sign(authority, content),
    )


def _write(tx: Tx, *, made: Crl, facts: _Facts) -> None:
    """Runs with the fence of the job held: two lists of one number cannot both come to be."""
    if not crls.put(tx, made):
        raise LeaseLost(f"list {made.number} of {made.ca}/{made.shard} is there already")
    crls.listed(tx, facts.to_note, made.this_update)
    for place in facts.places:
        cas.remember_address(tx, made.ca, place)
    journal.event(tx, "crl.signed", f"{made.ca}/{made.shard}", number=made.number, entries=len(facts.entries))
    moved = not set(cas.addresses(tx, made.ca)) <= set(facts.places)
    if moved or crls.unlisted_since(tx, made.ca, made.shard) is not None:  # while we signed
        jobs.bring_forward(tx, CRL, f"{made.ca}/{made.shard}", tx.now() + GATHER_FOR)


def owed(random: Random) -> Callable[[Tx], Sequence[Spec]]:
    """Every shard has its job; a revocation that waits too long, or a list from the future, brings it forward."""

    def specs(tx: Tx) -> Sequence[Spec]:
        missing, ahead = [], crls.begun_after(tx, tx.now() + AHEAD)
        for row in cas.everything(tx):
            for shard in range(row.options.shards):
                subject = f"{row.id}/{shard}"
                if jobs.live(tx, CRL, subject) is None:
                    missing.append(Spec(id=random.new_id("job"), kind=CRL, subject=subject, max_attempts=CRL_ATTEMPTS))
                else:
                    _nudge(tx, row.id, shard, from_the_future=(row.id, shard) in ahead)
        return missing

    return specs


def _nudge(tx: Tx, ca: str, shard: int, *, from_the_future: bool) -> None:
    """A CRL that begins only later is of no use until then: it was signed while a clock was ahead."""
    since = crls.unlisted_since(tx, ca, shard)
    if from_the_future or (since is not None and since + OVERDUE_AFTER < tx.now()):
        jobs.bring_forward(tx, CRL, f"{ca}/{shard}", tx.now())


ROOT_NOT_NOW: Final = timedelta(hours=1)


def root_kind(secret_store: SecretStore, telemetry: Telemetry) -> JobKind:
    """Jobs of this kind have a root as subject, by the SHA-256 of its certificate."""

    async def handler(work: Work) -> Outcome:
        root = work.claim.subject
        last, above, now = await secret_store.db.read(
            lambda tx: (crls.get_root_crl(tx, root), root_crl_operations.under(tx, root), tx.now())
        )
        if last is not None and not _root_due(last, now):
            return Again(at=crl.regenerate_at(last.this_update, last.next_update), reason="SCHEDULED")
        try:
            made = await root_crl_operations.next_list(secret_store, above[0])
        except (UserError, LookupError) as why:
            telemetry.log.error("root_crl.not_signed", root=root, problem=str(why), again=f"in {ROOT_NOT_NOW}")
            return Again(after=ROOT_NOT_NOW, reason="SIGNER_UNAVAILABLE")
        telemetry.log.info("root_crl.signed", root=root, number=made.number)
        due = crl.regenerate_at(made.this_update, made.next_update)
        return Again(at=due, reason="SCHEDULED", write=lambda tx: _write_root(tx, made))

    return JobKind(name=ROOT_CRL, handler=handler, slots=1)


def _root_due(last: RootCrl, now: datetime) -> bool:
    return crl.regenerate_at(last.this_update, last.next_update) <= now or last.this_update > now + AHEAD


def _write_root(tx: Tx, made: RootCrl) -> None:
    if not crls.put_root_crl(tx, made):
        raise LeaseLost(f"list {made.number} of root {made.root} is there already")
    journal.audit(tx, "root_crl_signed", made.root, number=made.number)


def owed_roots(random: Random) -> Callable[[Tx], Sequence[Spec]]:
    """Every list that is kept has its job; one from the future brings it forward."""

    def specs(tx: Tx) -> Sequence[Spec]:
        missing = []
        for each in crls.all_root_crls(tx):
            if jobs.live(tx, ROOT_CRL, each.root) is None:
                missing.append(Spec(id=random.new_id("job"), kind=ROOT_CRL, subject=each.root, max_attempts=ATTEMPTS))
            elif each.this_update > tx.now() + AHEAD:
                jobs.bring_forward(tx, ROOT_CRL, each.root, tx.now())
        return missing

    return specs
