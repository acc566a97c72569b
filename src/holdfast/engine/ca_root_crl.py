"""The lists of roots whose keys are kept here: one job for each signs the next one, long before the last ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from holdfast.core.job import Again, Outcome, Spec
from holdfast.engine.kind import Kind, Work
from holdfast.errors import LeaseLost, UserError
from holdfast.operations import root_lists
from holdfast.operations.root_lists import ATTEMPTS, ROOT_CRL
from holdfast.operations.vault import Vault
from holdfast.pki import crl
from holdfast.ports import Random
from holdfast.store import jobs, journal, root_crls
from holdfast.store.root_crls import RootCrl
from holdfast.store.tx import Tx
from holdfast.telemetry import Telemetry

NOT_NOW: Final = timedelta(hours=1)
AHEAD: Final = timedelta(seconds=5)  # by so much the clocks of replicas may differ


def kind(vault: Vault, telemetry: Telemetry) -> Kind:
    """Jobs of this kind have a root as subject, by the SHA-256 of its certificate."""

    async def handler(work: Work) -> Outcome:
        root = work.claim.subject
        last, above, now = await vault.db.read(
            lambda tx: (root_crls.get(tx, root), root_lists.under(tx, root), tx.now())
        )
        if last is not None and not _due(last, now):
            return Again(at=crl.regenerate_at(last.this_update, last.next_update), reason="SCHEDULED")
        try:
            made = await root_lists.next_list(vault, above[0])
        except (UserError, LookupError) as why:
            telemetry.log.error("root_crl.not_signed", root=root, problem=str(why), again=f"in {NOT_NOW}")
            return Again(after=NOT_NOW, reason="SIGNER_UNAVAILABLE")
        telemetry.log.info("root_crl.signed", root=root, number=made.number)
        due = crl.regenerate_at(made.this_update, made.next_update)
        return Again(at=due, reason="SCHEDULED", write=lambda tx: _write(tx, made))

    return Kind(name=ROOT_CRL, handler=handler, slots=1)


def _due(last: RootCrl, now: datetime) -> bool:
    return crl.regenerate_at(last.this_update, last.next_update) <= now or last.this_update > now + AHEAD


def _write(tx: Tx, made: RootCrl) -> None:
    if not root_crls.put(tx, made):
        raise LeaseLost(f"list {made.number} of root {made.root} is there already")
    journal.audit(tx, "root_crl_signed", made.root, number=made.number)


def owed(random: Random) -> Callable[[Tx], Sequence[Spec]]:
    """Every list that is kept has its job; one from the future brings it forward."""

    def specs(tx: Tx) -> Sequence[Spec]:
        missing = []
        for each in root_crls.everything(tx):
            if jobs.live(tx, ROOT_CRL, each.root) is None:
                missing.append(Spec(id=random.new_id("job"), kind=ROOT_CRL, subject=each.root, max_attempts=ATTEMPTS))
            elif each.this_update > tx.now() + AHEAD:
                jobs.bring_forward(tx, ROOT_CRL, each.root, tx.now())
        return missing

    return specs
