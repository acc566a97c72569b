"""A replica that obtains one certificate and dies where it is told to, from a CA that is another process.

    python -m tests.support.issuing_child --store holdfast.sqlite --folder f --report f/r --ca f/ca.json \\
        --strike kill:http.answered:2

It is what `holdfast serve` has without its faces: our own CA, the keeper of certificates, the engine. What the CA
lets it wait for is looked at again at once. Run again on the same store it goes on from wherever it was killed.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from holdfast.compose_ca import CaServer
from holdfast.compose_certificates import OWN, CertificateKeeper
from holdfast.config import KEY_NAME, Acme, Keeping, Keys, Settings, StoreSettings
from holdfast.core.backoff import Ladder
from holdfast.core.work.job import Again, Outcome
from holdfast.engine.issuance.issuer_factory import check
from holdfast.engine.issuance.issuer_factory import kinds as issuer_kinds
from holdfast.engine.kind import JobKind, Work
from holdfast.engine.replica import Pace, RunningReplica
from holdfast.engine.worker import WorkerIdentity
from holdfast.errors import OutcomeUnknown, StoreUnavailable
from holdfast.from_settings import open_store
from holdfast.operations.certificates import lifecycle
from holdfast.operations.certificates.lifecycle import CertificateExists
from holdfast.operations.installation import keys
from holdfast.operations.installation.secret_store import SecretStore
from holdfast.operations.issuers.manage import IssuerExists
from holdfast.operations.own_ca.authorities import policy_of
from holdfast.secret import Secret
from holdfast.store import migrate
from holdfast.store.database import Database
from holdfast.store.tx import Tx
from holdfast.telemetry import Metrics, Telemetry, make_log
from holdfast.world import LocalFiles, SystemClock, SystemRandom
from tests.support.child import LOOK_EVERY, Passages, Report, Strike, die_with_parent
from tests.support.running import add_issuer, run

CA: Final = "ca1"  # our own
NAME: Final = "www.example.com"
SOON: Final = timedelta(milliseconds=100)
# Alerts that are owed to nobody, and the CRLs of our own CA, come later and are others' affair.
UNDER_WAY: Final = """SELECT id FROM jobs WHERE state <> 'dead' AND kind IN ('issue', 'withdraw', 'acme.issue')
                      UNION ALL SELECT id FROM certificates WHERE current_version IS NULL"""


def settings_of(wishes: argparse.Namespace, *, own: bool) -> Settings:
    shared = "://" in wishes.store
    solvers = wishes.folder / "solvers.toml"
    return Settings(
        store=StoreSettings(data_dir=wishes.folder, url=Secret(wishes.store if shared else "")),
        keys=Keys(file=wishes.folder / KEY_NAME),
        acme=Acme(first_ca=CA if own else ""),
        keeping=Keeping(solvers_file=solvers if solvers.exists() else None),
    )


def at_once(kind: JobKind) -> JobKind:
    """The same, without the waits between two looks."""

    async def handler(work: Work) -> Outcome:
        outcome = await kind.handler(work)
        if isinstance(outcome, Again) and outcome.after is not None:
            return replace(outcome, after=min(outcome.after, SOON))
        return outcome

    return replace(kind, handler=handler, ladder=Ladder(first=SOON, factor=2, cap=20 * SOON))


class IssuingLife:
    def __init__(self, wishes: argparse.Namespace, report: Report) -> None:
        self._wishes, self._report = wishes, report
        self._ca: dict[str, Any] = json.loads(wishes.ca.read_text())
        self._settings = settings_of(wishes, own=self._ca["kind"] == "local")
        self._points = Passages(report, wishes.strike)
        self._clock, self._random, self._files = SystemClock(), SystemRandom(), LocalFiles()
        self._identity = WorkerIdentity(holder=self._random.new_id("replica"), name=wishes.name)
        self._telemetry = Telemetry(log=make_log("debug", "json", replica=wishes.name), metrics=Metrics())

    async def live(self) -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with AsyncExitStack() as stack:
            db = open_store(self._settings, self._clock, self._points)
            stack.push_async_callback(db.close)
            await migrate.bring_up(db, points=self._points)
            own, keeper = await self._parts(db)
            await self._ask(keeper)
            self._report.say("begun", self._identity.holder)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._replica(db, own, keeper).run(stop))
                if not self._wishes.stay:
                    group.create_task(self._leave(db, stop))
        self._report.say("ended")

    async def _parts(self, db: Database) -> tuple[CaServer, CertificateKeeper]:
        keyring = await keys.unlock(db, self._settings, self._files, self._random)
        secret_store = SecretStore(db=db, settings=self._settings, files=self._files, keyring=keyring)
        rules = policy_of(self._settings, acme_port=8631, publish_port=8630)
        tools: dict[str, Any] = {"clock": self._clock, "random": self._random, "telemetry": self._telemetry}
        own = CaServer(db, secret_store, rules, **tools)
        await own.prepare()
        keeper = CertificateKeeper(db, secret_store, own, **tools, points=self._points)
        await keeper.prepare()
        return own, keeper

    async def _ask(self, keeper: CertificateKeeper) -> None:
        """Whoever comes after a death asks for nothing new."""
        credentials = {name: Secret(value.encode()) for name, value in self._ca["credentials"].items()}
        if self._ca["kind"] != "local":
            with suppress(IssuerExists):
                await add_issuer(
                    keeper.certificate_context,
                    "ca",
                    kind=self._ca["kind"],
                    kinds=issuer_kinds(),
                    settings=self._ca["settings"],
                    credentials=credentials,
                    actor="local:op",
                    fit=check,
                )
        name = OWN if self._ca["kind"] == "local" else "ca"
        with suppress(CertificateExists):
            await run(keeper.services, lifecycle.request, actor="local:alice", names=[NAME], issuers=[name])
        if self._wishes.anew:
            await run(keeper.services, lifecycle.renew, actor="local:alice", ref=NAME)

    def _replica(self, db: Database, own: CaServer, keeper: CertificateKeeper) -> RunningReplica:
        often = timedelta(seconds=0.5)
        pace = Pace(
            poll=timedelta(seconds=self._wishes.poll), ttl=timedelta(seconds=self._wishes.ttl),
            drain=4 * often, retry=often, reconcile=often,
        )  # fmt: skip
        return RunningReplica(
            db=db,
            identity=self._identity,
            pace=pace,
            kinds=[at_once(each) for each in (*own.kinds(), *keeper.kinds())],
            families=[*own.families(), *keeper.families()],
            handover=own.acme_context.handover,
            clock=self._clock,
            random=self._random,
            points=self._points,
            telemetry=self._telemetry,
        )

    async def _leave(self, db: Database, stop: asyncio.Event) -> None:
        while not stop.is_set() and await _under_way(db):
            await self._clock.sleep(LOOK_EVERY)
        self._report.say("done")
        stop.set()


async def _under_way(db: Database) -> bool:
    def look(tx: Tx) -> bool:
        return bool(tx.rows(UNDER_WAY))

    try:
        return await db.read(look)
    except (StoreUnavailable, OutcomeUnknown):
        return True


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.support.issuing_child")
    parser.add_argument("--store", required=True, help="a PostgreSQL URL, or the path of an SQLite file")
    parser.add_argument("--folder", required=True, type=Path, help="where the key file is, and the SQLite file")
    parser.add_argument("--report", required=True, type=Path, help="file for one line per passage")
    parser.add_argument("--ca", required=True, type=Path, help="JSON: kind, settings and credentials of the CA")
    parser.add_argument("--name", default="child", help="the replica's name, as people see it")
    parser.add_argument("--strike", action="append", type=Strike.read, default=[], help="kill|stop:POINT:N")
    parser.add_argument("--stay", action="store_true", help="go on until told to stop")
    parser.add_argument("--anew", action="store_true", help="a person says that it is to be ordered, whatever was")
    parser.add_argument("--ttl", type=float, default=30.0)
    parser.add_argument("--poll", type=float, default=0.1)
    return parser


def main(argv: Sequence[str]) -> None:
    wishes = parser().parse_args(argv)
    report = Report(wishes.report)
    log = os.open(f"{wishes.report}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, sys.stderr.fileno())
    os.close(log)
    die_with_parent()
    asyncio.run(IssuingLife(wishes, report).live())


if __name__ == "__main__":
    main(sys.argv[1:])
