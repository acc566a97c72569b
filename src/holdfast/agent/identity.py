"""How a host becomes an agent and stays one: enrolment, renewal at half of an identity's life, and recovery."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from holdfast.agent.evidence import evidence
from holdfast.agent.server import Server, ServerRefused, Signer
from holdfast.agent.state import AgentFolder, Enrolled
from holdfast.core import base64url
from holdfast.core.agents import protocol
from holdfast.core.agents.token_text import TokenText
from holdfast.errors import TryLater
from holdfast.pki import agent_keys
from holdfast.ports import Clock, Random, Transport
from holdfast.secret import Secret


@dataclass(frozen=True, slots=True)
class Pending:
    """A person must approve this agent first; the fingerprint is for them to compare."""

    fingerprint: str
    retry_after: float


def _csr(key: Any) -> bytes:
    """A CSR without a name: the server says who we are."""
    built = x509.CertificateSigningRequestBuilder(x509.Name([])).sign(key, hashes.SHA256())
    return built.public_bytes(Encoding.DER)


@dataclass(slots=True, kw_only=True)
class Membership:
    """One agent and its server."""

    folder: AgentFolder
    transport: Transport
    clock: Clock
    random: Random

    def server_of(self, state: Enrolled) -> Server:
        return Server(
            urls=state.urls,
            transport=self.transport,
            clock=self.clock,
            random=self.random,
            roots=b"" if state.system_roots else state.roots.encode(),
            offset=state.offset_s,
        )

    async def enrol(self, token: TokenText, name: str) -> Enrolled | Pending:
        """Ask to be let in. All keys are kept before the first byte is sent: asked again, it is the same request."""
        server = Server(urls=token.urls, transport=self.transport, clock=self.clock, random=self.random)
        roots = await server.pinned_roots(token.pin)
        server.roots = b"" if token.system_roots else roots.encode()
        told = await server.ask(protocol.ENROL, self._request(token, name), within=60.0)
        if told["status"] == 202:
            return Pending(str(told.get("fingerprint", "")), told["retry_after"] or 30.0)
        state = Enrolled(
            agent=str(told["agent"]),
            name=str(told["name"]),
            urls=token.urls,
            pin=token.pin,
            system_roots=token.system_roots,
            roots=roots,
            server_key="",
            generation=0,
            chain="",
            jitter=self.random.uniform(0, 1),
        )
        return self._adopted(state, server, told)

    def _request(self, token: TokenText, name: str) -> dict[str, Any]:
        binding, sealing = self.folder.binding(), agent_keys.public_der(self.folder.sealing())
        public, csr = agent_keys.public_der(binding), _csr_kept(self.folder)
        transcript = protocol.enrolment_transcript(token.id, name, public, sealing, csr)
        proof = agent_keys.sign(agent_keys.token_key(Secret(token.secret)), transcript)
        return {
            "protocol": protocol.PROTOCOL,
            "token": token.id,
            "name": name,
            "binding": base64url.encode(public),
            "sealing": base64url.encode(sealing),
            "csr": base64url.encode(csr),
            "proof": base64url.encode(proof),
            "possession": base64url.encode(agent_keys.sign(binding, transcript)),
            "evidence": evidence(self.folder.files),
        }

    async def renew(self, state: Enrolled, server: Server, signer: Signer) -> Enrolled:
        """The next identity. The one before stays good until this one was used: a lost reply costs nothing."""
        told = await server.ask(protocol.RENEW, {"csr": base64url.encode(_csr_kept(self.folder))}, signer=signer)
        return self._adopted(state, server, told)

    async def recover(self, state: Enrolled, server: Server) -> Enrolled:
        """A new identity by the binding key, however long ago the last one expired. The clock does not matter."""
        told = await server.ask(protocol.CHALLENGE, {"agent": state.agent})
        challenge, csr = str(told.get("challenge", "")), _csr_kept(self.folder)
        transcript = protocol.recovery_transcript(state.agent, challenge, csr)
        body = {
            "agent": state.agent,
            "challenge": challenge,
            "csr": base64url.encode(csr),
            "signature": base64url.encode(agent_keys.sign(self.folder.binding(), transcript)),
            "evidence": evidence(self.folder.files),
        }
        return self._adopted(state, server, await server.ask(protocol.RECOVER, body, within=60.0))

    def _adopted(self, state: Enrolled, server: Server, told: dict[str, Any]) -> Enrolled:
        now = self.clock.now() + timedelta(seconds=server.offset)
        return self.folder.adopt(state, _identity(told), now)

    def signer(self, state: Enrolled) -> Signer:
        """ServerRefused, as the server would say it, if the key of the identity is lost: the binding key helps."""
        key = self.folder.identity(state)
        if key is None:
            raise ServerRefused(401, "identity-unknown", "The key of the identity is not in the state folder.", None)
        return Signer(agent=state.agent, generation=state.generation, key=key)


def _csr_kept(folder: AgentFolder) -> bytes:
    return _csr(folder.next_identity())


def _identity(told: dict[str, Any]) -> dict[str, Any]:
    """What a new identity must come with, or the answer is not one of this protocol."""
    wanted = {"generation": int, "chain": str, "roots": str, "server_key": str, "poll_s": float, "life_s": float}
    found = {name: told.get(name) for name in wanted}
    if any(not isinstance(found[name], kind if kind is not float else (int, float)) for name, kind in wanted.items()):
        raise TryLater("the server's answer is not of this protocol", reason="BAD_ANSWER")
    return found


def renewal_due(state: Enrolled, now: datetime) -> bool:
    return now.timestamp() >= state.renew_at
