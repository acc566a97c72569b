"""What may be asked of the CA by name, with plain values in and out: the same for the command line and the socket."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from holdfast.core import base64url
from holdfast.core.ca import CaOptions, Policy
from holdfast.errors import UserError
from holdfast.operations import (
    asking,
    ca_clients,
    ca_options,
    ca_renewal,
    publishing,
    root_lists,
    second_person,
    verbs_certificates,
)
from holdfast.operations import ca as cas
from holdfast.operations.ca import Brought, CaRefused
from holdfast.operations.root_lists import Revoking
from holdfast.operations.vault import Vault
from holdfast.pki import keys
from holdfast.pki.ceremony import Plan
from holdfast.pki.crl import Reason
from holdfast.pki.keys import KeyKind
from holdfast.secret import Secret
from holdfast.store import acme_accounts, acme_limits, acme_orders, ca_certificates, eab_keys, issuers
from holdfast.store import cas as rows
from holdfast.store.cas import CaRow
from holdfast.store.eab_keys import EabKey
from holdfast.store.tx import Tx

Json = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Office:
    """Where verbs are carried out: in the server, or in a command that opened the store itself."""

    vault: Vault
    policy: Policy
    refresh: Callable[[], Awaitable[None]]  # the authorities of this process
    problem: Callable[[str], str | None]  # why a CA cannot sign here


class NoSuchVerb(UserError):
    status, code = 400, "no-such-verb"
    hint = "The server and this command may be of different versions."


async def dispatch(office: Office, verb: str, args: Mapping[str, Json], *, actor: str) -> Json:
    """Carry out one verb. Raises UserError for whatever a person can fix."""
    function = VERBS.get(verb)
    if function is None:
        raise NoSuchVerb(f"There is no verb {verb!r:.60}.")
    try:
        bound = inspect.signature(function).bind(office, actor, **args)
    except TypeError as error:
        raise NoSuchVerb(f"{verb}: {error}.") from None
    marked = replace(office, vault=asking.coming_from(office.vault, {"face": "local"}))
    return await function(marked, *bound.args[1:], **bound.kwargs)


# ── CAs ──


async def create(
    office: Office,
    actor: str,
    *,
    ca: str,
    name: str,
    key: str,
    permit: Sequence[str],
    options: Mapping[str, Json],
    under: str | None = None,
    any_name: bool = False,
    dry_run: bool = False,
) -> Json:
    plan = Plan(name=name, key_kind=KeyKind(key), permit=tuple(permit), crl_url=office.policy.root_crl_url(ca))
    chosen = ca_options.changed(CaOptions(), options)
    if dry_run:
        await cas.check_new(office.vault.db, ca, chosen)
        above = None if under is None else await cas.with_root(office.vault.db, under)
        return {"ca": ca, "name": name, "key": key, "under": above and above.id, "options": chosen.to_json()}
    if under is None:
        row = await cas.create(office.vault, ca=ca, plan=plan, options=chosen, actor=actor)
    else:
        row = await cas.create_under(
            office.vault, ca=ca, under=under, plan=plan, options=chosen, actor=actor, any_name=any_name
        )
    return await _changed(office, row)


async def adopt(
    office: Office,
    actor: str,
    *,
    ca: str,
    chain: str,
    options: Mapping[str, Json],
    alternates: Sequence[str] = (),
    key: str | None = None,
    passphrase: str | None = None,
    device: str | None = None,
    dry_run: bool = False,
) -> Json:
    brought = Brought(
        chain=chain.encode(),
        alternates=tuple(each.encode() for each in alternates),
        key=None if key is None else Secret(key.encode()),
        passphrase=None if passphrase is None else Secret(passphrase),
        device=device,
    )
    chosen = ca_options.changed(CaOptions(), options)
    row = await cas.adopt(office.vault, ca=ca, brought=brought, options=chosen, actor=actor, dry_run=dry_run)
    return _whole(office, row) if dry_run else await _changed(office, row)


async def listed(office: Office, actor: str) -> Json:
    return [_brief(row) for row in await office.vault.db.read(rows.everything)]


async def show(office: Office, actor: str, *, ca: str) -> Json:
    row, strict = await cas.get(office.vault.db, ca), await office.vault.db.read(lambda tx: _is_strict(tx, ca))
    return {**_whole(office, row), second_person.SETTING: strict}


def _is_strict(tx: Tx, ca: str) -> bool:
    """Whether what we keep renewed comes from it only with a second person's word."""
    ours = [
        row for row in issuers.all_issuers(tx) if row.kind == "local" and (row.settings.get("ca") or row.name) == ca
    ]
    return any(row.settings.get(second_person.SETTING) for row in ours)


