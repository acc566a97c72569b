"""The settings of one issuer, channel or solver, read by the model of its kind; a mistake is a sentence with its name.

A model derives from KindSettings. The type of a field says which values are allowed, and the error about another value
is made of that; a rule of its own raises ValueError with the rest of the sentence.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from cryptography import x509
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from holdfast.core.kind import Kind, S

_MOST: Final = 2**53  # whole numbers that JSON keeps whole
_SHOWN: Final = 60  # characters of a value that is not allowed
HOST: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|[0-9a-fA-F:.]{2,45}")
VISIBLE: Final = re.compile(r"[!-~]{1,2000}")
_TEXT: Final = "^[^\\x00-\\x1f\\x7f]{1,400}$"


class KindSettings(BaseModel):
    """What a person may set. An empty value is as good as none."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, given: Any) -> Any:
        return {name: value for name, value in dict(given).items() if value is not None and value != ""}


# ── Types of fields ──


def _roots(text: str) -> str:
    if "PRIVATE KEY" in text:
        raise ValueError("has a private key in it: replace that key")
    try:
        x509.load_pem_x509_certificates(text.encode())
    except ValueError:
        raise ValueError("is not a list of certificates in PEM") from None
    return text


def problem_with(url: str) -> str:
    """The problem of an address, without quoting it; empty if there is none."""
    if not VISIBLE.fullmatch(url):
        return "must be an address of visible ASCII characters"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return "must be an address such as https://hooks.example.com/…"
    if not HOST.fullmatch(host):
        return "must be an address such as https://hooks.example.com/…"
    if parts.username is not None or parts.password is not None:
        return "must not hold a user or password"
    if parts.scheme != "https" and not (parts.scheme == "http" and is_here(host)):
        return "must begin with https://; http:// is for this machine only"
    return ""


def is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _address(text: str) -> str:
    if problem := problem_with(text):
        raise ValueError(problem)
    return text.rstrip("/")


Address = Annotated[str, AfterValidator(_address)]  # https, or http to this machine; without a last slash
Text = Annotated[str, Field(pattern=_TEXT)]
Flag = Annotated[bool, Field(strict=True)]
Number = Annotated[int, Field(strict=True, ge=1)]
Seconds = Annotated[float, Field(strict=True)]
Texts = dict[str, str]  # a table, such as custom fields
Roots = Annotated[str, AfterValidator(_roots), Field(max_length=400_000)]  # PEM, in place of the system's roots


def whole(pattern: str) -> str:
    """The expression that matches a text only as a whole; an empty text is never looked at."""
    return f"^(?:{pattern})$"


# ── Reading ──


def read(
    kind: Kind[S, Any, Any, Any],
    settings: Mapping[str, Any],
    credentials: Collection[str],
    *,
    given_by: str = "--credential {0}=FILE (- for stdin)",
) -> S:
    """The settings as the kind's model; ValueError names the field that is missing, unknown or malformed.

    Of credentials it gets the names, or a mapping in which those that were just given have their values.
    """
    _no_secrets(kind, settings, given_by)
    found = _model(kind.settings, settings)
    _all_credentials(kind, credentials)
    if kind.fits is not None:
        kind.fits(found, credentials if isinstance(credentials, Mapping) else dict.fromkeys(credentials))
    return found


def _no_secrets(kind: Kind[Any, Any, Any, Any], settings: Mapping[str, Any], given_by: str) -> None:
    """A credential among the settings would be shown to all who may see the issuer, channel or solver."""
    for each in kind.credentials:
        if each.name in settings:
            raise ValueError(
                f"{each.name} is a credential, and not a setting: give it by {given_by.format(each.name)}; "
                "if you just typed it, others may have seen it"
            )


def _all_credentials(kind: Kind[Any, Any, Any, Any], given: Collection[str]) -> None:
    missing = [f"the credential {each.name}" for each in kind.credentials if each.required and each.name not in given]
    if missing:
        raise ValueError(_are_missing(missing))
    known = [each.name for each in kind.credentials]
    if not kind.any_credential and (unknown := sorted(set(given) - set(known))):
        raise ValueError(f"there is no credential {_unknown(unknown[0], known)}")


def _model(model: type[S], settings: Mapping[str, Any]) -> S:
    try:
        return model.model_validate(dict(settings))
    except ValidationError as why:
        errors = why.errors(include_url=False)
    unknown = [each for each in errors if each["type"] == "extra_forbidden"]  # first: it may be a name misspelt
    missing = [str(each["loc"][0]) for each in errors if each["type"] == "missing"]
    raise ValueError(_are_missing(missing) if missing and not unknown else _sentence(model, (unknown or errors)[0]))


def _are_missing(names: list[str]) -> str:
    return f"{names[0]} is missing" if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]} are missing"


def _sentence(model: type[BaseModel], error: Any) -> str:
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    if not error["loc"]:
        return str(error["ctx"]["error"])  # a rule about several of them
    name, wrong = str(error["loc"][0]), error.get("ctx", {}).get("error")
    if error["type"] == "extra_forbidden":
        return f"there is no setting {_unknown(name, list(fields))}"
    if isinstance(wrong, ValueError):
        return str(wrong) if str(wrong).startswith(name) else f"{name} {wrong}"
    return f"{name} {_allowed(model, name, fields[name], error['input'])}"


def _unknown(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    hint = f": did you mean {near[0]}?" if near else ""
    return f"{name!r:.42}; there are {', '.join(sorted(known)) or 'none'}{hint}"


def _allowed(model: type[BaseModel], name: str, field: FieldInfo, given: object) -> str:
    """What a field takes, in words, by the schema that forms are drawn of."""
    shown: dict[str, Any] = model.model_json_schema()["properties"][name]
    shown = next((each for each in shown.get("anyOf", ()) if each.get("type") != "null"), shown)
    if "enum" in shown or "const" in shown:
        return f"must be one of {', '.join(map(str, shown.get('enum') or [shown['const']]))}"
    if shown.get("type") == "array":
        example = json.dumps((field.examples or [["text"]])[0])
        return f"must be a list, such as {example}"
    least, most = shown.get("minimum", 0), shown.get("maximum", _MOST)
    bounds = f"from {least:g} on" if most >= _MOST else f"from {least:g} to {most:.12g}"
    words = {
        "boolean": "must be true or false",
        "integer": f"must be a whole number {bounds}",
        "number": f"must be a number {bounds}",
        "object": "must be a table of texts",
    }
    return words.get(shown.get("type", ""), f"is not well-formed: {_brief(given)!r}")


def _brief(value: object) -> str:
    plain = " ".join("".join(each if each.isprintable() else " " for each in str(value)[: 4 * _SHOWN]).split())
    return plain if len(plain) <= _SHOWN else f"{plain[: _SHOWN - 1]}…"
