"""Policies: who may have which names. Add, change, remove; what a policy says about a request, and what violates it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field

from holdfast.core import policy as rules
from holdfast.core.certificate import CertificateSpec
from holdfast.core.inventory import InventoryFilter
from holdfast.core.policy import NameRequest, Policy, Violation
from holdfast.errors import UserError
from holdfast.operations.access import Action, Owned, Principal
from holdfast.operations.certificates import refs
from holdfast.operations.certificates.checks import identifiers_of
from holdfast.operations.context import Context
from holdfast.operations.inputs import (
    HostName,
    Input,
    KeyKindName,
    Option,
    OwnerName,
    Page,
    Paged,
    RemoteName,
    Short,
    page_of,
    paged,
    place,
)
from holdfast.operations.operation import operation
from holdfast.operations.own_ca.manage import check_pattern
from holdfast.operations.scopes import INSTALLATION, owner_in_input
from holdfast.store import inventory, journal, policies
from holdfast.store.tx import Tx

_LOOKED_AT: Final = 500  # certificates of one page of violations


class NameNotAllowed(UserError):
    status, code = 403, "name-not-allowed"

    def __init__(self, why: str, policy: str = "") -> None:
        super().__init__(f"{why} Policy {policy!r} says so." if policy else why)
        self.hint = "Ask an admin to change a policy: holdfast policy ls" if policy else "Ask an admin."


class NoSuchPolicy(UserError):
    status, code = 404, "no-such-policy"

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no policy named {name!r:.80}.")
        self.hint = "See what there is: holdfast policy ls"


class PolicyExists(UserError):
    status, code = 409, "policy-exists"

    def __init__(self, name: str) -> None:
        super().__init__(f"There is a policy named {name!r} already.")
        self.hint = f"Change it: holdfast policy change {name}"


# ── What every face that takes names asks ──


def demand_names(tx: Tx, spec: CertificateSpec, *, asker: Principal | None, actor: str) -> None:
    """Raise NameNotAllowed unless the policies give this owner and this token the names, in this way.

    An asker who is confined to some certificates does not get a name that a certificate of others is for, either:
    the error does not say whose it is.
    """
    found = rules.violation(policies.everything(tx), NameRequest.of(spec, actor))
    if found is not None:
        raise NameNotAllowed(found.why, found.policy)
    if asker is not None and asker.confined:
        for other in policies.holders(tx, spec.identifiers):
            if not refs.sees(asker, Owned.of(other)):
                raise NameNotAllowed("One of these names is in use by others, and your token is confined.")


DECIDES: Final = ("identifiers", "owner", "issuers", "key_kind", "lifetime")  # what policies look at


def demand_changed_names(
    tx: Tx, before: CertificateSpec, after: CertificateSpec, *, asker: Principal | None, actor: str
) -> None:
    """A certificate that violates a policy made later may still be changed in what policies do not look at."""
    if any(getattr(before, each) != getattr(after, each) for each in DECIDES):
        demand_names(tx, after, asker=asker, actor=actor)


def violated_by(tx: Tx, spec: CertificateSpec) -> Violation | None:
    return rules.violation(policies.everything(tx), NameRequest.of(spec))


# ── Operations ──


class PolicyRef(Input):
    policy: Annotated[Short, Option(metavar="POLICY")] = Field(max_length=63, description="The policy's name.")


Pattern = Annotated[str, Field(max_length=300)]
_NAMES: Final = "A name, *.example.com for every name below it, an address, or *; may be repeated."
_OWNERS: Final = "The names are reserved for this owner, who gets no others; may be repeated."
_TOKENS: Final = "The same for the user of a token, as the audit log names them: robot:ci; may be repeated."
_ISSUERS: Final = "Certificates come from this issuer; for ACME clients, from this CA of ours; may be repeated."
_KEYS: Final = "The kind of their key; may be repeated."
_LIFETIME: Final = "How long they are valid at most, such as 90d."


class NewPolicy(Input):
    policy: Annotated[RemoteName, Option(argument=True, metavar="POLICY")] = Field(description="What it is called.")
    names: Annotated[list[Pattern], Option(flag="--name", metavar="PATTERN")] = Field(
        min_length=1, max_length=1000, description=_NAMES
    )
    owners: Annotated[list[OwnerName], Option(flag="--owner")] = Field(default=[], max_length=100, description=_OWNERS)
    tokens: Annotated[list[Short], Option(flag="--token")] = Field(default=[], max_length=100, description=_TOKENS)
    issuers: Annotated[list[RemoteName], Option(flag="--issuer")] = Field(
        default=[], max_length=20, description=_ISSUERS
    )
    key_kinds: Annotated[list[KeyKindName], Option(flag="--key")] = Field(default=[], max_length=6, description=_KEYS)
    max_lifetime_s: Annotated[int | None, Option(flag="--max-lifetime", read="duration")] = Field(
        default=None, ge=300, le=10**10, description=_LIFETIME
    )


class PolicyChange(PolicyRef):
    names: Annotated[list[Pattern] | None, Option(flag="--name", metavar="PATTERN")] = Field(
        default=None, min_length=1, max_length=1000, description=_NAMES
    )
    owners: Annotated[list[OwnerName] | None, Option(flag="--owner")] = Field(
        default=None, max_length=100, description=_OWNERS
    )
    tokens: Annotated[list[Short] | None, Option(flag="--token")] = Field(
        default=None, max_length=100, description=_TOKENS
    )
    issuers: Annotated[list[RemoteName] | None, Option(flag="--issuer")] = Field(
        default=None, max_length=20, description=_ISSUERS
    )
    key_kinds: Annotated[list[KeyKindName] | None, Option(flag="--key")] = Field(
        default=None, max_length=6, description=_KEYS
    )
    max_lifetime_s: Annotated[int | None, Option(flag="--max-lifetime", read="duration")] = Field(
        default=None, ge=300, le=10**10, description=_LIFETIME
    )


class PolicyView(BaseModel):
    policy: str
    names: list[str]
    owners: list[str]
    tokens: list[str]
    issuers: list[str]
    key_kinds: list[str]
    max_lifetime_s: int | None
    version: int
    created_at: datetime


def _shown(row: Policy) -> PolicyView:
    return PolicyView(
        policy=row.name,
        names=list(row.names),
        owners=list(row.owners),
        tokens=list(row.tokens),
        issuers=list(row.issuers),
        key_kinds=list(row.key_kinds),
        max_lifetime_s=None if row.max_lifetime is None else int(row.max_lifetime.total_seconds()),
        version=row.version,
        created_at=row.created_at,
    )


@operation(
    "policies.list", "GET /policies", command="policy ls", action=Action.SEE_POLICIES, scope=INSTALLATION, offline=True
)
def list_policies(tx: Tx, ctx: Context, asked: Paged) -> Page[PolicyView]:
    """List the policies: who may have which names, from which issuers, with which keys, and for how long."""
    found = policies.everything(tx)
    read = lambda after, limit: [each for each in found if each.name > after][:limit]  # noqa: E731
    return paged(asked, read, lambda row: row.name, _shown)


@operation(
    "policies.get", "GET /policies/{policy}", command="policy show", action=Action.SEE_POLICIES, scope=INSTALLATION,
    versioned=True, offline=True,
)  # fmt: skip
def get_policy(tx: Tx, ctx: Context, asked: PolicyRef) -> PolicyView:
    """Show one policy."""
    return _shown(_found(tx, asked.policy))


def _found(tx: Tx, name: str) -> Policy:
    found = policies.get(tx, name)
    if found is None:
        raise NoSuchPolicy(name)
    return found


@operation(
    "policies.add",
    "POST /policies",
    command="policy add",
    action=Action.CHANGE_POLICIES,
    scope=INSTALLATION,
    status=201,
    offline=True,
    example="holdfast policy add team-a --name '*.team-a.example' --owner team-a --max-lifetime 90d",
    done="Policy {policy} holds from now on. See what violates it: holdfast policy violations",
)
def add_policy(tx: Tx, ctx: Context, asked: NewPolicy) -> PolicyView:
    """Add a policy. Its names are reserved for the owners and tokens it lists, and those get no other names.

    A policy that lists no owner and no token says for all how its names may be had. Certificates that violate a new
    policy are renewed as before, and listed by `holdfast policy violations`.
    """
    row = Policy(name=asked.policy, created_at=tx.now(), **_values(asked.model_dump(exclude={"policy"})))
    if not policies.insert(tx, row):
        raise PolicyExists(asked.policy)
    journal.audit(tx, "policy_added", row.name, actor=ctx.actor, after=_decided(row), **_decided(row))
    return _shown(row)


def _values(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a policy, of those that were given."""
    for pattern in given.get("names", ()):
        check_pattern(pattern)
    values: dict[str, Any] = {name: tuple(each) for name, each in given.items() if name != "max_lifetime_s"}
    if "names" in values:
        values["names"] = tuple(pattern.lower() for pattern in values["names"])
    if "max_lifetime_s" in given:
        most = given["max_lifetime_s"]
        values["max_lifetime"] = None if most is None else timedelta(seconds=most)
    return values


