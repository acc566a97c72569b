"""Opsgenie, by its Alert API: one outage is one alias, and its all-clear closes the alert."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import quote

from pydantic import Field

from holdfast.core.kind import Credential, Kind, Trait
from holdfast.core.notifications.notification import ChannelLimits
from holdfast.kind_settings import Address
from holdfast.notifiers.base import Message, Severity
from holdfast.notifiers.kind import ChannelKind, HttpSettings, SenderParts
from holdfast.notifiers.posting import HttpPoster, PostedCall, as_json, is_page
from holdfast.notifiers.rendering import Rendered, render, shortened, unmarked
from holdfast.secret import Secret

ADDRESSES: Final = {
    "us": "https://api.opsgenie.com/v2/alerts",
    "eu": "https://api.eu.opsgenie.com/v2/alerts",
}
_MESSAGE, _DESCRIPTION, _NOTE = 130, 15_000, 25_000  # characters
_PRIORITIES: Final = {Severity.CRITICAL: "P1", Severity.WARNING: "P3", Severity.INFO: "P5"}
_SOURCE: Final = "Holdfast"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opsgenie:
    line: HttpPoster
    url: str
    api_key: Secret[str]

    async def send(self, message: Message) -> None:
        said = render(message)
        url, body = self._closed(said) if said.resolved else self._opened(said)
        call = PostedCall(
            url=Secret(url),
            body=as_json(body),
            headers={"Authorization": f"GenieKey {self.api_key.reveal()}"},
            address="the setting region or url of this channel",
            credential="the credential api_key of this channel",
            secrets=(self.api_key,),
        )
        response = await self.line.post(call)
        if is_page(response):
            raise self.line.odd(call, response)

    async def close(self) -> None:
        """There is nothing open."""

    def _opened(self, said: Rendered) -> tuple[str, dict[str, Any]]:
        """Its pages read HTML in a description: what others wrote has none."""
        body = {
            "message": shortened(unmarked(said.title), _MESSAGE),
            "alias": said.key,
            "description": shortened(unmarked(said.text), _DESCRIPTION),
            "priority": _PRIORITIES[said.severity],
            "source": _SOURCE,
            "entity": unmarked(said.subject),
            "tags": ["holdfast", unmarked(said.event)],
            "details": {unmarked(name): unmarked(value) for name, value in said.rows},
        }
        return self.url, body

    def _closed(self, said: Rendered) -> tuple[str, dict[str, object]]:
        note = shortened(unmarked(f"{said.title}\n{said.text}"), _NOTE)
        return f"{self.url}/{quote(said.key, safe='')}/close?identifierType=alias", {"source": _SOURCE, "note": note}


class OpsgenieSettings(HttpSettings):
    region: Literal["us", "eu"] = Field(default="us", description="Where the account is.")
    url: Address = Field(default="", description="The address of the service, if it is neither of these.")


def _make(settings: OpsgenieSettings, parts: SenderParts) -> Opsgenie:
    url = settings.url or ADDRESSES[settings.region]
    return Opsgenie(line=parts.line(settings), url=url, api_key=parts.token("api_key"))


OPSGENIE: Final[ChannelKind[OpsgenieSettings]] = Kind(
    name="opsgenie",
    summary="Opsgenie, by its Alert API.",
    settings=OpsgenieSettings,
    credentials=(Credential(name="api_key", summary="The key of an API integration."),),
    limits=ChannelLimits(),
    traits=frozenset({Trait.KEEPS_INCIDENTS}),
    address="url",
    make=_make,
)
