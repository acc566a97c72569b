"""Which names may be had: of a CA, by its operator's patterns and its certificate; of an account, by its binding."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from holdfast.core import policy
from holdfast.core.own_ca.acme import Identifier, Order, permits
from holdfast.core.own_ca.ca import CaMode, CaOptions
from holdfast.core.own_ca.problem import AcmeError, SubProblem
from holdfast.core.policy import NameRequest
from holdfast.operations.own_ca.authorities import Authority
from holdfast.pki import names as pki_names
from holdfast.pki.signing import SigningCertificate
from holdfast.store import policies
from holdfast.store.acme.accounts import AccountStatus
from holdfast.store.tx import Tx

NOT_OURS = "This CA does not issue for it."


def split(identifiers: Sequence[Identifier]) -> tuple[list[str], list[str]]:
    """DNS names and addresses."""
    return [e.value for e in identifiers if e.type == "dns"], [e.value for e in identifiers if e.type == "ip"]


def not_allowed(options: CaOptions, issuer: SigningCertificate, identifiers: Sequence[Identifier]) -> list[Identifier]:
    """Those outside the patterns of the CA's operator, or outside what its certificate is confined to."""
    patterns = options.permitted
    refused = [each for each in identifiers if patterns and not permits(patterns, each)]
    confined = [each for each in identifiers if pki_names.outside(issuer.constraints, *split([each]))]
    return refused + [each for each in confined if each not in refused]


def check_allowed(ca: Authority, identifiers: Sequence[Identifier]) -> None:
    """Refuse names that this CA does not issue for, however they are proved."""
    if ca.closed:
        raise AcmeError.unauthorized("This CA is closed: it takes no new orders.")
    refuse(not_allowed(ca.options, ca.issuer, identifiers), NOT_OURS)


def check_trust(patterns: Sequence[str], identifiers: Sequence[Identifier]) -> None:
    refused = [each for each in identifiers if not permits(patterns, each)]
    refuse(refused, "It is not among the names that this account may have.")


def check_policies(
    tx: Tx,
    account: AccountStatus,
    ca: Authority,
    identifiers: Sequence[Identifier],
    *,
    actor: str,
    lifetime: timedelta,
    key_kind: str | None = None,
) -> None:
    """Refuse names that policies do not give the owner of this account. The client is not told for whom they are."""
    if not account.policies:
        return
    asked = NameRequest(
        identifiers=identifiers,
        owner=account.owner,
        actor=actor,
        issuers=(ca.id,),
        key_kind=key_kind,
        lifetime=lifetime,
    )
    found = policy.violation(policies.everything(tx), asked)
    if found is not None:
        why = f"Policy {found.policy!r} of this installation does not let this account have it in this way."
        refuse([each for each in identifiers if each.value == found.name], why)


def refuse(refused: Sequence[Identifier], why: str) -> None:
    if refused:
        names = ", ".join(each.value for each in refused[:3])
        subproblems = tuple(SubProblem("rejectedIdentifier", why, (each.type, each.value)) for each in refused)
        raise AcmeError.rejected_identifier(f"{names}: {why}", subproblems=subproblems if len(refused) > 1 else ())


def check_still(ca: Authority, bound_to: Sequence[str], order: Order, *, any_trusted: bool) -> None:
    """At the last step once more: an operator who narrows what a CA may do means the orders of before, too.

    `any_trusted`: a name of the order was never proved by a challenge.
    """
    refuse(not_allowed(ca.options, ca.issuer, order.identifiers), NOT_OURS)
    if ca.options.mode is CaMode.TRUST:
        check_trust(bound_to, order.identifiers)
    elif any_trusted:
        raise AcmeError.unauthorized("A name of this order was trusted, and has to be proved by now: order again.")