def _decided(row: Policy) -> dict[str, object]:
    """What the audit log says of a policy, and has digests of."""
    return _shown(row).model_dump(mode="json", exclude={"policy", "version", "created_at"})


@operation(
    "policies.change",
    "PATCH /policies/{policy}",
    command="policy change",
    action=Action.CHANGE_POLICIES,
    scope=INSTALLATION,
    versioned=True,
    offline=True,
    example="holdfast policy change team-a --name '*.team-a.example' --name team-a.example",
)
def change_policy(tx: Tx, ctx: Context, asked: PolicyChange) -> PolicyView:
    """Change a policy. Options you leave out keep their values."""
    before = _found(tx, asked.policy)
    if ctx.expected_version is not None and ctx.expected_version != before.version:
        raise PolicyChanged(before)
    given = {name: getattr(asked, name) for name in asked.model_fields_set - {"policy"}}
    kept = {name: each for name, each in given.items() if each is not None or name == "max_lifetime_s"}
    after = policies.save(tx, before, **_values(kept))
    journal.audit(
        tx, "policy_changed", before.name, actor=ctx.actor, before=_decided(before), after=_decided(after),
        **_decided(after),
    )  # fmt: skip
    return _shown(after)


class PolicyChanged(UserError):
    status, code = 412, "policy-changed"

    def __init__(self, row: Policy) -> None:
        super().__init__(f"Policy {row.name} was changed since you looked: it is at version {row.version}.")
        self.hint = "Look again, and decide with what you see then."


