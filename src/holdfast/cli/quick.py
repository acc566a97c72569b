"""Options are read without pydantic, whose import takes longer than the rest of a command, where they are plain ones.

Typer 0.29 has pydantic convert every option and argument. What is plainly right needs no conversion to speak of; all
else, and every refusal, is left to Typer, so that nothing reads differently.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, get_origin

if TYPE_CHECKING:
    from typer._click import Command

# Typer converts even an absent --help. With this default it is a bool already.
QUICK: Final = {"default_map": {"help": False}}
_WHOLE: Final = re.compile(r"[+-]?\d{1,15}", re.ASCII)
_NUMBER: Final = re.compile(r"[+-]?\d{1,15}(?:\.\d{1,15})?", re.ASCII)
_UNUSUAL: Final = ("exists", "writable", "resolve_path", "allow_dash", "path_type", "click_type")  # fmt: skip


class NotPlain(Exception):
    """It is for Typer to say what this is."""


class Plain:
    """Stands where Typer keeps what converts a parameter."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            return plain(value, param)
        except NotPlain:
            from typer._coercion import build_runtime_param

            return build_runtime_param(param.type_descriptor).coerce(value, param=param, ctx=ctx)


def hasten(command: Command) -> Command:
    """Have the parameters of a command, and of all that are in it, read so."""
    command.context_settings = {**QUICK, **command.context_settings}
    for param in command.params:
        if hasattr(param, "_runtime_param") and hasattr(param, "type_descriptor"):
            param._runtime_param = Plain()
    inside: Mapping[str, Command] = getattr(command, "commands", {})
    for each in inside.values():
        hasten(each)
    return command


def plain(value: Any, param: Any) -> Any:
    about = param.type_descriptor
    several = param.multiple or param.nargs == -1
    if value is None:
        return () if several else None
    info, kind = about.parameter_info, about.annotation
    if any(getattr(info, name, None) for name in _UNUSUAL):
        raise NotPlain
    if info.parser is not None and not several:
        return info.parser(value)
    if get_origin(kind) is not list:
        return _one(value, kind, info)
    if not several or not isinstance(value, list | tuple):
        raise NotPlain
    return [_one(each, get_args(kind)[0], info) for each in value]


def _one(value: Any, kind: Any, info: Any) -> Any:
    if kind is str and isinstance(value, str):
        return value
    if kind is bool and isinstance(value, bool):
        return value
    if kind is Path and isinstance(value, str | Path):
        return Path(value)
    words = get_args(kind) if get_origin(kind) is Literal else kind if _is_list(kind) else ()
    if info.case_sensitive and isinstance(value, str) and value in tuple(words):
        return next(each for each in words if each == value)  # the member itself, if it is of a closed list
    if kind is int:
        return _within(value, int, _WHOLE, info)
    if kind is float:
        return _within(value, float, _NUMBER, info)
    raise NotPlain


def _is_list(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, StrEnum)


def _within(value: Any, kind: type[int] | type[float], form: re.Pattern[str], info: Any) -> int | float:
    if isinstance(value, str) and form.fullmatch(value):
        value = kind(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or (kind is int and not isinstance(value, int)):
        raise NotPlain
    if (info.min is not None and value < info.min) or (info.max is not None and value > info.max):
        raise NotPlain
    return kind(value)
