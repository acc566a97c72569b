"""What was found in another client's folder, and what could not be taken over: values only."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.secret import Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundAccount:
    """An account at a CA, with its key. Without an address, the CA finds it again by the key (RFC 8555 §7.3.1)."""

    file: str  # where its key was
    directory: str
    url: str | None
    key: Secret[bytes]  # PKCS#8, PEM
    contacts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCertificate:
    """A certificate whose key, names, chain and dates were seen to belong together."""

    file: str  # where its chain was
    name: str
    names: tuple[str, ...]  # DNS names, then addresses, as the certificate has them
    chain: bytes  # PEM, leaf first
    key: Secret[bytes]  # PKCS#8, PEM
    key_kind: str
    serial: str
    not_before: datetime
    not_after: datetime
    directory: str | None = None  # of the CA that it came from; None: the files do not say
    account: FoundAccount | None = None
    reuse_key: bool = False
    preferred_chain: str | None = None
    profile: str | None = None
    paused: bool = False  # the other client was told not to renew it
    renew_before: timedelta | None = None  # its end, if the other client was told so
    proved_by: str = ""  # how the other client proved its names
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that is not taken over: which file, why, and what to do about it."""

    file: str
    problem: str
    next_step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    certificates: tuple[FoundCertificate, ...] = ()
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()


class Trouble(Exception):
    """Ends the reading of one certificate; the others go on."""

    def __init__(self, file: str, problem: str, next_step: str) -> None:
        super().__init__(f"{file}: {problem}")
        self.problem = Problem(file=file, problem=problem, next_step=next_step)
