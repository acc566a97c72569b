"""One CA as its clients see it: its URLs, made from the configured base URL, and its directory (RFC 8555 §7.1.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.acme.answer import Header, link, to_json
from holdfast.core.ca import Policy
from holdfast.operations.authorities import Authority


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
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


def place_of(ca: Authority, policy: Policy) -> Place:
    root = policy.acme_url(ca.id, "")
    return Place(
        ca=ca,
        root=root,
        index=link(f"{root}directory", "index"),
        directory=to_json(_directory(ca, policy, root)),
        account_root=policy.acme_url(ca.id, "account", ""),
        issuers=policy.caa_identities,
    )


def _directory(ca: Authority, policy: Policy, root: str) -> dict[str, Any]:
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


def _meta(ca: Authority, policy: Policy) -> dict[str, Any]:
    meta: dict[str, Any] = {"profiles": {each.name: each.description for each in ca.options.profiles}}
    if policy.terms_url:
        meta["termsOfService"] = policy.terms_url
    if policy.website:
        meta["website"] = policy.website
    if policy.caa_identities:
        meta["caaIdentities"] = list(policy.caa_identities)
    if ca.options.eab_required:
        meta["externalAccountRequired"] = True
    return meta
