"""What `holdfast doctor` says about a PostgreSQL server."""

from dataclasses import replace

import pytest

from holdfast.core.finding import Finding, Level
from holdfast.core.postgres_server import LAG, Server, Standby, findings

SYNC = Standby(name="pg2", state="streaming", sync="sync", behind=0)
GOOD = Server(
    settings={
        "fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "synchronous_standby_names": "pg2",
        "archive_mode": "on", "max_connections": "100", "superuser_reserved_connections": "3",
        "idle_in_transaction_session_timeout": "0", "server_version_num": "150004",
    },
    standbys=[SYNC],
    timeline=3,
    through_pooler=False,
)  # fmt: skip


def judged(server: Server = GOOD, *, replicas: int = 3, **settings: str) -> dict[str, Finding]:
    given = replace(server, settings={**server.settings, **settings})
    return {each.check: each for each in findings(given, replicas=replicas, writers=2)}


def test_a_server_as_it_should_be_has_nothing_against_it() -> None:
    assert {each.level for each in judged().values()} == {Level.OK}


@pytest.mark.parametrize(
    ("check", "settings", "level"),
    [
        ("PostgreSQL", {"server_version_num": "130011"}, Level.BAD),
        ("durability", {"fsync": "off"}, Level.BAD),
        ("durability", {"full_page_writes": "off"}, Level.BAD),
        ("durability", {"synchronous_commit": "off"}, Level.BAD),
        ("standbys", {"synchronous_commit": "local"}, Level.NOTE),
        ("WAL archive", {"archive_mode": "off"}, Level.NOTE),
        ("connections", {"max_connections": "10"}, Level.BAD),
        ("connections", {"max_connections": "30"}, Level.NOTE),
    ],
)
def test_each_setting_that_costs_certificates_is_named_with_a_fix(
    check: str, settings: dict[str, str], level: Level
) -> None:
    found = judged(**settings)[check]
    assert found.level is level
    assert found.fix


def test_standbys_that_are_missing_asynchronous_or_far_behind_are_told_apart() -> None:
    assert judged(replace(GOOD, standbys=[]))["standbys"].level is Level.NOTE
    late = replace(SYNC, sync="async", behind=LAG + 1)
    assert "may lose" in judged(replace(GOOD, standbys=[replace(late, behind=0)]))["standbys"].saw
    assert judged(replace(GOOD, standbys=[late]))["standbys"].level is Level.BAD
    assert judged(replace(GOOD, standbys=[replace(late, behind=None)]))["standbys"].level is Level.NOTE


def test_a_pooler_is_noticed() -> None:
    assert judged(replace(GOOD, through_pooler=True))["pooler"].level is Level.NOTE