@operation(
    "policies.remove", "DELETE /policies/{policy}", command="policy remove", action=Action.CHANGE_POLICIES,
    scope=INSTALLATION, destructive=True, offline=True, done="Policy {policy} is removed.",
)  # fmt: skip
def remove_policy(tx: Tx, ctx: Context, asked: PolicyRef) -> PolicyView:
    """Remove a policy. Its names are no longer reserved."""
    row = _found(tx, asked.policy)
    policies.delete(tx, row.name)
    journal.audit(tx, "policy_removed", row.name, actor=ctx.actor, before=_decided(row), **_decided(row))
    return _shown(row)


class NamesAsked(Input):
    names: Annotated[list[HostName], Option(argument=True, metavar="NAME")] = Field(
        min_length=1, max_length=100, description="The names that a certificate would be for."
    )
    owner: OwnerName = Field(default="", description="Whose the certificate would be.")
    issuers: Annotated[list[RemoteName], Option(flag="--issuer")] = Field(
        default=[], max_length=10, description="Where it would come from; may be repeated."
    )
    key: KeyKindName | None = Field(default=None, description="The kind of its key.")
    lifetime_s: Annotated[int | None, Option(flag="--lifetime", read="duration")] = Field(
        default=None, ge=300, le=10**10, description="How long it would be valid."
    )


class PolicyVerdict(BaseModel):
    allowed: bool
    policy: str | None = Field(description="The policy that refuses; null: none does.")
    name: str | None = Field(description="The name that it refuses.")
    why: str
    covered_by: list[str] = Field(description="The policies that are about these names.")


def _owner_asked(who: Principal, asked: NamesAsked) -> Owned:
    return Owned(asked.owner or next(iter(who.owners), ""), who.labels)


@operation(
    "policies.check",
    "POST /policies/check",
    command="policy check",
    action=Action.CREATE,
    scope=owner_in_input(_owner_asked),
    reads=True,
    example="holdfast policy check www.team-a.example --owner team-a",
)
def check_names(tx: Tx, ctx: Context, asked: NamesAsked) -> PolicyVerdict:
    """Say whether policies let you have a certificate for these names, and which policy decides."""
    known = policies.everything(tx)
    request = NameRequest(
        identifiers=identifiers_of(asked.names),
        owner=_owner_asked(ctx.principal, asked).owner,
        actor=ctx.actor,
        issuers=asked.issuers,
        key_kind=asked.key,
        lifetime=None if asked.lifetime_s is None else timedelta(seconds=asked.lifetime_s),
    )
    found = rules.violation(known, request)
    covering = rules.granting(known, request)
    if found is not None:
        return PolicyVerdict(allowed=False, policy=found.policy, name=found.name, why=found.why, covered_by=covering)
    why = "Policies allow it." if covering else "No policy is about these names, so all may have them."
    return PolicyVerdict(allowed=True, policy=None, name=None, why=why, covered_by=covering)


class ViolationView(BaseModel):
    certificate: str
    id: str
    owner: str
    policy: str
    name: str
    why: str


@operation(
    "policies.violations",
    "GET /policies/violations",
    command="policy violations",
    action=Action.SEE_POLICIES,
    scope=INSTALLATION,
)
def list_violations(tx: Tx, ctx: Context, asked: Paged) -> Page[ViolationView]:
    """List the certificates that violate a policy which was made after them. They are renewed as before.

    A page may be short, or empty, though another follows: `next` tells.
    """
    known, after = policies.everything(tx), place(asked.cursor, str, str)
    rows = inventory.find(tx, InventoryFilter(), after=after, limit=_LOOKED_AT) if known else []
    found = [(each, rules.violation(known, NameRequest.of(each.wanted))) for each in rows]
    shown = [
        ViolationView(
            certificate=row.name, id=row.id, owner=row.wanted.owner, policy=bad.policy, name=bad.name, why=bad.why
        )
        for row, bad in found
        if bad is not None
    ]
    return page_of(shown, _LOOKED_AT, lambda row: (row.name, row.id), rows)
