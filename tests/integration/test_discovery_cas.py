"""Lists of CAs: vendors' fakes that are real servers, our own CA, and ACME, which has none."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from tests.support.api import Asker, Desk, a_desk
from tests.support.fake_cas.bench import IssuerBench, bench_of
from tests.support.fake_cas.digicert import FakeDigicert
from tests.support.fake_cas.globalsign import FakeGlobalSign
from tests.support.fake_cas.sectigo import FakeSectigo
from tests.support.issuing import leaf_of, patiently

from holdfast.core.discovery.find import FindSource
from holdfast.core.issuers.issuer import IssuerRow
from holdfast.engine.discovery import cas, rounds
from holdfast.errors import TryLater
from holdfast.issuers.base import ListsCertificates
from holdfast.store import issuers
from holdfast.store.database import Database
from holdfast.store.tx import Tx
from holdfast.world import SystemRandom

pytestmark = pytest.mark.anyio
VENDORS: dict[str, tuple[Any, bool]] = {
    "digicert": (FakeDigicert, False), "sectigo": (FakeSectigo, True), "globalsign": (FakeGlobalSign, False),
}  # fmt: skip


def _row(tx: Tx, name: str, kind: str, settings: Any) -> IssuerRow:
    return IssuerRow(name=name, kind=kind, settings=settings, created_at=tx.now())


@asynccontextmanager
async def listing(db: Database, folder: Path, vendor: str) -> AsyncIterator[tuple[Desk, Asker, IssuerBench[Any]]]:
    fake, common_name = VENDORS[vendor]
    async with a_desk(db, folder / "desk") as desk, bench_of(fake, folder, common_name=common_name) as bench:
        await db.write(lambda tx: issuers.insert(tx, _row(tx, vendor, vendor, bench.ca.settings())))
        yield desk, await desk.as_(), bench


async def run(desk: Desk, admin: Asker, make: Any, issuer: str) -> Any:
    begun = await admin.post("/discovery/ca", {"issuer": issuer})

    async def over() -> bool:
        found = await admin.get(f"/discovery/runs/{begun['id']}")
        return found["state"] != "running" or bool(found["problem"])

    db = desk.house.db
    kind = rounds.kind(db, SystemRandom(), {FindSource.CA: cas.read(db, make)})
    async with desk.house.working(kinds=[kind], only=True):
        await desk.house.until(over)
    return await admin.get(f"/discovery/runs/{begun['id']}")


@pytest.mark.parametrize("vendor", VENDORS)
async def test_every_certificate_that_a_vendor_lists_is_found_over_as_many_pages_as_it_takes(
    db: Database, tmp_path: Path, vendor: str
) -> None:
    (tmp_path / "desk").mkdir()
    async with listing(db, tmp_path, vendor) as (desk, admin, bench):
        leaves = set()
        for number in range(8):
            request, issuer = bench.wish(f"www{number}.example.com"), bench.issuer()
            placed = await issuer.place_order(request)
            issued = await patiently(issuer.order_status, placed.ref, request)
            leaves.add(leaf_of(issued).fingerprint(hashes.SHA256()).hex())

        async def make(row: Any) -> Any:
            return bench.issuer()

        assert isinstance(bench.issuer(), ListsCertificates)
        done = await run(desk, admin, make, vendor)
        assert (done["state"], done["counts"]["tried"], done["counts"]["certificates"]) == ("done", 8, 8), done
        found = (await admin.get("/finds"))["items"]
        assert {each["fingerprint"] for each in found} == leaves
        assert not any(each["served"] for each in found)
        assert (await admin.get("/discovery"))["unmanaged"] == 0, "what is not served is no served certificate"


async def test_a_vendor_that_is_away_is_asked_again_later(db: Database, tmp_path: Path) -> None:
    (tmp_path / "desk").mkdir()
    async with listing(db, tmp_path, "digicert") as (desk, admin, _bench):

        class Away:
            async def list_certificates(self, after: Any) -> Any:
                raise TryLater("DigiCert answers 503.")

        async def make(row: Any) -> Any:
            return Away()

        waits = await run(desk, admin, make, "digicert")
        assert (waits["state"], waits["problem"]) == ("running", "DigiCert answers 503.")
        assert waits["next_at"] is not None


async def test_acme_has_no_list_and_says_so(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        admin = await desk.as_()
        settings = {"directory": "https://ca.example.com/directory"}
        await db.write(lambda tx: issuers.insert(tx, _row(tx, "le", "acme", settings)))
        refused = await admin("POST", "/discovery/ca", {"issuer": "le"})
        assert refused.json()["code"] == "discovery-refused"
        assert "ACME (RFC 8555) has none" in refused.text
        unknown = await admin("POST", "/discovery/ca", {"issuer": "nobody"})
        assert "There is no issuer" in unknown.text
