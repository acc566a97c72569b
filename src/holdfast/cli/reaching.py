"""Have a verb carried out: by the Holdfast that runs on this machine, or else on the store itself."""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2

from holdfast.config import SOCKET_NAME, Settings
from holdfast.errors import UserError

PATIENCE = 60.0  # seconds: an RSA key may have to be made


class Told(UserError):
    """What the server answered; it is shown as the server wrote it."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(str(error["message"]))
        self.status, self.code, self.hint = int(error["status"]), str(error["code"]), str(error["hint"])


async def ask(settings: Settings, verb: str, **args: Any) -> Any:
    """Carry out a verb as this user."""
    path = settings.store.data_dir / SOCKET_NAME
    user = user_name()
    if path.exists():
        try:
            return await _ask_server(path, {"verb": verb, "args": args, "user": user})
        except httpx2.ConnectError:
            pass  # it was left behind by a server that is gone
    return await _do_here(settings, verb, args, f"local:{user}")


def user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.getuid()}"


async def _ask_server(path: Path, request: Mapping[str, Any]) -> Any:
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)  # an address has 108 bytes at most: go by the handle
    try:
        transport = httpx2.AsyncHTTPTransport(uds=f"/proc/self/fd/{folder}/{path.name}")
        async with httpx2.AsyncClient(transport=transport, trust_env=False, timeout=PATIENCE) as client:
            answer = (await client.post("http://local/local", json=dict(request))).json()
    finally:
        os.close(folder)
    if "error" in answer:
        raise Told(answer["error"])
    return answer["result"]


async def _do_here(settings: Settings, verb: str, args: Mapping[str, Any], actor: str) -> Any:
    from holdfast.cli.opening import opened
    from holdfast.operations import keys
    from holdfast.operations.policy import policy
    from holdfast.operations.vault import Vault
    from holdfast.operations.verbs import Office, dispatch
    from holdfast.world import LocalFiles, SystemRandom

    async def nothing() -> None:
        """Running replicas see a change within seconds."""

    files, ports = LocalFiles(), (settings.acme.address[1], settings.server.address[1])
    async with opened(settings) as db:
        keyring = await keys.unlock(db, settings, files, SystemRandom(), create=False)
        office = Office(
            vault=Vault(db=db, settings=settings, files=files, keyring=keyring),
            policy=policy(settings, acme_port=ports[0], publish_port=ports[1]),
            refresh=nothing,
            problem=lambda ca: None,
        )
        return await dispatch(office, verb, args, actor=actor)
