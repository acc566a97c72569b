"""The meaning of a CA's answer: issued, pending, failed, broken or transient. One table for all that speak REST.

A CA's own file maps its words and error codes (a Dialect), and nothing else:

    answer                                     verdict     becomes
    2xx, a word that the dialect knows         as it says  Issued, Pending or Failed
    2xx, any other word                        pending     Pending(unknown=True): a warning is written, it goes on
    2xx, a body that cannot be read            broken      TryLater ANSWER_MALFORMED
    any status, an error code that is known    as it says  (Sectigo's "not yet" is HTTP 400)
    3xx                                        failed      Refused DIRECTORY_UNSAFE: redirects are not followed
    408, 425, 5xx                              transient   TryLater CA_DOWN
    429                                        transient   TryLater CA_RATE_LIMITED
    401, 403                                   failed      Refused ACCOUNT_REFUSED, with the setting to look at
    404, 405, 410 in no words of this CA's     failed      Refused NOT_THE_CA: a proxy, or a wrong address
    other 4xx                                  failed      Refused CA_REFUSED, in the CA's words
    no answer: network, TLS, time              transient   TryLater CA_DOWN (from the transport)

Retry-After, in seconds or as a date, goes along with everything that is not final.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from holdfast.core import backoff
from holdfast.core.reasons import Reason
from holdfast.errors import Refused, TryLater
from holdfast.issuers.base import Failed, Pending
from holdfast.issuers.reading import words
from holdfast.ports import Response

_PASSING: Final = frozenset({408, 425, 429})
_NOT_HERE: Final = frozenset({404, 405, 410})
_POLL_LOW: Final = timedelta(seconds=1)  # of a wait that a CA asks for between two looks


class AnswerVerdict(StrEnum):
    ISSUED = "issued"
    PENDING = "pending"
    FAILED = "failed"
    BROKEN = "broken"
    TRANSIENT = "transient"


@dataclass(frozen=True, slots=True)
class AnswerMeaning:
    """The meaning of one status word or one error code of a CA."""

    verdict: AnswerVerdict
    says: str = ""  # a sentence for people, beside the CA's own words
    reason: Reason | None = None  # None: the usual one of the verdict
    again: bool = False  # of a failed one: a new order may do better
    person: bool = False  # of a pending one: a person must approve it


@dataclass(frozen=True, slots=True)
class CaProblem:
    """A CA's refusal in its own words, made fit to be shown."""

    codes: tuple[str, ...]  # as it writes them: "access_denied", "-183"
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How one CA speaks: all of it that triage does not know by itself."""

    ca: str  # its name in sentences: DigiCert
    words: Mapping[str, AnswerMeaning]  # by the folded word
    codes: Mapping[str, AnswerMeaning] = field(default_factory=dict)  # they come before the HTTP status
    about: Mapping[str, AnswerMeaning] = field(default_factory=dict)  # a part of the text of a refusal → its meaning
    statuses: Mapping[int, AnswerMeaning] = field(default_factory=dict)  # where this CA differs from the table
    problem: Callable[[Any], CaProblem | None] = lambda _: None  # reads the JSON of a refusal
    blame: Mapping[int, str] = field(default_factory=dict)  # status → the setting to look at: {401: "api_key"}
    base_setting: str = "base_url"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFinding:
    """A verdict with its reasons. The CA's module makes Issued; every other value can be made from here."""

    verdict: AnswerVerdict
    why: str
    reason: Reason
    after: timedelta | None = None
    word: str = ""
    unknown: bool = False
    again: bool = False
    person: bool = False

    def error(self) -> TryLater | Refused:
        """The exception for an answer that is not good."""
        if self.verdict is AnswerVerdict.FAILED:
            return Refused(self.why, reason=self.reason)
        # "Too many requests" is about one that was not looked at.
        looked_at = self.reason not in (Reason.CA_RATE_LIMITED, Reason.CA_QUOTA_USED_UP)
        return TryLater(self.why, after=self.after, reason=self.reason, sent=looked_at)

    def look(self) -> Pending | Failed:
        """The status of an order. Raises for an answer that says nothing about the order: a broken or missing one."""
        after = None if self.after is None else self.after.total_seconds()
        match self.verdict:
            case AnswerVerdict.PENDING:
                return Pending(
                    why=self.why, after_s=after, word=self.word, unknown=self.unknown, person=self.person
                )  # fmt: skip
            case AnswerVerdict.FAILED:
                return Failed(why=self.why, reason=self.reason, retryable=self.again)
        raise self.error()


def folded(word: object) -> str:
    """One spelling of a status word: without case, spaces, hyphens and underscores."""
    text = words(word, 80).lower() if isinstance(word, str) else ""
    return "".join(each for each in text if each not in " -_")


# ── Words ──


def by_word(
    dialect: Dialect, word: object, *, what: str, said: str = "", after: timedelta | None = None
) -> AnswerFinding:
    """What the status word of an order means. An unknown word means neither issued nor failed, but pending."""
    shown = words(word, 80) if isinstance(word, str) and word.strip() else "no word"
    meaning = dialect.words.get(folded(word))
    if meaning is None:
        why = f"{dialect.ca}, {what}: {shown!r}, which is not known here; it is waited for."
        unknown = AnswerFinding(
            verdict=AnswerVerdict.PENDING, why=why, reason=Reason.CA_STILL_PENDING, after=after, unknown=True
        )
        return replace(unknown, word=shown)
    parts = [f"{dialect.ca}, {what}: {shown}.", meaning.says, words(said)]
    why = " ".join(part for part in parts if part)
    return replace(_finding(meaning, why, after), word=shown)


