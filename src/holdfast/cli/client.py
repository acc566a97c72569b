"""Commands speak to the API: of the server on this machine, by a socket without a token, or of the one they name."""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx2

from holdfast.cli.everywhere import Row
from holdfast.cli.installation import contexts
from holdfast.config import CONTEXT_VARIABLE, SERVER_VARIABLE, SOCKET_NAME, TOKEN_VARIABLE, Settings
from holdfast.errors import Usage, UserError

PATIENCE: Final = 60.0  # seconds for one answer
_NO_TLS: Final = False  # is spoken on this machine's socket; reading whom the system trusts would take longest of all


_FACTS: Final = (("request", "request_id"), ("retry at", "retry_at"), ("see", "doc"))


class Told(UserError):
    """An error of the server, in its own words."""

    def __init__(self, status: int, problem: Row) -> None:
        super().__init__(f"{problem.get('detail') or problem.get('title') or 'The server refused.'}")
        self.status, self.code = status, str(problem.get("code", "refused"))
        facts = [self.code, *(f"{name} {problem[key]}" for name, key in _FACTS if problem.get(key))]
        self.hint = f"{problem.get('hint', '')} [{', '.join(facts)}]".strip()


class NoServer(UserError):
    status, code = 503, "no-server"

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.hint = hint


class NoToken(UserError):
    status, code = 401, "unauthenticated"

    def __init__(self, server: str) -> None:
        super().__init__("A server elsewhere needs a token.")
        self.hint = f"Set {TOKEN_VARIABLE}, or: holdfast login {server}"


class Client:
    """One command's line to the API."""

    def __init__(self, http: httpx2.Client, *, folder: Path | None = None) -> None:
        """`folder`: the data folder of the server, if it is the one of this machine."""
        self._http = http
        self._folder = folder or Path()
        self.local = folder is not None

    def get(self, path: str, **query: Any) -> Any:
        return self.ask("GET", path, query=query)

    def when_over(self, path: str, within: float) -> Any:
        """An operation, once it is over or so many seconds have passed."""
        seconds = max(1, min(int(within), int(PATIENCE / 2)))
        return self.ask("GET", path, headers={"Prefer": f"wait={seconds}"})

    def post(self, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None, **query: Any) -> Any:
        return self.ask("POST", path, body, headers, query)

    def patch(self, path: str, body: Any, *, headers: Mapping[str, str] | None = None, **query: Any) -> Any:
        return self.ask("PATCH", path, body, headers, query)

    def put(self, path: str, body: Any, *, headers: Mapping[str, str] | None = None, **query: Any) -> Any:
        return self.ask("PUT", path, body, headers, query)

    def delete(self, path: str, *, headers: Mapping[str, str] | None = None, **query: Any) -> Any:
        return self.ask("DELETE", path, headers=headers, query=query)

    def maybe(self, path: str, **query: Any) -> Any | None:
        """None where one may not look, or an older server has no such thing."""
        try:
            return self.get(path, **query)
        except Told as why:
            if why.status in (403, 404):
                return None
            raise

    def pages(self, path: str, *, most: int | None = None, **query: Any) -> list[Any]:
        """All items of a list, page by page."""
        found: list[Any] = []
        while True:
            page = self.get(path, **query)
            found += page["items"]
            if page["next"] is None or (most is not None and len(found) >= most):
                return found[:most]
            query["cursor"] = page["next"]

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        query: Row | None = None,
    ) -> object:
        if {".", ".."} & {*path.split("/")}:  # they would lead to another operation
            raise Usage(f"{path!r:.80} is no address of the API: a name in it is made of dots.")
        given = {name: value for name, value in (query or {}).items() if value not in (None, False, [])}
        with self._unreachable():
            answer = self._http.request(
                method, f"/api/v1{quote(path, safe='/%')}", json=body, headers=headers, params=given
            )
        return _read(answer)

    def lines(self, path: str, **query: Any) -> Generator[str]:
        """An answer of any length, line by line."""
        given = {name: value for name, value in query.items() if value is not None}
        with self._unreachable(), self._http.stream("GET", f"/api/v1{path}", params=given) as answer:
            if answer.status_code != 200:
                answer.read()
                _read(answer)
            yield from answer.iter_lines()

    def events(self, *, after: int | None, subject: str | None, quiet_for: float | None = None) -> Generator[Any]:
        """Follow events. Ends after this many seconds without one."""
        query = {name: value for name, value in (("after", after), ("subject", subject)) if value is not None}
        with self._unreachable():
            try:
                yield from self._stream(query, httpx2.Timeout(PATIENCE, read=quiet_for))
            except httpx2.ReadTimeout:
                if quiet_for is None:
                    raise

    def _stream(self, query: Row, timeout: httpx2.Timeout) -> Generator[object]:
        with self._http.stream("GET", "/api/v1/events/stream", params=query, timeout=timeout) as answer:
            if answer.status_code != 200:
                answer.read()
                _read(answer)
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))

    @contextmanager
    def _unreachable(self) -> Iterator[None]:
        try:
            yield
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            if self.local:
                raise _no_local_server(self._folder) from error
            raise NoServer(f"The server cannot be reached: {error}.", "Check its address and the network.") from error
        except (httpx2.InvalidURL, UnicodeEncodeError) as error:
            raise Usage("An argument is too long, or is not valid text.") from error
        except httpx2.HTTPError as error:
            raise NoServer(f"The line to the server broke: {error}.", "Look whether it was done; try again.") from error


