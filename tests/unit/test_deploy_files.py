"""Rules for Prometheus and the board for Grafana: every metric, phase and command in them is a real one."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.test_docs import exists
from yaml import safe_load

from holdfast.core.status import Phase
from holdfast.telemetry import Metrics

FOLDER = Path(__file__).resolve().parents[2] / "deploy"
RULES: list[dict[str, Any]] = [
    rule
    for group in safe_load((FOLDER / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
BOARD: dict[str, Any] = json.loads((FOLDER / "grafana.json").read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}


def _series() -> set[str]:
    families = list(Metrics().registry.collect())
    return {f"{family.name}{suffix}" for family in families for suffix in SUFFIXES.get(family.type, ("",))}


def _asked(expression: str) -> set[str]:
    return set(re.findall(r"holdfast_[a-z_]+", expression))


def _exists(command: str) -> bool:
    words = [word for word in command.split()[1:] if word.isalpha()]
    return command.startswith("holdfast ") and exists(tuple(words[:2]))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_asks_for_metrics_that_exist_and_names_the_next_command(rule: dict[str, Any]) -> None:
    if rule["alert"] == "HoldfastWatchdog":
        assert (rule["expr"], _asked(rule["expr"])) == ("vector(1)", set())
        return
    assert _asked(rule["expr"])
    assert _asked(rule["expr"]) <= _series()
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert _exists(rule["annotations"]["next"])


def test_no_two_rules_have_one_name() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES)


def test_dead_letters_warn_at_one_and_are_critical_above_ten() -> None:
    dead = {rule["labels"]["severity"]: rule["expr"] for rule in RULES if "notifications_dead" in rule["expr"]}
    assert dead == {
        "warning": "max(holdfast_notifications_dead) > 0",
        "critical": "max(holdfast_notifications_dead) > 10",
    }


def test_every_panel_asks_for_metrics_that_exist() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            assert _asked(target["expr"]), panel["title"]
            assert _asked(target["expr"]) <= _series(), panel["title"]
            assert target["datasource"]["uid"] == "${datasource}", "no board but ours knows our Prometheus"


def test_every_phase_that_is_asked_for_is_one() -> None:
    asked = [target["expr"] for panel in PANELS for target in panel["targets"]] + [rule["expr"] for rule in RULES]
    named = {each for text in asked for found in re.findall(r'phase=~?"([^"]+)"', text) for each in found.split("|")}
    assert named
    assert named <= {phase.value for phase in Phase}


def test_every_command_that_a_panel_names_exists() -> None:
    named = [found for panel in PANELS for found in re.findall(r"holdfast [a-z -]+", panel["description"])]
    assert named
    assert [command for command in named if not _exists(command)] == []


def test_panels_have_their_own_numbers_and_places() -> None:
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    cells = [
        (place["x"] + x, place["y"] + y)
        for panel in BOARD["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["w"])
        for y in range(place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_whoever_looks_for_due_certificates_each_hour_is_not_said_to_stand_still() -> None:
    [rule] = [rule for rule in RULES if rule["alert"] == "HoldfastRenewalStandsStill"]
    assert float(rule["expr"].rpartition(">")[2]) >= 2 * 3600
