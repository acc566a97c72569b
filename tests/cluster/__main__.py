"""`make cluster`: failover, partitions, freezes, a full disk and a power cut, with clients at work all along.

On one machine and without containers: PostgreSQL twice under Patroni and etcd, three replicas behind HAProxy, each on
a machine of its own, which is a network namespace. Needs root, because it makes a network; nothing leaves that.
`--quick` plays each fault once; without it, 20 rounds. `--asynchronous` lets a failover lose what was acknowledged.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import psycopg
from bench.figures import figure, noted
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from psycopg.rows import dict_row

from tests.cluster import faults, record, roll, space
from tests.cluster.database import PatroniPair
from tests.cluster.faults import FAULTS, Ground
from tests.cluster.record import Line, Round
from tests.cluster.replicas import ROOT, Replicas
from tests.cluster.space import Space
from tests.support.acme_client import Signer, es256
from tests.support.reaper import until

ROUNDS: Final = 20
LANES: Final = 4
KEPT: Final = [f"kept{n}.internal" for n in range(4)]
QUIET_S: Final = 5.0  # of work without a fault, before and after each


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--asynchronous", action="store_true")
    parser.add_argument("--only", nargs="*", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--roll", type=Path, metavar="FOLDER", help="upgrade from the version in this checkout instead")
    parser.add_argument("--keep", action="store_true", help="keep the folder with all logs")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if packages := space.missing():
        sys.exit(f"cluster: programs are missing. Install them: apt-get install {' '.join(packages)}")
    if os.geteuid():
        sys.exit("cluster: a network of its own needs root: sudo make cluster")
    if not asked.inside:
        space.enter("tests.cluster", "--inside", *sys.argv[1:])
    folder = Path(tempfile.mkdtemp(prefix="holdfast-cluster-"))
    folder.chmod(0o755)
    try:
        play(asked, folder)
    finally:
        print(f"logs: {folder}") if asked.keep else shutil.rmtree(folder, ignore_errors=True)


def play(asked: argparse.Namespace, folder: Path) -> None:
    signers = [es256() for _ in range(LANES)]
    with ExitStack() as stack:
        ground = Space()
        database = PatroniPair(ground, folder, synchronous=not asked.asynchronous)
        stack.callback(database.close)
        database.start()
        thumbprints = {str(n): each.thumbprint for n, each in enumerate(signers)}
        replicas = Replicas(ground, folder, database.url, thumbprints)
        stack.callback(replicas.close)
        if asked.roll is not None:
            for each in replicas.all:
                each.source = asked.roll / "src"
        replicas.start()
        seen = folder / "seen"
        if asked.roll is not None:
            rolled(asked.roll / "src", folder, database, replicas, signers, seen)
            return
        with at_work(folder, replicas, signers, seen):
            count = len(asked.only) if asked.quick else asked.rounds
            played = [
                one_round(asked.only[n % len(asked.only)], Ground(database, replicas, n), seen) for n in range(count)
            ]
        report(record.lines(seen.read_text()), played, database, replicas)


def rolled(
    before: Path, folder: Path, database: PatroniPair, replicas: Replicas, signers: list[Signer], seen: Path
) -> None:
    """There and back, and there again: in the end this version has to say what was kept."""
    with at_work(folder, replicas, signers, seen):
        faults.lasts(QUIET_S)
        codes = roll.there(replicas, before) + roll.back(replicas, before) + roll.there(replicas, before)
        faults.lasts(QUIET_S)
    found = record.lines(seen.read_text())
    failed = [each for each in found if each["what"] == "order failed"]
    noted("cluster_roll_replacements", len(codes), "replicas")
    figure("cluster_roll_stops_that_failed", sum(code != 0 for code in codes), "stops", 0, not any(codes))
    figure("cluster_roll_orders_failed", len(failed), "orders", 0, not failed)
    refused = [each for each in found if each["what"] == "request failed"]
    noted("cluster_roll_requests_failed", len(refused), "requests")
    noted("cluster_roll_requests", len([each for each in found if each["what"] == "request"]), "requests")
    audit(found, database, replicas, rounds=len(codes))


class at_work:  # noqa: N801  (it reads as a sentence)
    """The clients, from their first certificate until the end of the block."""

    def __init__(self, folder: Path, replicas: Replicas, signers: list[Signer], seen: Path) -> None:
        first = replicas.all[0]
        for name in KEPT:
            first.command("issue", name, "--wait")
        token = first.command("token", "create", "load", "--role", "admin")["token"]
        (folder / "token").write_text(token)
        (folder / "keys").write_text(json.dumps([_pem(each) for each in signers]))
        seen.touch()
        words = [
            sys.executable,
            "-m",
            "tests.cluster.clients",
            *(str(folder / each) for each in ("seen", "keys", "token")),
        ]
        self._log = (folder / "clients.log").open("wb")
        self._process = subprocess.Popen(
            [*words, *KEPT], cwd=ROOT, stdin=subprocess.PIPE, stdout=self._log, stderr=self._log
        )
        self._seen = seen

    def __enter__(self) -> None:
        until(lambda: _certificates(self._seen) >= LANES, "the first certificates", seconds=60, every=0.2)

    def __exit__(self, *_: object) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(60)
        self._log.close()


def _pem(signer: Signer) -> str:
    return signer.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def _certificates(seen: Path) -> int:
    return seen.read_text().count('"what": "certificate"')


def one_round(name: str, ground: Ground, seen: Path) -> Round:
    faults.lasts(QUIET_S)
    began, before = time.time(), _certificates(seen)
    FAULTS[name](ground)
    ground.database.whole()
    for replica in ground.replicas.all:
        replica.wait_until_ready()
    until(lambda: _certificates(seen) >= before + 2 * LANES, "certificates afterwards", seconds=120, every=0.2)
    played = Round(fault=name, began=began, over=time.time())
    cost = record.toll(record.lines(seen.read_text()), played)
    print(
        f"round {ground.number + 1}: {name}: {cost.first_success:.1f} s until the first success, {cost.failed} of "
        f"{cost.requests} requests failed, {cost.orders_failed} orders; well again after {played.over - began:.0f} s",
        flush=True,
    )
    return played


def report(seen: list[Line], played: list[Round], database: PatroniPair, replicas: Replicas) -> None:
    for name in FAULTS:
        tolls = [record.toll(seen, each) for each in played if each.fault == name]
        if tolls:
            label = f"cluster_{'synchronous' if database.synchronous else 'asynchronous'}_{name.replace('-', '_')}"
            noted(f"{label}_first_success_at_most", max(each.first_success for each in tolls), "s")
            noted(f"{label}_requests_failed", sum(each.failed for each in tolls), "requests")
            noted(f"{label}_orders_failed", sum(each.orders_failed for each in tolls), "orders")
    audit(seen, database, replicas, rounds=len(played))


def audit(seen: list[Line], database: PatroniPair, replicas: Replicas, *, rounds: int) -> None:
    """What was acknowledged, against what the database has in the end."""
    with psycopg.connect(database.address_of_leader(), row_factory=dict_row) as connection:
        rows = connection.execute("SELECT serial, order_id, revoked_at FROM ca_certificates").fetchall()
    known = {row["serial"]: row for row in rows}
    issued, revoked = record.told(seen, "certificate", "serial"), record.told(seen, "revoked", "serial")
    lost = [each for each in issued if each not in known]
    undone = [each for each in revoked if each in known and known[each]["revoked_at"] is None]
    twice = len(issued) - len(set(issued)) + len(rows) - len({row["order_id"] for row in rows})
    mode = "synchronous" if database.synchronous else "asynchronous"
    noted(f"cluster_{mode}_rounds", rounds, "rounds")
    noted(f"cluster_{mode}_certificates", len(issued), "certificates")
    noted(f"cluster_{mode}_revocations", len(revoked), "revocations")
    noted(f"cluster_{mode}_renewals", len([each for each in seen if each["what"] == "renewal"]), "renewals")
    for what in ("certificates", "revocations"):
        noted(f"cluster_{mode}_{what}_found_again_by_witnesses", replicas.found_again(what), what)
    figure(f"cluster_{mode}_certificates_lost", len(lost), "certificates", 0, not lost)
    figure(f"cluster_{mode}_revocations_lost", len(undone), "revocations", 0, not undone)
    figure(f"cluster_{mode}_duplicates", twice, "certificates", 0, twice == 0)
    wrong = record.crl_faults(seen)
    noted(f"cluster_{mode}_crls_fetched", len([each for each in seen if each["what"] == "crl"]), "lists")
    figure(f"cluster_{mode}_crl_numbers_not_growing", len(wrong), "lists", 0, not wrong)
    failed = record.told(seen, "order failed", "why")
    for why in (*wrong, *(f"lost: {each}" for each in lost), *(f"not revoked: {each}" for each in undone), *failed):
        print(why)
    for line in (each for each in seen if each["what"] == "broken"):
        print(f"a client broke: {line['why']}")
    until(lambda: not _under_way(replicas), "the end of what is under way", seconds=120, every=1)
    failing = [each["name"] for each in replicas.all[0].command("ls") if each["state"] != "active"]
    figure(f"cluster_{mode}_kept_certificates_failing", len(failing), "certificates", 0, not failing)
    verdict = replicas.all[0].command("audit", "verify")
    figure(f"cluster_{mode}_audit_log_whole", int(verdict["ok"]), "yes_or_no", 1, verdict["ok"])


def _under_way(replicas: Replicas) -> bool:
    return any(each["state"] not in ("active", "failing") for each in replicas.all[0].command("ls"))


if __name__ == "__main__":
    main()
