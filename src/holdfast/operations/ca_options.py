"""Changes to what was decided about a CA, as people and programs write them: names and plain values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields, replace
from typing import Any, Final

from holdfast.core.ca import CaOptions, Mode, ProfileOptions
from holdfast.operations.ca import CaRefused

_PROFILE: Final = {field.name: type(field.default) for field in fields(ProfileOptions)}
_OPTIONS: Final[Mapping[str, type]] = {
    "mode": str, "eab_required": bool, "challenges": list, "permitted": list, "shards": int, "crl_lifetime_s": int,
    "profiles": list, "without_profiles": list, "dev": bool,
}  # fmt: skip


def changed(options: CaOptions, changes: Mapping[str, Any]) -> CaOptions:
    """The options with these changes; a profile is added, or changed if there is one of its name."""
    _check_types("option", changes, _OPTIONS)
    readers: dict[str, Callable[[Any], Any]] = {"mode": _mode, "challenges": _texts, "permitted": _texts}
    plain = ("mode", "eab_required", "challenges", "permitted", "shards", "crl_lifetime_s", "dev")
    read = {name: readers.get(name, _same)(changes[name]) for name in plain if name in changes}
    return replace(options, **read, profiles=_profiles(options, changes))


def _same(value: Any) -> Any:
    return value


def _texts(values: Iterable[object]) -> tuple[str, ...]:
    return tuple(map(str, values))


def _mode(text: str) -> Mode:
    try:
        return Mode(text)
    except ValueError:
        known = " and ".join(Mode)
        raise CaRefused(f"There is no mode {text!r:.40}.", f"There are {known}.") from None


def _profiles(options: CaOptions, changes: Mapping[str, Any]) -> tuple[ProfileOptions, ...]:
    known = {each.name: each for each in options.profiles}
    for name in changes.get("without_profiles", ()):
        if known.pop(name, None) is None:
            raise CaRefused(f"There is no profile {name!r:.60}.")
    for raw in changes.get("profiles", ()):
        made = profile(raw, known)
        known[made.name] = made
    return tuple(known.values())


def profile(raw: Mapping[str, Any], known: Mapping[str, ProfileOptions]) -> ProfileOptions:
    if not isinstance(raw, Mapping) or not isinstance(raw.get("name"), str):
        raise CaRefused("A profile has a name.")
    _check_types(f"profile {raw['name']!r:.40}", raw, {**_PROFILE, "key_kinds": list})
    before = asdict(known.get(raw["name"], ProfileOptions()))
    merged = {**before, **raw}
    return ProfileOptions(**{**merged, "key_kinds": _texts(merged["key_kinds"])})


def _check_types(what: str, given: Mapping[str, Any], expected: Mapping[str, type]) -> None:
    for name, value in given.items():
        if name not in expected:
            raise CaRefused(f"{what}: there is no {name!r:.60}.", f"There are: {', '.join(expected)}.")
        if type(value) is not expected[name] and not (expected[name] is list and isinstance(value, tuple)):
            raise CaRefused(f"{what}: {name} is not a {expected[name].__name__}, but {value!r:.60}.")
