"""Finds the certificate that a name, an id or a prefix of an id means, and says which certificates an asker may see."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from holdfast.core.certificate import Certificate
from holdfast.core.inventory import InventoryFilter
from holdfast.errors import UserError
from holdfast.operations.access import Action, Owned, Principal, Verdict, allow
from holdfast.store import certificates
from holdfast.store.tx import Tx

_ALIKE: Final = 3  # of those that may have been meant, are named


class NoSuchCertificate(UserError):
    status, code = 404, "no-such-certificate"

    def __init__(self, ref: str, alike: Sequence[Certificate] = ()) -> None:
        """`alike`: certificates that the reference may mean; only an asker who may see all of them is shown them."""
        super().__init__(f"There is no certificate {ref!r:.80}.")
        self.hint = "Give its name, its id, or a prefix of its id that no other has."
        self.alike = tuple(alike)
        if len(alike) > 1:
            first = ", ".join(f"{each.id} ({each.name:.60})" for each in alike[:_ALIKE])
            more = " and more" if len(alike) > _ALIKE else ""
            self.args = (f"{ref!r:.80} is ambiguous, the ids of several begin so: {first}{more}.",)
        elif alike:
            self.args = (f"{ref:.80} is archived, as {alike[0].id}: it is not kept any more.",)
            self.hint = (
                f"Look at it by its id: holdfast get {alike[0].id}. Or ask for it anew: holdfast issue {ref:.80}"
            )


def found_by(tx: Tx, ref: str, *, lock: bool = False) -> Certificate:
    """By its name, its id, or a prefix of its id that no other has; NoSuchCertificate if there is none."""
    found = meant_by(tx, ref)
    if len(found) != 1:
        raise NoSuchCertificate(ref, found or certificates.archived(tx, ref))
    return got(tx, found[0].id, lock=True) if lock else found[0]


def meant_by(tx: Tx, ref: str) -> list[Certificate]:
    """The certificates that this reference may mean: none, one, or the first few."""
    found = certificates.by_name(tx, ref) or certificates.get(tx, ref)
    if found is None and len(ref) >= 4:
        return certificates.by_prefix(tx, ref, limit=_ALIKE + 1)
    return [] if found is None else [found]


def got(tx: Tx, certificate: str, *, lock: bool = False) -> Certificate:
    found = certificates.get(tx, certificate, lock=lock)
    if found is None:
        raise NoSuchCertificate(certificate)
    return found


T = TypeVar("T")


def sees(principal: Principal, resource: Owned | None) -> bool:
    return resource is not None and allow(principal, Action.SEE, resource) is Verdict.ALLOWED


def sees_certificate(tx: Tx, principal: Principal, certificate: str) -> bool:
    """By its id; a certificate that does not exist is seen by no asker."""
    found = certificates.get(tx, certificate)
    return sees(principal, None if found is None else Owned.of(found))


def visible(tx: Tx, principal: Principal, items: Sequence[T], subjects: Iterable[str]) -> list[T]:
    """The items about certificates that the asker may see. An asker who is not confined sees all."""
    if not principal.confined:
        return list(items)
    known: dict[str, bool] = {}
    for subject in subjects:
        if subject not in known:
            known[subject] = sees_certificate(tx, principal, subject)
    return [item for item, subject in zip(items, subjects, strict=True) if known[subject]]


def confined(wanted: InventoryFilter, principal: Principal) -> InventoryFilter | None:
    """The filter within what the asker may see; None if no certificate is in both."""
    owners = wanted.owners
    if principal.owners:
        owners = tuple(each for each in owners or principal.owners if each in principal.owners)
        if not owners:
            return None
    if any(wanted.labels.get(name, value) != value for name, value in principal.labels.items()):
        return None
    return replace(wanted, owners=owners, labels={**wanted.labels, **principal.labels})


def all_visible(principal: Principal) -> InventoryFilter:
    """A filter for every certificate that the asker may see, in any state."""
    return InventoryFilter(owners=principal.owners, labels=principal.labels, whatever_state=True)