def _read(answer: httpx2.Response) -> object:
    if answer.status_code == 204 or not answer.content:
        return None
    kind = answer.headers.get("content-type", "")
    if answer.status_code >= 400:
        raise Told(answer.status_code, answer.json() if "json" in kind else {"detail": f"HTTP {answer.status_code}"})
    return answer.json() if "json" in kind else answer.text


def _no_local_server(folder: Path) -> NoServer:
    hint = f"Start it: holdfast serve. Or name another one: HOLDFAST_STORE_DATA_DIR, {SERVER_VARIABLE}, holdfast login."
    return NoServer(f"No Holdfast runs with the data folder {folder.absolute()}.", hint)


# ── Which server, and as whom ──


@contextmanager
def elsewhere(server: str, token: str | None = None) -> Iterator[Client]:
    token = token or token_for(server)
    if not token:
        raise NoToken(server)
    headers = {"Authorization": f"Bearer {token}"}
    with httpx2.Client(base_url=address(server), headers=headers, timeout=PATIENCE, trust_env=False) as http:
        yield Client(http)


def token_for(server: str) -> str:
    """A remembered token goes to the server that it was remembered for, and to no other."""
    kept = [each["token"] for each in contexts.read().known.values() if each["server"] == server]
    return token_set() or (kept[0] if kept else "")


def remembered() -> Mapping[str, str]:
    """The context in force: the server and token that `holdfast login` saved; empty without a login."""
    return contexts.in_force(os.environ.get(CONTEXT_VARIABLE))


def away(chosen: Settings) -> str:
    """For commands that can work on a store without its server: the server elsewhere that they are to ask, if any.

    A store that is here is worked on, unless a context is named: it may be one that was restored, and runs no server.
    """
    if os.environ.get(CONTEXT_VARIABLE):
        return remembered().get("server", "")
    file = chosen.store.sqlite_file
    return "" if file is None or file.exists() else remembered().get("server", "")


def named_elsewhere(chosen: Settings) -> str:
    """What makes commands go to a server elsewhere, by the rule of here(); empty if they stay here."""
    if os.environ.get(SERVER_VARIABLE):
        return SERVER_VARIABLE
    if os.environ.get(CONTEXT_VARIABLE):
        return CONTEXT_VARIABLE
    if (chosen.store.data_dir / SOCKET_NAME).exists():
        return ""
    return f"your login at {kept['server']}" if (kept := remembered()) else ""


def goes_here(chosen: Settings) -> Path | None:
    """The data folder whose server commands go to, by the rule of here(); None if they go elsewhere."""
    folder = chosen.store.data_dir
    named = os.environ.get(CONTEXT_VARIABLE) or os.environ.get(SERVER_VARIABLE)
    return folder if (folder / SOCKET_NAME).exists() and not named else None


@contextmanager
def here(chosen: Settings) -> Iterator[Client]:
    """The server of this data folder; without one, or if a context is named, where this user is logged in."""
    if os.environ.get(CONTEXT_VARIABLE) or not (chosen.store.data_dir / SOCKET_NAME).exists():
        kept = remembered()
        if not kept:
            raise _no_local_server(chosen.store.data_dir)
        with elsewhere(kept["server"]) as client:
            yield client
        return
    with local(chosen) as client:
        yield client


@contextmanager
def here_or_store(chosen: Settings) -> Iterator[Client]:
    """As here(), for operations that work without a server: if none runs, the store answers in this process."""
    if there := away(chosen):
        with elsewhere(there) as client:
            yield client
        return
    with _or_store(chosen) as transport, _local_http(transport) as http:
        yield Client(http, folder=chosen.store.data_dir)


