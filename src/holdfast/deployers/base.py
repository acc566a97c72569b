"""The contract of a deployer: it puts a bundle on one target, whole or not at all, and can be asked again at any step.

A deployer neither sleeps, retries, logs nor touches the store: the engine owns every retry and every clock. Each call
can be repeated, and by another replica: all that it needs is in the bundle and in the settings of the target. Calls
raise TryLater or Refused with a reason of `core/reasons.py`:

    TryLater   TARGET_UNREACHABLE, TARGET_BUSY (another program changes the target); `after` if the target named a time
    Refused    TARGET_REFUSED, TARGET_TAKEN (the place is another's), TARGET_HAS_NEWER (`bundle.number` is lower
               than what is in place: never overwrite that), BUNDLE_UNFIT, HOST_KEY_CHANGED, CONFIG_TEST_FAILED,
               RELOAD_FAILED, PROGRAM_UNKNOWN

Optional steps are protocols of their own. A target without one of them skips the step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, runtime_checkable

from holdfast.core.deployment_decision import Written
from holdfast.core.endpoint import Endpoint, Sighting
from holdfast.core.reasons import Reason
from holdfast.errors import Refused, TryLater
from holdfast.secret import Secret

__all__ = ["Bundle", "ChecksConfig", "Deployer", "Drains", "Looks", "Probes", "Reloads", "Written", "later", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """One version of a certificate as a target gets it. It was checked: key, names, chain and dates fit together."""

    certificate: str  # its name here, which may hold * and other characters that no file name should
    names: tuple[str, ...]
    leaf: bytes  # PEM
    chain: bytes  # PEM, without the leaf; may be empty
    key: Secret[bytes] = field(repr=False)  # PEM, PKCS#8, not encrypted
    roots: bytes = b""  # PEM: the roots of our own CAs, for targets that are to trust them; empty if there are none
    number: int  # only grows for this certificate on this target: a lower one never overwrites a higher one
    content_id: str  # 16 hex digits of the digest of leaf, chain and roots: the same for the same bytes
    leaf_sha256: str  # hex, of its DER: what a handshake must show
    serial: str  # hex
    not_before: datetime
    not_after: datetime

    @property
    def fullchain(self) -> bytes:
        return self.leaf + self.chain

    @property
    def combined(self) -> Secret[bytes]:
        """Key, leaf and chain in one file: where a daemon can read that, one rename swaps all of it."""
        return Secret(self.key.reveal() + self.fullchain)


class Deployer(Protocol):
    """One target, opened for one claim and closed after it."""

    async def write(self, bundle: Bundle) -> Written:
        """Put the bundle in place: what is there afterwards is this one or the one before, never a mixture.

        `Written.changed` is False if the same bytes were in place already.
        """

    async def restore(self, bundle: Bundle, previous: Bundle | None) -> None:
        """Take `bundle` away again. `previous` is what we deployed before it; None: what the target itself kept.

        Its number is lower, and may overwrite this one `bundle`, and no other. Refused if there is nothing to restore.
        """

    async def close(self) -> None:
        """Close the connection, if there is one."""


@runtime_checkable
class ChecksConfig(Protocol):
    """A target whose daemon can test its configuration before it reads the new bundle."""

    @property
    def tested_by(self) -> str:
        """What is run, in words; targets of one reload domain with the same words are tested once. Empty: nothing."""

    async def test(self) -> None:
        """Refused, reason CONFIG_TEST_FAILED, with what the daemon said."""


@runtime_checkable
class Reloads(Protocol):
    """A target whose daemon must be told to read the new bundle."""

    @property
    def reloaded_by(self) -> str:
        """As `tested_by`: targets of one reload domain with the same words are reloaded once. Empty: nothing."""

    async def reload(self) -> None:
        """Tell it. Returning proves nothing: only a look at an endpoint does. Refused, reason RELOAD_FAILED."""


@runtime_checkable
class Drains(Protocol):
    """A target that is taken out of a balancer while its daemon is reloaded, if its setting `drain` says so."""

    @property
    def drained_by(self) -> str:
        """As `tested_by`: targets of one reload domain with the same words are taken out once. Empty: nothing."""

    async def drain(self) -> None:
        """Take it out, and wait until few enough connections are left; no error if it is out."""

    async def undrain(self) -> None:
        """Put it back; no error if it is in."""


@runtime_checkable
class Probes(Protocol):
    """A target that can be asked whether a deployment would work, without changing anything."""

    async def probe(self) -> str:
        """One sentence about what was found; TryLater or Refused if a deployment would fail."""


@runtime_checkable
class Looks(Protocol):
    """A target whose endpoints are looked at from its own host."""

    async def look(self, endpoint: Endpoint) -> tuple[Sighting, ...]:
        """Fresh handshakes at the endpoint; TryLater or Refused if nobody there can look."""


def later(why: str, reason: Reason = Reason.TARGET_UNREACHABLE) -> TryLater:
    return TryLater(why, reason=reason.value)


def refused(why: str, reason: Reason = Reason.TARGET_REFUSED) -> Refused:
    return Refused(why, reason=reason.value)
