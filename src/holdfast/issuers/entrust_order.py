"""What is asked of an Entrust CA Gateway, by what its profile wants to know."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from holdfast.core.reasons import Reason
from holdfast.errors import Refused
from holdfast.issuers.base import Wish
from holdfast.issuers.reading import words

_TYPES: Final = {"dns": "dNSName", "ip": "iPAddress"}
_COMMON_NAME: Final = frozenset({"cn", "commonname"})
_LONGEST_COMMON_NAME: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A kind of certificate: which variables of the subject it has, and which it insists on."""

    id: str
    name: str = ""
    variables: Mapping[str, bool] = field(default_factory=dict)  # name → required


def read_profile(name: str, value: Mapping[str, Any]) -> Profile:
    listed = value.get("subjectVariableRequirements")
    found = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    variables = {words(each.get("name"), 80): each.get("required") is True for each in found if each.get("name")}
    return Profile(id=name, name=words(value.get("name") or "", 80), variables=variables)


def body(wish: Wish, profile: Profile, *, variables: Mapping[str, str], lasts: timedelta) -> dict[str, Any]:
    """An enrollment. Names and validity are always said: its hosted form takes neither from the CSR."""
    return {
        "profileId": profile.id,
        "requiredFormat": {"format": "X509", "protection": None},
        "csr": base64.b64encode(wish.csr).decode(),
        "subjectVariables": _variables(wish, profile, variables),
        "subjectAltNames": [{"type": _TYPES[each.type], "value": each.value} for each in wish.identifiers],
        "optionalCertificateRequestDetails": {
            "useSANFromCSR": False,
            "validityPeriod": f"PT{max(int(lasts.total_seconds()), 60)}S",
        },
        "includeCa": True,
        "properties": {"tracking.trackingInfo": wish.issuance},  # our own reference, for people who look for it
    }


def _variables(wish: Wish, profile: Profile, given: Mapping[str, str]) -> list[dict[str, str]]:
    said = dict(given)
    for name, required in profile.variables.items():
        if name not in said and name.lower() in _COMMON_NAME and (common := _common_name(wish)) is not None:
            said[name] = common
        if required and name not in said:
            raise Refused(
                f"The profile {profile.id} wants {name} in the subject. Set it: subject_variables.{name}.",
                reason=Reason.CA_REFUSED,
            )
    return [{"type": name, "value": value} for name, value in said.items()]


def _common_name(wish: Wish) -> str | None:
    return next((each.value for each in wish.identifiers if len(each.value) <= _LONGEST_COMMON_NAME), None)
