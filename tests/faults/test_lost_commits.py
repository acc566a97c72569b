"""An asynchronous failover loses commits that were confirmed: the witness of the replica puts them back by itself."""

import shutil
from pathlib import Path

from tests.support.older import House, number
from tests.support.postgres import Cluster
from tests.support.reaper import until


def test_certificates_and_revocations_that_a_failover_lost_are_found_again_without_a_person(tmp_path: Path) -> None:
    with Cluster(tmpfs=True) as cluster:
        data, standby = cluster.folder / "data", cluster.folder / "standby"
        house = House(tmp_path / "data", cluster)
        with house.served() as served:
            before = house.issue("before.example")
            cluster.stop()
            shutil.copytree(data, standby)  # as a standby that got nothing of what follows
            copy_owner(data, standby)
            cluster.restart()
            served.wait_until_ready()
            since = house.issue("since.example")
            house.revoke(before)
            last = house.listed(before)

            cluster.stop("immediate")
            data.rename(cluster.folder / "lost")
            standby.rename(data)
            (data / "standby.signal").touch()
            cluster.restart()
            cluster.run("SELECT pg_promote()")

            served.wait_for_event("witness.replayed")
            until(lambda: house.ask("restore", "show")["mode"] == "normal", "the end of the recovery")
            served.wait_until_ready()
            assert house.known().items() >= {before: True, since: False}.items()
            now = house.listed(before)
            assert number(now) > number(last)
            told = [each for each in house.ask("audit", "ls") if each["action"] == "installation_recovered"]
            assert told[0]["details"]["certificates"] == 1
            assert told[0]["details"]["revocations"] == 1
            house.issue("after.example")


def copy_owner(source: Path, target: Path) -> None:
    """PostgreSQL runs as the owner of its folder."""
    owner = source.stat()
    for path in (target, *target.rglob("*")):
        shutil.chown(path, owner.st_uid, owner.st_gid)
