"""`make bench-web`: the pages, each asked for one after the other, among a hundred thousand certificates.

`holdfast serve` runs as an operator runs it, on a store that was filled before. The time of a page is what a browser
waits for all of its text. Chromium then opens each page with nothing in its cache: what it fetched, as it came over
the line, is the page's weight, and the first view is when something was painted first.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from tests.support.chromium import INSTALL, program
from tests.support.postgres import Cluster

from bench.api.__main__ import Meter, backends, furnished, serving, settle
from bench.figures import figure, noted, skipped
from bench.renew.server import POSTGRESQL, SQLITE

GOAL_MS, GOAL_KB, GOAL_VIEW_MS = 100.0, 250.0, 1000.0
ONE = "/certificates/n00000077.scan.test"
PAGES: Mapping[str, str] = {
    "overview": "/",
    "certificates": "/certificates",
    "certificates_retrying": "/certificates?q=state:retrying",
    "certificates_search": "/certificates?q=n00077",
    "certificate": ONE,
    "certificate_explain": f"{ONE}/explain",
    "certificate_versions": f"{ONE}/versions",
    "certificate_served": f"{ONE}/served",
    "request": "/certificates/request",
    "approvals": "/approvals",
    "targets": "/targets",
    "notifications": "/notifications?tab=all",
    "notifications_dead": "/notifications?tab=dead",
    "jobs": "/jobs",
    "issuers": "/issuers",
    "own_ca": "/cas/default",
    "own_ca_certificates": "/cas/default/certificates",
    "cluster": "/cluster",
    "forecast": "/forecast",
    "audit": "/audit",
    "settings": "/settings/values",
}
SLOW = frozenset({"forecast"})  # the first is reckoned anew, for seconds
ROUNDS = 3  # of a first view
# What the other lists hold: jobs that wait, issuers, and notifications that nobody heard.
MORE = (
    """INSERT INTO jobs (id, kind, subject, state, priority, max_attempts, due_at, created_at, reason)
       SELECT 'job_' || substr(id, 13), 'later', id, 'ready', 1, 5, created_at + 99 * 86400000000, created_at, 'BUDGET'
         FROM certificates WHERE id < 'certificate_00020000'""",
    """INSERT INTO issuers (name, kind, settings, state, created_at)
       SELECT 'ca-' || substr(id, 19), 'local', '{"ca": "default"}', 'active', created_at
         FROM certificates WHERE id < 'certificate_00000009'""",
    """INSERT INTO notifications (id, message, channel, event, severity, subject, name, title, body, outage, state,
                                  why, last_error, waiting_since, created_at)
       SELECT 'notification_' || substr(id, 13), 'msg_' || substr(id, 13), 'chat', 'issuance.failed', 'warning', id,
              name, 'It failed', 'It failed', id, 'dead', 'CHANNEL_DOWN', 'no answer', created_at, created_at
         FROM certificates WHERE id < 'certificate_00010000'""",
)
LOOK = """() => new Promise(done => new PerformanceObserver(list => {
    const painted = list.getEntriesByName('first-contentful-paint')[0];
    const all = [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')];
    if (painted) done([all.reduce((sum, each) => sum + each.transferSize, 0), painted.startTime]);
}).observe({type: 'paint', buffered: true}))"""


@contextmanager
def logged_in(url: str, data: Path) -> Iterator[httpx2.Client]:
    """A browser's cookies, as an admin."""
    transport = httpx2.HTTPTransport(uds=str(data / "holdfast.sock"))
    with httpx2.Client(transport=transport, base_url="http://local", headers={"X-Holdfast-User": "bench"}) as local:
        link = local.post("/api/v1/people/alice/recover").raise_for_status().json()["link"]
    with httpx2.Client(base_url=url, timeout=60, trust_env=False, headers={"Accept-Encoding": "gzip"}) as web:
        web.get(link)
        yield web


def serve_time(web: httpx2.Client, pids: tuple[int, ...], what: str, number: int) -> None:
    meter, [name, path] = Meter(pids), what.split(" ")
    for _ in range(number):
        with meter.request():
            answer = web.get(path)
        if answer.status_code != 200:
            figure(f"web_p95_{name}", f"answered_{answer.status_code}", "ms", GOAL_MS, met=False)
            return
    p95 = sorted(meter.took)[int(number * 0.95)]
    figure(f"web_p95_{name}", p95, "ms", GOAL_MS, p95 <= GOAL_MS)
    noted(f"web_cpu_{name}", meter.spent / number, "ms")


def views(web: httpx2.Client, url: str, store: str) -> None:
    """Each page in a browser that has seen none before."""
    from playwright.sync_api import sync_playwright

    cookies: list[Any] = [{"name": each.name, "value": each.value, "url": url} for each in web.cookies.jar]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program(), args=["--no-sandbox"])
        for name in PAGES:
            seen = [_look(browser, cookies, url + PAGES[name]) for _ in range(ROUNDS)]
            weight, view = max(each[0] for each in seen) / 1000, statistics.median(each[1] for each in seen)
            figure(f"web_weight_{name}_{store}", weight, "kB", GOAL_KB, weight <= GOAL_KB)
            figure(f"web_first_view_{name}_{store}", view, "ms", GOAL_VIEW_MS, view <= GOAL_VIEW_MS)
            said = sum(each[2] for each in seen)
            figure(f"web_console_errors_{name}_{store}", said, "", 0, said == 0)
        browser.close()


def _look(browser: Any, cookies: list[Any], address: str) -> tuple[float, float, int]:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.add_cookies(cookies)
    page = context.new_page()
    said: list[str] = []  # errors of scripts, and violations of the policy
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(address)
    weight, painted = page.evaluate(LOOK)
    context.close()
    return float(weight), float(painted), len(said)


def measure(name: str, folder: Path, where: str, wanted: argparse.Namespace) -> None:
    store = furnished(name, folder, where, wanted.rows)
    store.change(*MORE)
    with serving(folder, store) as (address, pid):
        url = address.replace("127.0.0.1", "localhost")
        with logged_in(url, folder) as web:
            pids = (pid, *(backends(store) if name == POSTGRESQL else ()))
            settle(pids)
            for each, path in PAGES.items():
                if each in SLOW:
                    web.get(path)  # what it reads is good for a minute
                serve_time(web, pids, f"{each}_{name} {path}", wanted.requests)
            if program() is None:
                skipped("web_first_view", f"Chromium is not installed: {INSTALL}")
            else:
                views(web, url, name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--requests", type=int, default=100, help="of each page")
    parser.add_argument("--stores", nargs="*", default=[SQLITE, POSTGRESQL], choices=[SQLITE, POSTGRESQL])
    wanted = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    try:
        for name in wanted.stores:
            data = folder / name
            data.mkdir(mode=0o700)
            if name == SQLITE:
                measure(name, data, str(data / "holdfast.sqlite"), wanted)
            else:
                with Cluster(tmpfs=True) as cluster:
                    measure(name, data, cluster.create_database(), wanted)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
