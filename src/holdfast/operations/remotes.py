"""Named remotes (issuers, channels, targets): how they are reached, and what all of them share.

Sealed credentials, the check of versions, pause and resume, tests, audit entries and events are written here once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Generic, Protocol, TypeVar

from pydantic import BaseModel, Field, SecretStr

from holdfast.core.certificate import CertificateSpec
from holdfast.core.issuers.breaker import Breaker
from holdfast.core.issuers.issuer import IssuerRow
from holdfast.core.notifications.channel import ChannelRow
from holdfast.core.notifications.notification import Message, Missed
from holdfast.core.own_ca.acme import Identifier
from holdfast.core.solver import Provable, SolverRow
from holdfast.core.target import TargetRow
from holdfast.errors import Refused, TryLater, UserError
from holdfast.keyring import SecretOwner
from holdfast.operations import kinds
from holdfast.operations.inputs import CLOSED, Probed, Short, from_row
from holdfast.operations.installation.secret_store import SecretStore
from holdfast.plugins import AnyKind
from holdfast.secret import Secret
from holdfast.store import journal, secrets
from holdfast.store.secrets import KeptSecret
from holdfast.store.tx import Tx

T = TypeVar("T")
Credentials = Mapping[str, Secret[bytes]]
Probe = Callable[[IssuerRow], Awaitable[str]]  # asks an issuer whether it knows us
# Whether a kind of issuer can be made of these settings and credentials; ValueError says which one is wrong. Of
# credentials it gets the names, or a mapping in which those that were just given have their values.
Fit = Callable[[str, Mapping[str, Any], Collection[str]], None]


# As Fit, with the credentials themselves: a solver is made of them to see whether that can be done.
SolverFit = Callable[[str, Mapping[str, Any], Credentials], None]
TrySolver = Callable[[SolverRow, Identifier], Awaitable[str]]  # publishes a response for this name, and removes it


# What the solvers of the store and of this process can prove; None where that is not known.
KnownSolvers = Callable[[], Awaitable[Sequence[Provable] | None]]


async def solvers_not_known() -> None:
    """Of a process that publishes nothing."""


def any_solver_fit(kind: str, settings: Mapping[str, Any], credentials: Credentials) -> None:
    """Of a process that publishes nothing."""


async def no_rehearsal(row: IssuerRow, wanted: CertificateSpec) -> str:
    """Of a process without a CA."""
    raise Refused("This process has no CA of its own to rehearse with.")


Rehearse = Callable[[IssuerRow, CertificateSpec], Awaitable[str]]


async def no_solver(row: SolverRow, name: Identifier) -> str:
    """Of a process that publishes nothing."""
    raise Refused("This process publishes no challenge responses.")


def any_fit(kind: str, settings: Mapping[str, object], credentials: Collection[str]) -> None:
    """Accepts all settings: for issuers that the server adds by itself, such as those of the first start."""


class OpenChannel(Protocol):
    """One channel, ready to be used."""

    async def send(self, message: Message) -> Missed | None: ...
    async def close(self) -> None: ...


class ChannelOpener(Protocol):
    """Opens channels and checks their settings; Refused names the mistake."""

    @property
    def kinds(self) -> frozenset[str]: ...

    async def check(self, name: str, kind: str, settings: Mapping[str, object], credentials: Credentials) -> None: ...

    async def open(self, row: ChannelRow) -> OpenChannel: ...


class TargetOpener(Protocol):
    """Checks the settings of targets and asks whether a deployment would work; Refused names the mistake."""

    @property
    def kinds(self) -> frozenset[str]: ...

    @property
    def host(self) -> str:
        """The name of this replica."""

    async def check(self, name: str, kind: str, settings: Mapping[str, Any], credentials: Credentials) -> None: ...

    async def probe(self, row: TargetRow) -> str: ...


# ── Errors: each table of remotes has its own codes for them ──


class _RemoteError(UserError):
    noun: ClassVar[str]  # "issuer"
    command: ClassVar[str]  # "holdfast issuer"


class NoSuchRemote(_RemoteError):
    status = 404

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no {self.noun} named {name!r:.80}.")
        self.hint = f"See what there is: {self.command} ls"


class RemoteExists(_RemoteError):
    status = 409

    def __init__(self, name: str) -> None:
        article = "an" if self.noun[0] in "aeiou" else "a"
        super().__init__(f"There is {article} {self.noun} named {name!r} already.")
        self.hint = "Change that one, or choose another name."


class RemoteChanged(_RemoteError):
    status = 412

    def __init__(self, row: RemoteRow) -> None:
        noun = self.noun.capitalize()
        super().__init__(f"{noun} {row.name} was changed since you looked: it is at version {row.version}.")
        self.hint = "Look again, and decide with what you see then."


class RemoteRefused(_RemoteError):
    """The settings of a remote cannot be used, or the remote itself refused."""

    status = 400

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.hint = hint or f"See: {self.command} add --help"


# ── Inputs and results ──


RemoteSettings = Annotated[dict[Short, Any], Field(max_length=32, json_schema_extra=CLOSED)]
GivenCredentials = Annotated[dict[Short, SecretStr], Field(max_length=8, json_schema_extra=CLOSED)]


class RemoteView(BaseModel):
    """What every named remote shows."""

    name: str
    kind: str
    state: str
    settings: dict[str, Any]
    credentials: list[str] = Field(description="The purposes of those that are kept; never their values.")
    breaker_open: bool
    breaker_error: str | None
    version: int
    created_at: datetime


def view_of(row: RemoteRow, now: datetime) -> RemoteView:
    breaker = {"breaker_open": row.breaker.open_at(now), "breaker_error": row.breaker.error}
    return from_row(RemoteView, row, credentials=sorted(row.credentials), **breaker)


# ── Credentials ──


def secrets_of(given: Mapping[str, SecretStr]) -> dict[str, Secret[bytes]]:
    return {purpose: Secret(each.get_secret_value().encode()) for purpose, each in given.items()}


def owner_of(noun: str, name: str, kind: AnyKind | None, purpose: str) -> SecretOwner:
    """A replaced credential that stays in use under another name is still what it was sealed as."""
    was = [each.name for each in (() if kind is None else kind.credentials) if each.kept_as == purpose]
    return SecretOwner(f"{noun}s", name, f"credentials/{(was or [purpose])[0]}")


_NOUNS: Final[Mapping[type, str]] = {
    IssuerRow: "issuer",
    ChannelRow: "channel",
    TargetRow: "target",
    SolverRow: "solver",
}


async def opened(store: SecretStore, row: RemoteRow, but: Collection[str] = ()) -> dict[str, Secret[bytes]]:
    """The credentials of a remote, by purpose."""
    noun, kind = _NOUNS[type(row)], kinds.kind_of(row)
    return {
        purpose: await store.reveal(secret, owner_of(noun, row.name, kind, purpose))
        for purpose, secret in row.credentials.items()
        if purpose not in but
    }


def put(tx: Tx, credentials: Mapping[str, KeptSecret]) -> dict[str, str]:
    """Write sealed credentials; return their ids, by purpose."""
    for each in credentials.values():
        secrets.put(tx, each)
    return {purpose: each.id for purpose, each in credentials.items()}


def kept(row: RemoteRow, new: Mapping[str, str], without: Collection[str]) -> dict[str, str]:
    """The credentials that a remote has after a change. Where its kind says so, a replaced one stays in use.

    A webhook with a new secret is signed with both secrets, until a person removes the old one.
    """
    held = {name: secret for name, secret in row.credentials.items() if name not in without}
    kind = kinds.kind_of(row)
    for each in () if kind is None else kind.credentials:
        if each.kept_as and each.name in new and each.name in held and each.kept_as not in {*new, *without}:
            held[each.kept_as] = held[each.name]
    return {**held, **new}


def delete_secrets(tx: Tx, ids: Iterable[str]) -> None:
    for each in sorted(set(ids)):
        secrets.delete(tx, each)


# ── Rows ──


class RemoteRow(Protocol):
    """What the rows of all named remotes have."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def settings(self) -> Mapping[str, object]: ...
    @property
    def credentials(self) -> Mapping[str, str]: ...
    @property
    def state(self) -> StrEnum: ...
    @property
    def version(self) -> int: ...
    @property
    def breaker(self) -> Breaker: ...
    @property
    def created_at(self) -> datetime: ...


