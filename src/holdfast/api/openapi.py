"""The OpenAPI document, written from the declared operations: paths, parameters, bodies, results, rights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from holdfast import __version__
from holdfast.api import endpoint
from holdfast.api.problems import MEDIA_TYPE, STATUSES, TITLES, JsonObject, Problem
from holdfast.operations import catalog
from holdfast.operations.operation import Face, Operation, OperationForm

_REF: Final = "#/components/schemas/{model}"
_DRY_RUN: Final = {
    "name": "dry_run",
    "in": "query",
    "required": False,
    "schema": {"type": "boolean", "default": False},
    "description": "Go all the way, then undo it: nothing is changed.",
}
_KEY: Final = {
    "name": "idempotency-key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "pattern": endpoint.KEY_PATTERN},
    "description": "Repeated within a day, it happens once.",
}
_IF_MATCH: Final = {
    "name": "if-match",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "maxLength": 100},
    "description": "The ETag that was read, or *.",
}
_PREFER: Final = {
    "name": "prefer",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "maxLength": 200},
    "description": "wait=30: answer when it is over, or after 30 s.",
}


@cache
def whole() -> JsonObject:
    """Of all operations; it is the same for everybody, and made once."""
    return document(catalog.declared())


def document(operations: Sequence[Operation]) -> JsonObject:
    """OpenAPI 3.1."""
    schemas = _Schemas(operations)
    paths: dict[str, JsonObject] = {}
    for each in operations:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "summary": "Certificates that are asked for once and then kept.",
            "version": __version__,
        },
        "servers": [{"url": "/api/v1"}],
        "tags": [{"name": each} for each in sorted({each.tag for each in operations})],
        "paths": paths,
        "components": {
            "schemas": schemas.definitions,
            "responses": {
                f"Problem{status}": {
                    "description": TITLES[status],
                    "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
                }
                for status in STATUSES
            },
            "securitySchemes": {
                "HTTPBearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token, as `holdfast token create` shows it once.",
                }
            },
        },
    }


class _Schemas:
    """Inputs and results of all operations, each model once."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        asked: list[tuple[tuple[str, str], JsonSchemaMode, TypeAdapter[Any]]] = []
        for each in operations:
            asked.append(((each.name, "input"), "validation", TypeAdapter(each.input_model)))
            if each.result is not None:
                asked.append(((each.name, "result"), "serialization", TypeAdapter(each.result)))
        asked.append((("", "problem"), "serialization", TypeAdapter(Problem)))
        found, extra = TypeAdapter.json_schemas(asked, ref_template=_REF)
        self.definitions: JsonObject = dict(extra.get("$defs", {}))
        self._found = found

    def of(self, operation: Operation, part: str) -> JsonObject:
        mode: JsonSchemaMode = "validation" if part == "input" else "serialization"
        return self._found[(operation.name, part), mode]

    def fields(self, operation: Operation) -> JsonObject:
        """The input's own schema, whether it stands in the components or not."""
        schema = self.of(operation, "input")
        name = str(schema.get("$ref", "")).rpartition("/")[2]
        found: JsonObject = self.definitions[name] if name else schema
        return found


def _operation(operation: Operation, schemas: _Schemas) -> JsonObject:
    said: JsonObject = {
        "operationId": operation.name,
        "tags": [operation.tag],
        "summary": operation.summary,
        "parameters": _parameters(operation, schemas),
        "responses": _responses(operation, schemas),
        "security": [{"HTTPBearer": []}],
        "x-holdfast": {
            "action": operation.action.value,
            "scope": operation.scope.name,
            "destructive": operation.destructive,
            "changes": operation.changes,
            "command": operation.command,
            "input": schemas.of(operation, "input"),
            "not_on_mcp": operation.not_on.get(Face.MCP, ""),
        },
    }
    if operation.details:
        said["description"] = f"{operation.summary}\n\n{operation.details}"
    if not said["parameters"]:
        del said["parameters"]
    if endpoint.has_body(operation):
        content = {"application/json": {"schema": _body(operation, schemas)}}
        said["requestBody"] = {"required": endpoint.body_required(operation), "content": content}
    return said


def _body(operation: Operation, schemas: _Schemas) -> JsonObject:
    fields = endpoint.body_fields(operation)
    if len(fields) == len(operation.input_model.model_fields):
        return schemas.of(operation, "input")
    whole = schemas.fields(operation)
    required = [name for name in whole.get("required", []) if name in fields]
    found = {"type": "object", "properties": {name: whole["properties"][name] for name in fields}}
    more = {"required": required} if required else {}
    return {**found, **more, "additionalProperties": False, "title": whole.get("title", "")}


def _parameters(operation: Operation, schemas: _Schemas) -> list[JsonObject]:
    whole = schemas.fields(operation)
    headers = endpoint.header_fields(operation)
    places = {
        **dict.fromkeys(operation.path_fields, "path"),
        **dict.fromkeys(endpoint.query_fields(operation), "query"),
        **dict.fromkeys(headers, "header"),
    }
    found = [_parameter(name, where, whole, headers.get(name, name)) for name, where in places.items()]
    found += [_DRY_RUN] if operation.dry_runs else []
    found += [_KEY] if operation.keyed else []
    found += [_IF_MATCH] if endpoint.needs_if_match(operation) else []
    found += [_PREFER] if operation.waits or operation.follows else []
    return found


def _parameter(name: str, where: str, whole: JsonObject, shown: str) -> JsonObject:
    schema = dict(whole["properties"][name])
    description = schema.pop("description", "")
    required = where == "path" or name in whole.get("required", [])
    found = {"name": shown, "in": where, "required": required, "schema": schema}
    return {**found, "description": description} if description else found


def _responses(operation: Operation, schemas: _Schemas) -> JsonObject:
    found: JsonObject = {str(status): {"$ref": f"#/components/responses/Problem{status}"} for status in STATUSES}
    done = operation.status if not operation.waits else 200
    if operation.form is OperationForm.STREAM or operation.media != "application/json":
        content = {operation.media: {"schema": {"type": "string"}}}
        found["200"] = {"description": operation.summary, "content": content}
    elif operation.result is None:
        found["204"] = {"description": "Done"}
    else:
        content = {"application/json": {"schema": schemas.of(operation, "result")}}
        found[str(done)] = {
            "description": "Done, or tried only (dry_run)" if operation.changes else "Found",
            "content": content,
        }
        if operation.waits:
            found["202"] = {"description": "Under way: Location names the issuance", "content": content}
        if operation.waits and operation.creates:
            found["201"] = {"description": "Obtained while the client waited", "content": content}
    return dict(sorted(found.items()))
