"""Deployments of certificates to their targets. List them, deploy again, roll back, freeze all of them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

from pydantic import BaseModel, Field

from holdfast.core.certificate import Certificate, VersionState
from holdfast.core.deployment import Deployment, DeploymentCause, DeploymentState
from holdfast.errors import UserError
from holdfast.operations.access import Action, Owned, Verdict, allow
from holdfast.operations.certificates.refs import found_by
from holdfast.operations.certificates.views import CertificateRef
from holdfast.operations.context import Context
from holdfast.operations.deployment import planning
from holdfast.operations.inputs import Input, Instant, Nothing, OneOf, Option, Page, Paged, cursor, place
from holdfast.operations.operation import operation
from holdfast.operations.scopes import INSTALLATION, VISIBLE, certificate
from holdfast.store import certificates, journal, versions
from holdfast.store.deployments import deployments, freezes, targets
from holdfast.store.tx import Tx

StateName = Annotated[str, OneOf(DeploymentState)]
SCANNED: Final = 2000  # rows that one page looks at, of those that the asker may not see


class NoTargets(UserError):
    status, code = 409, "no-targets"

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name} cannot be deployed: {why}.")
        self.hint = f"Name a target: holdfast change {name} --target TARGET. See: holdfast target ls"


class NothingBefore(UserError):
    status, code = 409, "nothing-before"

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} has no earlier version that is still good: not expired, not revoked, with its key.")
        self.hint = f"See its versions: holdfast get {name}"


class DeploymentView(BaseModel):
    id: str
    certificate: str = Field(description="The name of the certificate.")
    version: str = Field(description="The id of the version that the target is to serve.")
    serial: str
    not_after: datetime
    target: str
    number: int
    state: str
    cause: str
    requested_by: str
    failures: int
    next_at: datetime | None = Field(description="When something is done about it; null: it is over, or held.")
    atomic: bool | None = Field(description="Whether key and certificate are swapped in one go; null: not known yet.")
    seen: str
    error: str | None
    reason_code: str | None
    created_at: datetime
    changed_at: datetime
    served_at: datetime | None


def shown(tx: Tx, row: Deployment, found: Certificate) -> DeploymentView:
    version = versions.get(tx, row.certificate_version)
    if version is None:
        raise AssertionError("a deployment refers to its version")
    return DeploymentView(
        id=row.id,
        certificate=found.name,
        version=version.id,
        serial=version.serial,
        not_after=version.not_after,
        target=row.target,
        number=row.number,
        state=row.state.value,
        cause=row.cause,
        requested_by=row.requested_by,
        failures=row.failures,
        next_at=row.next_at,
        atomic=row.atomic,
        seen=row.seen,
        error=row.error,
        reason_code=row.reason,
        created_at=row.created_at,
        changed_at=row.changed_at,
        served_at=row.served_at,
    )


# ── Looking ──


class DeploymentQuery(Paged):
    certificate: str | None = Field(default=None, max_length=300, description="Only of this certificate.")
    target: str | None = Field(default=None, max_length=100, description="Only to this target.")
    state: Annotated[StateName | None, Option(help="Only deployments in this state.")] = Field(
        default=None, description="Only in this state; superseded ones are shown only if asked for."
    )


@operation(
    "deployments.list", "GET /deployments", command="deployments ls", action=Action.SEE, scope=VISIBLE,
    example="holdfast deployments ls --state failed",
)  # fmt: skip
def list_deployments(tx: Tx, ctx: Context, asked: DeploymentQuery) -> Page[DeploymentView]:
    """List deployments, the oldest first: what each target serves or is to serve, and what holds it."""
    of = None if asked.certificate is None else found_by(tx, asked.certificate).id
    state = None if asked.state is None else DeploymentState(asked.state)
    [after] = place(asked.cursor, str) or ("",)
    items: list[DeploymentView] = []
    for _ in range(SCANNED // asked.limit + 1):
        rows = deployments.page(tx, state=state, target=asked.target, certificate=of, after=after, limit=asked.limit)
        for row in rows:
            found = certificates.get(tx, row.certificate)
            if found is not None and allow(ctx.principal, Action.SEE, Owned.of(found)) is Verdict.ALLOWED:
                items.append(shown(tx, row, found))
            after = row.id
            if len(items) == asked.limit:
                return Page(items=items, next=cursor([after]))
        if len(rows) < asked.limit:
            return Page(items=items)
    return Page(items=items, next=cursor([after]))


# ── Asking ──


class DeployRequest(CertificateRef):
    target: str | None = Field(default=None, max_length=100, description="Only to this target; else to all of its own.")


class Deployed(BaseModel):
    certificate: str
    deployments: list[DeploymentView]


@operation(
    "certificates.deploy",
    "POST /certificates/{ref}/deploy",
    command="deploy",
    action=Action.RENEW,
    scope=certificate(),
    example="holdfast deploy www.example.com",
    done="{certificate} is deployed to its targets. Follow it: holdfast wait {certificate} --for served",
)
def deploy(tx: Tx, ctx: Context, asked: DeployRequest) -> Deployed:
    """Deploy the version in use to the targets of a certificate, again if it is in place. Uses no budget of a CA."""
    found = found_by(tx, asked.ref, lock=True)
    if found.current_version is None:
        raise NoTargets(found.name, "it was never issued")
    return _deploy(tx, ctx, found, asked.target, found.current_version, "asked")


@operation(
    "certificates.rollback",
    "POST /certificates/{ref}/rollback",
    command="rollback",
    action=Action.RENEW,
    scope=certificate(),
    destructive=True,
    example="holdfast rollback www.example.com",
    done="{certificate} goes back to the version before: holdfast deployments ls --certificate {certificate}",
)
def rollback(tx: Tx, ctx: Context, asked: DeployRequest) -> Deployed:
    """Deploy the version before the one in use. The next renewal, or `holdfast deploy`, brings the newest one again."""
    found = found_by(tx, asked.ref, lock=True)
    now = tx.now()
    good = [
        each
        for each in versions.of(tx, found.id)
        if each.id != found.current_version and not each.revoked and each.not_before <= now < each.not_after
        and each.state is not VersionState.REVOKED
    ]  # fmt: skip
    if not good:
        raise NothingBefore(found.name)
    return _deploy(tx, ctx, found, asked.target, good[0].id, "rollback")


def _deploy(
    tx: Tx, ctx: Context, found: Certificate, target: str | None, version: str, cause: DeploymentCause
) -> Deployed:
    names = found.wanted.targets if target is None else (target,)
    if not names or not set(names) <= set(found.wanted.targets):
        raise NoTargets(
            found.name, "it names no target" if target is None else f"it does not name target {target!r:.80}"
        )
    rows = [
        made
        for name in names
        if (made := planning.want(tx, found, name, version, cause=cause, actor=ctx.actor, again=True)) is not None
    ]
    return Deployed(certificate=found.name, deployments=[shown(tx, each, found) for each in rows])


# ── Freezing ──


class Freeze(Input):
    until: Instant = Field(description="When the freeze ends.")


class FreezeView(BaseModel):
    until: datetime | None = Field(description="Deployments are held until then; null: there is no freeze.")


@operation(
    "deployments.freeze",
    "POST /deployments/freeze",
    command="deployments freeze",
    action=Action.CHANGE_TARGETS,
    scope=INSTALLATION,
    example="holdfast deployments freeze --until 2027-01-02T08:00:00Z",
    done="Deployments are held until {until}.",
)
def freeze(tx: Tx, ctx: Context, asked: Freeze) -> FreezeView:
    """Hold all deployments until a time. What would expire meanwhile is deployed all the same, and audited."""
    freezes.freeze(tx, asked.until)
    journal.audit(tx, "deployments_frozen", "deployments", actor=ctx.actor, until=asked.until.isoformat())
    journal.event(tx, "deployments.frozen", "deployments", by=ctx.actor, until=asked.until.isoformat())
    return FreezeView(until=asked.until)


@operation(
    "deployments.unfreeze",
    "POST /deployments/unfreeze",
    command="deployments unfreeze",
    action=Action.CHANGE_TARGETS,
    scope=INSTALLATION,
    done="Deployments go on.",
)
def unfreeze(tx: Tx, ctx: Context, asked: Nothing) -> FreezeView:
    """End the change freeze. Deployments that it held go on at once."""
    if freezes.thaw(tx):
        journal.audit(tx, "deployments_unfrozen", "deployments", actor=ctx.actor)
        journal.event(tx, "deployments.unfrozen", "deployments", by=ctx.actor)
        deployments.wake_frozen(tx, tx.now())
        planning.wake(tx, targets.all_targets(tx))
    return FreezeView(until=None)
