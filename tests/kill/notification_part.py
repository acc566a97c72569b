"""The notifications' part of `make kill`: a replica that sends is killed at every point of a send, on both stores.

Called with a folder, a cluster and the function that prints a figure, as the other parts are.
"""

import asyncio
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import Any, Final, Self

from holdfast.core.notifications.notification import NotificationState
from holdfast.store.tx import Tx
from tests.kill.ca_part import spread
from tests.kill.harness import Case
from tests.support import notification_child
from tests.support.child import Strike
from tests.support.forks import preload
from tests.support.grounds import Ground, ground, look
from tests.support.http_server import HttpRequest
from tests.support.inboxes import Inbox
from tests.support.notification_child import OWED
from tests.support.postgres import Cluster
from tests.support.processes import Child

preload(notification_child.__name__)
# Of a send: each commit, the request, each step of its job. What comes before is struck in the engine's part.
POINTS: Final = frozenset(
    {
        "store.before-commit", "store.after-commit", "http.asking", "http.answered",
        "job.claimed", "job.effect-done", "job.settling", "job.settled",
    }
)  # fmt: skip
MOST: Final = 12  # passages of one point, unless all are wanted
TRIES: Final = 3
LANES: Final = 3
WITHIN: Final = 120.0  # seconds for one life, on a busy machine
Figure = Callable[..., None]


