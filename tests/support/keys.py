"""Keys in tests: random numbers that repeat, and the real files on a folder of the test."""

import random
from datetime import UTC, datetime
from pathlib import Path

from holdfast.config import Keys, Settings, StoreSettings
from holdfast.keyring import Kek, Keyring, new_kek
from holdfast.secret import Secret

T0 = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class Draws:
    """The Random port, the same in every run of a test."""

    def __init__(self, seed: int = 1) -> None:
        self._source = random.Random(seed)
        self._made = 0

    def uniform(self, low: float, high: float) -> float:
        return self._source.uniform(low, high)

    def token(self, size: int) -> bytes:
        return self._source.randbytes(size)

    def new_id(self, prefix: str) -> str:
        self._made += 1
        return f"{prefix}_{self._made:06d}{self._source.randbytes(4).hex()}"


def a_kek(seed: int = 1) -> Kek:
    return new_kek(Draws(seed), T0)


def a_keyring(*keks: Kek) -> Keyring:
    return Keyring(keks or [a_kek()], Draws(7))


def settings_in(folder: Path, *, passphrase: str = "", previous: str = "") -> Settings:
    """Settings whose key file is in this folder; empty passphrases are none."""
    return Settings(
        store=StoreSettings(data_dir=folder),
        keys=Keys(
            passphrase=Secret(passphrase) if passphrase else None,
            previous_passphrase=Secret(previous) if previous else None,
        ),
    )
