"""Codes of problems: programs decide by them, so each has a sentence, a section in the reference, and never changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PAGE: Final = "docs/reference/problems.md"
OTHERS: Final = "names-keys-and-chains"  # refusals of pki: each names its own rule
SENTENCES: Final[Mapping[str, str]] = {
    # the request
    "bad-request": "The request cannot be understood.",
    "invalid-request": "A field or parameter is missing, unknown or malformed; `errors` points at each.",
    "bad-header": "A header has another form than this API gives it.",
    "bad-cursor": "The cursor is none of this list. Begin again without it.",
    "bad-filter": "A filter cannot be read.",
    "too-large": "The body is longer than any request of this kind needs to be.",
    "unsupported-media-type": "The body is of another type than the document says.",
    "method-not-allowed": "There is something at this address, and it cannot be asked that way; see Allow.",
    "not-found": "There is nothing at this address.",
    "precondition-required": "A change needs If-Match, with the ETag that was read.",
    "idempotency-key-reused": "The same Idempotency-Key came with another request within the last day.",
    # who asks
    "unauthenticated": "There is no token, or none that is good.",
    "forbidden": "The token's role, rights or scope do not cover this.",
    "too-many-streams": "The token follows as many streams of events as it may at once. Close one.",
    "occupied": "Forecasts, plans and exports are made one at a time, and another one is being made.",
    "took-too-long": "A forecast, a plan or an export was not done in its time, and was stopped. Ask for less.",
    "forecast-too-long": "The forecast has more renewals to count than are counted for one request.",
    "too-many-renewals": "One token asked for too many renewals of one certificate within an hour.",
    "throttled": "Too many bad tokens came from this address. It passes by itself.",
    "own-request": "Who asked for it, or changed it since it was last approved, cannot approve it.",
    "token-refused": "Such a token cannot be made.",
    "no-such-token": "There is no such token.",
    "no-such-person": "There is no person of this name.",
    "person-exists": "There is a person of this name already.",
    "person-changed": "The account was changed since it was read. Read it again.",
    "person-refused": "The account cannot be changed so; the sentence says why.",
    "no-such-session": "There is no such session.",
    "login-failed": "The name, the password or the code is wrong.",
    "login-expired": "The log-in took too long. Begin again.",
    "log-in-again": "The log-in is too long ago to change how one logs in.",
    "factor-refused": "The password, code or passkey cannot be taken; the sentence says why.",
    "passkey-refused": "The passkey was not accepted.",
    "no-passkeys-here": "The address of the pages is none that passkeys work with.",
    "too-many-tries": "Too many log-ins failed, of this name or from this address. It passes by itself.",
    "provider-refused": "The OpenID provider, or what it says, does not let the person in; the sentence says why.",
    "by-provider": "The person logs in by the OpenID provider, and has no password or passkey here.",
    "no-provider": "No OpenID provider is set up.",
    "only-on-its-machine": "It can be asked for on the server's machine only, through the local socket.",
    "person-disabled": "The account is disabled, so nobody can log in with it.",
    # certificates
    "no-such-certificate": "There is no such certificate, or none that the asker may see.",
    "certificate-exists": "There is one of this name already.",
    "not-there-then": "The certificate did not exist at the time that is asked about.",
    "certificate-state": "It is in a state in which this cannot be done.",
    "specification-refused": "The certificate cannot be issued as it is specified; the sentence says why.",
    "stale": "It was changed since it was read. Read it again.",
    "key-of-another": "The key in the database is not that of the certificate: the database was altered.",
    "no-such-version": "The certificate has no such version.",
    "no-such-issuance": "There is no such issuance, or none that the asker may see.",
    "no-such-approval": "There is no such request for approval, or none that the asker may see.",
    "approval-decided": "The approval was decided before, or it expired. The first decision counts.",
    # targets and deployments
    "no-such-target": "There is no such target, or none that the asker may see.",
    "target-exists": "There is a target of this name already.",
    "target-changed": "The target was changed since it was read. Read it again.",
    "target-refused": "The target's settings cannot be used, or the target itself refused.",
    "target-in-use": "Certificates name the target. Take it off them first.",
    "no-targets": "The certificate cannot be deployed: it names no such target, or was never issued.",
    "nothing-before": "The certificate has no earlier version that is still good.",
    # documents and imports
    "document-refused": "The document has mistakes; the detail lists them, each with its place.",
    "yaml-refused": "The document is no YAML, or uses what documents may not use.",
    "directory-refused": "This is no address of an ACME directory.",
    # CAs
    "no-such-endpoint": "There is no such endpoint, or none that the token may see.",
    "endpoint-exists": "Another endpoint has this name.",
    "endpoint-changed": "The endpoint was changed since its ETag was read.",
    "endpoint-refused": "The endpoint cannot be watched as it is described, or it belongs to a target.",
    "too-many-checks": "The asker waits for as many checks of endpoints as they may at once.",
    "no-such-issuer": "There is no such issuer.",
    "unknown-issuer": "The request names an issuer that does not exist.",
    "issuer-exists": "There is an issuer of this name already.",
    "issuer-changed": "The issuer was changed since it was read. Read it again.",
    "issuer-in-use": "Certificates need the issuer, or issuances are under way there.",
    "issuer-refused": "The issuer's settings cannot be used, or the issuer itself refused.",
    "no-such-ca": "There is no own CA of this name.",
    "ca-exists": "There is an own CA of this name already.",
    "ca-key-taken": "Another own CA signs with this key already.",
    "ca-changed": "The own CA was changed since it was read. Read it again.",
    "ca-refused": "The own CA cannot be made or changed like this.",
    "root-list-refused": "The CRL of a root cannot be signed here, or not like this.",
    "try-later": "A device or another remote, which the sentence names, did not answer. Try again later.",
    "already-so": "The object is in this state already.",
    "half-a-limit": "A forecast under another limit needs the CA, the burst and the time, all three.",
    # notifications
    "no-such-channel": "There is no such channel.",
    "channel-exists": "There is a channel of this name already.",
    "channel-in-use": "The channel is the fallback of another one. Give that one another first.",
    "channel-refused": "The channel's settings cannot be used, or the channel itself refused.",
    "channel-changed": "The channel was changed since it was read. Read it again.",
    "no-such-notification": "There is no such notification.",
    "notification-state": "The notification is in a state in which this cannot be done.",
    "no-channel": "There is no channel that it could be sent through.",
    "note-refused": "The note cannot be kept as it is.",
    # jobs
    "no-such-job": "There is no such job, or it finished so long ago that it is forgotten.",
    "job-state": "The job is in a state in which this cannot be done.",
    "job-twin": "A newer job does the same work already.",
    "job-waits-for-budget": "The CA's limits decide when it runs; asking again would lose its turn.",
    # the installation
    "no-such-replica": "There is no such replica, or more than one.",
    "ambiguous-replica": "Several replicas that run have this name. Give the id of one.",
    "last-replica": "No other replica is at work: nothing would be done any more.",
    "store-unavailable": "The database does not answer now. Nothing was changed. Try again.",
    "outcome-unknown": "The line to the database broke while it wrote: look, or repeat with the same Idempotency-Key.",
    "unavailable": "The server is starting or leaving. Try again.",
    "store-refused": "The database cannot be used as it is; a person must act.",
    "key-unusable": "The key that opens stored secrets is not the right one; a person must act.",
    "key-missing": "The key that opens stored secrets is not there; a person must act.",
    "internal": "Something went wrong here. It was logged under the request's id.",
}


def doc(code: str) -> str:
    """Where a code is explained."""
    return f"{PAGE}#{code if code in SENTENCES else OTHERS}"
