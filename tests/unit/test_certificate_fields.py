"""A field of a certificate is declared once, in core/certificate.py: every face has it from there."""

from dataclasses import fields, replace
from datetime import timedelta
from typing import Any

import pytest
from typer.main import get_command

from holdfast.cli.certificates.issue import app
from holdfast.core.certificate import FIELDS, CertificateSpec, Field, FieldKind, RenewalPolicy
from holdfast.core.documents import document
from holdfast.core.documents.fields import KEYS, in_full
from holdfast.core.documents.schema import schema
from holdfast.core.own_ca.acme import Identifier
from holdfast.core.windows import MaintenanceWindow
from holdfast.operations.certificates import views
from holdfast.store import certificates, migrate

PLAIN = CertificateSpec(name="a", identifiers=(Identifier("dns", "a.example.com"),), issuers=("ca",))
OTHER: dict[str, Any] = {  # another value for each attribute
    "name": "b",
    "identifiers": (Identifier("dns", "b.example.com"),),
    "issuers": ("other",),
    "key_kind": "rsa-4096",
    "profile": "short",
    "preferred_chain": "A Root",
    "lifetime": timedelta(days=7),
    "reuse_key": True,
    "rule": RenewalPolicy(fraction=0.5),
    "windows": (MaintenanceWindow(opens=60),),
    "owner": "web",
    "labels": {"team": "web"},
    "approval_required": True,
    "targets": ("web-1",),
    "csr": "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n",
    "challenge": "dns-01",
    "solver": "cf",
    "key_location": "agent",
}
each_field = pytest.mark.parametrize("field", FIELDS, ids=[each.key for each in FIELDS])


def test_the_table_has_every_attribute_of_what_an_owner_wants_and_no_other() -> None:
    assert [each.attribute for each in FIELDS] == [each.name for each in fields(CertificateSpec)]
    assert set(OTHER) == {each.attribute for each in FIELDS}
    assert len({each.key for each in FIELDS}) == len(FIELDS)


@each_field
def test_a_field_has_a_column(field: Field) -> None:
    steps = [sql for step in migrate.bundled() for _, sql in step.statements]
    [table] = [sql for sql in steps if sql.startswith("CREATE TABLE certificates ")]
    added = [sql for sql in steps if sql.startswith(f"ALTER TABLE certificates ADD COLUMN {field.attribute} ")]
    assert field.attribute in certificates.TABLE.names
    assert f"\n    {field.attribute} " in table or added


@each_field
def test_a_field_can_be_asked_for_changed_and_seen_over_the_api(field: Field) -> None:
    for model in (views.NewCertificate, views.CertificateChange, views.CertificateView):
        assert field.wire in model.model_fields
    assert views.NewCertificate.model_fields[field.wire].description == field.help != ""


@each_field
def test_a_field_is_a_key_of_documents_and_described_to_editors(field: Field) -> None:
    entry = schema()["properties"]["certificates"]["items"]["properties"]
    assert field.key in KEYS
    assert entry[field.key]["description"] == field.help


@each_field
def test_a_field_is_an_option_of_the_command_that_changes_certificates(field: Field) -> None:
    assert any("change" in option.commands for option in field.options)
    for option in field.options:
        for command in option.commands:
            assert option.flag.split("/")[0] in _flags(command)


def _flags(name: str) -> set[str]:
    found: Any = get_command(app)
    command = found.commands[name]
    return {flag for param in command.params for flag in param.opts}


@each_field
def test_another_value_is_planned_exported_audited_and_issued_anew_if_it_must_be(field: Field) -> None:
    other = replace(PLAIN, **{field.attribute: OTHER[field.attribute]})
    assert [each.field for each in document.differences(PLAIN, other)] == [field.key]
    assert document.shown(other)[field.key] == in_full(other)[field.key] != in_full(PLAIN)[field.key]
    assert (other.fingerprint() != PLAIN.fingerprint()) is field.new_version


def test_what_is_exported_is_read_as_it_was() -> None:
    spec = CertificateSpec(**OTHER)
    [entry] = document.read({"certificates": [document.shown(spec)]}).entries
    assert document.wanted_of(entry, spec.identifiers, ()) == spec


def test_every_kind_of_value_is_used() -> None:
    assert {each.kind for each in FIELDS} == set(FieldKind)
