"""Passwords: argon2id, a few at a time on threads, so that a flood of log-ins takes neither the loop nor the memory."""

from __future__ import annotations

import asyncio
from typing import Final

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from holdfast.pki.in_thread import aside
from holdfast.secret import Secret

AT_ONCE: Final = 2
MEMORY: Final = 46 * 1024  # KiB; with two passes more than twice the least that OWASP recommends
_HASHER: Final = PasswordHasher(time_cost=2, memory_cost=MEMORY, parallelism=1)
# Of a password that no person knows: who gives an unknown name waits as long as others.
_NOBODY: Final = _HASHER.hash("", salt=bytes(16))


class Passwords:
    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def hash(self, password: Secret[str]) -> str:
        async with self._turns:
            return await aside(_HASHER.hash, password.reveal())

    async def fits(self, kept: str | None, password: Secret[str]) -> bool:
        """Whether this is the password; the same work is done where there is none."""
        async with self._turns:
            good = await aside(_verified, kept or _NOBODY, password)
        return good and kept is not None


def _verified(kept: str, password: Secret[str]) -> bool:
    try:
        return _HASHER.verify(kept, password.reveal())
    except (VerificationError, InvalidHashError):
        return False
