"""Vault PKI (HashiCorp Vault and its like): signs at once, so the order is the certificate.

A role may keep nothing of what it signed (no_store), so what came back goes into the order's `ref`. To sign again costs
nothing: after an answer that was lost it is simply asked again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from holdfast.core.reasons import Reason
from holdfast.errors import TryLater
from holdfast.issuers import acme_certificate, chains
from holdfast.issuers.base import Issued, Look, Placed, Proof, RenewalWindow, Uncertain, Wish
from holdfast.issuers.kind import Kind, Options, Parts
from holdfast.issuers.reading import words
from holdfast.issuers.remembered import Remembered
from holdfast.issuers.rest import Reply, Rest, segment
from holdfast.issuers.triage import Dialect, Meaning, Problem, Verdict, folded
from holdfast.secret import Secret

TOKEN_SEEN_FOR: Final = 3600.0  # seconds: it is looked at no more often, for however many certificates
_LONGEST_COMMON_NAME: Final = 64
_PATH: Final = r"[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)*"


def _problem(value: Any) -> Problem | None:
    errors = value.get("errors") if isinstance(value, dict) else None
    if not isinstance(errors, list):
        return None
    said = "; ".join(words(each, 200) for each in errors[:5])
    return Problem((), said or "no more is said")


DIALECT: Final = Dialect(
    ca="Vault",
    words={},  # it has no states: it signs, or it does not
    statuses={
        403: Meaning(Verdict.FAILED, "Check the credential token: has it ended?", Reason.ACCOUNT_REFUSED),
        404: Meaning(Verdict.FAILED, "Check the settings mount and role.", Reason.PROFILE_UNKNOWN),
        **dict.fromkeys((412, 472, 473), Meaning(Verdict.TRANSIENT)),  # a standby that is not up to date
    },
    problem=_problem,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    mount: str
    role: str
    issuer: str = ""  # by its name or id, in place of the mount's default


class VaultIssuer:
    """One role of one PKI mount."""

    kind = "vault"
    binding = False

    def __init__(self, rest: Rest, terms: Terms, memory: Remembered) -> None:
        self._rest = rest
        self._terms = terms
        self._memory = memory
        self._mount = f"/v1/{terms.mount}"

    async def find(self, wish: Wish) -> Placed | Uncertain | None:
        """It may have signed before and cannot be asked by our key; that signature is nobody's loss."""
        return None

    async def place(self, wish: Wish) -> Placed:
        terms = self._terms
        by = f"/issuer/{segment(terms.issuer)}" if terms.issuer else ""
        reply = await self._rest.post(
            f"{self._mount}{by}/sign/{segment(wish.profile or terms.role)}", "a signature", self._body(wish)
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

    def _body(self, wish: Wish) -> dict[str, Any]:
        names = {kind: [each.value for each in wish.identifiers if each.type == kind] for kind in ("dns", "ip")}
        short = [each.value for each in wish.identifiers if len(each.value) <= _LONGEST_COMMON_NAME]
        body: dict[str, Any] = {
            "csr": x509.load_der_x509_csr(wish.csr).public_bytes(Encoding.PEM).decode(),
            "common_name": short[0] if short else "",
            "alt_names": ",".join(names["dns"]),
            "ip_sans": ",".join(names["ip"]),
            "format": "pem",
            "exclude_cn_from_sans": True,
            "remove_roots_from_chain": True,
        }
        if wish.not_after is not None:
            body["ttl"] = f"{max(int((wish.not_after - self._rest.clock.now()).total_seconds()), 60)}s"
        return body

    async def look(self, ref: Mapping[str, Any], wish: Wish) -> Look:
        found = chains.read(ref["chain"])
        if not found or not chains.is_for(found[0], wish.csr):
            return chains.not_ours(self._rest.name)
        return Issued(chain_pem=str(ref["chain"]).encode())

    async def answer(self, ref: Mapping[str, Any], proof: Proof) -> None:
        """Nothing has to be proved: its role allows a name, or does not."""

    async def finalize(self, ref: Mapping[str, Any], wish: Wish) -> None:
        """The CSR went with the order."""

    async def cancel(self, ref: Mapping[str, Any]) -> None:
        """It is signed already, and cost nothing."""

    async def revoke(self, certificate: bytes, reason: int) -> None:
        """Again is harmless: it answers with the first time. What a role did not keep (no_store) is shown it whole."""
        leaf = acme_certificate.leaf(certificate)
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

    async def renewal_window(self, certificate: bytes) -> RenewalWindow | None:
        """It has none. But it is asked daily for each certificate, which is when its token is kept alive."""
        await self._memory.kept("token", self._renew_token, TOKEN_SEEN_FOR)
        return None

    async def _renew_token(self) -> int | None:
        """Seconds that our token has; None: it does not end. It is renewed once two thirds of its life are over."""
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
        path = f"{self._mount}/roles/{segment(self._terms.role)}"
        reply = await self._rest.get(path, "its role")
        if reply.status != 403:  # a token that may sign need not be one that may read the role
            reply.good()
        ends = "does not end" if left is None else f"ends in {left // 3600} h"
        return f"{self._rest.name} knows us; our token {ends}; mount {self._terms.mount}, role {self._terms.role}."


def _data(reply: Reply) -> dict[str, Any]:
    found = reply.json_object().get("data")
    if not isinstance(found, dict):
        raise reply.broken()
    return found


# ── Settings ──


def _terms(options: Options) -> Terms:
    return Terms(
        mount=options.text("mount", "pki", like=_PATH),
        role=options.text("role", like=r"[A-Za-z0-9_.-]+"),
        issuer=options.text("issuer", "", like=r"[A-Za-z0-9_.-]+"),
    )


def _check(settings: Mapping[str, Any]) -> None:
    options = Options(settings)
    options.address()
    options.text("namespace", "", like=_PATH)
    _terms(options)
    options.done()


def _make(parts: Parts) -> VaultIssuer:
    options = Options(parts.settings)
    headers = {"X-Vault-Token": parts.credentials["token"], "X-Vault-Request": Secret("true")}
    if namespace := options.text("namespace", "", like=_PATH):
        headers["X-Vault-Namespace"] = Secret(namespace)
    site = options.site(options.address().removesuffix("/v1"), headers)
    memory: Remembered = parts.memory.setdefault("remembered", Remembered(parts.clock))
    return VaultIssuer(Rest(parts.transport, parts.clock, site, DIALECT), _terms(options), memory)


KIND: Final = Kind(check=_check, make=_make, needs=("token",))
