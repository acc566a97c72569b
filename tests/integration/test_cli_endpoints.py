"""`holdfast endpoint` as people type it, with a real server that shows the wrong thing and then the right one."""

from datetime import timedelta
from pathlib import Path

import pytest
from tests.integration.test_cli_lifecycle import a_shell
from tests.support import served

from holdfast.endpoints import probe
from holdfast.engine import watch
from holdfast.network import SystemNet
from holdfast.store import endpoints
from holdfast.store.database import Database
from holdfast.world import SystemRandom

pytestmark = pytest.mark.anyio
NAME = "www.example.org"


async def test_an_endpoint_from_add_to_rm(db: Database, tmp_path: Path) -> None:
    async with a_shell(db, tmp_path) as shell:
        await shell.ok("issue", NAME, "--wait")
        added = await shell.ok("endpoint", "add", f"{NAME}:443", "--address", "127.0.0.1", "--certificate", NAME)
        assert f"holdfast endpoint check {NAME}" in added.err
        again = await shell("endpoint", "add", NAME)
        assert (again.code, "is an endpoint named" in again.err) == (5, True)
        shown = await shell.ok("endpoint", "show", NAME)
        assert "It was not checked yet." in shown.out
        assert f"the current version of {NAME}" in shown.out
        assert (await shell("endpoint", "show", "nowhere")).code == 6
        wrong = await shell("endpoint", "add", "gopher://a.example")
        assert "tls, smtp, imap" in wrong.err
        await shell.ok("endpoint", "change", NAME, "--samples", "2", "--server-name", "other.example.org")
        [row] = (await shell.ok("endpoint", "ls", "-o", "json")).json
        assert (row["samples"], row["server_name"], row["addresses"]) == (2, "other.example.org", ["127.0.0.1"])
        gone = await shell("endpoint", "rm", NAME)
        assert "--yes" in gone.err
        await shell.ok("endpoint", "rm", NAME, "--yes")
        assert "No endpoint is watched" in (await shell.ok("endpoint", "ls")).err


async def test_status_says_where_a_certificate_is_seen_and_check_counts_what_is_wrong(
    db: Database, tmp_path: Path
) -> None:
    eye = probe.make(SystemNet(), SystemRandom(), resolvers=[], networks=["127.0.0.0/8"], each=10)
    with served.open_folder() as folder:
        stranger = served.Issuing(folder).pair(NAME)
        with served.nginx(folder, stranger) as port:
            async with a_shell(db, tmp_path) as shell:
                await shell.ok("issue", NAME, "--wait")
                await shell.ok("status", "--check")
                await shell.ok("endpoint", "add", f"{NAME}:{port}", "--address", "127.0.0.1", "--certificate", NAME)
                kinds = [watch.kind(db, eye.look, timedelta(minutes=10))]
                async with shell.desk.house.working(kinds=kinds, only=True):
                    await shell.desk.house.until(lambda: _looked(db))
                said = await shell("status", "--check")
                assert said.code == 10
                assert f"endpoint {NAME}:{port}" in said.out
                assert "show" in said.out
                one = await shell.ok("status", NAME)
                assert f"{NAME}:{port}  ENDPOINT_DRIFT" in one.out
                listed = await shell.ok("endpoint", "ls", "--troubled")
                assert "ENDPOINT_DRIFT" in listed.out


async def _looked(db: Database) -> bool:
    [row] = await db.read(lambda tx: endpoints.page(tx, limit=2))
    return row.last is not None
