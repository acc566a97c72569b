"""When a certificate is due, and what it waits for: one decision, with the checks that led to it.

Everything that decides comes in as values, and every spread is derived from an id: the sweep, the status page and
`explain --at` ask the same function and get the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from holdfast.core.backoff import issuance_ladder, issuance_next_at, issuance_wait, spread
from holdfast.core.certificate import Ari, Certificate, CertificateState, Failing, Version
from holdfast.core.durations import rounded
from holdfast.core.reasons import Reason
from holdfast.core.windows import MaintenanceWindow, first_opening

FRACTION: Final = 2 / 3  # of its life, after which a certificate is renewed
SHORT_FRACTION: Final = 1 / 2
SHORT_LIFE: Final = timedelta(days=10)
SPREAD: Final = 1 / 15  # of its life: those issued together are renewed over this stretch, and never after the fraction
EMERGENCY: Final = 1 / 20  # of its life left: nothing but back-off holds it any more
WINDOWS_END: Final = 1 / 6  # of its life left: maintenance windows do not count any more
SHORT_SHARE: Final = 1 / 6  # of its life left: every failure goes on to the next CA of the list
ATTEMPT_FOR: Final = timedelta(hours=1)  # what an attempt may take, with polls and slow DNS
PATIENT_SHARE: Final = 0.1  # of the time that is left
LOOP_GUARD: Final = timedelta(hours=24)  # between two renewals that a CA asks for early


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewalCheck:
    """One rule: what it looked at, what it found, and whether it decides when the renewal begins."""

    rule: str
    saw: str
    verdict: str
    blocks: bool = False


class CheckNote(NamedTuple):
    """A check that was made. Its words are asked for by `explain` alone, and lists decide about every row."""

    rule: str
    words: Callable[[], tuple[str, str]]  # what it saw, and its verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewalDecision:
    """Act when `at` has come; None: not before a person changes something."""

    at: datetime | None
    cause: Reason  # what makes it due
    waits_for: Reason | None = None  # what decides about `at`, if it is not the cause itself
    urgent: bool = False
    blocker: str = ""  # the rule that decides about `at`
    notes: tuple[CheckNote, ...] = field(default=(), compare=False)

    @property
    def checks(self) -> tuple[RenewalCheck, ...]:
        found = ((note.rule, *note.words()) for note in self.notes)
        return tuple(
            RenewalCheck(rule=rule, saw=saw, verdict=verdict, blocks=rule == self.blocker)
            for rule, saw, verdict in found
        )

    def due(self, now: datetime) -> bool:
        return self.at is not None and self.at <= now


@dataclass(frozen=True, slots=True)
class _Due:
    at: datetime
    cause: Reason
    urgent: bool = False
    any_time: bool = False  # maintenance windows do not hold it


def decide(certificate: Certificate, current: Version | None, now: datetime) -> RenewalDecision:
    """Say when to renew next, and why then. A renewal that a person asks for is not decided here: it begins at once."""
    if certificate.state is not CertificateState.ACTIVE:
        reason = Reason.PAUSED if certificate.state is CertificateState.PAUSED else Reason.ARCHIVED
        note = CheckNote("state", lambda: (certificate.state, "not renewed"))
        return RenewalDecision(at=None, cause=reason, waits_for=reason, blocker="state", notes=(note,))
    notes = [CheckNote("state", lambda: ("active", "renewals go on"))]
    due = _due(certificate, current, now, notes)
    at, by = due.at, notes[-1].rule
    waits_for: Reason | None = None
    if certificate.failing is not None:
        again = _after_failure(certificate.failing, current, notes)
        if again > max(at, now):
            at, waits_for = again, Reason.BACKOFF
    if certificate.wanted.windows and current is not None and not due.any_time:
        opens = _in_window(certificate.wanted.windows, max(at, now), current, notes)
        if opens > max(at, now):
            at, waits_for = opens, Reason.WINDOW
    blocker = (_BLOCKERS[waits_for] if waits_for else by) if at > now else ""
    return RenewalDecision(
        at=at, cause=due.cause, waits_for=waits_for, urgent=due.urgent, blocker=blocker, notes=tuple(notes)
    )


_BLOCKERS: Final = {Reason.BACKOFF: "back-off", Reason.WINDOW: "windows"}


# ── Why it is due ──


def _due(certificate: Certificate, current: Version | None, now: datetime, notes: list[CheckNote]) -> _Due:
    if current is None:
        notes.append(CheckNote("certificate", lambda: ("none yet", "due at once")))
        return _Due(certificate.created_at, Reason.FIRST, any_time=True)
    if current.revoked:
        at = current.revoked_at or current.revoke_asked_at or now
        notes.append(CheckNote("revoked", lambda: (_revocation_shown(current, at), "due at once, urgent")))
        return _Due(at, Reason.REVOKED, urgent=True, any_time=True)
    if current.generation < certificate.generation:
        saw = f"issued for generation {current.generation}, the specification is at generation {certificate.generation}"
        notes.append(CheckNote("inputs", lambda: (saw, "due at once")))
        return _Due(now, Reason.INPUT_CHANGED, any_time=True)
    emergency = emergency_at(current)
    planned = _by_ari(certificate, current, now, notes) or _by_lifetime(certificate, current, notes)
    if max(planned.at, now) >= emergency:
        verdict = "due at once, urgent" if now >= emergency else "due then, urgent"
        notes.append(CheckNote("emergency", lambda: (f"5 % of its lifetime are left at {_shown(emergency)}", verdict)))
        return _Due(min(planned.at, emergency), Reason.EMERGENCY, urgent=True, any_time=True)
    return planned


def _revocation_shown(current: Version, at: datetime) -> str:
    return _shown(at) if current.revocation_done else f"requested at {_shown(at)}, not yet confirmed by the CA"


def emergency_at(current: Version) -> datetime:
    return current.not_after - current.life * EMERGENCY


def short_from(current: Version) -> datetime:
    """From when on so little is left that every failure goes on to the next CA of the list."""
    return good_until(current) - current.life * SHORT_SHARE


def leaves_wrong(current: Version | None, now: datetime, *, others: bool) -> bool:
    """Whether an order that is paid for, and brought a wrong certificate, is given up by itself for one at another CA.

    Before that its CA may put it right, and people, who were told, may have it do so. Without others it is theirs to
    decide, until the certificate is about to end.
    """
    return others and current is not None and now > short_from(current)


def patience_at_the_end(current: Version, now: datetime) -> timedelta:
    """How long an order may take when its certificate is in an emergency, and another CA could be asked."""
    return (current.not_after - now) * PATIENT_SHARE if now >= emergency_at(current) else timedelta.max


def _by_lifetime(certificate: Certificate, current: Version, notes: list[CheckNote]) -> _Due:
    at = lifetime_due(certificate, current)
    notes.append(CheckNote("lifetime", lambda: (_rule_shown(certificate, current), f"due at {_shown(at)}")))
    return _Due(at, Reason.DUE_LIFETIME)


def lifetime_due(certificate: Certificate, current: Version) -> datetime:
    """Where the CA does not say: after a share of its life, a little earlier by an amount of its own."""
    rule, life = certificate.wanted.rule, current.life
    if rule.before is not None:
        latest = max(current.not_after - rule.before, current.not_before + life / 10)
    else:
        latest = current.not_before + life * (rule.fraction or default_fraction(life))
    return latest - life * SPREAD * spread(current.id)


def default_fraction(life: timedelta) -> float:
    return SHORT_FRACTION if life < SHORT_LIFE else FRACTION


def _rule_shown(certificate: Certificate, current: Version) -> str:
    rule = certificate.wanted.rule
    jitter = rounded(current.life * SPREAD * spread(current.id))
    if rule.before is not None:
        return f"renewal {rounded(rule.before)} before {_shown(current.not_after)}, minus {jitter} jitter"
    share = rule.fraction or default_fraction(current.life)
    return f"renewal at {share * 100:.0f} % of {rounded(current.life)}, minus {jitter} jitter"


# ── ARI (RFC 9773) ──


def pick(start: datetime, end: datetime, version: str) -> datetime:
    """One instant in [start, end), the same on every replica; another one only if the window moves."""
    return start + (end - start) * spread(f"{version}:{start.timestamp()}:{end.timestamp()}")


def _by_ari(certificate: Certificate, current: Version, now: datetime, notes: list[CheckNote]) -> _Due | None:
    ari = certificate.ari
    if ari is None or not certificate.wanted.rule.ari:
        notes.append(CheckNote("ari", lambda: ("no renewal window" if ari is None else "switched off", "not used")))
        return None
    early = ari_is_early(certificate, ari, current)
    free_from = _guarded_until(certificate, current) if early else None
    if free_from is not None and free_from > ari.pick:
        notes.append(
            CheckNote(
                "ari",
                lambda: (
                    _window_shown(ari),
                    f"hurried twice: not before {_shown(free_from)}",
                ),
            )
        )
        return _Due(min(free_from, lifetime_due(certificate, current)), Reason.DUE_ARI, urgent=True)
    urgent = ", urgent" if early else ""
    notes.append(CheckNote("ari", lambda: (_window_shown(ari), f"due at {_shown(ari.pick)}{urgent}")))
    return _Due(ari.pick, Reason.DUE_ARI, urgent=early and ari.pick <= now, any_time=early)


def _window_shown(ari: Ari) -> str:
    return f"{_shown(ari.start)} to {_shown(ari.end)}" + (f", see {ari.explanation}" if ari.explanation else "")


def ari_is_early(certificate: Certificate, ari: Ari, current: Version) -> bool:
    """Whether the CA hurries us: the whole window lies before the time at which we would renew by ourselves."""
    life = current.life
    natural = current.not_before + life * (certificate.wanted.rule.fraction or default_fraction(life))
    return ari.end < natural - life * SPREAD


def _guarded_until(certificate: Certificate, current: Version) -> datetime | None:
    """A CA that hurries every new certificate at once must not send us round in circles."""
    if certificate.ari_forced_at is None:
        return None
    return certificate.ari_forced_at + max(LOOP_GUARD, current.life / 10)


# ── What it waits for ──


def time_left(failing: Failing, current: Version | None) -> timedelta | None:
    """How long the certificate had to live when it began to fail: what its ladder is made for."""
    return None if current is None else current.not_after - (failing.first_at or failing.last_at)


def _after_failure(failing: Failing, current: Version | None, notes: list[CheckNote]) -> datetime:
    left, over = time_left(failing, current), None if current is None else failing.last_at - current.not_after
    again = issuance_next_at(failing.last_at, _rung(failing), left_at_first_failure=left, over_for=over)
    wait = issuance_wait(_rung(failing), left_at_first_failure=left, over_for=over)
    saw = f"failure number {failing.attempts or 'unknown'} at {_shown(failing.last_at)}: {failing.reason}"
    last_chance = None if current is None else safe_until(current)
    if last_chance is not None and failing.last_at < last_chance < again:
        notes.append(CheckNote("back-off", lambda: (saw, f"retry at {_shown(last_chance)}, the last safe moment")))
        return last_chance
    notes.append(CheckNote("back-off", lambda: (saw, f"retry after {wait}: {_shown(again)}")))
    return again


def _rung(failing: Failing) -> int | None:
    """How far up its ladder it is: at the top, where only a person's deed at the CA can help."""
    return _TOP if failing.reason == Reason.NAME_PAUSED_AT_CA else failing.attempts


