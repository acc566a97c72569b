"""Policies: which owners and tokens may have which names, from which issuers, with which keys, and for how long."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.core.certificate import CertificateSpec
from holdfast.core.durations import brief, in_words
from holdfast.core.own_ca.acme import Identifier, permits


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Its names are reserved for the owners and tokens it lists; those may have no names but the ones of such policies.

    A policy that lists no owner and no token is for everybody: it only says how its names may be had.
    """

    name: str
    names: tuple[str, ...]  # patterns: a name, *.name for everything below it, an address, or *
    owners: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()  # as the audit log names their users: robot:ci
    issuers: tuple[str, ...] = ()  # issuers, and CAs of ours for ACME clients; empty: any
    key_kinds: tuple[str, ...] = ()  # empty: any
    max_lifetime: timedelta | None = None
    version: int = 1
    created_at: datetime

    @property
    def for_everybody(self) -> bool:
        return not self.owners and not self.tokens

    def lists(self, asked: NameRequest) -> bool:
        """Whether it is about this asker: of both an owner and a token that it lists, both must be the asker's."""
        if self.for_everybody or (self.owners and asked.owner not in self.owners):
            return False
        return not self.tokens or asked.actor in self.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class NameRequest:
    """What is asked for, as policies see it."""

    identifiers: Sequence[Identifier]
    owner: str = ""
    actor: str | None = None
    issuers: Sequence[str] = ()
    key_kind: str | None = None  # None: it is not known yet
    lifetime: timedelta | None = None  # None: the issuer decides

    @classmethod
    def of(cls, spec: CertificateSpec, actor: str | None = None) -> NameRequest:
        return cls(
            identifiers=spec.identifiers,
            owner=spec.owner,
            actor=actor,
            issuers=spec.issuers,
            key_kind=spec.key_kind,
            lifetime=spec.lifetime,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    policy: str  # its name
    name: str  # the DNS name or address
    why: str  # a sentence


def violation(policies: Collection[Policy], asked: NameRequest) -> Violation | None:
    """The first name that may not be had in this way, and the policy that refuses it; None: all is allowed.

    Who once asked for a certificate that is in use is not known: policies that list tokens say nothing about it.
    """
    about = policies if asked.actor is not None else [each for each in policies if not each.tokens]
    for identifier in asked.identifiers if about else ():
        found = _reserved(about, asked, identifier) or _outside(about, asked, identifier)
        if found is not None:
            return found
    return None


def granting(policies: Iterable[Policy], asked: NameRequest) -> list[str]:
    """The policies that are about a name of this request."""
    return [each.name for each in policies if any(permits(each.names, name) for name in asked.identifiers)]


def _reserved(policies: Iterable[Policy], asked: NameRequest, identifier: Identifier) -> Violation | None:
    name, mine = identifier.value, False
    other: Policy | None = None
    for each in policies:
        if each.lists(asked):
            mine = mine or permits(each.names, identifier)
        elif other is None and _reserves(each, identifier):
            other = each
    if other is None or mine:
        return None
    return Violation(policy=other.name, name=name, why=f"{name} is reserved for {_listed(other)}.")


def _outside(policies: Collection[Policy], asked: NameRequest, identifier: Identifier) -> Violation | None:
    """What is said of the asker's token, of its owner and of everybody must all be met."""
    listing = [each for each in policies if each.lists(asked)]
    by_token, by_owner = [each for each in listing if each.tokens], [each for each in listing if not each.tokens]
    common = [[each] for each in policies if each.for_everybody and permits(each.names, identifier)]
    groups = [group for group in (by_token, by_owner, *common) if group]
    found = (_unmet_by_all(group, asked, identifier) for group in groups)
    return next((each for each in found if each is not None), None)


def _unmet_by_all(group: Sequence[Policy], asked: NameRequest, identifier: Identifier) -> Violation | None:
    """One policy of the group that is met is enough."""
    name, covering = identifier.value, [each for each in group if permits(each.names, identifier)]
    if not covering:
        may = ", ".join(dict.fromkeys(pattern for each in group for pattern in each.names))
        why = f"{name} is not among the names of {_listed(group[0])}: {may:.200}."
        return Violation(policy=group[0].name, name=name, why=why)
    unmet = [_unmet(each, asked) for each in covering]
    if None in unmet:
        return None
    return Violation(policy=covering[0].name, name=name, why=f"{name}: {unmet[0]}")


def _reserves(policy: Policy, identifier: Identifier) -> bool:
    """A wildcard is good for the names below it, so it takes from whoever holds one of those."""
    if policy.for_everybody:
        return False
    below = identifier.value.removeprefix("*") if identifier.value.startswith("*.") else None
    return permits(policy.names, identifier) or (
        below is not None and any(_single_label_below(pattern.lower(), below) for pattern in policy.names)
    )


def _single_label_below(name: str, below: str) -> bool:
    return name.endswith(below) and "." not in name.removesuffix(below) and not name.startswith("*")


def _unmet(policy: Policy, asked: NameRequest) -> str | None:
    other = [each for each in asked.issuers if policy.issuers and each not in policy.issuers]
    if other:
        return f"it may come from {', '.join(policy.issuers)}, and not from {other[0]}."
    if policy.key_kinds and asked.key_kind is not None and asked.key_kind not in policy.key_kinds:
        return f"its key may be {' or '.join(policy.key_kinds)}, and not {asked.key_kind}."
    return _too_long(policy.max_lifetime, asked.lifetime)


def _too_long(most: timedelta | None, lifetime: timedelta | None) -> str | None:
    if most is None or (lifetime is not None and lifetime <= most):
        return None
    if lifetime is None:
        return f"it may be valid for at most {in_words(most)}: ask for that, with --lifetime {brief(most)}."
    return f"it may be valid for at most {in_words(most)}, and not for {in_words(lifetime)}."


def _listed(policy: Policy) -> str:
    owners = [f"owner {each}" for each in policy.owners]
    return " and ".join(owners + [f"token {each}" for each in policy.tokens])