async def chain(office: Office, actor: str, *, ca: str, root: bool = False) -> Json:
    row = await cas.get(office.vault.db, ca)
    return row.root if root else publishing.chain_pem(row)


async def close(office: Office, actor: str, *, ca: str, dry_run: bool = False) -> Json:
    if dry_run:
        row = await cas.get(office.vault.db, ca)
        good = await office.vault.db.read(lambda tx: ca_certificates.good(tx, ca=ca))
        return {**_brief(row), "good_certificates": good}
    return await _changed(office, await cas.set_state(office.vault.db, ca, "closed", actor=actor))


async def reopen(office: Office, actor: str, *, ca: str, dry_run: bool = False) -> Json:
    if dry_run:
        return {**_brief(await cas.get(office.vault.db, ca)), "state": "active"}
    return await _changed(office, await cas.set_state(office.vault.db, ca, "active", actor=actor))


async def renew_issuer(
    office: Office, actor: str, *, ca: str, years: int, chain: str | None = None, dry_run: bool = False
) -> Json:
    given, place = None if chain is None else chain.encode(), office.policy.root_crl_url(ca)
    if dry_run:
        was = await cas.get(office.vault.db, ca)
        return {
            **_brief(await ca_renewal.renewed(office.vault, ca, years=years, chain=given)),
            "was": _brief(was)["ends"],
        }
    row = await ca_renewal.renew(office.vault, ca, years=years, chain=given, actor=actor, crl_url=place)
    return await _changed(office, row)


async def root_crl(
    office: Office,
    actor: str,
    *,
    ca: str,
    revoke: str | None = None,
    reason: str = "unspecified",
    days: int | None = None,
    dry_run: bool = False,
) -> Json:
    """Sign the next list of a CA's root, perhaps with one more intermediate on it."""
    row = await cas.get(office.vault.db, ca)
    revoking = None
    if revoke is not None:
        revoking = Revoking(serial=int(ca_clients.serial_of(revoke), 16), reason=_reason(reason))
    life = None if days is None else timedelta(days=days)
    made = await root_lists.next_list(office.vault, row, revoking=revoking, life=life)
    cut_off = await office.vault.db.read(lambda tx: root_lists.cut_off(tx, made.root, revoking))
    told = {
        "ca": ca,
        "number": made.number,
        "ends": _at(made.next_update),
        "revoked": root_lists.serials(made),
        "address": office.policy.root_crl_url(ca),
        "cut_off": cut_off,
    }
    if dry_run:
        return told
    job = office.vault.keyring.random.new_id("job")
    if not await office.vault.db.write(lambda tx: root_lists.write(tx, made, job=job, actor=actor, revoking=revoking)):
        raise CaRefused("Another list of this root was signed at the same moment; this one was not kept.", "Try again.")
    return told


async def change(office: Office, actor: str, *, ca: str, changes: Mapping[str, Json], dry_run: bool = False) -> Json:
    if not changes:
        raise CaRefused("Nothing was to be changed.", "'holdfast ca set --help' shows what can be.")
    db = office.vault.db
    row = await cas.change_options(db, ca, lambda was: ca_options.changed(was, changes), actor=actor, dry_run=dry_run)
    return _whole(office, row) if dry_run else await _changed(office, row)


async def _changed(office: Office, row: CaRow) -> Json:
    await office.refresh()
    return _whole(office, row)


def _brief(row: CaRow) -> dict[str, Json]:
    issuer = x509.load_der_x509_certificate(row.certificate)
    return {
        "ca": row.id,
        "state": row.state,
        "mode": str(row.options.mode),
        "eab_required": row.options.eab_required,
        "issuer": issuer.subject.rfc4514_string(),
        "ends": _at(issuer.not_valid_after_utc),
    }


