"""newAccount, accounts, their orders, and keyChange (RFC 8555 §7.3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.acme import jwk, jws, render
from holdfast.acme.answer import Answer, Header, Refusal, json_answer, link, location, to_json
from holdfast.acme.call import Call, Face
from holdfast.acme.contacts import contacts
from holdfast.acme.gate import NAME
from holdfast.core.acme import Account, AccountState
from holdfast.core.problem import AcmeError
from holdfast.operations import acme_accounts, unfit_keys

PAGE: Final = 100  # orders in one answer


# ── newAccount ──


async def new_account(face: Face, call: Call) -> Answer:
    account = await acme_accounts.by_key(face.desk, call.place.ca.id, call.key.thumbprint)
    created = False
    if account is None:
        account, created = await _register(face, call, call.content)
    if account.state is not AccountState.VALID:  # §7.3.6: nothing more is done for this key
        raise AcmeError.unauthorized(f"The account of this key is {account.state}.", status=401)
    call.must_be_object()  # of one for an existing account every field is ignored (§7.3.1)
    where = location(call.place.account(account.id))
    return json_answer(render.account(call.place, account), where, *_terms(face), status=201 if created else 200)


async def _register(face: Face, call: Call, content: Mapping[str, Any]) -> tuple[Account, bool]:
    if _flag(content, "onlyReturnExisting"):
        raise AcmeError.account_does_not_exist("There is no account with this key.")
    if call.place.ca.closed:
        raise AcmeError.unauthorized("This CA is closed: it takes no new accounts.")
    given = contacts(content["contact"]) if content.get("contact") is not None else ()
    agreed = _flag(content, "termsOfServiceAgreed")
    terms = face.desk.policy.terms_url
    if terms and not agreed:
        raise AcmeError.user_action_required("The terms of service must be agreed to.", instance=terms)
    binding = content.get("externalAccountBinding")
    if binding is None and call.place.ca.options.eab_required:
        raise AcmeError.external_account_required("This CA takes only accounts that are bound to a key of ours.")
    await unfit_keys.check_account_key(face.desk, call.key.public)
    return await acme_accounts.register(
        face.desk,
        call.place.ca.id,
        jwk=jwk.serialize(call.key),
        thumbprint=call.key.thumbprint,
        contacts=given,
        agreed=agreed,
        eab_kid=None if binding is None else await _bound(face, call, binding),
        eab=None if binding is None else to_json(binding).decode(),
        address=call.address,
    )


async def _bound(face: Face, call: Call, binding: Any) -> str:
    """The key id of an external account binding that holds (§7.3.4)."""
    eab = jws.parse_eab(binding)
    kid = eab.kid or ""
    mac_key = None
    if kid.isascii() and kid.isprintable():
        mac_key = await acme_accounts.eab_key(face.desk, call.place.ca.id, kid)
    if mac_key is None:
        raise AcmeError.unauthorized("There is no such external account key, or it may not be used any more.")
    jws.check_eab(eab, call.jws, mac_key)
    return kid


def _flag(content: Mapping[str, Any], name: str) -> bool:
    value = content.get(name)
    if value is not None and not isinstance(value, bool):
        raise AcmeError.malformed(f"{name} is neither true nor false.")
    return value is True


def _terms(face: Face) -> tuple[Header, ...]:
    terms = face.desk.policy.terms_url
    return (link(terms, "terms-of-service"),) if terms else ()


# ── An account ──


async def account(face: Face, call: Call) -> Answer:
    """Look, change the contacts, or end it; every other field is ignored (§7.3.2)."""
    _own(call)
    content = {} if call.jws.is_post_as_get else call.content
    if content.get("status") == AccountState.DEACTIVATED:
        found = await acme_accounts.deactivate(face.desk, call.who)
        face.keys.forget(call.place.ca.id, call.who.account)
    else:
        given = content.get("contact")
        found = await acme_accounts.update(face.desk, call.who, None if given is None else contacts(given))
    return json_answer(render.account(call.place, found), *_terms(face))


async def orders(face: Face, call: Call) -> Answer:
    """The orders that are not invalid, a page at a time (§7.1.2.1)."""
    _own(call)
    call.only_look()
    after = call.query.removeprefix("after=")
    if call.query and (after == call.query or not NAME.fullmatch(after)):
        raise AcmeError.malformed("There is no such page.", status=404)
    ids = await acme_accounts.order_ids(face.desk, call.who, after=after, limit=PAGE + 1)
    page = ids[:PAGE]
    more = (link(call.place.orders(call.who.account, page[-1]), "next"),) if len(ids) > PAGE else ()
    return json_answer({"orders": [call.place.order(each) for each in page]}, *more)


def _own(call: Call) -> None:
    if call.args[0] != call.who.account:
        raise AcmeError.unauthorized("This is another account than the one that signed the request.")


# ── keyChange ──


async def key_change(face: Face, call: Call) -> Answer:
    """Both keys have signed: the new one inside, the old one outside (§7.3.5)."""
    new = jws.parse_inner(call.content)
    key = jws.check_inner(new, call.jws)
    change = jws.payload_json(new)
    if change.get("account") != call.jws.kid:
        raise AcmeError.malformed("account in the inner payload is not the account that signed the request.")
    old = change.get("oldKey")
    if not isinstance(old, dict) or not call.key.is_jwk(old):
        raise AcmeError.malformed("oldKey in the inner payload is not the key of the account.")
    await unfit_keys.check_account_key(face.desk, key.public)
    try:
        found = await acme_accounts.change_key(
            face.desk, call.who, jwk=jwk.serialize(key), thumbprint=key.thumbprint
        )  # fmt: skip
    except acme_accounts.KeyInUse as taken:
        raise Refusal(taken.problem, location(call.place.account(taken.account))) from None
    face.keys.forget(call.place.ca.id, call.who.account)
    return json_answer(render.account(call.place, found))
