"""Commands speak to the API: of the server on this machine, by a socket without a token, or of the one they name."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx2

from holdfast.cli.login import FILE
from holdfast.cli.reaching import user_name
from holdfast.config import SERVER_VARIABLE, SOCKET_NAME, TOKEN_VARIABLE, Settings
from holdfast.errors import UserError
from holdfast.world import LocalFiles

PATIENCE: Final = 60.0  # seconds for one answer


class Told(UserError):
    """What the server answered; it is shown as the server wrote it."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        super().__init__(f"{problem.get('detail') or problem.get('title') or 'The server refused.'}")
        self.status, self.code = status, str(problem.get("code", "refused"))
        request = problem.get("request_id")
        self.hint = f"{problem.get('hint', '')} [{self.code}{f', request {request}' if request else ''}]".strip()


class NoServer(UserError):
    status, code = 503, "no-server"

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.hint = hint


class Client:
    """One command's line to the API."""

    def __init__(self, http: httpx2.Client, *, local: bool) -> None:
        self._http = http
        self.local = local

    def get(self, path: str, **query: Any) -> Any:
        return self._ask("GET", path, query=query)

    def post(self, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None, **query: Any) -> Any:
        return self._ask("POST", path, body, headers, query)

    def delete(self, path: str, **query: Any) -> Any:
        return self._ask("DELETE", path, query=query)

    def pages(self, path: str, *, most: int | None = None, **query: Any) -> list[Any]:
        """All items of a list, page by page."""
        found: list[Any] = []
        while True:
            page = self.get(path, **query)
            found += page["items"]
            if page["next"] is None or (most is not None and len(found) >= most):
                return found[:most]
            query["cursor"] = page["next"]

    def _ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, Any] | None = None,
    ) -> Any:
        given = {name: value for name, value in (query or {}).items() if value not in (None, False, [])}
        with self._unreachable():
            answer = self._http.request(method, f"/api/v1{quote(path)}", json=body, headers=headers, params=given)
        return _read(answer)

    def events(self, *, after: int | None, subject: str | None, quiet_for: float | None = None) -> Generator[Any]:
        """What happens, as it happens; ends after so many seconds in which nothing did."""
        query = {name: value for name, value in (("after", after), ("subject", subject)) if value is not None}
        timeout = httpx2.Timeout(PATIENCE, read=quiet_for)
        headers = {"Accept": "text/event-stream"}
        with (
            self._unreachable(),
            self._http.stream("GET", "/api/v1/events", params=query, headers=headers, timeout=timeout) as answer,
        ):
            if answer.status_code != 200:
                answer.read()
                _read(answer)
            try:
                for line in answer.iter_lines():
                    if line.startswith("data: "):
                        yield json.loads(line.removeprefix("data: "))
            except httpx2.ReadTimeout:
                return

    @contextmanager
    def _unreachable(self) -> Iterator[None]:
        try:
            yield
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            if self.local:
                raise _no_local_server() from error
            raise NoServer(f"The server cannot be reached: {error}.", "Check its address and the network.") from error
        except httpx2.HTTPError as error:
            raise NoServer(f"The line to the server broke: {error}.", "Look whether it was done; try again.") from error


def _read(answer: httpx2.Response) -> Any:
    if answer.status_code == 204 or not answer.content:
        return None
    kind = answer.headers.get("content-type", "")
    if answer.status_code >= 400:
        raise Told(answer.status_code, answer.json() if "json" in kind else {"detail": f"HTTP {answer.status_code}"})
    return answer.json() if "json" in kind else answer.text


def _no_local_server() -> NoServer:
    hint = f"Start it: holdfast serve. Or name another one: {SERVER_VARIABLE} and {TOKEN_VARIABLE}."
    return NoServer("No Holdfast runs with this data folder.", hint)


@contextmanager
def elsewhere(server: str, token: str | None = None) -> Iterator[Client]:
    token = token or os.environ.get(TOKEN_VARIABLE) or _token_for(server)
    if not token:
        raise NoServer("A server elsewhere needs a token.", f"Set {TOKEN_VARIABLE}, or: holdfast login {server}")
    headers = {"Authorization": f"Bearer {token}"}
    with httpx2.Client(base_url=_address(server), headers=headers, timeout=PATIENCE, trust_env=False) as http:
        yield Client(http, local=False)


def _token_for(server: str) -> str:
    """The remembered token goes to the server that it was remembered for, and to no other."""
    kept = remembered()
    return kept["token"] if kept.get("server") == server else ""


def remembered() -> Mapping[str, str]:
    """What `holdfast login` wrote down; nothing if nobody did."""
    kept = LocalFiles().read(Path.home() / FILE)
    found: Mapping[str, str] = {} if kept is None else json.loads(kept)
    return found


@contextmanager
def here(chosen: Settings) -> Iterator[Client]:
    """The server of this data folder; without one, where this user is logged in."""
    path = chosen.store.data_dir / SOCKET_NAME
    if not path.exists():
        if not remembered():
            raise _no_local_server()
        with elsewhere(remembered()["server"]) as client:
            yield client
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)  # an address has 108 bytes at most: go by the handle
    try:
        transport = httpx2.HTTPTransport(uds=f"/proc/self/fd/{folder}/{path.name}")
        headers = {"X-Holdfast-User": user_name()}
        with httpx2.Client(
            transport=transport, base_url="http://local", headers=headers, timeout=PATIENCE, trust_env=False
        ) as http:
            yield Client(http, local=True)
    finally:
        os.close(folder)


def _address(server: str) -> str:
    if not server.startswith(("https://", "http://")):
        raise NoServer(f"{server!r:.80} is no address of a server.", "For example: https://holdfast.example.com")
    return server.rstrip("/").removesuffix("/api/v1")
