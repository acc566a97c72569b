"""The CSR of a certificate whose keys are made at an agent: asked for there, and checked before anything is ordered."""

from __future__ import annotations

from typing import Final

from holdfast.core import base64url
from holdfast.core.issuance_steps import Facts
from holdfast.core.issuers.issuer import IssuerRow
from holdfast.core.kind import Trait
from holdfast.core.reasons import Reason
from holdfast.deployers.kind import AgentCalls
from holdfast.errors import Refused, TryLater
from holdfast.operations import kinds
from holdfast.operations.acme.names import split
from holdfast.operations.certificates.checks import ANY_KEY
from holdfast.pki import csr, keys
from holdfast.pki.refused import PkiRefused
from holdfast.store.database import Store
from holdfast.store.deployments import targets

LANE: Final = "key of "  # items of one certificate follow each other, and never wait for a deployment


async def asked_for(agents: AgentCalls | None, db: Store, issuer: IssuerRow, facts: Facts) -> bytes:
    """TryLater, AGENT_CSR_AWAITED, while the agent is away; Refused if its CSR is not what was asked for."""
    spec = facts.certificate.wanted
    rows = await db.read(lambda tx: targets.named(tx, spec.targets))
    names = {str(row.settings.get("agent")) for row in rows.values() if kinds.has(row, Trait.HAS_KEYS)}
    if agents is None or len(names) != 1 or len(rows) != len(spec.targets):
        raise Refused("Its targets are not at one agent, which could make the key.", reason=Reason.AGENT_CSR_WRONG)
    dns, ips = split(facts.issuance.identifiers)
    body = {
        "issuance": facts.issuance.id,
        "key_kind": spec.key_kind,
        "names": dns,
        "ips": ips,
        "common_name": kinds.has(issuer, Trait.WANTS_COMMON_NAME),
    }
    try:
        found = await agents.call(names.pop(), f"{LANE}{facts.certificate.name}"[:200], "csr", body, {})
    except TryLater as why:
        raise TryLater(str(why), reason=Reason.AGENT_CSR_AWAITED) from None
    return _checked(str(found.get("csr", "")), facts)


def _checked(text: str, facts: Facts) -> bytes:
    """Exactly the names of the issuance, by a key of the kind that is wanted and that was never used before."""
    try:
        content = base64url.decode(text)
        request = csr.parse(content, **ANY_KEY)
    except (ValueError, PkiRefused) as why:
        raise Refused(f"The agent sent no CSR that can be read: {why}", reason=Reason.AGENT_CSR_WRONG) from None
    dns, ips = split(facts.issuance.identifiers)
    if {*request.names, *request.ips} != {*dns, *ips}:
        asked = ", ".join([*request.names, *request.ips][:5])
        raise Refused(f"The CSR of the agent is for other names: {asked}.", reason=Reason.AGENT_CSR_WRONG)
    kind, current = keys.kind_of(request.public_key), facts.current
    if kind != facts.certificate.wanted.key_kind:
        raise Refused(f"The key of the agent is of kind {kind}.", reason=Reason.AGENT_CSR_WRONG)
    if current is not None and current.spki_sha256 == keys.spki_sha256(request.public_key).hex():
        raise Refused("The agent used the key again that is in use.", reason=Reason.AGENT_CSR_WRONG)
    return content
