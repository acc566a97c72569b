"""The document of certificates: what can be written, what is refused and where, and the difference to what there is."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.certificate import CertificateSpec, CertificateState, RenewalPolicy
from holdfast.core.documents import document as declared
from holdfast.core.documents import yaml_text
from holdfast.core.documents.document import Document, DocumentPlan, DocumentRefused, Existing
from holdfast.core.documents.fields import KEYS
from holdfast.core.documents.schema import schema
from holdfast.core.documents.yaml_text import YamlRefused
from holdfast.core.own_ca.acme import Identifier
from holdfast.core.windows import MaintenanceWindow

DAY = timedelta(days=1)


def _tree(text: str) -> Any:
    return yaml_text.read(text.encode()).tree


def _read(text: str) -> Document:
    return declared.read(_tree(text))


def _wanted(document: Document, *issuers: str) -> list[tuple[CertificateSpec, bool]]:
    return [
        (
            declared.wanted_of(each, tuple(Identifier("dns", name) for name in each.names), issuers or ("ca",)),
            each.paused,
        )
        for each in document.entries
    ]


def _a_wish(name: str = "a.example.com", *names: str, **more: Any) -> CertificateSpec:
    identifiers = tuple(Identifier("dns", each) for each in names or (name,))
    return CertificateSpec(name=name, identifiers=identifiers, **{"issuers": ("ca",), **more})


def _existing(spec: CertificateSpec, state: CertificateState = CertificateState.ACTIVE) -> Existing:
    return Existing(id=f"certificate_{spec.name}", version=3, wanted=spec, state=state, fingerprint=spec.fingerprint())


def _compare(text: str, *existing: Existing, prune: bool = False) -> DocumentPlan:
    document = _read(text)
    return declared.compare(_wanted(document), existing, scope=document.scope, prune=prune)


def _problems(text: str) -> dict[str, str]:
    with pytest.raises(DocumentRefused) as caught:
        _read(text)
    return dict(caught.value.problems)


# ── What can be written ──


def test_an_entry_of_one_line_is_enough() -> None:
    [(spec, paused)] = _wanted(_read("certificates:\n- names: [WWW.example.com, example.com]"))
    assert (spec.name, spec.issuers, spec.key_kind, paused) == ("www.example.com", ("ca",), "ec-p256", False)


FULL = """
version: 1   # comments are for people
certificates:
- name: shop
  names: [shop.example.com]
  issuers: [letsencrypt, zerossl]
  key: rsa-3072
  profile: tlsserver
  preferred_chain: ISRG Root X1
  lifetime: 45d
  reuse_key: true
  renewal: {before: 36h, ari: false}
  windows:
  - {days: [mon, sat], opens: "22:00", closes: "04:30"}
  owner: team-shop
  labels: {env: prod}
  approval_required: true
  targets: [web-1, web-2]
  csr: "-----BEGIN CERTIFICATE REQUEST-----\\nAAAA\\n-----END CERTIFICATE REQUEST-----"
  challenge: dns-01
  solver: cf
  key_location: server
  paused: true
"""


def test_every_key_is_read() -> None:
    [(spec, paused)] = _wanted(_read(FULL))
    assert paused
    assert spec == _a_wish(
        "shop",
        "shop.example.com",
        issuers=("letsencrypt", "zerossl"),
        key_kind="rsa-3072",
        profile="tlsserver",
        preferred_chain="ISRG Root X1",
        lifetime=45 * DAY,
        reuse_key=True,
        rule=RenewalPolicy(before=timedelta(hours=36), ari=False),
        windows=(MaintenanceWindow(days=frozenset({0, 5}), opens=22 * 60, closes=4 * 60 + 30),),
        owner="team-shop",
        labels={"env": "prod"},
        approval_required=True,
        targets=("web-1", "web-2"),
        csr="-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----",
        challenge="dns-01",
        solver="cf",
    )
    [entry] = _tree(FULL)["certificates"]
    assert set(entry) == set(KEYS)


def test_defaults_hold_by_label_the_last_that_fits_wins_and_an_entry_wins_over_all() -> None:
    document = _read("""
defaults:
- {issuers: [letsencrypt], key: ec-p384}
- {when: {env: prod}, owner: ops, key: rsa-2048}
- {when: {env: test}, issuers: [staging]}
certificates:
- {names: [a.example.com]}
- {names: [b.example.com], labels: {env: prod}}
- {names: [c.example.com], labels: {env: prod}, key: ed25519}
- {names: [d.example.com], labels: {env: test}}
""")
    told = [(w.issuers, w.key_kind, w.owner) for w, _ in _wanted(document)]
    assert told == [
        (("letsencrypt",), "ec-p384", ""),
        (("letsencrypt",), "rsa-2048", "ops"),
        (("letsencrypt",), "ed25519", "ops"),
        (("staging",), "ec-p384", ""),
    ]


def test_the_scope_labels_every_entry() -> None:
    document = _read("scope: {team: web}\ncertificates: [{names: [a.example.com], labels: {env: prod}}]")
    assert _wanted(document)[0][0].labels == {"team": "web", "env": "prod"}


# ── What is refused, and where ──


def test_everything_that_is_wrong_is_told_at_once_with_its_place() -> None:
    found = _problems("""
