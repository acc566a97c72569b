"""`holdfast people …`: over the local socket, with a token, and on the store while no server runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.api import a_desk, on_a_port, on_a_socket
from tests.support.commands import Said, typed
from tests.support.processes import environment

from holdfast.core.access import Role
from holdfast.store.database import Database

pytestmark = pytest.mark.anyio


async def _said(folder: Path, *words: str, **more: str) -> Said:
    return await typed(*words, env={**environment(folder, {}), **more})


async def test_people_are_added_changed_disabled_and_removed(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path, local=True) as desk, on_a_socket(desk, tmp_path):
        added = await _said(tmp_path, "people", "add", "bob", "--role", "operator", "--owner", "web")
        assert added.out.startswith("http://localhost:8630/login/link/")
        assert "not set up yet" in (await _said(tmp_path, "people", "ls")).out
        for words in (("set", "bob", "--role", "admin"), ("disable", "bob"), ("enable", "bob"), ("reset", "bob")):
            done = await _said(tmp_path, "people", *words, "--yes")
            assert done.code == 0, done
        assert "admin" in (await _said(tmp_path, "people", "get", "bob")).out
        assert (await _said(tmp_path, "people", "sessions", "bob")).code == 0
        assert (await _said(tmp_path, "people", "remove", "bob", "--yes")).code == 0
        assert (await _said(tmp_path, "people", "get", "bob")).code == 6


async def test_an_admin_elsewhere_cannot_recover_an_account(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, on_a_port(desk) as url:
        token = await desk.token(Role.ADMIN)
        there = {"HOLDFAST_SERVER_URL": url.removesuffix("/api/v1"), "HOLDFAST_TOKEN": token}
        done = await _said(tmp_path / "elsewhere", "people", "recover", "alice", **there)
        assert done.code == 4
        assert "on the server's machine only" in done.err
