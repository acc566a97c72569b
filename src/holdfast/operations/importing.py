"""Take over what another ACME client kept: its CA and account in one transaction, then each certificate in its own.

Nothing is issued. Doing it again changes nothing: what is here already is recognised by its serial number.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from holdfast.core.certificate import Certificate, Rule, Wanted
from holdfast.core.desired_fields import Bad, read_field
from holdfast.errors import UserError
from holdfast.operations import keeping
from holdfast.operations.asking import AT_ONCE, Manner, carry_out
from holdfast.operations.certificates import CertificateExists, UnknownIssuer, WishRefused, identifiers_of
from holdfast.operations.issuers import PRESETS
from holdfast.operations.issuing import Keeper
from holdfast.pki.chain import parse_bundle
from holdfast.secret import Secret
from holdfast.store import certificates, issuer_accounts, issuers, journal, secrets, versions
from holdfast.store.issuer_accounts import AccountRow
from holdfast.store.issuers import IssuerRow
from holdfast.store.tx import Tx

_BY_HAND: Final = "Change it there, or import the files alone: holdfast import pem"
_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9]+")
Verdict = Literal["adopt", "adopted", "here already", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountOffer:
    """An account, or only a CA whose account was not found (then there is no key)."""

    directory: str
    key: Secret[bytes] | None = None
    url: str | None = None
    contacts: tuple[str, ...] = ()
    roots: str = ""  # PEM: who vouches for a CA that the system does not know


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateOffer:
    name: str
    names: tuple[str, ...]
    chain: bytes
    key: Secret[bytes]
    key_kind: str
    directory: str | None = None
    issuer: str | None = None  # by name, where the files do not say
    account_url: str | None = None
    reuse_key: bool = False
    preferred_chain: str | None = None
    profile: str | None = None
    paused: bool = False
    renew_before: timedelta | None = None
    owner: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one offer, or would come of it."""

    name: str
    verdict: Verdict
    issuer: str = ""
    why: str = ""
    next_step: str = ""
    renewal_at: str | None = None


class NoAddress(UserError):
    status, code = 400, "directory-refused"

    def __init__(self, directory: str) -> None:
        super().__init__(f"{directory!r:.120} is no address of an ACME directory.")
        self.hint = "It begins with https://. Correct it where the other client keeps it, and import again."


# ── The CA, and our account there ──


async def adopt_account(keeper: Keeper, offer: AccountOffer, *, actor: str, manner: Manner = AT_ONCE) -> dict[str, Any]:
    """The CA of this directory, added if it is new, and the account, unless we have one there: in one transaction."""
    _check_address(offer.directory)
    new_id = keeper.random.new_id("account")

    async def verb(asked: Keeper) -> object:
        def owner(tx: Tx, ids: list[str]) -> dict[str, Any]:
            row, added = _ca(tx, offer, actor)
            adopted = bool(ids) and _account(tx, row, offer, new_id, ids[0], actor)
            if ids and not adopted:
                secrets.delete(tx, ids[0])
            return {"issuer": row.name, "directory": offer.directory, "added": added, "account": adopted}

        return await asked.vault.keep([offer.key] if offer.key is not None else [], owner)

    return await carry_out(keeper, verb, check=_anybody, render=_as_it_is, manner=manner)


def _check_address(directory: str) -> None:
    try:
        parts = urlsplit(directory)
        good = parts.scheme == "https" and bool(parts.hostname) and len(directory) <= 500
    except ValueError:
        good = False
    if not good:
        raise NoAddress(directory)


def _ca(tx: Tx, offer: AccountOffer, actor: str) -> tuple[IssuerRow, bool]:
    every = issuers.all_issuers(tx)
    found = by_directory(every, offer.directory)
    if found is not None:
        return found, False
    settings: dict[str, Any] = {"directory": offer.directory}
    settings |= {"contacts": list(offer.contacts)} if offer.contacts else {}
    settings |= {"roots": offer.roots} if offer.roots else {}
    name = new_name(offer.directory, {row.name for row in every})
    row = IssuerRow(name=name, kind="acme", settings=settings, created_at=tx.now())
    issuers.insert(tx, row)
    journal.audit(tx, "issuer_added", name, actor=actor, kind="acme", settings=settings, credentials=[])
    journal.event(tx, "issuer.added", name, kind="acme")
    return row, True


def by_directory(rows: Iterable[IssuerRow], directory: str) -> IssuerRow | None:
    wanted = directory.rstrip("/")
    return next((row for row in rows if str(row.settings.get("directory") or "").rstrip("/") == wanted), None)


def new_name(directory: str, taken: Collection[str]) -> str:
    """What people call it, or its host; with a number where that is taken."""
    known = next((name for name, each in PRESETS.items() if each.rstrip("/") == directory.rstrip("/")), None)
    host = _NOT_IN_NAMES.sub("-", (urlsplit(directory).hostname or "ca").lower()).strip("-")
    base = known or host[:55].strip("-") or "ca"
    names = [base, *(f"{base}-{number}" for number in range(2, len(taken) + 3))]
    return next(name for name in names if name not in taken)


def _account(tx: Tx, row: IssuerRow, offer: AccountOffer, new_id: str, secret: str, actor: str) -> bool:
    """One that has no address yet is looked up at the CA by its key, before it is first used."""
    directory = str(row.settings["directory"])
    account = AccountRow(
        id=new_id,
        issuer=row.name,
        directory=directory,
        url=offer.url,
        key_secret=secret,
        contacts=offer.contacts,
        state="valid" if offer.url else "creating",
        created_at=tx.now(),
    )
    if not issuer_accounts.insert(tx, account):
        return False
    journal.audit(tx, "account_adopted", row.name, actor=actor, account=new_id, url=offer.url or "")
    journal.event(tx, "issuer.account", row.name, url=offer.url or "")
    return True


