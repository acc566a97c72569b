"""Base classes of errors: mistakes of users, answers of remotes, failures of the store. Modules derive their own."""

from __future__ import annotations

from datetime import timedelta


class UserError(Exception):
    """Something the caller can fix: shown as written, never logged as a crash."""

    status, code, hint = 400, "bad-request", ""


class Usage(UserError):
    """An argument of a command makes no sense: the same exit code as for an option that is not there."""


class SettingRefused(UserError):
    """A setting is unknown, malformed or out of range; the message names it and says where it came from."""

    code = "setting-refused"

    def __init__(self, setting: str, problem: str, hint: str = "") -> None:
        super().__init__(f"{setting}: {problem}")
        self.setting = setting
        self.hint = hint


class IllegalMove(Exception):
    """A state machine was asked for a move that its table does not have: a bug of ours, never a user's."""


# ── What a remote can answer, besides a value ─────────────────────────────────────────────────────────────


class TryLater(Exception):
    """A remote could not answer now. `after` is its own wish (Retry-After), None when it named no time."""

    def __init__(
        self,
        why: str,
        *,
        after: timedelta | None = None,
        reason: str = "REMOTE_UNAVAILABLE",
        sent: bool = True,
        answered: bool = False,
    ) -> None:
        super().__init__(why)
        self.after = after
        self.answered = answered  # the remote itself says "not now": its address is right
        self.reason = reason
        self.sent = sent  # False: what was asked cannot have got there, as where there was no connection


class Refused(Exception):
    """A remote said no, and will keep saying no until someone changes the request."""

    def __init__(self, why: str, *, reason: str = "REFUSED") -> None:
        super().__init__(why)
        self.reason = reason


# ── What the store can answer, besides a value ────────────────────────────────────────────────────────────


class LeaseLost(Exception):
    """Another holder has what we thought was ours: stop, and write nothing."""


class StoreError(Exception):
    """The store did not do what was asked; nothing was changed."""


class StoreUnavailable(StoreError):
    """The store cannot be reached or cannot write now (down, restarting, disk full); trying again is right."""


class OutcomeUnknown(StoreError):
    """The answer to COMMIT was lost or came too late: it may have happened. Re-read before doing it again."""


class TxConflict(StoreError):
    """Two transactions got in each other's way (serialization failure, deadlock): run this one again."""


class Duplicate(StoreError):
    """A unique index says that this exists already."""


class StoreUnfit(StoreError):
    """The store answers, but cannot serve as it is (damaged, rights that are missing); waiting does not mend it."""

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.hint = hint


class StoreDamaged(StoreUnfit):
    """Pages of the database file cannot be read any more; what lies on others can."""


class StoreRefused(UserError):
    """The store must not be used as it is (wrong key, second process, truncated file); a person must act."""

    status, code = 500, "store-refused"

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.hint = hint


class KeyUnusable(UserError):
    """One secret cannot be opened: its row is damaged, or was moved. All others are as they were."""

    status, code = 500, "key-unusable"

    def __init__(self, what: str, kek_id: str) -> None:
        super().__init__(f"{what} does not open with key {kek_id}: the row is damaged or not in its place.")
        self.hint = "Restore this row from a backup, or replace the secret (a new key, a new credential)."


class KeyMissing(UserError):
    """A key that the database uses is not held here. Nothing is damaged, so nothing is to be replaced."""

    status, code = 503, "key-missing"

    def __init__(self, kek_id: str) -> None:
        super().__init__(f"This process does not hold key {kek_id}, or that key is no longer in use.")
        self.hint = (
            "The keys were rotated elsewhere: bring this machine the same key file, or the new passphrase "
            "('holdfast key status' shows which keys the database uses)."
        )
