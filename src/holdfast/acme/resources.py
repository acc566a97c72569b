"""One CA's ACME resources (RFC 8555 §7.1): their URLs, its directory, and their JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast.acme.answer import Header, link, retry_after, rfc3339, to_json
from holdfast.core.own_ca.acme import Account, Authz, AuthzState, Challenge, ChallengeState, Order, OrderState
from holdfast.core.own_ca.ca import CaPolicy
from holdfast.operations.own_ca.authorities import Authority

# ── URLs and directory ──
# URLs are made from the configured base URL (RFC 8555 §7.1.1).


@dataclass(frozen=True, slots=True, kw_only=True)
class CaUrls:
    ca: Authority
    root: str  # of every URL of this CA, with its last slash
    index: Header  # goes with every answer but the directory
    directory: bytes
    account_root: str  # what a kid must begin with
    issuers: tuple[str, ...]  # the names that stand for this CA in DNS

    def account(self, account: str) -> str:
        return self.account_root + account

    def orders(self, account: str, after: str = "") -> str:
        return f"{self.account_root}{account}/orders" + (f"?after={after}" if after else "")

    def order(self, order: str) -> str:
        return f"{self.root}order/{order}"

    def finalize(self, order: str) -> str:
        return f"{self.root}order/{order}/finalize"

    def authz(self, authz: str) -> str:
        return f"{self.root}authz/{authz}"

    def challenge(self, challenge: str) -> str:
        return f"{self.root}challenge/{challenge}"

    def certificate(self, certificate: str, chain: int = 0) -> str:
        """Chain 0 is the one that clients get first."""
        return f"{self.root}certificate/{certificate}" + (f"/{chain}" if chain else "")


def place_of(ca: Authority, policy: CaPolicy) -> CaUrls:
    root = policy.acme_url(ca.id, "")
    return CaUrls(
        ca=ca,
        root=root,
        index=link(f"{root}directory", "index"),
        directory=to_json(_directory(ca, policy, root)),
        account_root=policy.acme_url(ca.id, "account", ""),
        issuers=policy.caa_identities,
    )


def _directory(ca: Authority, policy: CaPolicy, root: str) -> dict[str, object]:
    """No newAuthz: a server without pre-authorization must leave it out."""
    return {
        "newNonce": f"{root}new-nonce",
        "newAccount": f"{root}new-account",
        "newOrder": f"{root}new-order",
        "revokeCert": f"{root}revoke-cert",
        "keyChange": f"{root}key-change",
        "renewalInfo": f"{root}renewal-info",
        "meta": _meta(ca, policy),
    }


def _meta(ca: Authority, policy: CaPolicy) -> dict[str, object]:
    meta: dict[str, object] = {"profiles": {each.name: each.description for each in ca.options.profiles}}
    if policy.terms_url:
        meta["termsOfService"] = policy.terms_url
    if policy.website:
        meta["website"] = policy.website
    if policy.caa_identities:
        meta["caaIdentities"] = list(policy.caa_identities)
    if ca.options.eab_required:
        meta["externalAccountRequired"] = True
    return meta


# ── JSON ──
# Accounts, orders, authorizations and challenges as JSON (RFC 8555 §7.1). Unknown fields are never reflected.


SOON: Final = 1  # seconds; signing takes milliseconds, and polls are held open a while besides


def account(place: CaUrls, found: Account) -> dict[str, object]:
    shown: dict[str, object] = {"status": found.state.value}
    if found.contacts:
        shown["contact"] = list(found.contacts)
    if found.agreed:
        shown["termsOfServiceAgreed"] = True
    if found.eab is not None:  # with the value that the client sent (§7.3.4)
        shown["externalAccountBinding"] = json.loads(found.eab)
    shown["orders"] = place.orders(found.id)
    return shown


def order(place: CaUrls, found: Order) -> dict[str, object]:
    shown: dict[str, Any] = {
        "status": found.state.value,
        "expires": rfc3339(found.expires_at),
        "identifiers": [each.to_json() for each in found.identifiers],
        "profile": found.profile,
        "authorizations": [place.authz(each) for each in found.authzs],
        "finalize": place.finalize(found.id),
    }
    if found.not_before is not None:
        shown["notBefore"] = rfc3339(found.not_before)
    if found.not_after is not None:
        shown["notAfter"] = rfc3339(found.not_after)
    if found.replaces is not None:
        shown["replaces"] = found.replaces
    if found.state is OrderState.INVALID and found.error is not None:
        shown["error"] = found.error.to_json()
    if found.state is OrderState.VALID and found.certificate is not None:
        shown["certificate"] = place.certificate(found.certificate)
    return shown


def order_waits(found: Order) -> tuple[Header, ...]:
    return (retry_after(SOON),) if found.state is OrderState.PROCESSING else ()


def authz(place: CaUrls, found: Authz) -> dict[str, object]:
    shown: dict[str, object] = {
        "status": found.state.value,
        "expires": rfc3339(found.expires_at),
        "identifier": found.identifier.to_json(),
        "challenges": [challenge(place, each, found) for each in _telling(found)],
    }
    if found.wildcard:  # for others it must be absent
        shown["wildcard"] = True
    return shown


def _telling(found: Authz) -> tuple[Challenge, ...]:
    """All challenges while one can still be chosen; then the one that decided (§7.1.4)."""
    if found.state is AuthzState.PENDING:
        return found.challenges
    over = (ChallengeState.VALID, ChallengeState.INVALID)
    return tuple(each for each in found.challenges if each.state in over) or found.challenges


def challenge(place: CaUrls, found: Challenge, parent: Authz) -> dict[str, object]:
    shown: dict[str, object] = {
        "type": found.type,
        "url": place.challenge(found.id),
        "status": found.state.value,
    }
    if found.type == "dns-persist-01":  # proved by a record that names the account, and so without a token
        shown |= {"issuer-domain-names": list(place.issuers), "accounturi": place.account(parent.account)}
    else:
        shown["token"] = found.token
    if found.state is ChallengeState.VALID and found.valid_at is not None:
        shown["validated"] = rfc3339(found.valid_at)
    if found.state is ChallengeState.INVALID and found.error is not None:  # with an error it must be invalid (§8)
        shown["error"] = found.error.to_json()
    return shown


def challenge_waits(found: Challenge, now: datetime) -> tuple[Header, ...]:
    """Retry-After: after the next validation, because nothing changes before (§8.2)."""
    if found.state is not ChallengeState.PROCESSING:
        return ()
    wait = timedelta(0) if found.next_try_at is None else found.next_try_at - now
    return (retry_after(wait.total_seconds() + SOON),)


def under_way(found: Authz) -> Challenge | None:
    """The challenge that is being tested."""
    return next((each for each in found.challenges if each.state is ChallengeState.PROCESSING), None)
