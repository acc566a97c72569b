"""What is given to commands about our own CAs: options, profiles, spans of time and files, as verbs want them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.errors import UserError


def options_of(
    mode: str | None,
    eab_required: bool | None,
    challenges: list[str] | None,
    permitted: list[str] | None,
    shards: int | None,
    crl_lifetime: str | None,
    profiles: list[Path] | None,
) -> dict[str, Any]:
    given = {
        "mode": mode,
        "eab_required": eab_required,
        "challenges": challenges,
        "permitted": permitted,
        "shards": shards,
        "crl_lifetime_s": None if crl_lifetime is None else seconds_of(crl_lifetime),
        "profiles": None if profiles is None else [_profile(each) for each in profiles],
    }
    return {name: value for name, value in given.items() if value is not None}


def _profile(file: Path) -> Any:
    import json
    import tomllib

    text = text_of(file)
    try:
        return json.loads(text) if text.lstrip().startswith("{") else tomllib.loads(text)
    except ValueError as error:
        raise UserError(f"{file} is neither JSON nor TOML: {error}.") from None


def seconds_of(text: str) -> int:
    from holdfast.setting_kinds import duration

    try:
        return int(duration("1s").parse(text).total_seconds())
    except ValueError:
        raise UserError(f"{text!r} is no duration, such as 1h or 7d.") from None


def text_of(file: Path) -> str:
    from holdfast.world import LocalFiles

    try:
        content = LocalFiles().read(file)
        text = None if content is None else content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read: {error}.") from None
    if not text:
        raise UserError(f"There is no file {file}, or nothing in it.")
    return text
