"""What an agent keeps in its state folder: keys that never leave it, its identity, and what the server told it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from holdfast.core.agents.agent import renew_at
from holdfast.errors import UserError
from holdfast.pki import agent_keys
from holdfast.ports import Files
from holdfast.secret import Secret

FILE: Final = "agent.json"
BINDING: Final = "binding.pem"
SEALING: Final = "sealing.pem"
NEXT: Final = "identity-next.pem"


class NotEnrolled(UserError):
    code = "agent-not-enrolled"

    def __init__(self, folder: Path) -> None:
        super().__init__(f"This host is not enrolled: there is no {FILE} in {folder}.")
        self.hint = "Enrol it: holdfast agent enrol --token-file FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolled:
    """The content of agent.json; it has no secret in it."""

    agent: str
    name: str
    urls: tuple[str, ...]
    pin: str
    system_roots: bool
    roots: str  # PEM
    server_key: str  # base64url of the SPKI that signs work
    generation: int
    chain: str  # PEM of the identity
    jitter: float  # drawn once, from 0 to 1: every wait of this agent is moved by it
    renew_at: float = 0.0  # by the server's clock, in seconds since 1970
    poll_s: float = 240.0
    offset_s: float = 0.0  # what the server's clock is ahead of ours


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFolder:
    """The state folder. Every write is whole, durable and 0600."""

    path: Path
    files: Files

    def load(self) -> Enrolled:
        content = self.files.read(self.path / FILE)
        if content is None:
            raise NotEnrolled(self.path)
        try:
            raw = json.loads(content)
            known: dict[str, Any] = {each.name: raw[each.name] for each in fields(Enrolled) if each.name in raw}
            return Enrolled(**{**known, "urls": tuple(raw["urls"])})
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"{self.path / FILE} cannot be read: {error}") from None

    def save(self, state: Enrolled) -> None:
        content = json.dumps(asdict(state), indent=1).encode()
        self.files.write_private(self.path / FILE, content, replace=True)

    def identity_file(self, generation: int) -> Path:
        return self.path / f"identity-{generation}.pem"

    # ── Keys ──

    def key(self, name: str, make: Any) -> Any:
        """The key of this file, made at its first use: kept before anything is done with it."""
        found = self.read_key(name)
        if found is not None:
            return found
        made = make()
        try:
            self.files.write_private(self.path / name, agent_keys.to_pem(made).reveal(), replace=False)
        except FileExistsError:
            return self.read_key(name)
        return made

    def read_key(self, name: str) -> Any | None:
        content = self.files.read(self.path / name)
        return None if content is None else agent_keys.from_pem(Secret(content))

    def binding(self) -> Any:
        return self.key(BINDING, agent_keys.new_binding)

    def sealing(self) -> Any:
        return self.key(SEALING, agent_keys.new_sealing)

    def next_identity(self) -> Any:
        """The key of the identity that is asked for: the same until it has a certificate."""
        return self.key(NEXT, agent_keys.new_identity)

    def identity(self, state: Enrolled) -> Any | None:
        return self.read_key(self.identity_file(state.generation).name)

    def adopt(self, state: Enrolled, told: dict[str, Any], now: datetime) -> Enrolled:
        """A new identity arrived: its key gets its place before the state names it, so that a crash loses neither."""
        after = replace(
            state,
            generation=int(told["generation"]),
            chain=str(told["chain"]),
            roots=str(told["roots"]),
            server_key=str(told["server_key"]),
            poll_s=float(told["poll_s"]),
            renew_at=renew_at(now, timedelta(seconds=told["life_s"]), 2 * state.jitter - 1).timestamp(),
        )
        key = agent_keys.to_pem(self.next_identity()).reveal()
        self.files.write_private(self.identity_file(after.generation), key, replace=True)
        self.save(after)
        self.files.remove_within(self.path, NEXT)
        if after.generation > 2:
            self.files.remove_within(self.path, self.identity_file(after.generation - 2).name)
        return after


def lived(chain: str) -> tuple[datetime, datetime]:
    """From when to when an identity is valid."""
    from cryptography import x509

    found = x509.load_pem_x509_certificate(chain.encode())
    return found.not_valid_before_utc, found.not_valid_after_utc