def _finding(meaning: AnswerMeaning, why: str, after: timedelta | None) -> AnswerFinding:
    reason = meaning.reason or _USUAL[meaning.verdict]
    return AnswerFinding(
        verdict=meaning.verdict, why=why, reason=reason, after=after, again=meaning.again, person=meaning.person
    )  # fmt: skip


_USUAL: Final = {
    AnswerVerdict.ISSUED: Reason.OK,
    AnswerVerdict.PENDING: Reason.CA_STILL_PENDING,
    AnswerVerdict.FAILED: Reason.CA_REFUSED,
    AnswerVerdict.BROKEN: Reason.ANSWER_MALFORMED,
    AnswerVerdict.TRANSIENT: Reason.CA_DOWN,
}


# ── Answers ──


def judge(dialect: Dialect, response: Response, *, what: str, now: datetime) -> AnswerFinding | None:
    """The finding about a bad answer; None if its status and its error codes are good."""
    good = 200 <= response.status < 300
    problem = None if good else read_problem(dialect, response)
    meaning = _meaning(dialect, response.status, problem)
    if meaning is None:
        return None
    said = f"{problem.said} " if problem and problem.said else ""
    why = f"{dialect.ca}, {what}: {said}(HTTP {response.status})."
    asked = asked_after(response, now)
    return _finding(meaning, " ".join(part for part in (why, _advice(dialect, response, meaning)) if part), asked)


def _meaning(dialect: Dialect, status: int, problem: CaProblem | None) -> AnswerMeaning | None:
    known = (dialect.codes.get(code) for code in (problem.codes if problem else ()))
    by_code = next((each for each in known if each is not None), None)
    usual = dialect.statuses.get(status) or by_status(status)
    if by_code is not None or usual is None or usual.reason or usual.verdict is not AnswerVerdict.FAILED:
        return by_code or usual
    if status in _NOT_HERE and problem is None:
        return replace(usual, reason=Reason.NOT_THE_CA)
    return _by_topic(dialect, problem) or usual


def _by_topic(dialect: Dialect, problem: CaProblem | None) -> AnswerMeaning | None:
    """The topic of a plain refusal, where the CA publishes no reliable list of codes."""
    text = f"{' '.join(problem.codes)} {problem.said}".lower() if problem else ""
    return next((meaning for part, meaning in dialect.about.items() if part in text), None)


def by_status(status: int) -> AnswerMeaning | None:
    """The table above, by HTTP status alone; None for 2xx."""
    if 200 <= status < 300:
        return None
    if status == 429:
        return AnswerMeaning(AnswerVerdict.TRANSIENT, reason=Reason.CA_RATE_LIMITED)
    if status in _PASSING or status >= 500:
        return AnswerMeaning(AnswerVerdict.TRANSIENT)
    if 300 <= status < 400:
        return AnswerMeaning(AnswerVerdict.FAILED, reason=Reason.DIRECTORY_UNSAFE)
    if status in (401, 403):
        return AnswerMeaning(AnswerVerdict.FAILED, reason=Reason.ACCOUNT_REFUSED)
    if 400 <= status < 500:
        return AnswerMeaning(AnswerVerdict.FAILED)
    return AnswerMeaning(AnswerVerdict.BROKEN)  # 1xx, or a number that is none


def _advice(dialect: Dialect, response: Response, meaning: AnswerMeaning) -> str:
    """Advice for a person, where there is any."""
    if meaning.says:
        return meaning.says
    if meaning.reason is Reason.DIRECTORY_UNSAFE:
        target = words(response.headers.get("location", "nowhere"), 200)
        return f"It redirects to {target}, which is not followed; correct the setting {dialect.base_setting}."
    setting = dialect.blame.get(response.status) if meaning.verdict is AnswerVerdict.FAILED else None
    if response.status in _NOT_HERE and read_problem(dialect, response) is None:
        setting = dialect.base_setting  # it does not speak like this CA at all
    return f"Check the setting {setting}." if setting else ""


def read_problem(dialect: Dialect, response: Response) -> CaProblem | None:
    """The CA's refusal; None for any other body, as from a proxy."""
    try:
        return dialect.problem(json.loads(response.body))
    except (ValueError, RecursionError):
        return None


def broken(dialect: Dialect, what: str) -> AnswerFinding:
    """A good status with a body that cannot be what the CA meant to send."""
    why = f"{dialect.ca}, {what}: the answer cannot be understood."
    return AnswerFinding(verdict=AnswerVerdict.BROKEN, why=why, reason=Reason.ANSWER_MALFORMED)


def asked_after(response: Response, now: datetime) -> timedelta | None:
    """The CA's Retry-After, clamped; looks may follow each other faster than new tries after a failure."""
    low = _POLL_LOW if 200 <= response.status < 300 else backoff.RETRY_AFTER_LOW
    return backoff.retry_after(response.headers.get("retry-after"), now, low=low)