version: 2
surprise: 1
defaults: [{names: [x.example.com]}, {when: {env: 1}}]
certificates:
- {}
- {names: a.example.com, keys: rsa}
- {names: [a.example.com], key: dsa, lifetime: 1 week, labels: {env: on}, windows: [{opens: 25:00}]}
- {names: [b.example.com], name: same}
- {names: [c.example.com], name: same}
""")
    assert set(found) == {
        "version", "surprise", "defaults[0].names", "defaults[1].when.env", "certificates[0].names",
        "certificates[1].names", "certificates[1].keys", "certificates[2].key", "certificates[2].lifetime",
        "certificates[2].labels.env", "certificates[2].windows[0].opens", "certificates[4]",
    }  # fmt: skip
    assert "quotes" in found["certificates[2].labels.env"]


@pytest.mark.parametrize("text", ["[]", "text", "certificates: {}", "{}", "certificates: [1]", "certificates:"])
def test_what_is_no_document_is_refused(text: str) -> None:
    assert _problems(text)


def test_an_entry_cannot_leave_the_scope() -> None:
    assert _problems("scope: {team: web}\ncertificates: [{names: [a.example.com], labels: {team: shop}}]")


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("a: 1\nb: 2\na: 3", 3, "twice"),
        ("certificates:\n- {names: [a], names: [b]}", 2, "twice"),
        ("a: &x [1]\nb: *x", 1, "Anchors"),
        ("a: 1\n<<: {b: 2}", 2, "plain word"),
        ("a: !!python/object:os.system x", 1, "tag"),
        ("a: [1", 1, "not YAML"),
        ("? [a]\n: b", 1, "plain word"),
        ("a: 22:30\nb: 2026-01-01\nc: 0x1F", 3, "quotes"),
    ],
)
def test_yaml_that_surprises_is_refused_with_its_line(text: str, line: int, word: str) -> None:
    with pytest.raises(YamlRefused) as caught:
        yaml_text.read(text.encode())
    assert word in str(caught.value)
    assert f"Line {line}" in str(caught.value) or word == "not YAML"


@pytest.mark.parametrize("content", [b"", b"# nothing\n", b"\xff\xfe", b"a: \x01", b"x" * (yaml_text.MAX_SIZE + 1)])
def test_what_cannot_be_read_is_refused(content: bytes) -> None:
    with pytest.raises(YamlRefused):
        yaml_text.read(content)


@pytest.mark.parametrize("depth", [20, 900, 50_000])
def test_deep_nesting_is_refused(depth: int) -> None:
    with pytest.raises(YamlRefused):
        yaml_text.read(b"a: " + b"[" * depth + b"]" * depth)


def test_a_date_is_text_and_each_part_has_its_line() -> None:
    found = yaml_text.read(b"a: 2026-01-01\nb:\n- c: true\n- null\n")
    assert found.tree == {"a": "2026-01-01", "b": [{"c": True}, None]}
    assert (found.lines["b"], found.lines["b[0].c"], found.lines["b[1]"]) == (3, 3, 4)


# ── The difference ──


def test_what_is_new_is_created_and_what_is_the_same_is_left() -> None:
    plan = _compare("certificates: [{names: [a.example.com]}, {names: [b.example.com]}]", _existing(_a_wish()))
    assert [(each.action, each.name, each.issues) for each in plan.steps] == [("create", "b.example.com", True)]
    assert plan.unchanged == 1


def test_the_same_names_in_another_order_are_no_change() -> None:
    there = _existing(_a_wish("x", "a.example.com", "b.example.com"))
    assert _compare("certificates: [{name: x, names: [b.example.com, a.example.com]}]", there).empty


def test_a_change_says_what_differs_and_whether_it_is_issued_anew() -> None:
    there = _existing(_a_wish())
    [owner] = _compare("certificates: [{names: [a.example.com], owner: web}]", there).steps
    [change] = owner.changes
    assert (owner.action, owner.issues, change.field, change.was, change.will_be) == (
        "change", False, "owner", None, "web",
    )  # fmt: skip
    [names] = _compare("certificates: [{name: a.example.com, names: [a.example.com, b.example.com]}]", there).steps
    assert names.issues
    assert [each.field for each in names.changes] == ["names"]
    [key] = _compare("certificates: [{names: [a.example.com], key: rsa-2048, paused: true}]", there).steps
    assert ([each.field for each in key.changes], key.issues) == (["key", "paused"], False)


def test_what_left_the_document_is_archived_only_if_asked_for_and_only_in_scope() -> None:
    mine, other = _existing(_a_wish("a", labels={"team": "web"})), _existing(_a_wish("b", labels={"team": "shop"}))
    text = "scope: {team: web}\ncertificates: []"
    kept = _compare(text, mine, other)
    assert (kept.empty, kept.left_alone) == (True, ("a",))
    [step] = _compare(text, mine, other, prune=True).steps
    assert (step.action, step.name, step.issues) == ("archive", "a", False)
    assert "not revoked" in step.reason


def test_a_digest_stands_for_just_this_plan() -> None:
    there = _existing(_a_wish())
    text = "certificates: [{names: [a.example.com], owner: web}]"
    digest = _compare(text, there).digest()
    assert _compare(text, there).digest() == digest
    assert _compare(text, replace(there, version=4)).digest() != digest
    assert _compare(text.replace("web", "shop"), there).digest() != digest


# ── Export and plan are each other's mirror ──

spans = st.one_of(
    st.integers(1, 10**15).map(lambda micros: timedelta(microseconds=micros)),
    st.integers(1, 10**4).map(lambda hours: timedelta(hours=hours)),
)
rules = st.one_of(
    st.builds(RenewalPolicy, fraction=st.floats(0.1, 0.95), ari=st.booleans()),
    st.builds(RenewalPolicy, before=spans, ari=st.booleans()),
    st.just(RenewalPolicy()),
)
windows = st.builds(
    lambda days, opens, length: MaintenanceWindow(
        days=frozenset(days), opens=opens, closes=(opens + length) % 1440 or 1440
    ),
    st.sets(st.integers(0, 6), min_size=1),
    st.integers(0, 1439),
    st.integers(1, 1439),
)
label_texts = st.sampled_from(["on", "no", "1", "0x1", "2026-01-01", "null", "~x".strip("~"), "a:b", "1e3", "prod", ""])
wishes = st.builds(
    CertificateSpec,
    name=st.sampled_from(["a", "b.example.com", "*.example.com", "1.5", "yes", "null", "0o7"]),
    identifiers=st.lists(
        st.sampled_from(["a.example.com", "*.example.com", "192.0.2.1", "2001:db8::1"]), min_size=1, unique=True
    ).map(lambda names: tuple(Identifier("dns", each) for each in names)),
    issuers=st.sampled_from([("ca",), ("ca", "on")]),
    key_kind=st.sampled_from(["ec-p256", "rsa-4096", "ed25519"]),
    profile=st.sampled_from([None, "tlsserver", "no", "# x", "a: b"]),
    lifetime=st.none() | st.integers(300 * 10**6, 10**16).map(lambda micros: timedelta(microseconds=micros)),
    reuse_key=st.booleans(),
    rule=rules,
    windows=st.lists(windows, max_size=2).map(tuple),
    owner=st.sampled_from(["", "team", "007", "a@b"]),
    labels=st.dictionaries(st.sampled_from(["env", "on", "1", "a/b"]), label_texts, max_size=3),
    approval_required=st.booleans(),
)


@given(st.lists(wishes, max_size=4, unique_by=lambda wanted: wanted.name), st.booleans())
def test_what_is_exported_plans_to_nothing(wanted: list[CertificateSpec], paused: bool) -> None:
    there = [_existing(each, CertificateState.PAUSED if paused else CertificateState.ACTIVE) for each in wanted]
    text = yaml_text.write(declared.document(there, {}))
    assert declared.compare(_wanted(_read(text)), there, scope={}, prune=True) == DocumentPlan(
        steps=(), unchanged=len(there)
    )


# ── The schema ──


def test_the_schema_knows_every_key_and_no_other() -> None:
    found = schema()
    assert set(found["properties"]) == {"version", "scope", "defaults", "targets", "certificates"}
    entry = found["properties"]["certificates"]["items"]
    assert set(entry["properties"]) == set(KEYS)
    assert set(found["properties"]["defaults"]["items"]["properties"]) == {
        "when", *(set(KEYS) - {"name", "names", "labels", "csr", "paused"}),
    }  # fmt: skip


def test_the_schema_takes_what_the_reader_takes() -> None:
    validator = jsonschema.Draft202012Validator(schema())
    validator.validate(_tree(FULL))
    for bad in ("certificates: [{}]", "certificates: [{names: []}]", "certificates: [{names: [a], key: dsa}]", "x: 1"):
        assert not validator.is_valid(_tree(bad))


def test_a_wrong_key_of_defaults_is_told_with_the_keys_that_defaults_have() -> None:
    text = "defaults:\n- {wen: {env: prod}, owner: web}\ncertificates: []"
    said = _problems(text)["defaults[0].wen"]
    assert said.startswith("There is no such key. There are: when, issuers, key, ")
    assert not {"name", "names", "labels", "csr", "paused"} & {*said.removesuffix(".").replace(",", "").split()}


def test_a_ca_that_is_named_twice_is_refused_at_its_place() -> None:
    said = _problems("certificates:\n- {names: [a.example], issuers: [own, other, own]}")
    assert said == {"certificates[0].issuers[2]": "This is in the list already."}
