"""A fire drill with our own CA and real targets: what is done, what is computed, and that nothing served is touched."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.support.acme_desk import Office, open_office
from tests.support.api import BASE, Asker, Desk, a_desk, another
from tests.support.deploying_house import Yard, a_look

from holdfast.core.access import Role
from holdfast.core.own_ca.ca import CaOptions
from holdfast.core.target import TargetRow
from holdfast.deployers.kind import LocalRules
from holdfast.engine import rehearsal
from holdfast.engine.own_ca import signing
from holdfast.issuers.own_ca import LocalIssuer
from holdfast.operations.own_ca.internal_orders import OwnCas
from holdfast.store.database import Database
from holdfast.store.deployments import targets
from holdfast.world import SystemClock, SystemRandom

pytestmark = pytest.mark.anyio
OURS = CaOptions(permitted=("*.internal",))


@dataclass
class Ground:
    desk: Desk
    admin: Asker
    office: Office
    live: Path

    @property
    def db(self) -> Database:
        return self.desk.house.db

    async def ask(self, name: str, **wishes: Any) -> None:
        await self.admin.post("/certificates", {"names": [name], "issuers": ["own"], **wishes})

    async def count(self, table: str) -> int:
        [row] = await self.db.read(lambda tx: tx.rows(f"SELECT COUNT(*) AS n FROM {table}"))
        return int(row["n"])

    async def drill(self, **wishes: Any) -> Any:
        signs = signing.kind(self.office.acme_context, caa=self.office._caa, use_pkilint=False)
        async with self.desk.house.working(kinds=[signs], only=True):
            return await self.admin.post("/drill", {"issuer": "own", **wishes})

    def files(self) -> dict[str, bytes]:
        return {str(each): each.read_bytes() for each in self.live.rglob("*") if each.is_file()}


@pytest.fixture
async def ground(db: Database, tmp_path: Path) -> AsyncIterator[Ground]:
    live = tmp_path / "live"
    live.mkdir()
    (live / "served.pem").write_text("what is served")
    async with a_desk(db, tmp_path) as desk, open_office(db, tmp_path, options=OURS) as office:
        house = desk.house
        await house.add("own", LocalIssuer(OwnCas(office.acme_context), office.ca.id), kind="local")
        yard = Yard(house, LocalRules(folders=(live,)), a_look())
        services = replace(
            desk.services,
            targets=yard.deployers,
            rehearse=rehearsal.rehearse(house.make_issuer, SystemClock(), SystemRandom()),
        )
        for name, folder in (("web", live), ("lost", tmp_path / "elsewhere")):
            row = {"name": name, "kind": "files", "settings": {"folder": str(folder)}}
            await db.write(lambda tx, row=row: targets.insert(tx, TargetRow(**row, created_at=tx.now())))  # type: ignore[misc]
        app = another(services)
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url=BASE) as http:
            seeing = replace(desk, app=app, http=http, services=services)
            yield Ground(seeing, await seeing.as_(), office, live)
        await yard.transport.close()


async def test_a_drill_issues_really_tests_really_and_touches_nothing_that_is_served(ground: Ground) -> None:
    for number in range(4):
        await ground.ask(f"app{number}.internal", targets=["web"])
    before, jobs = ground.files(), await ground.count("jobs")
    told = await ground.drill(sample=2)
    assert (told["certificates"], told["makes_it"], told["blocked"]) == (4, 4, 0), told
    assert [(each["ok"], each["name"]) for each in told["issued"]] == [(True, "app0.internal"), (True, "app1.internal")]
    assert "for a fresh key, and revoked it" in told["issued"][0]["said"]
    assert [(each["name"], each["ok"]) for each in told["targets"]] == [("web", True)]
    assert told["safe_after_s"] >= 4, "one deployment after the other, a second each"
    assert ground.files() == before
    assert await ground.count("deployments") == 0
    assert await ground.count("certificate_versions") == 0
    rows = await ground.db.read(lambda tx: tx.rows("SELECT revoked_at FROM ca_certificates"))
    assert [row["revoked_at"] is not None for row in rows] == [True, True]
    assert await ground.count("jobs") - jobs <= 2, "no issuance began: only our CA's own jobs came"


async def test_a_drill_says_what_would_not_make_it_and_why(ground: Ground) -> None:
    await ground.ask("good.internal", targets=["web"], labels={"team": "web"})
    await ground.ask("nowhere.internal", labels={"team": "web"})
    await ground.ask("lost.internal", targets=["lost"], labels={"team": "web"})
    await ground.ask("waits.internal", targets=["web"], approval_required=True, labels={"team": "web"})
    await ground.ask("paused.internal", targets=["web"], labels={"team": "web"})
    await ground.admin.post("/certificates/paused.internal/pause")
    await ground.ask("other.internal", targets=["lost"], labels={"team": "db"})
    told = await ground.drill(label=["team=web"], sample=0)
    assert (told["certificates"], told["makes_it"], told["blocked"], told["safe_after_s"]) == (5, 1, 4, None)
    why = {each["name"]: " ".join(each["why"]) for each in told["failing"]}
    assert "No target is named" in why["nowhere.internal"]
    assert "Target lost failed its test" in why["lost.internal"]
    assert "A second person must approve" in why["waits.internal"]
    assert "It is paused: resume it." in why["paused.internal"]
    assert "good.internal" not in why
    assert told["issued"] == []
    assert any("assumed" in each for each in told["computed"])


async def test_a_name_that_our_ca_may_not_certify_is_told_of_and_the_drill_goes_on(ground: Ground) -> None:
    await ground.admin.post(
        "/certificates", {"names": ["www.elsewhere.example"], "issuers": ["ca"], "targets": ["web"]}
    )
    told = await ground.drill(issuer="ca", sample=1)
    [tried] = told["issued"]
    assert (tried["ok"], bool(tried["said"])) == (False, True)
    assert told["certificates"] == 1


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"issuer": "nobody"}, "nothing-to-drill"),
        ({"label": ["team=none"]}, "nothing-to-drill"),
        ({"label": ["none"]}, "bad-filter"),
        ({"issuer": "own", "at": "ca"}, "nothing-to-drill"),
        ({"within_s": 1}, "invalid-request"),
        ({"sample": 21}, "invalid-request"),
    ],
)
async def test_a_drill_of_nothing_is_refused(ground: Ground, body: dict[str, Any], code: str) -> None:
    await ground.ask("app.internal", targets=["web"])
    answer = await ground.admin("POST", "/drill", body)
    assert answer.json()["code"] == code, answer.text


async def test_who_may_not_renew_may_not_drill(ground: Ground) -> None:
    for role, wishes in ((Role.VIEWER, {}), (Role.OPERATOR, {"owners": ("mine",)})):
        asker = await ground.desk.as_(role, **wishes)  # type: ignore[arg-type]
        assert (await asker("POST", "/drill", {})).status_code == 403


def test_a_day_is_what_a_ca_gives_for_a_leaked_key() -> None:
    from holdfast.operations.certificates.drill import DrillRequest

    assert DrillRequest().within_s == timedelta(days=1).total_seconds()