class Receiver:
    """An HTTP server in a thread that remembers who called, for all runs at once: each has a path of its own."""

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._inbox = Inbox()
        self._do(self._inbox.__aenter__())
        self._paths = count(1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._do(self._inbox.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, story: Any) -> None:
        asyncio.run_coroutine_threadsafe(story, self._loop).result(WITHIN)

    def open(self) -> str:
        """A path that no stray of another harness on this machine can know."""
        return self._inbox.url(f"/run{next(self._paths)}-{token_hex(6)}")

    def calls(self, url: str) -> list[HttpRequest]:
        path = "/" + url.rpartition("/")[2]
        return [each for each in list(self._inbox.requests) if each.path == path]


class Telling(Child):
    """The replica in a process of its own."""

    def __init__(self, place: Ground, hook: str, name: str, *, strike: Strike | None = None) -> None:
        options = (f"--hook={hook}", f"--offset={place.offset}")
        self._start(notification_child.main, place, place.folder / f"{name}.report", name, *options, strike=strike)


@dataclass(frozen=True, slots=True)
class Outcome:
    case: Case
    fired: bool
    passed: Counter[str]
    problems: list[str]
    repeated: int = 0  # messages that came twice, under one id


@dataclass(slots=True)
class NotificationTally:
    engine: str
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def unfired(self) -> list[Case]:
        """Passages that never came, and points without any."""
        points = {outcome.case.point for outcome in self.outcomes}
        return [each.case for each in self.outcomes if not each.fired] + [Case(p, 0) for p in sorted(POINTS - points)]

    @property
    def bad(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.problems]


class NotificationHarness:
    """Runs on one store."""

    def __init__(self, folder: Path, cluster: Cluster | None, receiver: Receiver, template: str = "template1") -> None:
        self._folder, self._cluster, self._receiver, self._template = folder, cluster, receiver, template
        self.engine = "postgresql" if cluster else "sqlite"

    def census(self) -> Counter[str]:
        """How often each point is passed when nobody is killed: of two runs the lower count."""
        runs = [self.once(None) for _ in range(2)]
        for run in runs:
            if run.problems:
                raise AssertionError(f"notifications fail without any kill: {run.problems}")
        counts = runs[0].passed & runs[1].passed
        return Counter({point: n for point, n in counts.items() if point in POINTS})

    def run(self, cases: Iterable[Case]) -> Iterator[Outcome]:
        with ThreadPoolExecutor(LANES) as lanes:
            yield from lanes.map(self.kill_at, cases)

    def kill_at(self, case: Case, tries: int = TRIES) -> Outcome:
        """Kill at this passage; if a run has fewer, near its end."""
        outcome = self.once(case)
        if outcome.fired or outcome.problems or tries == 1:
            return outcome
        return self.kill_at(Case(case.point, max(1, min(case.nth, outcome.passed[case.point]) * 4 // 5)), tries - 1)

    def once(self, case: Case | None) -> Outcome:
        hook = self._receiver.open()
        with ground(self._folder, self._cluster, self._template) as place:
            strike = None if case is None else Strike("kill", case.point, case.nth)
            with Telling(place, hook, "victim", strike=strike) as victim:
                wrong, fired, passed = _ended(victim)
            if fired and not wrong:
                place.let_leases_expire()
                with Telling(place, hook, "successor") as successor:
                    wrong = _ended(successor)[0]
            heard = Counter(call.headers["webhook-id"] for call in self._receiver.calls(hook))
            found = wrong or look(place, lambda tx: audit(tx, heard, kills=int(fired)))
            return Outcome(case or Case("", 0), fired, passed, found, sum(n > 1 for n in heard.values()))


def _ended(life: Telling) -> tuple[list[str], bool, Counter[str]]:
    try:
        code = life.wait(WITHIN)
    except TimeoutError:
        return [f"{life.report.stem} does not get done:\n{life.log()}"], False, life.passed()
    fired = bool(life.said("kill"))
    good = code == (-9 if fired else 0)
    return [] if good else [f"{life.report.stem} ended with {code}:\n{life.log()}"], fired, life.passed()


def audit(tx: Tx, heard: Counter[str], *, kills: int) -> list[str]:
    """All was owed, all is sent, all was heard: at most once more for each death, and never under another id."""
    rows = tx.rows("SELECT id, subject, state, retry_count FROM notifications WHERE event = 'certificate.stranded'")
    problems = [f"{sorted(row['subject'] for row in rows)} is owed, not {OWED}"] if len(rows) != len(OWED) else []
    problems += [f"{row['subject']} is {row['state']}" for row in rows if row["state"] != NotificationState.SENT]
    problems += [f"{row['subject']} was marked as sent and never came" for row in rows if not heard[row["id"]]]
    problems += [f"{each} came {n} times" for each, n in heard.items() if n > 1 + kills]
    if (again := sum(n - 1 for n in heard.values())) > kills:
        problems.append(f"{again} messages came again after {kills} deaths")
    told = Counter(row["subject"] for row in tx.rows("SELECT subject FROM events WHERE name = 'notification.sent'"))
    problems += [f"the history says {n} times that {each} was sent" for each, n in told.items() if n != 1]
    others = {row["id"]: row["title"] for row in tx.rows("SELECT id, title FROM notifications")}
    for each in heard.keys() - {row["id"] for row in rows}:
        problems.append(f"{each} came, and nobody owed it: {others.get(each, 'it is unknown')}")
    return problems


def part(folder: Path, cluster: Cluster, figure: Figure, *, most: int | None = MOST) -> None:
    """Run it all, and print the figures."""
    began = time.monotonic()
    tallies = []
    with Receiver() as receiver:
        for each in (None, cluster):
            harness = NotificationHarness(folder, each, receiver)
            tally = NotificationTally(harness.engine)
            counts = harness.census()
            cases = spread(counts, most)
            say(f"notifications, {harness.engine}: {len(cases)} of {counts.total()} passages of {len(counts)} points")
            for outcome in harness.run(cases):
                tally.outcomes.append(outcome)
                if not outcome.fired or outcome.problems:
                    say(
                        f"notifications, {harness.engine}: {outcome.case}: "
                        f"{'; '.join(outcome.problems) or 'never passed'}"
                    )
            tallies.append(tally)
    say(f"notifications: took {time.monotonic() - began:.0f} s")
    runs = [outcome for tally in tallies for outcome in tally.outcomes]
    figure("notification_kills", len(runs), "kills", 1, met=bool(runs))
    fired = 100 * sum(run.fired for run in runs) / max(1, len(runs))
    figure("notification_kill_points_fired", fired, "percent", 100, met=not any(tally.unfired for tally in tallies))
    wrong = sum(len(tally.bad) for tally in tallies)
    figure("notification_kills_with_findings", wrong, "runs", 0, met=wrong == 0)
    most_again = max((run.repeated for run in runs), default=0)
    figure("notification_repeats_after_a_kill", most_again, "messages", 1, met=most_again <= 1)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
