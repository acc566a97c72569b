"""Problem documents of ACME (RFC 8555 §6.7, RFC 7807): what went wrong, as a value to be sent, stored or raised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

from holdfast.errors import UserError

LONGEST_TOLD: Final = 300
PREFIX: Final = "urn:ietf:params:acme:error:"

# Every type, and the HTTP status that goes with it unless the place where it is raised knows better.
STATUS: Final[Mapping[str, int]] = {
    "accountDoesNotExist": 400,  # §7.3.1
    "alreadyReplaced": 409,  # RFC 9773 §5
    "alreadyRevoked": 400,
    "badCSR": 400,
    "badNonce": 400,  # §6.5
    "badPublicKey": 400,  # §6.2
    "badRevocationReason": 400,
    "badSignatureAlgorithm": 400,  # §6.2
    "caa": 403,
    "compound": 400,
    "connection": 400,
    "dns": 400,
    "externalAccountRequired": 403,
    "incorrectResponse": 403,
    "invalidContact": 400,
    "invalidProfile": 400,  # draft-ietf-acme-profiles
    "malformed": 400,
    "orderNotReady": 403,  # §7.4
    "rateLimited": 429,
    "rejectedIdentifier": 400,
    "serverInternal": 500,
    "tls": 400,
    "unauthorized": 403,
    "unsupportedContact": 400,
    "unsupportedIdentifier": 400,
    "userActionRequired": 403,  # §7.3.3
}


@dataclass(frozen=True, slots=True)
class SubProblem:
    """The problem of one identifier of several (§6.7.1). Only here may a problem name an identifier."""

    type: str  # a word of STATUS
    detail: str
    identifier: tuple[str, str] | None = None  # its type and its value: ("dns", "a.example")

    def to_json(self) -> dict[str, object]:
        found: dict[str, object] = {"type": PREFIX + self.type, "detail": self.detail}
        if self.identifier is not None:
            found["identifier"] = {"type": self.identifier[0], "value": self.identifier[1]}
        return found

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> SubProblem:
        named = stored.get("identifier")
        identifier = (named["type"], named["value"]) if named else None
        return cls(stored["type"].removeprefix(PREFIX), stored["detail"], identifier)


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem document."""

    type: str  # a word of STATUS
    detail: str
    status: int
    subproblems: tuple[SubProblem, ...] = ()
    retry_after: int | None = None  # seconds, for the header; it speaks of one response, so it is not stored
    algorithms: tuple[str, ...] = ()  # what badSignatureAlgorithm must list (§6.2)
    instance: str = ""  # the URL that a person must visit; userActionRequired must have one (§7.3.3)

    def brief(self) -> dict[str, str]:
        """For the audit log, which keeps it for ever: of the names only that there were some."""
        return {"type": self.type, "detail": self.detail[:LONGEST_TOLD]}

    def __post_init__(self) -> None:
        if self.type not in STATUS:
            raise ValueError(f"{self.type!r} is no ACME error type")
        if self.type == "badSignatureAlgorithm" and not self.algorithms:
            raise ValueError("badSignatureAlgorithm says which algorithms are supported")
        if self.type == "userActionRequired" and not self.instance:
            raise ValueError("userActionRequired says which page to visit")

    def to_json(self) -> dict[str, object]:
        found: dict[str, object] = {"type": PREFIX + self.type, "detail": self.detail, "status": self.status}
        if self.subproblems:
            found["subproblems"] = [each.to_json() for each in self.subproblems]
        if self.algorithms:
            found["algorithms"] = list(self.algorithms)
        if self.instance:
            found["instance"] = self.instance
        return found

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Problem:
        """Read what to_json wrote."""
        return cls(
            type=stored["type"].removeprefix(PREFIX),
            detail=stored["detail"],
            status=stored["status"],
            subproblems=tuple(map(SubProblem.from_json, stored.get("subproblems", ()))),
            algorithms=tuple(stored.get("algorithms", ())),
            instance=stored.get("instance", ""),
        )


class _Make(Protocol):
    def __call__(
        self,
        detail: str,
        *,
        status: int | None = None,
        subproblems: tuple[SubProblem, ...] = (),
        retry_after: int | None = None,
        algorithms: tuple[str, ...] = (),
        instance: str = "",
    ) -> AcmeError: ...


def _of(word: str) -> _Make:
    def make(detail: str, *, status: int | None = None, **more: Any) -> AcmeError:
        return AcmeError(Problem(word, detail, STATUS[word] if status is None else status, **more))

    return staticmethod(make)


class AcmeError(UserError):
    """A request that is answered with a problem: `raise AcmeError.malformed("The payload is no JSON object.")`."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem
        self.status = problem.status
        self.code = problem.type

    account_does_not_exist: ClassVar = _of("accountDoesNotExist")
    already_replaced: ClassVar = _of("alreadyReplaced")
    already_revoked: ClassVar = _of("alreadyRevoked")
    bad_csr: ClassVar = _of("badCSR")
    bad_nonce: ClassVar = _of("badNonce")
    bad_public_key: ClassVar = _of("badPublicKey")
    bad_revocation_reason: ClassVar = _of("badRevocationReason")
    bad_signature_algorithm: ClassVar = _of("badSignatureAlgorithm")
    caa: ClassVar = _of("caa")
    compound: ClassVar = _of("compound")
    connection: ClassVar = _of("connection")
    dns: ClassVar = _of("dns")
    external_account_required: ClassVar = _of("externalAccountRequired")
    incorrect_response: ClassVar = _of("incorrectResponse")
    invalid_contact: ClassVar = _of("invalidContact")
    invalid_profile: ClassVar = _of("invalidProfile")
    malformed: ClassVar = _of("malformed")
    order_not_ready: ClassVar = _of("orderNotReady")
    rate_limited: ClassVar = _of("rateLimited")
    rejected_identifier: ClassVar = _of("rejectedIdentifier")
    server_internal: ClassVar = _of("serverInternal")
    tls: ClassVar = _of("tls")
    unauthorized: ClassVar = _of("unauthorized")
    unsupported_contact: ClassVar = _of("unsupportedContact")
    unsupported_identifier: ClassVar = _of("unsupportedIdentifier")
    user_action_required: ClassVar = _of("userActionRequired")