_TOP: Final = 1000


def attempts_that_fit(failing: Failing, current: Version, at: datetime) -> int:
    """How many more can be made, if all fail and the next is `at`; maintenance windows may make them fewer."""
    last, ladder = safe_until(current), issuance_ladder(time_left(failing, current))
    count, failures = 0, _rung(failing) or 0
    while at < last and (wait := ladder.rung(failures + 1)) < ladder.cap:
        count, failures, at = count + 1, failures + 1, min(at + wait, last)
    if at > last:
        return count
    steps, rest = divmod(last - at, ladder.cap)  # equal from here on
    return count + steps + (2 if rest else 1)  # one at once, and one at the last safe moment


def safe_until(current: Version) -> datetime:
    """The last moment at which an attempt still fits before the certificate ends."""
    return last_moment(current.not_before, current.not_after)


def good_until(current: Version) -> datetime:
    """Until when people can rely on it: until the last safe moment, or, once it is revoked, no longer at all."""
    since = (current.revoked_at or current.revoke_asked_at) if current.revoked else None
    return safe_until(current) if since is None else min(safe_until(current), since)


def last_moment(begins: datetime, ends: datetime) -> datetime:
    return ends - min(ATTEMPT_FOR, (ends - begins) * EMERGENCY)


def _in_window(
    windows: Sequence[MaintenanceWindow], at: datetime, current: Version, notes: list[CheckNote]
) -> datetime:
    """The first moment from `at` on that lies in a window, unless waiting for it would be unsafe."""
    ignored_from = current.not_after - current.life * WINDOWS_END
    if at >= ignored_from:
        notes.append(
            CheckNote("windows", lambda: (f"ignored from {_shown(ignored_from)} on", "do not delay the renewal"))
        )
        return at
    opens = first_opening(windows, at)
    if opens > ignored_from:
        late = f"the next opens at {_shown(opens)}, too late: renewed at {_shown(ignored_from)}"
        notes.append(CheckNote("windows", lambda: (f"{len(windows)} windows", late)))
        return ignored_from
    verdict = "open" if opens == at else f"opens at {_shown(opens)}"
    notes.append(CheckNote("windows", lambda: (f"{len(windows)} windows", verdict)))
    return opens


def _shown(at: datetime) -> str:
    return at.isoformat()[:19] + "Z"  # strftime is slow, and this is done for every decision
