"""Every declared operation is reachable from the API, the command line and assistants, or says why not."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.api import openapi
from holdfast.cli import derived, main
from holdfast.operations import catalog
from holdfast.operations.operation import Face, Operation

OPERATIONS = catalog.declared()
DOCUMENT = openapi.document(OPERATIONS)


def _name(operation: Operation) -> str:
    return operation.name


@pytest.mark.parametrize("operation", OPERATIONS, ids=_name)
def test_an_operation_is_in_the_document_of_the_api(operation: Operation) -> None:
    found = DOCUMENT["paths"][operation.path][operation.method.lower()]
    assert (found["operationId"], found["summary"]) == (operation.name, operation.summary)


@pytest.mark.parametrize("operation", OPERATIONS, ids=_name)
def test_an_operation_has_a_command_or_says_why_not(operation: Operation) -> None:
    assert bool(operation.command) is (Face.CLI not in operation.not_on)
    if operation.command:
        first, *rest = operation.command.split()
        command: Any = main.load(first)
        for word in rest:
            command = command.commands[word]


@pytest.mark.parametrize("operation", OPERATIONS, ids=_name)
def test_an_operation_is_described_for_people(operation: Operation) -> None:
    """In one sentence at least, that begins with a capital letter and ends."""
    assert operation.summary[0].isupper()
    assert operation.summary.endswith(".")
    assert len(operation.summary) <= 130
    for reason in operation.not_on.values():
        assert reason.endswith(".")


@pytest.mark.parametrize("operation", OPERATIONS, ids=_name)
def test_what_deletes_or_revokes_is_declared_destructive(operation: Operation) -> None:
    hurts = operation.method == "DELETE" or any(
        word in operation.name for word in ("revoke", "delete", "remove", "cancel")
    )
    assert operation.destructive or not hurts or "unpause" in operation.path or "pauses" in operation.path


def test_the_table_of_commands_has_every_operation_with_a_command() -> None:
    assert {row["operation"] for row in derived.rows()} == {each.name for each in OPERATIONS if each.command}


def test_no_secret_is_offered_to_assistants() -> None:
    """By the names of fields that hold one; a plan or a result must not carry it."""
    secret = {"key_pem", "pkcs12", "token", "passphrase", "mac", "credentials"}
    for each in OPERATIONS:
        shown = set(getattr(each.result, "model_fields", {})) & secret
        if "token" in shown or "mac" in shown or "key_pem" in shown:
            assert Face.MCP in each.not_on, each.name
        taken = [name for name, field in each.input_model.model_fields.items() if "SecretStr" in str(field.annotation)]
        assert not taken or Face.MCP in each.not_on, (each.name, taken)
