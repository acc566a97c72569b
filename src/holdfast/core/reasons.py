"""Why something waits or failed: a closed list of codes, each with a sentence, who acts next, a docs page."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal, NamedTuple

Actor = Literal["nobody", "holdfast", "ca", "you", "approver", "operator"]


class Reason(StrEnum):
    """Codes are part of the API: they may be added, never renamed."""

    # all is well
    OK = "OK"
    NOT_DUE = "NOT_DUE"
    UNDER_WAY = "UNDER_WAY"
    # what makes a certificate due
    FIRST = "FIRST"
    DUE_ARI = "DUE_ARI"
    DUE_LIFETIME = "DUE_LIFETIME"
    EMERGENCY = "EMERGENCY"
    REVOKED = "REVOKED"
    REVOCATION_ASKED = "REVOCATION_ASKED"
    INPUT_CHANGED = "INPUT_CHANGED"
    MANUAL = "MANUAL"
    # what it waits for
    BACKOFF = "BACKOFF"
    BUDGET = "BUDGET"
    WINDOW = "WINDOW"
    STAGGERED = "STAGGERED"
    PAUSED = "PAUSED"
    ARCHIVED = "ARCHIVED"
    AWAITING_APPROVAL = "AWAITING_APPROVAL"
    ISSUER_PAUSED = "ISSUER_PAUSED"
    CA_STILL_PENDING = "CA_STILL_PENDING"
    CA_RATE_LIMITED = "CA_RATE_LIMITED"
    CA_DOWN = "CA_DOWN"
    CA_TLS_FAILED = "CA_TLS_FAILED"
    NAME_PAUSED_AT_CA = "NAME_PAUSED_AT_CA"
    EXPIRED = "EXPIRED"
    # what went wrong
    DNS_TXT_NOT_VISIBLE = "DNS_TXT_NOT_VISIBLE"
    PROOF_NOT_VISIBLE = "PROOF_NOT_VISIBLE"
    NO_SOLVER = "NO_SOLVER"
    SOLVER_FAILED = "SOLVER_FAILED"
    VALIDATION_FAILED = "VALIDATION_FAILED"
    CAA_FORBIDS = "CAA_FORBIDS"
    NAME_REFUSED = "NAME_REFUSED"
    CA_REFUSED = "CA_REFUSED"
    ORDER_EXPIRED = "ORDER_EXPIRED"
    ORDER_UNCERTAIN = "ORDER_UNCERTAIN"
    ACCOUNT_GONE = "ACCOUNT_GONE"
    ACCOUNT_REFUSED = "ACCOUNT_REFUSED"
    EAB_REQUIRED = "EAB_REQUIRED"
    DIRECTORY_UNSAFE = "DIRECTORY_UNSAFE"
    ANSWER_MALFORMED = "ANSWER_MALFORMED"
    NONCES_REFUSED = "NONCES_REFUSED"
    PROFILE_UNKNOWN = "PROFILE_UNKNOWN"
    REPLACES_REJECTED = "REPLACES_REJECTED"
    LIFETIME_REJECTED = "LIFETIME_REJECTED"
    WRONG_CERTIFICATE = "WRONG_CERTIFICATE"
    UNKNOWN_ISSUER = "UNKNOWN_ISSUER"
    KEY_MISSING = "KEY_MISSING"
    APPROVAL_REJECTED = "APPROVAL_REJECTED"
    APPROVAL_TIMED_OUT = "APPROVAL_TIMED_OUT"
    CANCELLED = "CANCELLED"
    INTERNAL = "INTERNAL"


class Meaning(NamedTuple):
    """`alert`: a person hears of it at once, and not only when time runs out."""

    sentence: str
    acts_next: Actor
    alert: bool = False


MEANINGS: Final = {
    Reason.OK: Meaning("All is well.", "nobody"),
    Reason.NOT_DUE: Meaning("It is valid, and its renewal is not due yet.", "holdfast"),
    Reason.UNDER_WAY: Meaning("A new certificate is being obtained.", "holdfast"),
    Reason.FIRST: Meaning("There is no certificate yet.", "holdfast"),
    Reason.DUE_ARI: Meaning("The CA asked for its renewal at this time (RFC 9773).", "holdfast"),
    Reason.DUE_LIFETIME: Meaning("The share of its life after which it is renewed is over.", "holdfast"),
    Reason.EMERGENCY: Meaning("Less than a twentieth of its life is left.", "holdfast"),
    Reason.REVOKED: Meaning("The certificate was revoked, and must be replaced.", "holdfast"),
    Reason.REVOCATION_ASKED: Meaning("Its revocation was asked for, and is not done yet; it is replaced.", "holdfast"),
    Reason.INPUT_CHANGED: Meaning("What was asked for changed since it was issued.", "holdfast"),
    Reason.MANUAL: Meaning("Somebody asked for a renewal now.", "holdfast"),
    Reason.BACKOFF: Meaning("The last attempt failed; the next one waits, longer after each failure.", "holdfast"),
    Reason.BUDGET: Meaning("The CA allows no more requests for now; this one has its turn later.", "holdfast"),
    Reason.WINDOW: Meaning("It waits for its maintenance window, as long as that is safe.", "holdfast"),
    Reason.STAGGERED: Meaning("It is renewed together with others, spread over time: its turn comes.", "holdfast"),
    Reason.PAUSED: Meaning("Somebody paused it: nothing is done, and it will expire.", "you"),
    Reason.ARCHIVED: Meaning("It is archived: nothing is done about it any more.", "nobody"),
    Reason.AWAITING_APPROVAL: Meaning("A second person must approve it.", "approver"),
    Reason.ISSUER_PAUSED: Meaning("Every CA that it may come from is paused.", "operator"),
    Reason.CA_STILL_PENDING: Meaning("The CA has the order and has not decided; it is asked now and then.", "ca"),
    Reason.CA_RATE_LIMITED: Meaning("The CA said that there were too many requests; it is asked later.", "holdfast"),
    Reason.CA_DOWN: Meaning("The CA cannot be reached, or answers with errors of its own.", "ca"),
    Reason.CA_TLS_FAILED: Meaning("TLS with the CA fails: see its setting roots, or our certificate.", "operator"),
    Reason.NAME_PAUSED_AT_CA: Meaning("The CA paused a name: it must be unpaused there.", "operator", alert=True),
    Reason.EXPIRED: Meaning("The certificate has expired.", "holdfast", alert=True),
    Reason.DNS_TXT_NOT_VISIBLE: Meaning("The TXT record is not on all of the zone's name servers.", "you"),
    Reason.PROOF_NOT_VISIBLE: Meaning("The proof is not where the CA will look for it.", "you"),
    Reason.NO_SOLVER: Meaning("None of the proofs that the CA accepts can be published here.", "operator", alert=True),
    Reason.SOLVER_FAILED: Meaning("The proof could not be published.", "operator"),
    Reason.VALIDATION_FAILED: Meaning("The CA looked for the proof and did not find it.", "you", alert=True),
    Reason.CAA_FORBIDS: Meaning("A CAA record of the domain names other CAs only.", "you", alert=True),
    Reason.NAME_REFUSED: Meaning("The CA does not issue for one of the names.", "you", alert=True),
    Reason.CA_REFUSED: Meaning("The CA refused.", "you", alert=True),
    Reason.ORDER_EXPIRED: Meaning("The order was given up by the CA before it was finished.", "holdfast"),
    Reason.ORDER_UNCERTAIN: Meaning("Its order may be at the CA, which cannot say.", "operator", alert=True),
    Reason.ACCOUNT_GONE: Meaning("The CA does not know our account any more; a new one is made.", "holdfast"),
    Reason.ACCOUNT_REFUSED: Meaning("The CA refused our account.", "operator", alert=True),
    Reason.EAB_REQUIRED: Meaning("The CA wants an external account binding.", "operator", alert=True),
    Reason.DIRECTORY_UNSAFE: Meaning("The CA's directory names addresses of others.", "operator", alert=True),
    Reason.ANSWER_MALFORMED: Meaning("The CA's answer cannot be understood.", "ca"),
    Reason.NONCES_REFUSED: Meaning("The CA refused one nonce after another; the next try gets others.", "holdfast"),
    Reason.PROFILE_UNKNOWN: Meaning("The CA does not offer this profile.", "you", alert=True),
    Reason.REPLACES_REJECTED: Meaning("The CA did not want to hear what is replaced; it is not told.", "holdfast"),
    Reason.LIFETIME_REJECTED: Meaning("The CA lets nobody choose a lifetime; it is not told one.", "holdfast"),
    Reason.WRONG_CERTIFICATE: Meaning("The CA sent something else than was asked for.", "operator", alert=True),
    Reason.UNKNOWN_ISSUER: Meaning("The CA that it should come from is not configured here.", "operator", alert=True),
    Reason.KEY_MISSING: Meaning("A secret that is needed cannot be opened here.", "operator", alert=True),
    Reason.APPROVAL_REJECTED: Meaning("The second person said no.", "approver", alert=True),
    Reason.APPROVAL_TIMED_OUT: Meaning("Nobody approved it in time.", "approver", alert=True),
    Reason.CANCELLED: Meaning("Somebody stopped the attempt.", "you"),
    Reason.INTERNAL: Meaning("Something went wrong inside Holdfast.", "operator", alert=True),
}  # fmt: skip


def of(code: str | None) -> Reason:
    """The code as a member; what a plugin invented is INTERNAL, with its own words beside it."""
    try:
        return Reason(code or "OK")
    except ValueError:
        return Reason.INTERNAL
