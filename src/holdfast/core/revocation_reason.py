"""Why a certificate is revoked (RFC 5280 §5.3.1): the reasons that its subscriber may give."""

from __future__ import annotations

from enum import StrEnum


class RevocationReason(StrEnum):
    """A reason is written as its text in commands, API and documents, and as its number in CRLs and in ACME.

    The reasons left out are for CAs, for attributes, or, like certificateHold, can be taken back.
    """

    number: int

    def __new__(cls, text: str, number: int = 0) -> RevocationReason:
        member = str.__new__(cls, text)
        member._value_ = text
        member.number = number
        return member

    UNSPECIFIED = "unspecified", 0
    KEY_COMPROMISE = "key-compromise", 1
    AFFILIATION_CHANGED = "affiliation-changed", 3
    SUPERSEDED = "superseded", 4
    CESSATION_OF_OPERATION = "cessation-of-operation", 5
    PRIVILEGE_WITHDRAWN = "privilege-withdrawn", 9

    @classmethod
    def of(cls, number: int) -> RevocationReason:
        """The reason with this number; ValueError if a subscriber cannot give it."""
        found = next((each for each in cls if each.number == number), None)
        if found is None:
            raise ValueError(f"{number} is no reason that a subscriber may give")
        return found