def _whole(office: Office, row: CaRow) -> dict[str, Json]:
    issuer = x509.load_der_x509_certificate(row.certificate)
    root = x509.load_pem_x509_certificate(row.root.encode())
    key = issuer.public_key()
    return {
        **_brief(row),
        "directory": office.policy.acme_url(row.id, "directory"),
        "crl": office.policy.crl_url(row.id),
        "serial": f"{issuer.serial_number:x}",
        "begins": _at(issuer.not_valid_before_utc),
        "key": str(keys.kind_of(key)) if isinstance(key, keys.PublicKey) else "",
        "device": row.key_device,
        "root": root.subject.rfc4514_string(),
        "root_sha256": root.fingerprint(hashes.SHA256()).hex(),
        "root_ends": _at(root.not_valid_after_utc),
        "options": row.options.to_json(),
        "created": _at(row.created_at),
        "problem": office.problem(row.id),
    }


# ── Their clients ──


async def eab_create(
    office: Office, actor: str, *, ca: str, names: Sequence[str] = (), note: str = "", lives_for_s: int | None = None
) -> Json:
    span = None if lives_for_s is None else timedelta(seconds=lives_for_s)
    made = await ca_clients.create_eab_key(office.vault, ca, names=names, note=note, lives_for=span, actor=actor)
    mac = base64url.encode(made.mac.reveal())
    return {**_eab(made.key), "mac": mac}


async def eab_list(office: Office, actor: str, *, ca: str | None = None, after: str = "", limit: int = 100) -> Json:
    await _are_there(office, ca)
    found = await office.vault.db.read(lambda tx: eab_keys.page(tx, ca, after=after, limit=limit))
    return [_eab(each) for each in found]


async def eab_revoke(office: Office, actor: str, *, kid: str, dry_run: bool = False) -> Json:
    if dry_run:
        return _eab(await office.vault.db.read(lambda tx: ca_clients.eab_key_of(tx, kid)))
    await ca_clients.revoke_eab_key(office.vault.db, kid, actor=actor)
    return {"kid": kid}


def _eab(key: EabKey) -> dict[str, Json]:
    state = "revoked" if key.revoked_at else "bound" if key.account else "free"
    return {
        "kid": key.kid,
        "ca": key.ca,
        "state": state,
        "account": key.account,
        "names": list(key.names),
        "note": key.note,
        "created": _at(key.created_at),
        "expires": _at(key.expires_at),
    }


async def accounts(office: Office, actor: str, *, ca: str | None = None, after: str = "", limit: int = 100) -> Json:
    await _are_there(office, ca)
    found = await office.vault.db.read(lambda tx: acme_accounts.page(tx, ca, after=after, limit=limit))
    return [
        {
            "account": each.id,
            "ca": each.ca,
            "state": str(each.state),
            "contacts": list(each.contacts),
            "eab": each.eab_kid,
            "names": list(each.names),
            "created": _at(each.created_at),
        }
        for each in found
    ]


async def account_revoke(office: Office, actor: str, *, account: str, dry_run: bool = False) -> Json:
    if dry_run:
        found = await office.vault.db.read(lambda tx: ca_clients.revocable(tx, account))
        good = await office.vault.db.read(lambda tx: ca_certificates.good(tx, ca=found.ca, account=account))
        return {"account": account, "ca": found.ca, "state": str(found.state), "good_certificates": good}
    await ca_clients.revoke_account(office.vault.db, account, actor=actor)
    return {"account": account}


async def orders(
    office: Office, actor: str, *, ca: str | None = None, account: str | None = None, after: str = "", limit: int = 100
) -> Json:
    read = office.vault.db.read
    await _are_there(office, ca, account)
    found = await read(lambda tx: acme_orders.page(tx, ca=ca, account=account, after=after, limit=limit))
    return [
        {
            "order": each.id,
            "ca": each.ca,
            "account": each.account,
            "state": str(each.state),
            "names": [identifier.value for identifier in each.identifiers],
            "profile": each.profile,
            "problem": None if each.error is None else each.error.detail,
            "created": _at(each.created_at),
        }
        for each in found
    ]


