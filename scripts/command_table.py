"""Write src/holdfast/cli/commands.json from the declared operations, so that commands start without pydantic.

`make docs` runs it; tests/test_docs.py fails when the file differs from what this would write.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from holdfast.api import endpoint
from holdfast.operations import catalog
from holdfast.operations.inputs import OneOf, Option, Page
from holdfast.operations.operation import Operation, OperationForm

FILE = Path(__file__).resolve().parent.parent / "src" / "holdfast" / "cli" / "commands.json"
PAGING = ("cursor", "limit", "total")  # of lists: a command reads all pages, and has --limit of its own


def table() -> str:
    rows = [_row(each) for each in catalog.declared() if each.command]
    return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"


def _row(operation: Operation) -> dict[str, Any]:
    row = {
        "operation": operation.name,
        "command": operation.command,
        "summary": operation.summary,
        "details": operation.details,
        "example": operation.example,
        "done": operation.done,
        "asks": operation.asks,
        "method": operation.method,
        "path": operation.path,
        "shows": "lines" if operation.form is OperationForm.STREAM else _shape(operation.result),
        "params": [each for each in _params(operation) if each is not None],
    }
    flags = ("destructive", "dry_runs", "keyed", "offline")
    row |= {name: True for name in flags if getattr(operation, name)}
    row |= {"if_match": True} if endpoint.needs_if_match(operation) else {}
    row |= {"waits": True} if operation.waits is not None else {}
    return {name: value for name, value in row.items() if value not in ("", [])}


def _shape(result: Any) -> str:
    if result is None:
        return "nothing"
    if isinstance(result, type) and issubclass(result, BaseModel):
        return "page" if result.__pydantic_generic_metadata__["origin"] is Page else "one"
    return "rows" if get_origin(result) is list else "text" if result is str else "one"


def _params(operation: Operation) -> list[dict[str, Any] | None]:
    fields = operation.input_model.model_fields
    order = [*operation.path_fields, *(name for name in fields if name not in operation.path_fields)]
    paged = _shape(operation.result) == "page"
    return [_param(name, fields[name], operation) for name in order if not (paged and name in PAGING)]


def _param(name: str, field: FieldInfo, operation: Operation) -> dict[str, Any] | None:
    said = next((each for each in field.metadata if isinstance(each, Option)), Option())
    if said.hidden:
        return None
    place = _place(name, operation)
    kind, extra = _kind(name, Annotated[field.annotation, said, *field.metadata], said)
    argument = said.argument or (place == "path" and not said.flag)
    found: dict[str, Any] = {"field": name, "in": place, "kind": kind, **extra}
    if argument:
        found |= {"argument": True, "metavar": said.metavar or name.upper().replace("_", "-")}
    else:
        found |= {"flag": said.flag or _flag(name, kind)}
    more = {"short": said.short, "metavar": said.metavar, "help": said.help or field.description or ""}
    found |= {each: value for each, value in more.items() if value and each not in found}
    if field.is_required():
        found["required"] = True
    if NoneType in get_args(_bare(field.annotation, keep_none=True)):
        found["nullable"] = True
    return found


def _place(name: str, operation: Operation) -> str:
    if name in operation.path_fields:
        return "path"
    if name in endpoint.header_fields(operation):
        return "header"
    return "query" if name in endpoint.query_fields(operation) else "body"


def _flag(name: str, kind: str) -> str:
    """`lifetime_s` is --lifetime; a list `owners` is --owner, once for each."""
    text = name.removesuffix("_s") if kind == "duration" else name
    if kind in ("list", "pairs") and text.endswith("s") and not text.endswith("ss"):
        text = text[:-1]
    return "--" + {"setting": "set", "credential": "credential"}.get(kind, text).replace("_", "-")


def _bare(annotation: Any, *, keep_none: bool = False) -> Any:
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, UnionType) and not keep_none:
        inner = [each for each in get_args(annotation) if each is not NoneType]
        return _bare(inner[0]) if len(inner) == 1 else str
    return annotation


def _members(annotation: Any) -> list[str]:
    """The words of a closed list that a text is one of."""
    if get_origin(annotation) in (Union, UnionType):
        return next(filter(None, map(_members, get_args(annotation))), [])
    if get_origin(annotation) is not Annotated:
        return []
    inner, *notes = get_args(annotation)
    found = next((each for each in notes if isinstance(each, OneOf)), None)
    return _members(inner) if found is None else [str(each.value) for each in found.kind]


def _kind(name: str, annotation: Any, said: Option) -> tuple[str, dict[str, Any]]:
    bare = _bare(annotation)
    if said.read:
        return said.read, {"repeated": True} if get_origin(bare) in (list, dict) or said.read == "files" else {}
    if members := _members(annotation):
        return "choice", {"choices": members}
    if get_origin(bare) is list:
        kind, extra = _kind("", get_args(bare)[0], said)
        return ("list" if kind in ("text", "choice") else kind), {**extra, "repeated": True}
    if get_origin(bare) is dict:
        inner = _bare(get_args(bare)[1])
        kind = "credential" if inner is SecretStr else "pairs" if inner is str else "setting"
        return kind, {"repeated": True}
    if get_origin(bare) is Literal:
        return "choice", {"choices": [str(each) for each in get_args(bare)]}
    if isinstance(bare, type) and issubclass(bare, Enum):
        return "choice", {"choices": [str(each.value) for each in bare]}
    if bare is float and re.search(r"_s$", name):
        return "duration", {}
    plain = {bool: "flag", int: "int", float: "float", SecretStr: "secret", datetime: "instant"}
    return plain.get(bare, "json" if isinstance(bare, type) and issubclass(bare, BaseModel) else "text"), {}


if __name__ == "__main__":
    FILE.write_text(table())
