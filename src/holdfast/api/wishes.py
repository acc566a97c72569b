"""What a client wishes for, as core values; whatever cannot be wished for is refused in words."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from holdfast.api import shapes
from holdfast.api.call import Call
from holdfast.core.certificate import Rule, Wanted, Window
from holdfast.operations import issuers
from holdfast.operations.certificates import WishRefused, identifiers_of


async def wanted(call: Call, wish: shapes.NewCertificate) -> Wanted:
    """Whoever is confined to one owner, or to labels, asks for certificates of that owner, with those labels."""
    who = call.principal
    owner = wish.owner or (who.owners[0] if len(who.owners) == 1 else "")
    chosen = await _issuers(call, wish.issuers)
    if not chosen:
        raise WishRefused("There is no CA to ask.", "Add one: holdfast issuer add letsencrypt --preset letsencrypt")
    found: Wanted = _built(
        lambda: Wanted(
            name=wish.name or wish.names[0].strip().lower(),
            identifiers=identifiers_of(wish.names),
            issuers=chosen,
            key_kind=wish.key,
            profile=wish.profile,
            preferred_chain=wish.preferred_chain,
            lifetime=_span(wish.lifetime_s),
            reuse_key=wish.reuse_key,
            rule=_rule(wish.renewal),
            windows=_windows(wish.windows),
            owner=owner,
            labels={**who.labels, **wish.labels},
            approval_required=wish.approval_required,
        )
    )
    return found


async def _issuers(call: Call, given: list[str] | None) -> tuple[str, ...]:
    if given:
        return tuple(given)
    if call.front.default_issuers:
        return call.front.default_issuers
    known = [row.name for row in await issuers.all_issuers(call.keeper)]
    if len(known) > 1:
        raise WishRefused("There are several CAs: say which.", f"One of {', '.join(known)}, or several in order.")
    return tuple(known)


_NULLABLE: Final = frozenset({"profile", "preferred_chain", "lifetime_s"})
_CHANGES: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    "name": ("name", str),
    "names": ("identifiers", lambda given: identifiers_of(given)),
    "issuers": ("issuers", tuple),
    "key": ("key_kind", str),
    "profile": ("profile", lambda given: given),
    "preferred_chain": ("preferred_chain", lambda given: given),
    "lifetime_s": ("lifetime", lambda given: _span(given)),
    "reuse_key": ("reuse_key", bool),
    "renewal": ("rule", lambda given: _rule(given)),
    "windows": ("windows", lambda given: _windows(given)),
    "owner": ("owner", str),
    "labels": ("labels", dict),
    "approval_required": ("approval_required", bool),
}


def changes(asked: shapes.CertificateChange) -> dict[str, Any]:
    """Only what was given, by the names that core has for it."""
    found = {}
    for name in sorted(asked.model_fields_set):
        given = getattr(asked, name)
        if given is None and name not in _NULLABLE:
            raise WishRefused(f"{name} cannot be null.", "Leave it out to keep it as it is.")
        field, convert = _CHANGES[name]
        found[field] = _built(lambda convert=convert, given=given: convert(given))  # type: ignore[misc]
    return found


def _built(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except ValueError as error:
        hint = "Correct that, and ask again; docs/guides/certificates.md says what can be asked for."
        raise WishRefused(f"This cannot be wished for: {error}.", hint) from None


def _span(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def _rule(given: shapes.RenewalRule) -> Rule:
    return Rule(fraction=given.fraction, before=_span(given.before_s), ari=given.ari)


def _windows(given: list[shapes.MaintenanceWindow]) -> tuple[Window, ...]:
    return tuple(Window(days=frozenset(each.days), opens=each.opens, closes=each.closes) for each in given)
