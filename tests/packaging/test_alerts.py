"""The rules for Prometheus, by Prometheus itself: each alert fires for what it is about, and not for its opposite."""

import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support.reaper import PATIENCE

RULES: Final = Path(__file__).parents[2] / "deploy" / "alerts.yml"
ALERTS: Final = [rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
DAY: Final = 86400
AT: Final = 13 * 3600  # promtool's clock begins at 1970; every `for` is over by then
ALIVE: Final = {"holdfast_build_info": 1, "holdfast_store_up": 1}
SOON: Final = '{certificate="a",ca="own",owner="web"}'

# By alert: series with which it fires, and series with which it does not. A value is that of the whole time.
FIRES: Final[dict[str, tuple[dict[str, float], dict[str, float]]]] = {
    "HoldfastCertificateEndsSoon": (
        {f"holdfast_certificate_not_after_timestamp_seconds{SOON}": 6 * DAY,
         f"holdfast_certificate_renewal_due_timestamp_seconds{SOON}": 60},
        {f"holdfast_certificate_not_after_timestamp_seconds{SOON}": 6 * DAY,
         f"holdfast_certificate_renewal_due_timestamp_seconds{SOON}": 2 * DAY},
    ),
    "HoldfastCertificatesEnded": (
        {'holdfast_certificates_ending{days="0"}': 1},
        {'holdfast_certificates_ending{days="0"}': 0, 'holdfast_certificates_ending{days="7"}': 5},
    ),
    "HoldfastCertificatesFailing": (
        {'holdfast_certificates{phase="failing",reason="CA_DOWN"}': 2},
        {'holdfast_certificates{phase="active",reason=""}': 2},
    ),
    "HoldfastApprovalsWait": ({"holdfast_approvals_pending": 1}, {"holdfast_approvals_pending": 0}),
    "HoldfastCaDown": ({'holdfast_ca_circuit_open{ca="le"}': 1}, {'holdfast_ca_circuit_open{ca="le"}': 0}),
    "HoldfastOwnIssuerEnds": (
        {'holdfast_ca_issuer_not_after_timestamp_seconds{ca="default"}': 20 * DAY},
        {'holdfast_ca_issuer_not_after_timestamp_seconds{ca="default"}': 40 * DAY},
    ),
    "HoldfastBudgetUsedUp": (
        {'holdfast_ca_budget_remaining{ca="le",limit="orders"}': 0},
        {'holdfast_ca_budget_remaining{ca="le",limit="orders"}': 5},
    ),
    "HoldfastDeadLetters": ({"holdfast_notifications_dead": 1}, {"holdfast_notifications_dead": 0}),
    "HoldfastManyDeadLetters": ({"holdfast_notifications_dead": 11}, {"holdfast_notifications_dead": 10}),
    "HoldfastChannelDown": ({'holdfast_channel_down{channel="ops"}': 1}, {'holdfast_channel_down{channel="ops"}': 0}),
    "HoldfastNotificationsWait": (
        {'holdfast_notification_oldest_waiting_seconds{channel="ops"}': 21601},
        {'holdfast_notification_oldest_waiting_seconds{channel="ops"}': 60},
    ),
    "HoldfastJobsGivenUp": (
        {'holdfast_jobs{queue="issue",state="dead"}': 1}, {'holdfast_jobs{queue="issue",state="ready"}': 9},
    ),
    "HoldfastQueueWaits": (
        {"holdfast_job_oldest_ready_age_seconds": 901}, {"holdfast_job_oldest_ready_age_seconds": 10},
    ),
    "HoldfastAllDrained": ({"holdfast_replicas_at_work": 0}, {"holdfast_replicas_at_work": 1}),
    "HoldfastRenewalStandsStill": (
        {'holdfast_loop_last_tick_timestamp_seconds{loop="renewal"}': 0},
        {'holdfast_loop_last_tick_timestamp_seconds{loop="renewal"}': AT - 60},
    ),
    "HoldfastAuditChainBroken": (
        {'holdfast_self_check_ok{name="audit_chain"}': 0}, {'holdfast_self_check_ok{name="audit_chain"}': 1},
    ),
    "HoldfastBackupOld": (
        {"holdfast_backup_interval_seconds": 3600, "holdfast_backup_last_success_timestamp_seconds": AT - 9000},
        {"holdfast_backup_interval_seconds": 0, "holdfast_backup_last_success_timestamp_seconds": 0},
    ),
    "HoldfastQuarantine": ({"holdfast_quarantine": 1}, {"holdfast_quarantine": 0}),
    "HoldfastGone": ({"holdfast_store_up": 0, "holdfast_build_info": 1}, ALIVE),
}  # fmt: skip


def promtool(*words: str) -> str:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("there is no promtool here: apt-get install prometheus")
    done = subprocess.run([program, *words], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def of_replicas(series: dict[str, float]) -> list[dict[str, str]]:
    """From two replicas, one of them a process of several: the same of both fires once."""
    found = []
    for name, value in series.items():
        metric, brace, labels = name.partition("{")
        for more in ('instance="a"', 'instance="b",process="2"'):
            shown = f"{metric}{{{more}{',' + labels if brace else '}'}"
            found.append({"series": shown, "values": f"{value}+0x{AT // 60}"})
    return found


def case(alert: str, series: dict[str, float], *, fires: bool) -> dict[str, Any]:
    """promtool compares all labels: what is not asked for here is taken from the rules by `firing`."""
    return {
        "interval": "1m",
        "input_series": of_replicas(series),
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)',
                "eval_time": f"{AT}s",
                "exp_samples": [{"labels": "{}", "value": 1 if fires else 0}],
            }
        ],
    }


def test_prometheus_reads_the_rules() -> None:
    assert f"{len(ALERTS)} rules found" in promtool("check", "rules", str(RULES))


def test_every_alert_has_its_cases() -> None:
    assert set(FIRES) | {"HoldfastWatchdog"} == set(ALERTS)


@pytest.mark.parametrize("alert", FIRES)
def test_an_alert_fires_once_for_what_it_is_about_and_not_for_its_opposite(alert: str, tmp_path: Path) -> None:
    yes, no = FIRES[alert]
    cases = [case(alert, yes, fires=True), case(alert, no, fires=False)]
    path = tmp_path / "cases.yml"
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": cases}))
    assert "SUCCESS" in promtool("test", "rules", str(path))


def test_silence_is_an_alert_and_the_watchdog_always_speaks(tmp_path: Path) -> None:
    path = tmp_path / "cases.yml"
    cases = [case("HoldfastGone", {}, fires=True), case("HoldfastWatchdog", ALIVE, fires=True)]
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": cases}))
    promtool("test", "rules", str(path))