@contextmanager
def _or_store(chosen: Settings) -> Iterator[httpx2.BaseTransport]:
    path = chosen.store.data_dir / SOCKET_NAME
    if not path.exists():
        yield _Store(chosen)
        return
    with _folder(path) as handle:
        yield _SocketOrStore(httpx2.HTTPTransport(uds=f"{handle}/{path.name}", verify=_NO_TLS), _Store(chosen))


class _Store(httpx2.BaseTransport):
    """Loads the API only when it is asked."""

    def __init__(self, chosen: Settings) -> None:
        self._chosen = chosen
        self._opened: httpx2.BaseTransport | None = None

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        if self._opened is None:
            from holdfast.cli.offline import StoreTransport

            self._opened = StoreTransport(self._chosen)
        return self._opened.handle_request(request)


class _SocketOrStore(httpx2.BaseTransport):
    """A socket may have been left behind by a server that is gone."""

    def __init__(self, socket: httpx2.BaseTransport, store: httpx2.BaseTransport) -> None:
        self._socket, self._store = socket, store

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        request.read()
        try:
            return self._socket.handle_request(request)
        except httpx2.ConnectError:
            return self._store.handle_request(request)

    def close(self) -> None:
        self._socket.close()


@contextmanager
def local(chosen: Settings) -> Iterator[Client]:
    """The server of this data folder, and no other."""
    path = chosen.store.data_dir / SOCKET_NAME
    if not path.exists():
        raise _no_local_server(chosen.store.data_dir)
    with _folder(path) as handle:
        transport = httpx2.HTTPTransport(uds=f"{handle}/{path.name}", verify=_NO_TLS)
        with _local_http(transport) as http:
            yield Client(http, folder=chosen.store.data_dir)


def _local_http(transport: httpx2.BaseTransport) -> httpx2.Client:
    return httpx2.Client(
        transport=transport, base_url="http://local", headers=_as_me(), timeout=PATIENCE, trust_env=False
    )


@asynccontextmanager
async def local_socket(chosen: Settings) -> AsyncIterator[tuple[httpx2.AsyncHTTPTransport, dict[str, str]]]:
    """The same line for those that ask many things at once, with the headers that say who asks."""
    path = chosen.store.data_dir / SOCKET_NAME
    if not path.exists():
        raise _no_local_server(chosen.store.data_dir)
    with _folder(path) as handle:
        yield httpx2.AsyncHTTPTransport(uds=f"{handle}/{path.name}", verify=_NO_TLS), _as_me()


@contextmanager
def _folder(path: Path) -> Iterator[str]:
    """An address of a socket has 108 bytes at most: go by the handle of its folder.

    What is sent there is a token, or a wish: neither is for another user who put a socket in the way.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for place, found in ((path.parent, os.fstat(folder)), (path, os.stat(path.name, dir_fd=folder))):
            if found.st_uid not in (os.geteuid(), 0):
                raise NotOurSocket(place, found.st_uid)
        yield f"/proc/self/fd/{folder}"
    finally:
        os.close(folder)


class NotOurSocket(UserError):
    code = "not-our-socket"

    def __init__(self, place: Path, owner: int) -> None:
        super().__init__(f"{place} belongs to another user (uid {owner}): commands do not talk to a server there.")
        self.hint = "Run the command as that user, or name the server: --server URL, or store.data_dir"


def user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.getuid()}"


class EmptyToken(Usage):
    """An empty variable is what a failed `$(holdfast token create …)` leaves; acting as another would hide it."""

    code = "empty-token"
    hint = f"Set {TOKEN_VARIABLE} to a token, or to act without one: unset {TOKEN_VARIABLE}"


def token_set() -> str:
    token = os.environ.get(TOKEN_VARIABLE)
    if token == "":
        raise EmptyToken(f"{TOKEN_VARIABLE} is set, and empty.")
    return token or ""


def _as_me() -> dict[str, str]:
    """Who asks: the principal of the token that is set, or else the user of this machine."""
    token = token_set()
    return {"Authorization": f"Bearer {token}"} if token else {"X-Holdfast-User": user_name()}


def address(server: str) -> str:
    if not server.startswith(("https://", "http://")):
        raise Usage(f"{server!r:.80} is no address of a server, such as https://holdfast.example.com.")
    return server.rstrip("/").removesuffix("/api/v1")
