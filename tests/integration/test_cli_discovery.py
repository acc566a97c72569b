"""`holdfast discover` and `holdfast finds` as people type them, against a real server with a certificate of its own."""

from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_cli_lifecycle import a_shell
from tests.support import served

from holdfast.core.discovery.find import FindSource
from holdfast.core.discovery.network import NETWORKS_SETTING, ScanRules
from holdfast.endpoints import probe
from holdfast.engine.discovery import network, rounds
from holdfast.network import SystemNet
from holdfast.store.database import Database
from holdfast.world import SystemRandom

pytestmark = pytest.mark.anyio
NETWORKS = ("127.0.0.0/24",)


def scanning(db: Database) -> list[Any]:
    eye = probe.make(SystemNet(), SystemRandom(), resolvers=[], networks=NETWORKS, each=5, only=NETWORKS_SETTING)
    return [rounds.kind(db, SystemRandom(), {FindSource.NETWORK: network.scan(eye)})]


async def test_from_a_scan_to_the_number_0(db: Database, tmp_path: Path) -> None:
    rules = ScanRules(networks=NETWORKS, rate=1000)
    async with a_shell(db, tmp_path, offers={"scanning": rules}) as shell:
        empty = await shell.ok("discover")
        assert "0 certificates are served and not managed here." in empty.out
        assert "Nothing is looked for." in empty.out
        refused = await shell("discover", "network", "10.0.0.0/24")
        assert (refused.code, "discovery.networks lists 127.0.0.0/24" in refused.err) == (1, True)
        with served.open_folder() as folder, served.nginx(folder, served.Issuing(folder).pair()) as port:
            begun = await shell.ok("discover", "network", "127.0.0.1", "--port", str(port))
            assert "holdfast discover show disc_" in begun.err
            async with shell.desk.house.working(kinds=scanning(db), only=True):

                async def done() -> bool:
                    return (await shell.ok("discover", "ls", "-o", "json")).json[0]["state"] == "done"

                await shell.desk.house.until(done)
        told = await shell.ok("discover")
        assert "1 certificate is served and not managed here." in told.out
        [row] = (await shell.ok("finds", "ls", "--unmanaged", "--served", "-o", "json")).json
        shown = await shell.ok("finds", "show", row["fingerprint"][:10])
        assert f"holdfast finds adopt {row['id']}" in shown.out
        assert f"holdfast finds ignore {row['id']} --reason TEXT" in shown.out
        assert f"tls://127.0.0.1:{port}" in shown.out
        assert (await shell("finds", "ignore", row["id"])).code == 2
        await shell.ok("finds", "ignore", row["id"], "--reason", "A printer.")
        assert "0 certificates are served" in (await shell.ok("discover")).out
        assert "A printer." in (await shell.ok("finds", "show", row["id"])).out
        assert (await shell("finds", "show", "nothing")).code == 6
