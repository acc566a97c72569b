"""An older copy of the database is put back, or a copy is used elsewhere: that is noticed, and nothing is undone."""

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.support.older import House, number
from tests.support.postgres import Cluster, programs, unprivileged
from tests.support.reaper import until


@pytest.fixture(params=["sqlite", "postgresql"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> House:
    cluster = request.getfixturevalue("postgres") if request.param == "postgresql" else None
    return House(tmp_path / "data", cluster)


def test_an_older_copy_is_noticed_and_what_was_signed_and_revoked_since_is_known_again(house: House) -> None:
    with house.served():
        before = house.issue("before.example")
    copy = house.copy()
    with house.served():
        since = house.issue("since.example")
        house.revoke(before)
        house.revoke(since)
        last = house.listed(since)
    house.put_back(copy)
    with house.served(ready=False) as served:
        assert "quarantine" in served.wait_until_not_ready("quarantine")
        shown = house.ask("restore", "show")
        assert (shown["mode"], shown["replays"][0]["certificates"]) == ("quarantine", 1)
        assert shown["replays"][0]["revocations"] == 2
        assert house.known().items() >= {before: True, since: True}.items()
        assert "quarantine" in house.ask("issue", "no.example", code=1)
        assert house.crl() is None or number(house.crl()) >= number(last)  # type: ignore[arg-type]
        house.ask("restore", "release", "--yes")
        served.wait_until_ready()
        now = house.listed(since)
        assert number(now) > number(last)
        assert now.get_revoked_certificate_by_serial_number(int(before, 16)) is not None
        house.issue("after.example")
    with house.served():  # once released, it stays so
        assert house.ask("restore", "show")["mode"] == "normal"


def test_a_copy_of_the_data_folder_is_recognised_as_a_copy_and_does_not_act(tmp_path: Path) -> None:
    house = House(tmp_path / "data")
    with house.served():
        house.issue("one.example")
    shutil.copytree(tmp_path / "data", tmp_path / "staging", ignore=shutil.ignore_patterns("*.sock"))
    copy = House(tmp_path / "staging")
    with copy.served(ready=False) as served:
        assert "moved, restored or copied" in served.wait_until_not_ready("quarantine")
        assert "quarantine" in copy.ask("issue", "no.example", code=1)
        assert "holdfast restore release" in str(copy.ask("doctor", code=10))
    with house.served():
        house.issue("two.example")


def test_a_certificate_that_only_the_audit_file_knows_is_kept_by_its_number_and_can_be_revoked(tmp_path: Path) -> None:
    house = House(tmp_path / "data", settings={"AUDIT_FILE": str(tmp_path / "audit.log"), "AUDIT_INTERVAL": "1s"})
    with house.served():
        pass
    copy = house.copy()
    with house.served():
        serial = house.issue("since.example")
        until(lambda: serial in (tmp_path / "audit.log").read_text(), "the audit file")
    house.put_back(copy)
    for path in (tmp_path / "data").glob("witness-*log"):
        path.unlink()
    with house.served(ready=False) as served:
        served.wait_until_not_ready("quarantine")
        assert house.ask("restore", "show")["serials"] >= 1
        house.ask("restore", "release", "--yes")
        served.wait_until_ready()
        assert serial not in house.known()
        house.revoke(serial)
        house.listed(serial)


def test_a_dump_of_a_failed_over_database_in_a_new_cluster_waits_for_a_person_and_works_after_that(
    tmp_path: Path,
) -> None:
    """Timeline 2 there, timeline 1 here: jobs were never claimed, and nothing said so."""
    with Cluster(tmpfs=True) as old, Cluster(tmpfs=True) as new:
        house = House(tmp_path / "data", old)
        with house.served():
            house.issue("one.example")
        old.stop()
        (old.folder / "data" / "standby.signal").touch()
        old.restart()
        old.run("SELECT pg_promote()")
        with house.served():
            house.issue("two.example")
        moved = new.create_database()
        give = [programs() / "pg_dump", house.settings["STORE_URL"]]
        take = [programs() / "psql", "-q", "-v", "ON_ERROR_STOP=1", moved]
        how = {"check": True, "capture_output": True, "cwd": "/", **unprivileged()}
        dump = subprocess.run(give, **how)
        subprocess.run(take, input=dump.stdout, **how)
        house.settings["STORE_URL"] = moved
        with house.served(ready=False) as served:
            assert "moved, restored or copied" in served.wait_until_not_ready("quarantine")
            house.ask("restore", "release", "--yes")
            served.wait_until_ready()
            house.issue("three.example")
