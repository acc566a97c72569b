"""What operations on agents need of this process, and the key that signs work for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import sha256
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ed25519

from holdfast.core import base64url
from holdfast.core.agents.agent import AgentRefusal
from holdfast.errors import UserError
from holdfast.operations.acme.context import AcmeContext
from holdfast.operations.installation.secret_store import SecretStore, agent_signer_key
from holdfast.operations.own_ca.authorities import Authority
from holdfast.pki import agent_keys, keys
from holdfast.store.agents import agents
from holdfast.store.agents.agents import SignerRow
from holdfast.store.tx import Tx


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPolicy:
    """What holds for every agent of this installation; from the settings."""

    ca: str = "default"
    base_url: str = "https://localhost:8631"
    identity_for: timedelta = timedelta(days=7)
    poll_for: timedelta = timedelta(minutes=4)
    parked: int = 10_000  # requests that wait for work, in this process
    recoveries: int = 5

    @property
    def installation(self) -> str:
        """How identities call this installation."""
        return urlsplit(self.base_url).hostname or "localhost"

    def uri(self, agent: str) -> str:
        return f"holdfast://{self.installation}/agent/{agent}"


class AgentProblem(UserError):
    """A request of an agent that is refused, by its code."""

    def __init__(self, refusal: AgentRefusal, *, retry_after: int | None = None) -> None:
        super().__init__(refusal.why)
        self.status, self.code = refusal.status, refusal.code
        self.retry_after = retry_after


class NoAgentCa(UserError):
    status, code = 503, "no-agent-ca"

    def __init__(self, ca: str) -> None:
        super().__init__(f"CA {ca or '(none)'} cannot sign identities of agents here now.")
        self.hint = "See: holdfast ca ls; the setting agents.ca names the CA."


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentContext:
    acme_context: AcmeContext
    secret_store: SecretStore
    policy: AgentPolicy
    _signer: list[ed25519.Ed25519PrivateKey] = field(default_factory=list)

    def authority(self) -> Authority:
        found = self.acme_context.authorities.get(self.policy.ca)
        if found is None:
            raise NoAgentCa(self.policy.ca)
        return found

    def root_pem(self) -> bytes:
        return self.authority().root_pem

    def pin(self) -> str:
        """SHA-256 of the public key of the root that agents trust."""
        root = x509.load_pem_x509_certificate(self.root_pem())
        return sha256(agent_keys.public_der(root)).hexdigest()

    async def signer(self) -> ed25519.Ed25519PrivateKey:
        """The key that signs work: made once for the installation, whichever process is first."""
        if not self._signer:
            found = await self.acme_context.db.read(agents.signer) or await self._made()
            pem = await self.secret_store.reveal(found.key_secret, agent_signer_key())
            self._signer.append(agent_keys.from_pem(pem))
        return self._signer[0]

    async def _made(self) -> SignerRow:
        key = agent_keys.new_binding()
        public = base64url.encode(agent_keys.public_der(key))

        def write(tx: Tx, secret: str) -> SignerRow:
            agents.keep_signer(tx, SignerRow(secret, public))
            found = agents.signer(tx)
            if found is None:
                raise AssertionError("it was just kept")
            return found

        return await self.secret_store.keep(agent_keys.to_pem(key), agent_signer_key(), write)


def spki_sha256(der: bytes) -> str:
    return keys.spki_sha256(der).hex()
