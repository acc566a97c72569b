"""http-01 (RFC 8555 §8.3): challenge responses in our own store, or in the folder of a web server of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from holdfast.core.kind import Kind, Trait
from holdfast.issuers.acme.reading import token
from holdfast.issuers.base import ChallengeResponse
from holdfast.kind_settings import KindSettings
from holdfast.ports import Files
from holdfast.solvers.base import Delete, Put, never, not_now
from holdfast.solvers.kind import SolverKind, SolverParts

# ── From the store ──
# http-01 from our own store: one row for each challenge response, served by any replica.


WELL_KNOWN: Final = ".well-known/acme-challenge"  # RFC 8555 §8.3


class HttpStore:
    """Once the row is committed, every replica has it."""

    type = "http-01"
    side_by_side = True

    def __init__(self, put: Put, delete: Delete) -> None:
        self._put = put
        self._delete = delete

    async def publish(self, response: ChallengeResponse) -> None:
        await self._put(response)

    async def visible(self, response: ChallengeResponse) -> bool:
        """Yes. Whether the world's port 80 leads to us is for the CA to find out: from here it may look different."""
        return True

    async def clean(self, response: ChallengeResponse) -> None:
        await self._delete(response)


def _make_http(settings: KindSettings, parts: SolverParts) -> HttpStore:
    return HttpStore(parts.put, parts.delete)


HTTP: Final[SolverKind[KindSettings]] = Kind(
    name="http", summary="http-01, answered by this server.", settings=KindSettings, limits=None, make=_make_http
)


# ── From a folder ──
# http-01 by a file below the folder that some web server of this machine serves.


class Webroot:
    type = "http-01"
    side_by_side = True

    def __init__(self, files: Files, folder: Path) -> None:
        self._files = files
        self._folder = folder

    async def publish(self, response: ChallengeResponse) -> None:
        try:
            self._files.put_within(self._folder, _name(response), response.key_authorization.encode())
        except FileNotFoundError:
            raise never(f"The folder {self._folder}, where challenge responses are to be put, is not there.") from None
        except OSError as error:  # a full disk, a link in the way, no permission
            raise not_now(f"A challenge response cannot be written below {self._folder}: {error.strerror}.") from None

    async def visible(self, response: ChallengeResponse) -> bool:
        try:
            content = self._files.read(self._folder / _name(response))
        except OSError as error:
            raise not_now(f"A challenge response cannot be read below {self._folder}: {error.strerror}.") from None
        return content == response.key_authorization.encode()

    async def clean(self, response: ChallengeResponse) -> None:
        try:
            self._files.remove_within(self._folder, _name(response))
        except OSError as error:
            raise not_now(f"A challenge response cannot be removed below {self._folder}: {error.strerror}.") from None


def _name(response: ChallengeResponse) -> str:
    """Checked again, here where it becomes a path: the token is the CA's word."""
    return f"{WELL_KNOWN}/{token(response.token)}"


def _absolute(folder: Path) -> Path:
    if not folder.is_absolute():
        raise ValueError("must be an absolute path")
    return folder


class WebrootSettings(KindSettings):
    folder: Annotated[Path, AfterValidator(_absolute)] = Field(description="What the web server serves as its root.")


def _make_webroot(settings: WebrootSettings, parts: SolverParts) -> Webroot:
    return Webroot(parts.files, settings.folder)


WEBROOT: Final[SolverKind[WebrootSettings]] = Kind(
    name="webroot",
    summary="http-01, by a file below the folder of another web server of this machine.",
    settings=WebrootSettings,
    limits=None,
    traits=frozenset({Trait.RUNS_HERE}),
    make=_make_webroot,
)
