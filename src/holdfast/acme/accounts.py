"""newAccount, accounts, their orders, their contacts, and keyChange (RFC 8555 §7.3)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

from holdfast.acme import jws, resources
from holdfast.acme.answer import AcmeAnswer, AcmeRefusal, Header, json_answer, link, location, to_json
from holdfast.acme.request import NAME, AcmeRequest, AcmeServices
from holdfast.core.own_ca.acme import Account, AccountState
from holdfast.core.own_ca.problem import AcmeError
from holdfast.operations.acme import accounts
from holdfast.operations.acme.context import by_current
from holdfast.operations.own_ca.authorities import Authority
from holdfast.pki import jwk, names
from holdfast.pki.refused import NameRefused

PAGE: Final = 100  # orders in one answer


# ── newAccount ──


async def new_account(services: AcmeServices, request: AcmeRequest) -> AcmeAnswer:
    account = await accounts.by_key(services.acme_context, request.place.ca.id, request.key.thumbprint)
    created = False
    if account is None:
        registered = await by_current(
            services.acme_context, request.place.ca, lambda ca: _register(services, request, request.content, ca)
        )
        account, created = registered
    if account.state is not AccountState.VALID:  # §7.3.6: nothing more is done for this key
        raise AcmeError.unauthorized(f"The account of this key is {account.state}.", status=401)
    request.must_be_object()  # of one for an existing account every field is ignored (§7.3.1)
    where = location(request.place.account(account.id))
    return json_answer(
        resources.account(request.place, account), where, *_terms(services), status=201 if created else 200
    )


async def _register(
    services: AcmeServices, request: AcmeRequest, content: Mapping[str, Any], ca: Authority
) -> tuple[Account, bool]:
    if _flag(content, "onlyReturnExisting"):
        raise AcmeError.account_does_not_exist("There is no account with this key.")
    if ca.closed:
        raise AcmeError.unauthorized("This CA is closed: it takes no new accounts.")
    given = contacts(content["contact"]) if content.get("contact") is not None else ()
    agreed = _flag(content, "termsOfServiceAgreed")
    terms = services.acme_context.policy.terms_url
    if terms and not agreed:
        raise AcmeError.user_action_required("The terms of service must be agreed to.", instance=terms)
    binding = content.get("externalAccountBinding")
    if binding is None and ca.options.eab_required:
        raise AcmeError.external_account_required("This CA takes only accounts that are bound to a key of ours.")
    await accounts.check_account_key(services.acme_context, request.key.public)
    return await accounts.register(
        services.acme_context,
        ca,
        jwk=jwk.serialize(request.key),
        thumbprint=request.key.thumbprint,
        contacts=given,
        agreed=agreed,
        eab_kid=None if binding is None else await _bound(services, request, binding),
        eab=None if binding is None else to_json(binding).decode(),
        address=request.address,
    )


async def _bound(services: AcmeServices, request: AcmeRequest, binding: object) -> str:
    """The key id of an external account binding that holds (§7.3.4)."""
    eab = jws.parse_eab(binding)
    kid = eab.kid or ""
    mac_key = None
    if kid.isascii() and kid.isprintable():
        mac_key = await accounts.eab_key(services.acme_context, request.place.ca.id, kid)
    if mac_key is None:
        raise AcmeError.unauthorized("There is no such external account key, or it may not be used any more.")
    jws.check_eab(eab, request.jws, mac_key)
    return kid


def _flag(content: Mapping[str, object], name: str) -> bool:
    value = content.get(name)
    if value is not None and not isinstance(value, bool):
        raise AcmeError.malformed(f"{name} is neither true nor false.")
    return value is True


def _terms(services: AcmeServices) -> tuple[Header, ...]:
    terms = services.acme_context.policy.terms_url
    return (link(terms, "terms-of-service"),) if terms else ()


# ── An account ──


async def account(services: AcmeServices, request: AcmeRequest) -> AcmeAnswer:
    """Read the account, change its contacts, or deactivate it; every other field is ignored (§7.3.2)."""
    _own(request)
    content = {} if request.jws.is_post_as_get else request.content
    if content.get("status") == AccountState.DEACTIVATED:
        found = await accounts.deactivate(services.acme_context, request.who)
        services.keys.forget(request.place.ca.id, request.who.account)
    else:
        given = content.get("contact")
        wanted = None if given is None else contacts(given)
        found = await accounts.update(services.acme_context, request.who, wanted, address=request.address)
    return json_answer(resources.account(request.place, found), *_terms(services))


async def orders(services: AcmeServices, request: AcmeRequest) -> AcmeAnswer:
    """The orders that are not invalid, a page at a time (§7.1.2.1)."""
    _own(request)
    request.only_look()
    after = request.query.removeprefix("after=")
    if request.query and (after == request.query or not NAME.fullmatch(after)):
        raise AcmeError.malformed("There is no such page.", status=404)
    ids = await accounts.order_ids(services.acme_context, request.who, after=after, limit=PAGE + 1)
    page = ids[:PAGE]
    more = (link(request.place.orders(request.who.account, page[-1]), "next"),) if len(ids) > PAGE else ()
    return json_answer({"orders": [request.place.order(each) for each in page]}, *more)


def _own(request: AcmeRequest) -> None:
    if request.args[0] != request.who.account:
        raise AcmeError.unauthorized("This is another account than the one that signed the request.")


# ── keyChange ──


async def key_change(services: AcmeServices, request: AcmeRequest) -> AcmeAnswer:
    """Both keys have signed: the new one inside, the old one outside (§7.3.5)."""
    new = jws.parse_inner(request.content)
    key = jws.check_inner(new, request.jws)
    change = jws.payload_json(new)
    if change.get("account") != request.jws.kid:
        raise AcmeError.malformed("account in the inner payload is not the account that signed the request.")
    old = change.get("oldKey")
    if not isinstance(old, dict) or not request.key.is_jwk(old):
        raise AcmeError.malformed("oldKey in the inner payload is not the key of the account.")
    await accounts.check_account_key(services.acme_context, key.public)
    try:
        found = await accounts.change_key(
            services.acme_context,
            request.who,
            jwk=jwk.serialize(key),
            thumbprint=key.thumbprint,
            address=request.address,
        )
    except accounts.KeyInUse as taken:
        raise AcmeRefusal(taken.problem, location(request.place.account(taken.account))) from None
    services.keys.forget(request.place.ca.id, request.who.account)
    return json_answer(resources.account(request.place, found))


# ── Contacts ──
# RFC 8555 §7.3: mailto URLs with one address each.


MAX_CONTACTS: Final = 10
MAX_ADDRESS: Final = 254  # RFC 5321 §4.5.3.1.3
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_TO_ENCODE: Final = re.compile(r"[/#\[\]&;=]")  # allowed in a mailto URL only as %XX (RFC 6068 §2)
_LOCAL: Final = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*")


def contacts(value: object) -> tuple[str, ...]:
    """The contacts that a client sent, each once and in its order."""
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise AcmeError.malformed("contact is not an array of texts.")
    if len(value) > MAX_CONTACTS:
        raise AcmeError.invalid_contact(f"An account has at most {MAX_CONTACTS} contacts.")
    for each in value:
        _check(each)
    return tuple(dict.fromkeys(value))


def _check(url: str) -> None:
    scheme, colon, rest = url.partition(":")
    if not colon or not _SCHEME.fullmatch(scheme):
        raise AcmeError.invalid_contact(f"{_shown(url)} is not a URL; write mailto:admin@example.com.")
    if scheme.lower() != "mailto":
        raise AcmeError.unsupported_contact(f"{_shown(scheme)} contacts are not supported; only mailto is.")
    if "?" in rest:
        raise AcmeError.invalid_contact(f"{_shown(url)} has header fields, which are not allowed.")
    if "," in rest:
        raise AcmeError.invalid_contact(f"{_shown(url)} has more than one address.")
    if _TO_ENCODE.search(rest) or not _is_address(unquote(rest)):
        raise AcmeError.invalid_contact(f"{_shown(url)} has no valid address.")


def _is_address(text: str) -> bool:
    local, at, domain = text.rpartition("@")
    if not at or len(text) > MAX_ADDRESS or not _LOCAL.fullmatch(local):
        return False
    try:
        names.dns_name(domain, wildcard=False)
    except NameRefused:
        return False
    return True


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 80 else f"{text[:77]}...")
