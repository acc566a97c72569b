"""Credentials stay with the place they were given for: a change of place, roots or TLS asks for them again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.api import a_desk

from holdfast import plugins
from holdfast.core.kind import DESTINATIONS
from holdfast.store.database import Database

pytestmark = pytest.mark.anyio
MAIL = {"host": "mail.example.org", "username": "holdfast", "from": "h@example.org", "to": ["ops@example.org"]}
VAULT = {"base_url": "https://vault.example.org", "role": "web"}


@pytest.mark.parametrize(
    ("channel", "moved"),
    [
        ({"kind": "opsgenie", "credentials": {"api_key": "k" * 36}}, {"url": "https://127.0.0.1:1/"}),
        ({"kind": "opsgenie", "credentials": {"api_key": "k" * 36}}, {"region": "eu"}),
        ({"kind": "email", "settings": MAIL, "credentials": {"password": "secret"}}, {"host": "evil.example"}),
        ({"kind": "email", "settings": MAIL, "credentials": {"password": "secret"}}, {"port": 2525}),
        ({"kind": "email", "settings": MAIL, "credentials": {"password": "secret"}}, {"security": "tls"}),
    ],
    ids=["url", "region", "host", "port", "security"],
)
async def test_a_channel_that_leads_elsewhere_is_given_its_credentials_again(
    db: Database, tmp_path: Path, channel: dict[str, Any], moved: dict[str, Any]
) -> None:
    async with a_desk(db, tmp_path) as desk:
        admin = await desk.as_()
        await admin.post("/channels", {"name": "ops", **channel})
        refused = await admin("PATCH", "/channels/ops", {"settings": moved}, headers={"If-Match": "*"})
        [purpose] = channel["credentials"]
        assert (refused.status_code, refused.json()["code"]) == (400, "channel-refused")
        assert next(iter(moved)) in refused.json()["detail"]
        assert f"--credential {purpose}=FILE" in refused.json()["hint"]
        again = {"settings": moved, "credentials": channel["credentials"]}
        assert (await admin("PATCH", "/channels/ops", again, headers={"If-Match": "*"})).status_code == 200
        other = {"settings": {"to": ["new@example.org"]}} if channel["kind"] == "email" else {"severities": ["info"]}
        assert (await admin("PATCH", "/channels/ops", other, headers={"If-Match": "*"})).status_code == 200


@pytest.mark.parametrize("moved", [{"base_url": "https://evil.example"}, {"roots": "PEM"}], ids=["base_url", "roots"])
async def test_an_issuer_that_leads_elsewhere_is_given_its_credentials_again(
    db: Database, tmp_path: Path, moved: dict[str, Any]
) -> None:
    async with a_desk(db, tmp_path) as desk:
        admin = await desk.as_()
        kinds = frozenset({*desk.services.issuer_kinds, "vault"})
        object.__setattr__(desk.services, "issuer_kinds", kinds)
        asked = {"name": "corp", "kind": "vault", "settings": VAULT, "credentials": {"token": "hvs.x"}}
        await admin.post("/issuers", asked)
        path, any_version = "/issuers/corp", {"If-Match": "*"}
        refused = await admin("PATCH", path, {"settings": moved}, headers=any_version)
        assert (refused.status_code, refused.json()["code"]) == (400, "issuer-refused")
        assert next(iter(moved)) in refused.json()["detail"]
        again = {"settings": moved, "credentials": {"token": "hvs.y"}}
        assert (await admin("PATCH", path, again, headers=any_version)).status_code == 200
        other = {"settings": {"role": "other"}}
        assert (await admin("PATCH", path, other, headers=any_version)).status_code == 200
        assert len(await db.read(lambda tx: tx.rows("SELECT id FROM secrets"))) == 1, "the old token is gone"


async def test_a_default_that_is_written_out_leads_nowhere_else() -> None:
    kind = plugins.kinds(plugins.NOTIFIERS)["opsgenie"]
    assert kind.leads_elsewhere({}, {"region": "us"}) == []
    assert kind.leads_elsewhere({}, {"region": "eu"}) == ["region"]


@pytest.mark.parametrize("group", [plugins.ISSUERS, plugins.NOTIFIERS, plugins.SOLVERS])
def test_every_kind_with_credentials_says_what_decides_who_gets_them(group: str) -> None:
    """A setting that holds an address, and is none of the names that are known, has to be declared."""
    for kind in plugins.kinds(group).values():
        decide = {*kind.destinations, kind.address}
        fields = {field.alias or name for name, field in kind.settings.model_fields.items()}
        assert {each for each in fields if each.endswith(("url", "host", "server", "roots"))} <= decide, kind.name
        assert kind.destinations >= DESTINATIONS
