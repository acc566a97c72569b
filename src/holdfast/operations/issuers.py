"""What operators may do about the CAs that certificates come from: add, change, pause, resume, test."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final

from holdfast.core import ca_limits, given_limits
from holdfast.core.budget import Budget
from holdfast.errors import Refused, TryLater, UserError
from holdfast.operations import epochs, second_person
from holdfast.operations.issuing import Keeper
from holdfast.secret import Secret
from holdfast.store import budgets, certificates, issuers, journal, secrets
from holdfast.store.issuers import IssuerRow
from holdfast.store.tx import Tx

_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
LONGEST_WINDOW_S: Final = 86_400
PRESETS: Final[Mapping[str, str]] = {
    "letsencrypt": "https://acme-v02.api.letsencrypt.org/directory",
    "letsencrypt-staging": "https://acme-staging-v02.api.letsencrypt.org/directory",
    "zerossl": "https://acme.zerossl.com/v2/DV90",
    "google": "https://dv.acme-v02.api.pki.goog/directory",
    "google-staging": "https://dv.acme-v02.test-api.pki.goog/directory",
    "digicert": "https://acme.digicert.com/v2/acme/directory/",
}

Probe = Callable[[IssuerRow], Awaitable[str]]  # reaches out; the faces do not know how
# Whether a kind of CA can be made of these settings and credentials; ValueError says which one is wrong. Of credentials
# it gets the names, or a mapping in which those that were just given have their values.
Fit = Callable[[str, Mapping[str, Any], Collection[str]], None]


def any_fit(kind: str, settings: Mapping[str, Any], credentials: Collection[str]) -> None:
    """For those who add CAs by themselves, such as the first start."""


class NoSuchIssuer(UserError):
    status, code = 404, "no-such-issuer"

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no CA named {name!r:.80}.")
        self.hint = "See what there is: holdfast ca ls"


class IssuerExists(UserError):
    status, code = 409, "issuer-exists"

    def __init__(self, name: str) -> None:
        super().__init__(f"There is a CA named {name!r} already.")
        self.hint = "Change that one, or choose another name."


class IssuerChanged(UserError):
    status, code = 412, "issuer-changed"

    def __init__(self, row: IssuerRow) -> None:
        super().__init__(f"The CA {row.name} was changed since you looked: it is at version {row.version}.")
        self.hint = "Look again, and decide with what you see then."


class IssuerRefused(UserError):
    status, code = 400, "issuer-refused"

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.hint = hint or "See: holdfast ca add --help"


async def add(
    keeper: Keeper,
    name: str,
    *,
    kind: str,
    kinds: frozenset[str],
    settings: Mapping[str, Any],
    credentials: Mapping[str, Secret[bytes]] | None = None,
    actor: str,
    fit: Fit = any_fit,
) -> IssuerRow:
    """Add a CA; its credentials are sealed with it. `kinds` are those that this installation can talk to."""
    if not _NAME.fullmatch(name):
        raise IssuerRefused("The name of a CA has 1 to 63 lower-case letters, digits and inner hyphens.")
    if kind not in kinds:
        named = f"There are: {', '.join(sorted(kinds))}; and those that speak ACME, by name: {', '.join(PRESETS)}."
        raise IssuerRefused(f"There is no kind of CA {kind!r:.40}.", named)
    purposes = list(credentials or {})
    _check(kind, settings, credentials or {}, fit)

    def write(tx: Tx, sealed: list[str]) -> IssuerRow:
        kept = dict(zip(purposes, sealed, strict=True))
        row = IssuerRow(name=name, kind=kind, settings=settings, credentials=kept, created_at=tx.now())
        if not issuers.insert(tx, row):
            raise IssuerExists(name)
        facts = {"kind": kind, "settings": dict(settings), "credentials": purposes}
        journal.audit(tx, "issuer_added", name, actor=actor, after=_decided(row), **facts)
        journal.event(tx, "issuer.added", name, kind=kind)
        return row

    return await keeper.vault.keep(list((credentials or {}).values()), write)


def _check(kind: str, settings: Mapping[str, Any], credentials: Collection[str], fit: Fit) -> None:
    """What holds for CAs of every kind, then what holds for this one."""
    window = settings.get("poll_max_wait_seconds")
    if window is not None and (isinstance(window, bool) or not isinstance(window, int | float) or not _fits(window)):
        raise IssuerRefused(
            f"poll_max_wait_seconds is {window!r:.40}.", "It is a number of seconds from 0 to 86400; 0: the default."
        )
    if not isinstance(settings.get(second_person.SETTING, False), bool):
        raise IssuerRefused(
            f"{second_person.SETTING} is {settings[second_person.SETTING]!r:.40}.", "It is true or false."
        )
    _limits(kind, settings)
    try:
        fit(kind, settings, credentials)
    except ValueError as why:
        raise IssuerRefused(f"The settings of a {kind} CA do not fit: {why}.", "See: holdfast ca add --help") from None


def _fits(window: float) -> bool:
    return 0 <= window <= LONGEST_WINDOW_S


def _limits(kind: str, settings: Mapping[str, Any]) -> None:
    if problem := given_limits.problem_with(settings.get("limits")):
        raise IssuerRefused(f"The limits of this CA cannot be read: {problem}.", 'For example: {"orders": [300, 36]}.')
    try:
        ca_limits.limits_of(kind, settings)
    except (ValueError, TypeError, OverflowError) as error:
        raise IssuerRefused(f"The limits of this CA cannot be used: {error}.") from None


async def change(
    keeper: Keeper,
    name: str,
    settings: Mapping[str, Any],
    *,
    actor: str,
    fit: Fit = any_fit,
    version: int | None = None,
) -> IssuerRow:
    """New settings hold from the next step of whatever is under way. `version`: the one that they were made of."""

    def write(tx: Tx) -> IssuerRow:
        row = _found(tx, name, lock=True)
        if version is not None and version != row.version:
            raise IssuerChanged(row)
        _check(row.kind, settings, row.credentials, fit)
        after = issuers.save(tx, row, settings=settings)
        anew = epochs.of_issuer(tx, after) if dict(settings) != dict(row.settings) else 0
        states = {"before": _decided(row), "after": _decided(after)}
        journal.audit(tx, "issuer_changed", name, actor=actor, **states, settings=dict(settings), begun_anew=anew)
        journal.event(tx, "issuer.changed", name, by=actor, begun_anew=anew)
        return after

    return await keeper.db.write(write)


async def set_credentials(
    keeper: Keeper, name: str, credentials: Mapping[str, Secret[bytes]], *, actor: str, fit: Fit = any_fit
) -> IssuerRow:
    """New credentials in place of those of the same names, which are forgotten; they hold from the next step on."""
    purposes = list(credentials)

    def write(tx: Tx, new: list[str]) -> IssuerRow:
        row = _found(tx, name, lock=True)
        kept = {**row.credentials, **dict(zip(purposes, new, strict=True))}
        _check(row.kind, row.settings, {**kept, **credentials}, fit)
        after = issuers.save(tx, row, credentials=kept)
        for purpose in purposes:
            if purpose in row.credentials:
                secrets.delete(tx, row.credentials[purpose])
        told: dict[str, Any] = {"credentials": purposes, "begun_anew": epochs.of_issuer(tx, after)}
        journal.audit(
            tx, "issuer_credentials_set", name, actor=actor, before=_decided(row), after=_decided(after), **told
        )
        journal.event(tx, "issuer.credentials_set", name, by=actor, **told)
        return after

    return await keeper.vault.keep(list(credentials.values()), write)


def _decided(row: IssuerRow) -> dict[str, Any]:
    """What people decide about a CA: of this the audit log has digests."""
    return {"kind": row.kind, "settings": dict(row.settings), "credentials": dict(row.credentials), "state": row.state}


async def pause(keeper: Keeper, name: str, *, actor: str) -> IssuerRow:
    """No new attempt begins there; those under way go on."""
    return await _set(keeper, name, "paused", actor)


async def resume(keeper: Keeper, name: str, *, actor: str) -> IssuerRow:
    """Certificates that waited for it are looked at by the next sweep."""
    return await _set(keeper, name, "active", actor)


async def _set(keeper: Keeper, name: str, state: issuers.State, actor: str) -> IssuerRow:
    def write(tx: Tx) -> IssuerRow:
        row = _found(tx, name, lock=True)
        if row.state == state:
            return row
        if state == "active":
            certificates.wake_for_issuer(tx, name, tx.now())
        word = "resumed" if state == "active" else "paused"
        after = issuers.save(tx, row, state=state)
        journal.audit(tx, f"issuer_{word}", name, actor=actor, before=_decided(row), after=_decided(after))
        journal.event(tx, f"issuer.{word}", name, by=actor)
        return after

    return await keeper.db.write(write)


async def test(keeper: Keeper, name: str, probe: Probe) -> str:
    """Whether it can be reached and knows us, in words; nothing is ordered."""
    row = await keeper.db.write(lambda tx: _paid_for(tx, name))
    try:
        return await probe(row)
    except TryLater as why:
        raise IssuerRefused(f"{name} could not be reached: {why}", _look_at(row, why)) from None
    except Refused as why:
        raise IssuerRefused(f"{name} refused: {why}", "Check its settings and credentials.") from None


def _look_at(row: IssuerRow, why: TryLater) -> str:
    """Which setting says where it is, unless the reason names another one."""
    if "setting" in str(why):
        return ""
    setting = "directory" if row.kind == "acme" else "base_url"
    given = str(row.settings.get(setting) or "not set")[:120]
    return f"Check its setting {setting} ({given}), and the network."


def _paid_for(tx: Tx, name: str) -> IssuerRow:
    """A test is made of requests like any other, and pays for them."""
    row = _found(tx, name)
    limit = ca_limits.limits_of(row.kind, row.settings).requests
    if limit is None:
        return row
    many = ca_limits.reckoned(row.kind, row.settings).look
    paid, until = budgets.take_some(tx, ca_limits.request_key(name), limit, many)
    if not paid:
        why = f"{name} was not asked: it allows no more requests before {until:%F %T}Z."
        raise IssuerRefused(why, f"Wait until then. See its budgets: holdfast issuer budget {name}")
    return row


async def all_issuers(keeper: Keeper) -> list[IssuerRow]:
    return await keeper.db.read(issuers.all_issuers)


async def page(keeper: Keeper, *, after: str = "", limit: int = 100) -> list[IssuerRow]:
    return await keeper.db.read(lambda tx: issuers.page(tx, after=after, limit=limit))


async def get(keeper: Keeper, name: str) -> IssuerRow:
    return await keeper.db.read(lambda tx: _found(tx, name))


async def left(keeper: Keeper, name: str) -> list[Budget]:
    """The budgets of one CA, as they stand, with those that it shares with other rows for the same CA."""

    def read(tx: Tx) -> list[Budget]:
        row = _found(tx, name)
        place = ca_limits.place_of(ca_limits.limits_of(row.kind, row.settings), name)
        return [each for each in budgets.all_budgets(tx) if each.key.startswith((f"ca/{name}/", f"ca/{place}/"))]

    return await keeper.db.read(read)


def _found(tx: Tx, name: str, *, lock: bool = False) -> IssuerRow:
    row = issuers.get(tx, name, lock=lock)
    if row is None:
        raise NoSuchIssuer(name)
    return row
