"""Accounts at ACME servers (RFC 8555 §7.3): made once, found again after a crash, given new keys, and closed.

The caller commits the key before the first call that uses it, and the returned URL before the next. So
every function here can be repeated: the CA knows the key, and answers as it did before.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.key_kind import KeyKind
from holdfast.core.reasons import Reason
from holdfast.errors import Refused
from holdfast.issuers.acme.wire import AcmeReply, CaAccount, Directory, Eab, Wire, binding, signed_key_change
from holdfast.pki import keys
from holdfast.pki.keys import PrivateKey, thumbprint
from holdfast.secret import Secret


async def new_key() -> Secret[bytes]:
    """A key for a new account, or for an old one: to be stored before anything else is done with it."""
    return keys.to_pem(await keys.generate(KeyKind.EC_P256))


async def find_account(wire: Wire, key: PrivateKey) -> CaAccount | None:
    """The account that the CA knows this key by (§7.3.1); None if it knows none."""
    url = (await wire.directory()).new_account
    reply = await wire.post(url, {"onlyReturnExisting": True}, key, "our account")
    if reply.word == "accountDoesNotExist":
        return None
    return CaAccount(reply.location(wire.place), key)


async def ensure_account(
    wire: Wire, key: PrivateKey, *, contacts: Sequence[str] = (), terms_agreed: bool, eab: Eab | None = None
) -> CaAccount:
    """The account of this key, made if there is none. Looked for first: a binding can often be used only once."""
    if (found := await find_account(wire, key)) is not None:
        return found
    directory = await wire.directory()
    _check_wishes(wire, directory, terms_agreed=terms_agreed, eab=eab)
    payload: dict[str, object] = {"contact": [_contact(each) for each in contacts]} if contacts else {}
    if terms_agreed:
        payload["termsOfServiceAgreed"] = True
    if eab is not None:
        payload["externalAccountBinding"] = binding(eab, key, url=directory.new_account)
    reply = await wire.post(directory.new_account, payload, key, "a new account")
    return CaAccount(reply.location(wire.place), key)


def _check_wishes(wire: Wire, directory: Directory, *, terms_agreed: bool, eab: Eab | None) -> None:
    if directory.terms is not None and not terms_agreed:
        raise Refused(
            f"{wire.place.name} asks for agreement to its terms of service: {directory.terms}.",
            reason=Reason.ACCOUNT_REFUSED,
        )
    if directory.eab_required and eab is None:
        raise Refused(f"{wire.place.name} wants an external account binding.", reason=Reason.EAB_REQUIRED)


def _contact(address: str) -> str:
    return address if ":" in address else f"mailto:{address}"


async def set_contacts(wire: Wire, account: CaAccount, contacts: Sequence[str]) -> None:
    change = {"contact": [_contact(each) for each in contacts]}
    (await wire.post(account.url, change, account, "our contact addresses")).good()


async def change_key(wire: Wire, account: CaAccount, new: PrivateKey) -> CaAccount:
    """The account with its new key (§7.3.5), which is stored already. The old one is of no use once this returns."""
    url = (await wire.directory()).key_change
    if url is None:
        raise Refused(f"{wire.place.name} offers no change of account keys.", reason=Reason.CA_REFUSED)
    changed = CaAccount(account.url, new)
    reply = await wire.post(url, signed_key_change(account, new, url=url), account, "the change of our key")
    if not 200 <= reply.status < 300 and await _is_changed(wire, changed):
        return changed
    reply.good()
    return changed


async def _is_changed(wire: Wire, changed: CaAccount) -> bool:
    """Whether an earlier try got through although we never heard of it."""
    found = await find_account(wire, changed.key)
    return found is not None and found.url == changed.url


async def deactivate(wire: Wire, account: CaAccount) -> None:
    """Close it, for good (§7.3.6). Closing it again is harmless."""
    reply = await wire.post(account.url, {"status": "deactivated"}, account, "the end of our account")
    if reply.word not in ("unauthorized", "accountDoesNotExist"):
        reply.good()


def standing(reply: AcmeReply) -> str:
    """What a CA says of our account when it is asked: valid, deactivated, revoked; empty if it does not say.

    Of one that is closed most say so only in the words of their refusal (§7.3.6).
    """
    if 200 <= reply.status < 300:
        return str(reply.json().get("status") or "")
    said = reply.problem.detail.lower() if reply.problem and reply.word == "unauthorized" else ""
    return next((word for word in ("deactivated", "revoked") if word in said), "")


def key_authorization(token: str, account: CaAccount) -> str:
    """What proves that a challenge is answered by this account (§8.1)."""
    return f"{token}.{thumbprint(account.key.public_key())}"
