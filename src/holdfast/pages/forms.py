"""Forms come from input models: which fields there are, how they are asked for, and how an answer is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic.fields import FieldInfo

from holdfast.operations.operation import Operation


class FormField(NamedTuple):
    name: str
    label: str
    hint: str
    kind: str  # text lines choice flag number hidden
    choices: tuple[str, ...] = ()
    required: bool = False
    value: str = ""
    error: str = ""


def fields(operation: Operation, values: Mapping[str, str], errors: Mapping[str, str], *names: str) -> list[FormField]:
    """The fields of an operation's form, with what was typed and what is wrong with it."""
    model = operation.input_model.model_fields
    return [_field(name, model[name], values.get(name, ""), errors.get(name, "")) for name in names or model]


def _field(name: str, info: FieldInfo, value: str, error: str) -> FormField:
    kind, choices = _kind(info.annotation)
    label = (info.title or name).replace("_", " ").removesuffix(" s").capitalize()
    default = "" if info.is_required() or info.default is None else _text(info.default)
    return FormField(
        name, label, info.description or "", kind, choices, info.is_required(), value or default, error
    )  # fmt: skip


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else ""
    return value if isinstance(value, str) else str(value) if isinstance(value, int | float) else ""


def _kind(hint: Any) -> tuple[str, tuple[str, ...]]:
    inner = [each for each in get_args(hint) if each is not NoneType]
    if get_origin(hint) is Literal:
        return "choice", tuple(str(each) for each in get_args(hint))
    if NoneType in get_args(hint) and inner:
        return _kind(inner[0])
    if get_origin(hint) is list:
        return "lines", ()
    if get_origin(hint) is not None and inner and hasattr(hint, "__metadata__"):
        return _kind(inner[0])
    if hint is bool:
        return "flag", ()
    if hint in (int, float):
        return "number", ()
    if hasattr(hint, "__members__"):
        return "choice", tuple(str(each.value) for each in hint)
    return "text", ()


def read(operation: Operation, given: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """A form as the fields of an input: empty ones are left out, lists have a line, a comma or a space between two."""
    model, found = operation.input_model.model_fields, dict[str, Any]()
    for name, value in given:
        if not value.strip():
            continue
        kind = _kind(model[name].annotation)[0] if name in model else "text"
        if kind == "lines":
            found.setdefault(name, []).extend(value.replace(",", " ").split())
        elif kind == "flag":
            found[name] = value in ("true", "on", "1")
        elif _is_table(model.get(name)):
            found[name] = pairs(value)
        else:
            found[name] = value.strip()
    return found


def emptied(operation: Operation, name: str) -> Any:
    """The value of a field that a person cleared."""
    info = operation.input_model.model_fields[name]
    if _is_table(info):
        return {}
    return {"lines": [], "flag": False}.get(_kind(info.annotation)[0], "")


def _is_table(info: FieldInfo | None) -> bool:
    return info is not None and "dict[" in str(info.annotation)


def pairs(text: str) -> dict[str, str]:
    """name=value, a line or a comma between two."""
    return dict(_pair(line) for line in text.replace(",", "\n").splitlines() if line.strip())


def _pair(line: str) -> tuple[str, str]:
    name, _, value = line.partition("=")
    return name.strip(), value.strip()
