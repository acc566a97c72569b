"""How the object of an operation is found, and whose it is: the runner asks before anything else happens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from holdfast.operations.access import Action, Forbidden, Owned, Principal, Verdict, allow, demand
from holdfast.operations.certificates.refs import NoSuchCertificate, found_by
from holdfast.operations.notifications.access import on_notification
from holdfast.store import access, certificates
from holdfast.store.tx import Tx

ScopeCheck = Callable[[Tx, Principal, Action, Any], None]  # raises the error that the asker gets


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    name: str  # for the access table
    check: ScopeCheck
    objects: bool = False  # an object is named: for an asker who may not see it, it does not exist


def _installation(tx: Tx, who: Principal, action: Action, asked: object) -> None:
    demand(who, action)


def _visible(tx: Tx, who: Principal, action: Action, asked: object) -> None:
    demand(who, action, who.scope)


INSTALLATION: Final = Scope(name="the installation", check=_installation)
VISIBLE: Final = Scope(name="what the asker may see", check=_visible)  # lists, confined to the asker


def certificate(field: str = "ref") -> Scope:
    """The certificate that this field of the input names."""

    def check(tx: Tx, who: Principal, action: Action, asked: object) -> None:
        demand_on_certificate(tx, who, action, getattr(asked, field))

    return Scope(name="a certificate", check=check, objects=True)


def demand_on_certificate(tx: Tx, who: Principal, action: Action, ref: str) -> None:
    """Raise unless the asker may do this to the certificate. A certificate they may not see is not there for them."""
    try:
        found = [found_by(tx, ref)]
    except NoSuchCertificate as why:
        found = list(why.alike)
    for each in found or (None,):
        _demand(who, action, Owned("", {}) if each is None else Owned.of(each), ref)


def _demand(who: Principal, action: Action, resource: Owned, ref: str) -> None:
    verdict = allow(who, action, resource)
    if verdict is Verdict.FORBIDDEN:
        raise Forbidden(who, action)
    if verdict is Verdict.HIDDEN:
        raise NoSuchCertificate(ref)


def owner_in_input(owned: Callable[[Principal, Any], Owned]) -> Scope:
    """Whose it will be is said by the input, and by what the asker is confined to."""

    def check(tx: Tx, who: Principal, action: Action, asked: object) -> None:
        demand(who, action, owned(who, asked))

    return Scope(name="the owner in the input", check=check)


def _approval(tx: Tx, who: Principal, action: Action, asked: Any) -> None:
    found = access.find_approval(tx, asked.approval)
    about = None if found is None else certificates.get(tx, found.certificate)
    _demand(who, action, Owned("", {}) if about is None else Owned.of(about), asked.approval)


def _notification(tx: Tx, who: Principal, action: Action, asked: Any) -> None:
    on_notification(who, action, asked.notification)(tx)


APPROVAL: Final = Scope(name="an approval's certificate", check=_approval, objects=True)
NOTIFICATION: Final = Scope(name="a notification's certificate", check=_notification, objects=True)