R = TypeVar("R", bound=RemoteRow)


class RemoteTable(Protocol[R]):
    """The store's module for one table of remotes."""

    def get(self, tx: Tx, name: str, *, lock: bool = False) -> R | None: ...
    def insert(self, tx: Tx, row: R) -> bool: ...
    def save(self, tx: Tx, before: R, **changes: object) -> R: ...


def decided(row: RemoteRow) -> dict[str, object]:
    """What people decide about any remote: the audit log has digests of it."""
    return {"kind": row.kind, "settings": dict(row.settings), "credentials": dict(row.credentials), "state": row.state}


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedRemotes(Generic[R]):
    """What people do with the remotes of one table. Each change leaves an audit entry and an event."""

    noun: str  # "issuer": audit entries are named issuer_paused, events issuer.paused
    table: RemoteTable[R]
    active: StrEnum
    paused: StrEnum
    wake: Callable[[Tx, str], object]  # a remote was resumed: what waited for it goes on
    decided: Callable[[R], dict[str, Any]]  # of this the audit log has digests
    missing: type[NoSuchRemote]
    taken: type[RemoteExists]
    changed: type[RemoteChanged]
    refused: type[RemoteRefused]

    async def sealed(self, store: SecretStore, name: str, given: Credentials) -> dict[str, KeptSecret]:
        """Seal credentials of one of these remotes, before the transaction that `put`s them."""
        return {
            purpose: await store.seal(each, owner_of(self.noun, name, None, purpose)) for purpose, each in given.items()
        }

    def found(self, tx: Tx, name: str, *, lock: bool = False) -> R:
        row = self.table.get(tx, name, lock=lock)
        if row is None:
            raise self.missing(name)
        return row

    def at_version(self, tx: Tx, name: str, version: int | None) -> R:
        """The row, locked, if it is still at the version that the asker saw; None: at any version."""
        row = self.found(tx, name, lock=True)
        if version is not None and version != row.version:
            raise self.changed(row)
        return row

    def check_kind(self, kind: str, known: Collection[str], besides: str = "") -> None:
        if kind not in known:
            hint = f"There are: {', '.join(sorted(known))}{besides}."
            raise self.refused(f"There is no kind of {self.noun} {kind!r:.40}.", hint)

    def merged(self, row: R, settings: Mapping[str, Any] | None) -> dict[str, Any]:
        """The settings of a remote after a change: those that are null are taken away."""
        given = settings or {}
        if missing := sorted(name for name, value in given.items() if value is None and name not in row.settings):
            hint = f"See which it has: {self.refused.command} show {row.name}"
            raise self.refused(f"{self.noun.capitalize()} {row.name} has no setting {missing[0]!r:.40}.", hint)
        return {name: value for name, value in {**row.settings, **given}.items() if value is not None}

    def check_destination(
        self, row: R, kind: AnyKind | None, settings: Mapping[str, Any], given: Collection[str]
    ) -> None:
        """Credentials are for the place that they were given for: where another one would get them, they are asked for.

        Those of a kind that is not installed here are asked for with every change of a setting.
        """
        known = row.settings.keys() | settings.keys()
        elsewhere = (
            sorted(each for each in known if row.settings.get(each) != settings.get(each))
            if kind is None
            else kind.leads_elsewhere(row.settings, settings)
        )
        missing = sorted(each for each in row.credentials if each not in given)
        if elsewhere and missing:
            raise self.refused(
                f"{', '.join(elsewhere)} of {self.noun} {row.name} decides who gets its credentials: "
                f"give {', '.join(missing)} again.",
                f"Give them with the change: {self.refused.command} set {row.name} … --credential {missing[0]}=FILE",
            )

    def insert(self, tx: Tx, row: R, actor: str) -> None:
        if not self.table.insert(tx, row):
            raise self.taken(row.name)
        facts = {"kind": row.kind, "settings": dict(row.settings), "credentials": list(row.credentials)}
        journal.audit(tx, f"{self.noun}_added", row.name, actor=actor, after=self.decided(row), **facts)
        journal.event(tx, f"{self.noun}.added", row.name, by=actor, kind=row.kind)

    def wrote(
        self, tx: Tx, word: str, before: R, after: R, actor: str, told: Mapping[str, Any] | None = None, **facts: Any
    ) -> None:
        """Write the audit entry and the event of a change. `told` is in both, `facts` only in the audit entry."""
        both, states = told or {}, {"before": self.decided(before), "after": self.decided(after)}
        journal.audit(tx, f"{self.noun}_{word}", after.name, actor=actor, **states, **facts, **both)
        journal.event(tx, f"{self.noun}.{word}", after.name, by=actor, **both)

    def deleted(self, tx: Tx, row: R, actor: str, **facts: object) -> None:
        """Delete the credentials of a remote that is gone, and write it down."""
        delete_secrets(tx, row.credentials.values())
        journal.audit(tx, f"{self.noun}_deleted", row.name, actor=actor, **facts)
        journal.event(tx, f"{self.noun}.deleted", row.name, by=actor)

    def pause(self, tx: Tx, name: str, actor: str) -> R:
        return self._set(tx, name, self.paused, "paused", actor)

    def resume(self, tx: Tx, name: str, actor: str) -> R:
        return self._set(tx, name, self.active, "resumed", actor)

    def _set(self, tx: Tx, name: str, state: StrEnum, word: str, actor: str) -> R:
        row = self.found(tx, name, lock=True)
        if row.state == state:
            return row
        after = self.table.save(tx, row, state=state)
        if state == self.active:
            self.wake(tx, name)
        self.wrote(tx, word, row, after, actor)
        return after

    async def tested(self, test: Awaitable[str]) -> Probed:
        try:
            return Probed(ok=True, detail=await test)
        except self.refused as why:
            return Probed(ok=False, detail=f"{why} {why.hint}".strip())

    async def reached(self, name: str, call: Awaitable[T], check: Callable[[TryLater], str]) -> T:
        """Await a call of the remote; `check` says what to look at if the remote did not answer."""
        try:
            return await call
        except TryLater as why:
            if why.answered:
                hint = "Its address is right: it answered. Look into what it says, then test it again."
                raise self.refused(f"{name} does not take it now: {why}", hint) from None
            raise self.refused(f"{name} could not be reached: {why}", check(why)) from None
        except Refused as why:
            raise self.refused(f"{name} refused: {why}", "Check its settings and credentials.") from None
