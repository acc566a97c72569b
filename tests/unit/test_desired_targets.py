"""Targets in a document: what can be written, what is refused and where, and the difference to what there is."""

from datetime import UTC, datetime
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.documents import document as declared
from holdfast.core.documents import targets, yaml_text
from holdfast.core.documents.document import DocumentRefused
from holdfast.core.documents.schema import schema
from holdfast.core.documents.targets import TargetEntry, TargetPlan
from holdfast.core.target import TargetRow, TargetState
from holdfast.core.windows import MaintenanceWindow
from holdfast.operations.deployment.targets import NewTarget

FULL = """
targets:
- name: web-1
  kind: files
  settings: {folder: /etc/holdfast/live, reload: nginx-reload}
  owner: team-shop
  labels: {env: prod}
  endpoints: ["www.example.com:443", "smtp://mail.example.com"]
  windows:
  - {days: [sat], opens: "02:00", closes: "05:00", zone: Europe/Berlin}
  reload_domain: nginx-1
  host: a.example.com
  rollout: web
  paused: true
certificates: []
"""
ROW = TargetRow(
    name="web-1", kind="files", settings={"folder": "/etc/holdfast/live", "reload": "nginx-reload"}, owner="team-shop",
    labels={"env": "prod"}, endpoints=("www.example.com:443", "smtp://mail.example.com"),
    windows=(MaintenanceWindow(days=frozenset({5}), opens=120, closes=300, zone="Europe/Berlin"),), domain="nginx-1",
    host="a.example.com", rollout="web", state=TargetState.PAUSED, created_at=datetime(2030, 1, 1, tzinfo=UTC),
)  # fmt: skip


def _read(text: str) -> tuple[TargetEntry, ...] | None:
    return declared.read(yaml_text.read(text.encode()).tree).targets


def _compare(text: str, *rows: TargetRow, **more: Any) -> TargetPlan:
    wishes = {"scope": {}, "prune": False, "in_use": set(), **more}
    return targets.compare(_read(text), rows, **wishes)


def _problems(text: str) -> dict[str, str]:
    with pytest.raises(DocumentRefused) as caught:
        _read(text)
    return dict(caught.value.problems)


def test_every_key_is_read_and_what_is_so_already_is_no_step() -> None:
    assert _compare(FULL, ROW) == TargetPlan(steps=(), unchanged=1)
    jsonschema.Draft202012Validator(schema()).validate(yaml_text.read(FULL.encode()).tree)


def test_a_target_in_a_document_has_the_keys_that_a_new_one_has_and_no_credentials() -> None:
    assert {*targets.KEYS, targets.SETTINGS} == NewTarget.model_fields.keys() - {"credentials"} | {"paused"}


def test_a_difference_is_told_field_by_field() -> None:
    [step] = _compare(FULL.replace("sat", "sun").replace("nginx-reload", "other"), ROW).steps
    assert (step.action, [each.field for each in step.changes]) == ("change", ["windows", "settings"])
    assert step.changes[1].will_be == {"folder": "/etc/holdfast/live", "reload": "other"}
    [new] = _compare(FULL).steps
    assert (new.action, new.name) == ("create", "web-1")


def test_a_host_that_is_not_said_stays() -> None:
    assert _compare(FULL.replace("  host: a.example.com\n", ""), ROW).steps == ()


def test_a_document_that_says_nothing_of_targets_changes_none() -> None:
    assert _compare("certificates: []", ROW, prune=True) == TargetPlan()


def test_what_left_the_document_is_deleted_only_if_asked_for_in_scope_and_unused() -> None:
    none = "targets: []\ncertificates: []"
    assert _compare(none, ROW).left_alone == ("web-1",)
    assert _compare(none, ROW, prune=True, in_use={"web-1"}) == TargetPlan(left_alone=("web-1",))
    assert _compare(none, ROW, prune=True, scope={"env": "test"}) == TargetPlan()
    [step] = _compare(none, ROW, prune=True).steps
    assert step.action == "delete"


def test_credentials_are_refused_in_words() -> None:
    found = _problems("targets:\n- {name: a, kind: ssh, credentials: {key: secret}}\ncertificates: []")
    assert "never in a document" in found["targets[0].credentials"]
    assert "secret" not in str(found)


def test_everything_that_is_wrong_is_told_with_its_place() -> None:
    text = """
targets:
- {name: Web 1, kind: files}
- {kind: files, endpoints: [www.example.com, "gopher://x"], windows: [{zone: Europe/Nowhere}]}
- {name: a, kind: files, settings: [1], colour: red, paused: maybe}
- {name: b, kind: files}
- {name: b, kind: files}
- 7
certificates: []
"""
    assert sorted(_problems(text)) == [
        "targets[0].name", "targets[1].endpoints[1]", "targets[1].name", "targets[1].windows[0]", "targets[2].colour",
        "targets[2].paused", "targets[2].settings", "targets[4]", "targets[5]",
    ]  # fmt: skip
    assert _problems("targets: {a: b}\ncertificates: []") == {
        "targets": "This is a list of at most 10000 targets; '[]' for none."
    }


def test_the_scope_labels_every_target() -> None:
    found = _read("scope: {env: prod}\ntargets: [{name: a, kind: files}]\ncertificates: []")
    assert found is not None
    assert found[0].labels == {"env": "prod"}
    apart = "scope: {env: prod}\ntargets: [{name: a, kind: files, labels: {env: test}}]\ncertificates: []"
    assert list(_problems(apart)) == ["targets[0].labels"]


words = st.from_regex(r"[a-z0-9]{1,10}", fullmatch=True)
rows = st.builds(
    TargetRow,
    name=words,
    kind=st.sampled_from(["files", "ssh"]),
    settings=st.dictionaries(words, st.one_of(words, st.integers(), st.booleans(), st.lists(words))),
    owner=st.one_of(st.just(""), words),
    labels=st.dictionaries(words, words),
    endpoints=st.lists(words.map(lambda word: f"{word}.example.com:443"), unique=True, max_size=3).map(tuple),
    windows=st.sampled_from([(), (MaintenanceWindow(opens=60),), (MaintenanceWindow(zone="Asia/Tokyo"),)]),
    domain=st.one_of(st.just(""), words),
    host=st.one_of(st.just(""), words),
    rollout=st.one_of(st.just(""), words),
    state=st.sampled_from(TargetState),
    created_at=st.just(datetime(2030, 1, 1, tzinfo=UTC)),
)


@given(there=st.lists(rows, unique_by=lambda row: row.name, max_size=4))
def test_what_is_exported_plans_to_nothing(there: list[TargetRow]) -> None:
    text = yaml_text.write({"targets": targets.document(there, {}), "certificates": []})
    assert _compare(text, *there, prune=True) == TargetPlan(steps=(), unchanged=len(there))
