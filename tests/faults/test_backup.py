"""A backup is restored: all that was signed and revoked since is known again, and nothing acts before its release."""

import json
import shutil
from pathlib import Path

import pytest
from tests.support.commands import holdfast
from tests.support.older import House, number
from tests.support.processes import environment

STORES = ["sqlite", "postgresql"]


@pytest.fixture(params=STORES)
def house(request: pytest.FixtureRequest, tmp_path: Path) -> House:
    cluster = request.getfixturevalue("postgres") if request.param == "postgresql" else None
    return House(tmp_path / "data", cluster, settings={"BACKUP_FOLDER": str(tmp_path / "backups")})


def an_empty_store(house: House) -> None:
    """The database is lost; key file and witness are not."""
    if house.cluster is not None:
        house.settings["STORE_URL"] = house.cluster.create_database()
        return
    for path in house.folder.glob("holdfast.sqlite*"):
        path.unlink()


def test_what_was_issued_and_revoked_since_a_backup_is_known_again_and_nothing_acts_before_the_release(
    house: House,
) -> None:
    with house.served():
        before = house.issue("before.example")
        made = house.ask("backup", "create")
        since = house.issue("since.example")
        house.revoke(before)
        last = house.listed(before)
        assert house.ask("backup", "ls")[0]["id"] == made["id"]
    assert house.ask("backup", "verify", made["path"])["rows"]["ca_certificates"] >= 1
    assert house.ask("backup", "rehearse", made["path"])["took_s"] > 0
    an_empty_store(house)
    house.ask("backup", "restore", made["path"])
    with house.served(ready=False) as served:
        assert "restored from backup" in served.wait_until_not_ready("quarantine")
        shown = house.ask("restore", "show")
        assert (shown["mode"], shown["replays"][0]["certificates"]) == ("quarantine", 1)
        assert house.known().items() >= {before: True, since: False}.items()
        assert "quarantine" in house.ask("issue", "no.example", code=1)
        old = house.crl()
        assert old is None or number(old) >= number(last)
        house.ask("restore", "release", "--yes")
        served.wait_until_ready()
        assert number(house.listed(before)) > number(last)
        house.issue("after.example")
        assert house.ask("audit", "verify")["ok"]


def refused(house: House, *args: str) -> str:
    done = holdfast("backup", *args, env=environment(house.folder, house.settings))
    assert done.returncode == 1, done.stdout
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_backup_that_is_cut_altered_newer_foreign_or_sealed_with_another_key_is_refused_and_changes_nothing(
    tmp_path: Path,
) -> None:
    house = House(tmp_path / "data", settings={"BACKUP_FOLDER": str(tmp_path / "backups")})
    with house.served():
        made = Path(house.ask("backup", "create")["path"])
    content = made.read_bytes()
    head, header, rest = content.split(b"\n", 2)
    other = tmp_path / "other.hfb"

    def says(bad: bytes) -> str:
        other.write_bytes(bad)
        return refused(house, "verify", str(other))

    assert "it is cut" in says(content[:-200]) or "altered or cut" in says(content[:-200])
    assert "altered or cut" in says(content[:-40] + bytes([content[-40] ^ 1]) + content[-39:])
    assert "goes on after its end" in says(content + b"x")
    assert "does not begin as a backup" in says(b"PK" + content)
    told = json.loads(header)
    newer = json.dumps({**told, "schema": {**told["schema"], "0999_later": "aa"}}).encode()
    assert "which this Holdfast does not know" in says(b"\n".join((head, newer, rest)))
    moved = json.dumps({**told, "audit_seq": 1}).encode()
    assert "altered or cut" in says(b"\n".join((head, moved, rest)))  # the header is bound to the rest

    before = (house.folder / "holdfast.sqlite").read_bytes()
    assert "There is a database" in refused(house, "restore", str(made))
    assert (house.folder / "holdfast.sqlite").read_bytes() == before

    stranger = House(tmp_path / "stranger")
    with stranger.served():
        pass
    assert "is not here" in refused(stranger, "verify", str(made))
    shutil.copy(house.folder / "holdfast.key", stranger.folder / "holdfast.key")
    (stranger.folder / "holdfast.sqlite").unlink()
    assert "is of installation" in refused(stranger, "restore", str(made))
    assert not (stranger.folder / "holdfast.sqlite").exists()


def test_a_backup_of_sqlite_can_be_restored_on_postgresql(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    house = House(tmp_path / "data", settings={"BACKUP_FOLDER": str(tmp_path / "backups")})
    with house.served():
        serial = house.issue("one.example")
        made = house.ask("backup", "create")["path"]
    cluster = request.getfixturevalue("postgres")
    house.settings["STORE_URL"] = cluster.create_database()
    house.ask("backup", "restore", made)
    with house.served(ready=False) as served:
        served.wait_until_not_ready("quarantine")
        assert serial in house.known()
        house.ask("restore", "release", "--yes")
        served.wait_until_ready()
        house.issue("two.example")


def test_backups_are_made_by_themselves_and_the_metric_says_when(tmp_path: Path) -> None:
    house = House(
        tmp_path / "data",
        settings={"BACKUP_FOLDER": str(tmp_path / "backups"), "BACKUP_INTERVAL": "1m", "BACKUP_KEEP": "1"},
    )
    with house.served() as served:
        served.wait_for_event("backup.made")
        [line] = [
            each
            for each in served.get("/metrics")[1].splitlines()
            if each.startswith("holdfast_backup_last_success_timestamp_seconds ")
        ]
        assert float(line.split()[1]) > 0
        house.ask("backup", "create")
        assert len(list((tmp_path / "backups").glob("*.hfb"))) == 1
