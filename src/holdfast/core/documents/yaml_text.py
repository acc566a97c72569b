"""A document as YAML: read without surprises (no key twice, no anchors, no tags), and written as people would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from holdfast.errors import UserError

MAX_SIZE: Final = 16 * 1024 * 1024  # bytes
MAX_DEPTH: Final = 12
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PREFIX: Final = "tag:yaml.org,2002:"


class YamlRefused(UserError):
    status, code = 400, "yaml-refused"

    def __init__(self, problem: str, line: int | None = None, hint: str = "") -> None:
        super().__init__(problem if line is None else f"Line {line}: {problem}")
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Read:
    tree: Any
    lines: Mapping[str, int]  # by path, such as certificates[2].names


def read(content: bytes) -> Read:
    """The tree, and where each part of it stands; YamlRefused says what cannot be read, and in which line."""
    if len(content) > MAX_SIZE:
        raise YamlRefused(f"A document has at most {MAX_SIZE} bytes; this one has {len(content)}.")
    try:
        text = content.decode()
        _check_shape(text)
        root = yaml.compose(text, Loader=_LOADER)
    except UnicodeDecodeError:
        raise YamlRefused("This is not a text in UTF-8.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        why = getattr(error, "problem", None) or "it cannot be read"
        raise YamlRefused(f"This is not YAML: {why}.", None if mark is None else mark.line + 1) from None
    if root is None:
        raise YamlRefused("There is nothing in this document.", hint="Begin with: certificates: []")
    walk = _Walk()
    return Read(walk.value(root, ""), walk.lines)


def _check_shape(text: str) -> None:
    """Before anything is built of it: building is recursive in C, and deep nesting would end the process."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            hint = "Write it out, or use 'defaults:'."
            raise YamlRefused("Anchors and aliases (& and *) are not used in this document.", line, hint)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise YamlRefused(f"It is nested more than {MAX_DEPTH} deep.", line)


@dataclass
class _Walk:
    lines: dict[str, int] = field(default_factory=dict)

    def value(self, node: Any, path: str) -> Any:
        line = node.start_mark.line + 1
        self.lines[path] = line
        match node:
            case yaml.MappingNode():
                return self._mapping(node, path)
            case yaml.SequenceNode():
                return [self.value(each, f"{path}[{at}]") for at, each in enumerate(node.value)]
        return _scalar(node, line)

    def _mapping(self, node: yaml.MappingNode, path: str) -> dict[str, object]:
        found: dict[str, object] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode) or key_node.value == "<<":
                raise YamlRefused("A key is a plain word.", line)
            key = str(key_node.value)
            if key in found:
                raise YamlRefused(f"The key {key!r:.60} is there twice.", line, "Remove one of the two.")
            found[key] = self.value(value_node, f"{path}.{key}" if path else key)
        return found


def _scalar(node: Any, line: int) -> Any:
    """Text, numbers, true and false, nothing; dates and times are taken as the texts that they are written as."""
    kind, text = str(node.tag).removeprefix(_PREFIX), str(node.value)
    match kind:
        case "str" | "timestamp":
            return text
        case "null":
            return None
        case "bool":
            return text.lower() in ("true", "yes", "on")
        case "int" | "float":
            return text if ":" in text else _number(kind, text, line)  # a time of day, which YAML takes for a number
    raise YamlRefused(f"There is no tag {kind!r:.60} in this document.", line)


def _number(kind: str, text: str, line: int) -> int | float:
    try:
        return int(text) if kind == "int" else float(text)
    except ValueError:
        raise YamlRefused(f"{text!r:.60} is read as a number: write it in quotes.", line) from None


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Lists of plain values stand in one line."""

    def ignore_aliases(self, data: object) -> bool:
        return True  # what is there twice is written twice: anchors are not read back


def _list(dumper: Any, data: list[Any]) -> Any:
    in_line = not any(isinstance(each, dict | list) for each in data)
    return dumper.represent_sequence(f"{_PREFIX}seq", data, flow_style=in_line)


_Dumper.add_representer(list, _list)


def write(tree: object) -> str:
    """In the order given."""
    return str(yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120))