async def _are_there(office: Office, ca: str | None, account: str | None = None) -> None:
    """An empty list for a name that is mistyped would read as "all is well"."""
    if ca is not None:
        await cas.get(office.vault.db, ca)
    if account is not None:
        await office.vault.db.read(lambda tx: ca_clients.account_of(tx, account))


async def certificates(office: Office, actor: str, *, ca: str, after: str = "", limit: int = 100) -> Json:
    await cas.get(office.vault.db, ca)
    found = await office.vault.db.read(lambda tx: ca_certificates.page(tx, ca=ca, after=after, limit=limit))
    return [
        {
            "certificate": each.id,
            "serial": each.serial,
            "names": [identifier.value for identifier in each.identifiers],
            "account": each.account,
            "ends": _at(each.not_after),
            "delivery": each.delivery,
            "revoked": _at(each.revoked_at),
        }
        for each in found
    ]


async def pauses(office: Office, actor: str) -> Json:
    return [
        {"account": each.account, "name": each.name, "failures": each.failures, "paused": _at(each.paused_at)}
        for each in await office.vault.db.read(acme_limits.pauses)
    ]


async def pause(office: Office, actor: str, *, account: str, name: str, dry_run: bool = False) -> Json:
    if dry_run:
        await office.vault.db.read(lambda tx: ca_clients.account_of(tx, account))
        return {"account": account, "name": ca_clients.pausable(name)}
    return {"account": account, "name": await ca_clients.pause(office.vault.db, account, name, actor=actor)}


async def unpause(office: Office, actor: str, *, account: str, name: str) -> Json:
    return {"account": account, "name": await ca_clients.unpause(office.vault.db, account, name, actor=actor)}


async def revoke(
    office: Office, actor: str, *, ca: str, serial: str, reason: str = "unspecified", dry_run: bool = False
) -> Json:
    why = _reason(reason)
    db, random = office.vault.db, office.vault.keyring.random
    found = await db.read(lambda tx: ca_clients.certificate_of(tx, ca, serial, why))
    also = await db.read(lambda tx: ca_clients.also_revoked(tx, found, why))
    if not dry_run:
        await ca_clients.revoke_certificate(db, random, ca, serial, why, actor=actor)
    names = [identifier.value for identifier in found.identifiers]
    facts = {"certificate": found.id, "serial": found.serial, "names": names, "reason": why.name.lower()}
    return {**facts, **({"also": also} if also else {})}


def _reason(text: str) -> Reason:
    try:
        return Reason[text.upper().replace("-", "_")]
    except KeyError:
        known = ", ".join(each.name.lower().replace("_", "-") for each in Reason)
        raise CaRefused(f"There is no reason {text!r:.40}.", f"There are: {known}.") from None


async def block_key(office: Office, actor: str, *, key: str, why: str, dry_run: bool = False) -> Json:
    if dry_run:
        return {"key": await office.vault.db.read(lambda tx: ca_clients.blockable(tx, key))}
    return {"key": await ca_clients.block_key(office.vault.db, key, why, actor=actor)}


def _at(at: datetime | None) -> str | None:
    return None if at is None else at.strftime("%Y-%m-%dT%H:%M:%SZ")


VERBS: Final[Mapping[str, Callable[..., Awaitable[Json]]]] = {
    "ca.create": create,
    "ca.adopt": adopt,
    "ca.list": listed,
    "ca.show": show,
    "ca.chain": chain,
    "ca.close": close,
    "ca.open": reopen,
    "ca.set": change,
    "ca.renew-issuer": renew_issuer,
    "ca.root-crl": root_crl,
    "eab.create": eab_create,
    "eab.list": eab_list,
    "eab.revoke": eab_revoke,
    "account.list": accounts,
    "account.revoke": account_revoke,
    "order.list": orders,
    "certificate.list": certificates,
    "certificate.revoke": revoke,
    "pause.list": pauses,
    "pause.add": pause,
    "pause.remove": unpause,
    "key.block": block_key,
    **verbs_certificates.VERBS,
}