# ── Certificates ──


async def adopt(
    keeper: Keeper, offers: Sequence[CertificateOffer], *, actor: str, manner: Manner = AT_ONCE
) -> list[Outcome]:
    """Each in a transaction of its own: one that is refused leaves the others as they are, and nothing of itself."""
    outcomes: list[Outcome] = []
    for offer in offers:
        try:
            outcomes.append(await _adopt_one(keeper, offer, actor=actor, manner=manner))
        except UserError as error:
            step = error.hint or f"Ask for it anew: holdfast issue {' '.join(offer.names[:5])}"
            outcomes.append(Outcome(name=offer.name, verdict="refused", why=str(error), next_step=step))
    return outcomes


async def _adopt_one(keeper: Keeper, offer: CertificateOffer, *, actor: str, manner: Manner) -> Outcome:
    issuer, here = await keeper.db.read(lambda tx: _look(tx, offer, dry_run=manner.dry_run))
    if here is not None:
        when = None if here.next_action_at is None else here.next_action_at.isoformat()
        return Outcome(name=offer.name, verdict="here already", issuer=issuer, renewal_at=when)
    wanted = _wanted(offer, issuer)

    async def verb(asked: Keeper) -> Certificate:
        return await keeping.adopt(
            asked,
            wanted,
            key_pem=offer.key,
            chain_pem=offer.chain,
            account=offer.account_url,
            paused=offer.paused,
            actor=actor,
        )

    when = await carry_out(keeper, verb, check=_anybody, render=_next_renewal, manner=manner)
    verdict: Verdict = "adopt" if manner.dry_run else "adopted"
    return Outcome(name=offer.name, verdict=verdict, issuer=issuer, renewal_at=when)


def _look(tx: Tx, offer: CertificateOffer, *, dry_run: bool) -> tuple[str, Certificate | None]:
    """The CA that will renew it, and the certificate itself if it was adopted before."""
    issuer = _issuer(tx, offer, dry_run=dry_run)
    found = certificates.by_name(tx, offer.name)
    if found is None:
        return issuer, None
    serial = f"{parse_bundle(offer.chain)[0].serial_number:x}"
    if any(each.serial == serial for each in versions.of(tx, found.id)):
        return issuer, found
    raise CertificateExists(offer.name)


def _issuer(tx: Tx, offer: CertificateOffer, *, dry_run: bool) -> str:
    every = issuers.all_issuers(tx)
    names = {row.name for row in every}
    if offer.directory is not None:
        row = by_directory(every, offer.directory)
        if row is None:
            _check_address(offer.directory)
        if row is None and not dry_run:
            raise UnknownIssuer(offer.directory, names)
        return row.name if row is not None else new_name(offer.directory, names)
    if offer.issuer is not None:
        if offer.issuer not in names:
            raise UnknownIssuer(offer.issuer, names)
        return offer.issuer
    if len(names) == 1:
        return next(iter(names))
    listed = f"One of {', '.join(sorted(names))}." if names else "Add one first: holdfast issuer add --help"
    raise WishRefused("These files do not say which CA is to renew it: say so with --issuer.", listed)


def _wanted(offer: CertificateOffer, issuer: str) -> Wanted:
    """By the same rules as what people write themselves: file names and settings of others may hold anything."""
    given: dict[str, Any] = {"name": offer.name, "key": offer.key_kind, "profile": offer.profile}
    given |= {"preferred_chain": offer.preferred_chain, "owner": offer.owner, "labels": offer.labels}
    for name, value in given.items():
        try:
            _ = value if value is None else read_field(name, value)
        except Bad as bad:
            raise WishRefused(f"Its {name.replace('_', ' ')} cannot be kept: {value!r:.80}. {bad}", _BY_HAND) from None
    try:
        return Wanted(
            name=offer.name,
            identifiers=identifiers_of(offer.names),
            issuers=(issuer,),
            key_kind=offer.key_kind,
            profile=offer.profile,
            preferred_chain=offer.preferred_chain,
            reuse_key=offer.reuse_key,
            rule=Rule(before=offer.renew_before),
            owner=offer.owner,
            labels=dict(offer.labels),
        )
    except ValueError as error:
        raise WishRefused(f"It cannot be kept: {error}.", "Ask for it anew: holdfast issue") from None


def _next_renewal(tx: Tx, adopted: Certificate) -> str | None:
    return None if adopted.next_action_at is None else adopted.next_action_at.isoformat()


def _anybody(tx: Tx) -> None:
    """Whoever may use the socket in the data folder holds the database anyway."""


def _as_it_is(tx: Tx, result: dict[str, Any]) -> dict[str, Any]:
    return result


def read_offers(
    rows: Sequence[Mapping[str, Any]], *, issuer: str | None, owner: str, labels: Mapping[str, str]
) -> list[CertificateOffer]:
    """As they come over the socket."""
    shared = CertificateOffer(
        name="", names=(), chain=b"", key=Secret(b""), key_kind="", issuer=issuer, owner=owner, labels=dict(labels)
    )
    return [
        replace(
            shared,
            name=str(row["name"]),
            names=tuple(map(str, row["names"])),
            chain=str(row["chain"]).encode(),
            key=Secret(str(row["key"]).encode()),
            key_kind=str(row["key_kind"]),
            directory=row.get("directory"),
            account_url=row.get("account_url"),
            reuse_key=bool(row.get("reuse_key")),
            preferred_chain=row.get("preferred_chain"),
            profile=row.get("profile"),
            paused=bool(row.get("paused")),
            renew_before=None if row.get("renew_before_s") is None else timedelta(seconds=row["renew_before_s"]),
        )
        for row in rows
    ]
