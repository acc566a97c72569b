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
    AWAITING_APPROVAL_AT_CA = "AWAITING_APPROVAL_AT_CA"
    ORDER_UNANSWERED = "ORDER_UNANSWERED"
    CA_RATE_LIMITED = "CA_RATE_LIMITED"
    CA_QUOTA_USED_UP = "CA_QUOTA_USED_UP"
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
    NOT_THE_CA = "NOT_THE_CA"
    ANSWER_MALFORMED = "ANSWER_MALFORMED"
    NONCES_REFUSED = "NONCES_REFUSED"
    PROFILE_UNKNOWN = "PROFILE_UNKNOWN"
    REPLACES_REJECTED = "REPLACES_REJECTED"
    LIFETIME_REJECTED = "LIFETIME_REJECTED"
    WRONG_CERTIFICATE = "WRONG_CERTIFICATE"
    UNKNOWN_ISSUER = "UNKNOWN_ISSUER"
    KEY_MISSING = "KEY_MISSING"
    CSR_NEEDED = "CSR_NEEDED"
    AGENT_CSR_AWAITED = "AGENT_CSR_AWAITED"
    AGENT_CSR_LATE = "AGENT_CSR_LATE"
    AGENT_CSR_WRONG = "AGENT_CSR_WRONG"
    APPROVAL_REJECTED = "APPROVAL_REJECTED"
    APPROVAL_TIMED_OUT = "APPROVAL_TIMED_OUT"
    CANCELLED = "CANCELLED"
    # what an endpoint shows
    ENDPOINT_OLD = "ENDPOINT_OLD"
    ENDPOINT_LAGS = "ENDPOINT_LAGS"
    ENDPOINT_DRIFT = "ENDPOINT_DRIFT"
    ENDPOINT_MISSING_INTERMEDIATE = "ENDPOINT_MISSING_INTERMEDIATE"
    ENDPOINT_EXPIRING = "ENDPOINT_EXPIRING"
    ENDPOINT_WRONG_NAME = "ENDPOINT_WRONG_NAME"
    ENDPOINT_TLS_FAILED = "ENDPOINT_TLS_FAILED"
    ENDPOINT_UNREACHABLE = "ENDPOINT_UNREACHABLE"
    ENDPOINT_PARTLY_UNREACHABLE = "ENDPOINT_PARTLY_UNREACHABLE"
    INTERNAL = "INTERNAL"
    # deployments: what they wait for
    DEPLOYING = "DEPLOYING"
    DEPLOY_HELD = "DEPLOY_HELD"
    DEPLOY_WINDOW = "DEPLOY_WINDOW"
    DEPLOY_FROZEN = "DEPLOY_FROZEN"
    WAVE_WAITS = "WAVE_WAITS"
    WAVE_STOPPED = "WAVE_STOPPED"
    TARGET_UNREACHABLE = "TARGET_UNREACHABLE"
    TARGET_BUSY = "TARGET_BUSY"
    # deployments: what went wrong
    DEPLOY_NOT_SERVED = "DEPLOY_NOT_SERVED"
    DEPLOY_FAILED = "DEPLOY_FAILED"
    ROLLBACK_FAILED = "ROLLBACK_FAILED"
    BUNDLE_UNFIT = "BUNDLE_UNFIT"
    CONFIG_TEST_FAILED = "CONFIG_TEST_FAILED"
    DRAIN_FAILED = "DRAIN_FAILED"
    RELOAD_FAILED = "RELOAD_FAILED"
    TARGET_REFUSED = "TARGET_REFUSED"
    TARGET_UNKNOWN = "TARGET_UNKNOWN"
    TARGET_TAKEN = "TARGET_TAKEN"
    TARGET_HAS_NEWER = "TARGET_HAS_NEWER"
    HOST_KEY_CHANGED = "HOST_KEY_CHANGED"
    PROGRAM_UNKNOWN = "PROGRAM_UNKNOWN"


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
    Reason.DUE_LIFETIME: Meaning("The certificate has reached its renewal time.", "holdfast"),
    Reason.EMERGENCY: Meaning("Less than 5 % of its lifetime is left.", "holdfast"),
    Reason.REVOKED: Meaning("The certificate was revoked, and is being replaced.", "holdfast"),
    Reason.REVOCATION_ASKED: Meaning("Its revocation was requested, and the CA has not confirmed it yet.", "holdfast"),
    Reason.INPUT_CHANGED: Meaning("Its specification changed after it was issued.", "holdfast"),
    Reason.MANUAL: Meaning("A person asked for a renewal.", "holdfast"),
    Reason.BACKOFF: Meaning("The last attempt failed; waits grow with each failure.", "holdfast"),
    Reason.BUDGET: Meaning("The budget at the CA is used up for now; this issuance waits for its turn.", "holdfast"),
    Reason.WINDOW: Meaning("The renewal waits for its maintenance window, as long as that is safe.", "holdfast"),
    Reason.STAGGERED: Meaning("Many renewals are spread over time; this one waits for its turn.", "holdfast"),
    Reason.PAUSED: Meaning("The certificate is paused: it is not renewed, and will expire.", "you"),
    Reason.ARCHIVED: Meaning("The certificate is archived, and is not renewed any more.", "nobody"),
    Reason.AWAITING_APPROVAL: Meaning("A second person must approve this issuance.", "approver"),
    Reason.ISSUER_PAUSED: Meaning("Every issuer of this certificate is paused.", "operator"),
    Reason.CA_STILL_PENDING: Meaning("The CA has the order and has not decided yet; its answer is polled.", "ca"),
    Reason.AWAITING_APPROVAL_AT_CA: Meaning("A person must approve the order in the CA's own portal.", "approver"),
    Reason.ORDER_UNANSWERED: Meaning("The CA did not answer the order: it is searched, then placed anew.", "holdfast"),
    Reason.CA_RATE_LIMITED: Meaning("The CA's rate limit is reached; the request is repeated later.", "holdfast"),
    Reason.CA_QUOTA_USED_UP: Meaning("The quota at the CA is used up: have the CA raise it.", "operator", alert=True),
    Reason.CA_DOWN: Meaning("The CA cannot be reached, or answers with server errors.", "ca"),
    Reason.CA_TLS_FAILED: Meaning("TLS with the CA fails: check its roots, or our client certificate.", "operator"),
    Reason.NAME_PAUSED_AT_CA: Meaning("The CA paused issuance for a name: unpause it there.", "operator", alert=True),
    Reason.EXPIRED: Meaning("The certificate has expired.", "holdfast", alert=True),
    Reason.DNS_TXT_NOT_VISIBLE: Meaning("The TXT record is not visible on all name servers of the zone.", "you"),
    Reason.PROOF_NOT_VISIBLE: Meaning("The challenge response is not visible where the CA will look for it.", "you"),
    Reason.NO_SOLVER: Meaning("No solver can publish a response that the CA accepts.", "operator", alert=True),
    Reason.SOLVER_FAILED: Meaning("The solver could not publish the challenge response.", "operator"),
    Reason.VALIDATION_FAILED: Meaning("The CA did not accept the challenge response.", "you", alert=True),
    Reason.CAA_FORBIDS: Meaning("A CAA record of the domain allows other CAs only.", "you", alert=True),
    Reason.NAME_REFUSED: Meaning("The CA does not issue for one of the names.", "you", alert=True),
    Reason.CA_REFUSED: Meaning("The CA refused the order.", "you", alert=True),
    Reason.ORDER_EXPIRED: Meaning("The order expired at the CA before it was finished.", "holdfast"),
    Reason.ORDER_UNCERTAIN: Meaning("The CA may have received an order, and cannot tell.", "operator", alert=True),
    Reason.ACCOUNT_GONE: Meaning("The CA does not know our account any more; a new account is registered.", "holdfast"),
    Reason.ACCOUNT_REFUSED: Meaning("The CA refused our account.", "operator", alert=True),
    Reason.EAB_REQUIRED: Meaning("The CA requires an external account binding (EAB).", "operator", alert=True),
    Reason.DIRECTORY_UNSAFE: Meaning("The CA's directory points to hosts of others.", "operator", alert=True),
    Reason.NOT_THE_CA: Meaning("Not the CA but something else answers at its address.", "operator", alert=True),
    Reason.ANSWER_MALFORMED: Meaning("The CA's answer cannot be understood.", "ca"),
    Reason.NONCES_REFUSED: Meaning("The CA refused several nonces; the request is repeated with new ones.", "holdfast"),
    Reason.PROFILE_UNKNOWN: Meaning("The CA does not offer this profile.", "you", alert=True),
    Reason.REPLACES_REJECTED: Meaning("The CA rejected the field `replaces`; it is left out.", "holdfast"),
    Reason.LIFETIME_REJECTED: Meaning("The CA rejected the requested lifetime; it is left out.", "holdfast"),
    Reason.WRONG_CERTIFICATE: Meaning("The certificate does not match the request.", "operator", alert=True),
    Reason.UNKNOWN_ISSUER: Meaning("The issuer of this certificate is not configured here.", "operator", alert=True),
    Reason.KEY_MISSING: Meaning("A secret cannot be decrypted: its key is missing here.", "operator", alert=True),
    Reason.AGENT_CSR_AWAITED: Meaning("The agent that has the key has not sent a CSR yet.", "holdfast"),
    Reason.AGENT_CSR_LATE: Meaning("The agent that has the key sent no CSR in time.", "you", alert=True),
    Reason.AGENT_CSR_WRONG: Meaning("The CSR of the agent is not what was asked for.", "you", alert=True),
    Reason.CSR_NEEDED: Meaning("The certificate needs a CSR with a new key.", "you", alert=True),
    Reason.APPROVAL_REJECTED: Meaning("The approver rejected this issuance.", "approver", alert=True),
    Reason.APPROVAL_TIMED_OUT: Meaning("The approval expired before an approver decided.", "approver", alert=True),
    Reason.CANCELLED: Meaning("A person cancelled this issuance; another one begins at its time.", "holdfast"),
    Reason.ENDPOINT_OLD: Meaning("The endpoint still shows an earlier version.", "holdfast"),
    Reason.ENDPOINT_LAGS: Meaning("Some addresses or machines of the endpoint show an earlier version.", "holdfast"),
    Reason.ENDPOINT_DRIFT: Meaning("The endpoint shows a certificate that is not expected there.", "you", alert=True),
    Reason.ENDPOINT_MISSING_INTERMEDIATE: Meaning("The endpoint serves an incomplete chain.", "you", alert=True),
    Reason.ENDPOINT_EXPIRING: Meaning("The certificate that the endpoint shows is about to expire.", "you", alert=True),
    Reason.ENDPOINT_WRONG_NAME: Meaning("The endpoint shows a certificate for other names.", "you", alert=True),
    Reason.ENDPOINT_TLS_FAILED: Meaning("No TLS handshake with the endpoint succeeds.", "you", alert=True),
    Reason.ENDPOINT_UNREACHABLE: Meaning("No address of the endpoint could be reached.", "you", alert=True),
    Reason.ENDPOINT_PARTLY_UNREACHABLE: Meaning("Some addresses of the endpoint could not be reached.", "you"),
    Reason.INTERNAL: Meaning("An internal error of Holdfast.", "operator", alert=True),
    Reason.DEPLOYING: Meaning("The certificate is on its way to its targets.", "holdfast"),
    Reason.DEPLOY_HELD: Meaning("The target is paused; the deployment waits until it is resumed.", "you"),
    Reason.DEPLOY_WINDOW: Meaning("The deployment waits for a window of its target, while that is safe.", "holdfast"),
    Reason.DEPLOY_FROZEN: Meaning("A change freeze holds the deployment, as long as that is safe.", "operator"),
    Reason.WAVE_WAITS: Meaning("The deployment waits until the earlier wave of its rollout is served.", "holdfast"),
    Reason.WAVE_STOPPED: Meaning("An earlier wave of the rollout failed, so this target is left alone.", "you"),
    Reason.TARGET_UNREACHABLE: Meaning("The target cannot be reached now; the deployment is retried.", "holdfast"),
    Reason.TARGET_BUSY: Meaning("Another program changes the target now; the deployment is retried.", "holdfast"),
    Reason.DEPLOY_NOT_SERVED: Meaning("It is in place, and is not served everywhere.", "you", alert=True),
    Reason.DEPLOY_FAILED: Meaning("The deployment failed; the target serves what it served before.", "you", alert=True),
    Reason.ROLLBACK_FAILED: Meaning("The target could not be rolled back, and may serve neither.", "you", alert=True),
    Reason.BUNDLE_UNFIT: Meaning("Key, certificate and chain do not fit together or the target.", "you", alert=True),
    Reason.CONFIG_TEST_FAILED: Meaning("The daemon's test of its configuration failed.", "you", alert=True),
    Reason.DRAIN_FAILED: Meaning("The target could not be taken out of its balancer, or put back.", "you", alert=True),
    Reason.RELOAD_FAILED: Meaning("The daemon could not be reloaded.", "you", alert=True),
    Reason.TARGET_REFUSED: Meaning("The target refused the deployment.", "you", alert=True),
    Reason.TARGET_UNKNOWN: Meaning("The target, or its kind, is not known here.", "you", alert=True),
    Reason.TARGET_TAKEN: Meaning("The place on the target belongs to another program or person.", "you", alert=True),
    Reason.TARGET_HAS_NEWER: Meaning("The target holds a newer deployment than this one.", "nobody"),
    Reason.HOST_KEY_CHANGED: Meaning("The target shows another host key than the pinned one.", "you", alert=True),
    Reason.PROGRAM_UNKNOWN: Meaning("The host does not allow a program that the target names.", "you", alert=True),
}  # fmt: skip


# Reasons that pass while one waits, though others must do something: DNS spreads, another person decides.
_PASSING: Final = frozenset(
    {Reason.DNS_TXT_NOT_VISIBLE, Reason.PROOF_NOT_VISIBLE, Reason.SOLVER_FAILED, Reason.CANCELLED}
)
# A person must act first: nothing happens by waiting.
FOR_A_PERSON: Final = frozenset(
    reason for reason, each in MEANINGS.items() if each.acts_next in ("you", "operator") and reason not in _PASSING
)


def of(code: str | None) -> Reason:
    """The code as a member; what a plugin invented is INTERNAL, with its own words beside it."""
    try:
        return Reason(code or "OK")
    except ValueError:
        return Reason.INTERNAL
