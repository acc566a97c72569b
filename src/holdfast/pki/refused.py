"""The refusals of this folder: each has a class for its subject, a code for programs, and a sentence for people."""

from __future__ import annotations

from holdfast.errors import UserError


class PkiRefused(UserError):
    """The sentence explains the refusal; `code` names the rule, and is stable: programs and the docs refer to it."""

    def __init__(self, code: str, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.code = code
        self.hint = hint


class NameRefused(PkiRefused):
    """A name or an address that no certificate of ours may carry."""


class KeyRefused(PkiRefused):
    """A key that is weak, of a kind that is not allowed, or that cannot be read."""


class CsrRefused(PkiRefused):
    """A certificate signing request that we do not sign."""


class ChainRefused(PkiRefused):
    """Certificates that cannot be read, or do not belong together."""


class MustNotSign(PkiRefused):
    """A CA that must not sign, or must not sign this certificate."""

    status = 500


class SignerRefused(PkiRefused):
    """A CA key that cannot be opened or used as it is set up; a person must act."""

    status = 500
