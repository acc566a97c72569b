"""Vault PKI (HashiCorp Vault and its like): signs at once, so the order is the certificate.

A role may keep nothing of what it signed (no_store), so what came back goes into the order's `ref`. To sign again costs
nothing: after an answer that was lost it is simply asked again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from pydantic import Field

from holdfast.core.issuers.ca_limits import CaLimits
from holdfast.core.kind import Credential, Kind
from holdfast.core.reasons import Reason
from holdfast.errors import TryLater
from holdfast.issuers import chains
from holdfast.issuers.base import Issued, Look, OrderRef, OrderRequest, Placed, Uncertain
from holdfast.issuers.kind import IssuerKind, Parts, RestSettings
from holdfast.issuers.memory import Remembered
from holdfast.issuers.reading import words
from holdfast.issuers.rest import Reply, Rest, segment
from holdfast.issuers.triage import AnswerMeaning, AnswerVerdict, CaProblem, Dialect, folded
from holdfast.kind_settings import whole
from holdfast.secret import Secret

TOKEN_SEEN_FOR: Final = 3600.0  # seconds: it is looked at no more often, for however many certificates
_LONGEST_COMMON_NAME: Final = 64
_NAME: Final = "[A-Za-z0-9_.-]+"
_PATH: Final = f"{_NAME}(?:/{_NAME})*"


def _problem(value: object) -> CaProblem | None:
    errors = value.get("errors") if isinstance(value, dict) else None
    if not isinstance(errors, list):
        return None
    said = "; ".join(words(each, 200) for each in errors[:5])
    return CaProblem((), said or "no more is said")


DIALECT: Final = Dialect(
    ca="Vault",
    words={},  # it has no states: it signs, or it does not
    statuses={
        403: AnswerMeaning(AnswerVerdict.FAILED, "Check the credential token: has it ended?", Reason.ACCOUNT_REFUSED),
        404: AnswerMeaning(AnswerVerdict.FAILED, "Check the settings mount and role.", Reason.PROFILE_UNKNOWN),
        **dict.fromkeys((412, 472, 473), AnswerMeaning(AnswerVerdict.TRANSIENT)),  # a standby that is not up to date
    },
    problem=_problem,
)  # fmt: skip


class VaultSettings(RestSettings):
    mount: str = Field(default="pki", pattern=whole(_PATH), description="The mount of the PKI secrets engine.")
    role: str = Field(pattern=whole(_NAME), description="The role; the profile of a certificate comes before it.")
    issuer: str = Field(default="", pattern=whole(_NAME), description="By name or id, in place of the mount's default.")
    namespace: str = Field(default="", pattern=whole(_PATH), description="Of Vault Enterprise; empty: none.")


class VaultIssuer:
    """One role of one PKI mount."""

    binding = False

    def __init__(self, rest: Rest, settings: VaultSettings, memory: Remembered) -> None:
        self._rest = rest
        self._settings = settings
        self._memory = memory
        self._mount = f"/v1/{settings.mount}"

    async def find_order(self, request: OrderRequest) -> Placed | Uncertain | None:
        """Vault may have signed before and cannot be asked by our key; an unused signature does no harm."""
        return None

    async def place_order(self, request: OrderRequest) -> Placed:
        settings = self._settings
        by = f"/issuer/{segment(settings.issuer)}" if settings.issuer else ""
        reply = await self._rest.post(
            f"{self._mount}{by}/sign/{segment(request.profile or settings.role)}", "a signature", self._body(request)
        )
        data = _data(reply)
        leaf = chains.read(data.get("certificate"))
        if not leaf:
            raise reply.broken()
        listed = data.get("ca_chain")
        pool = [data.get("issuing_ca"), *(listed if isinstance(listed, list) else [])]
        above = chains.above(leaf[0], [found for each in pool for found in chains.read(each)])
        if above is None:
            raise reply.broken()
        return Placed(ref={"serial": words(data.get("serial_number"), 80), "chain": above.decode()})

    def _body(self, request: OrderRequest) -> dict[str, object]:
        names = {kind: [each.value for each in request.identifiers if each.type == kind] for kind in ("dns", "ip")}
        short = [each.value for each in request.identifiers if len(each.value) <= _LONGEST_COMMON_NAME]
        body: dict[str, object] = {
            "csr": x509.load_der_x509_csr(request.csr).public_bytes(Encoding.PEM).decode(),
            "common_name": short[0] if short else "",
            "alt_names": ",".join(names["dns"]),
            "ip_sans": ",".join(names["ip"]),
            "format": "pem",
            "exclude_cn_from_sans": True,
            "remove_roots_from_chain": True,
        }
        if request.not_after is not None:
            body["ttl"] = f"{max(int((request.not_after - self._rest.clock.now()).total_seconds()), 60)}s"
        return body

    async def order_status(self, ref: OrderRef, request: OrderRequest) -> Look:
        found = chains.read(ref["chain"])
        if not found or not chains.is_for(found[0], request.csr):
            return chains.not_ours(self._rest.name)
        return Issued(chain_pem=str(ref["chain"]).encode())

    async def revoke(self, certificate: bytes, reason: int) -> None:
        """Again is harmless: it answers with the first time. What a role did not keep (no_store) is shown it whole."""
        leaf = chains.leaf_of(certificate)
        serial = f"{leaf.serial_number:x}"
        octets = bytes.fromhex(serial if len(serial) % 2 == 0 else f"0{serial}")
        reply = await self._revoked({"serial_number": octets.hex(":")})
        if reply.status == 400 and reply.finding is not None and "not found" in reply.finding.why:
            reply = await self._revoked({"certificate": leaf.public_bytes(Encoding.PEM).decode()})
        if reply.good().response.body.strip() and folded(_data(reply).get("state")) == "pending":
            why = f"{self._rest.name} has the revocation in its queue, for the cluster that signed it."
            raise TryLater(why, reason=Reason.CA_STILL_PENDING)

    async def _revoked(self, which: Mapping[str, str]) -> Reply:
        return await self._rest.post(f"{self._mount}/revoke", "a revocation", which)

    async def keep_alive(self) -> None:
        """Of the daily calls for each certificate one in an hour looks at the token."""
        await self._memory.kept("token", self._renew_token, TOKEN_SEEN_FOR)

    async def _renew_token(self) -> int | None:
        """Seconds until our token expires; None: it does not. It is renewed once two thirds of its life are over."""
        token = _data(await self._rest.get("/v1/auth/token/lookup-self", "our token"))
        left, life = token.get("ttl"), token.get("creation_ttl")
        if not isinstance(left, int) or not isinstance(life, int) or life <= 0:
            return None
        if token.get("renewable") is True and left * 3 <= life:
            reply = await self._rest.post("/v1/auth/token/renew-self", "our token", {})
            auth = reply.json_object().get("auth")
            renewed = auth.get("lease_duration") if isinstance(auth, dict) else None
            return renewed if isinstance(renewed, int) else left
        return left

    async def probe(self) -> str:
        left = await self._renew_token()
        path = f"{self._mount}/roles/{segment(self._settings.role)}"
        reply = await self._rest.get(path, "its role")
        if reply.status != 403:  # a token that may sign need not be one that may read the role
            reply.good()
        ends = "does not end" if left is None else f"ends in {left // 3600} h"
        return (
            f"{self._rest.name} knows us; our token {ends}; mount {self._settings.mount}, role {self._settings.role}."
        )


def _data(reply: Reply) -> dict[str, object]:
    found = reply.json_object().get("data")
    if not isinstance(found, dict):
        raise reply.broken()
    return found


def _make(settings: VaultSettings, parts: Parts) -> VaultIssuer:
    headers = {"X-Vault-Token": parts.credentials["token"], "X-Vault-Request": Secret("true")}
    if settings.namespace:
        headers["X-Vault-Namespace"] = Secret(settings.namespace)
    site = settings.site(headers, base=settings.base_url.removesuffix("/v1"))
    memory: Remembered = parts.memory.setdefault("remembered", Remembered(parts.clock))
    return VaultIssuer(Rest(parts.transport, parts.clock, site, DIALECT), settings, memory)


VAULT: Final[IssuerKind[VaultSettings]] = Kind(
    name="vault",
    summary="Vault PKI (HashiCorp Vault, OpenBao): signs at once.",
    settings=VaultSettings,
    credentials=(Credential(name="token", summary="A token that may sign with the role, and renew itself."),),
    limits=CaLimits(),
    make=_make,
)
