"""http-01 by a file below the folder that some web server of this machine serves."""

from __future__ import annotations

from pathlib import Path

from holdfast.issuers.acme_reading import token
from holdfast.issuers.base import Proof
from holdfast.ports import Files
from holdfast.solvers.base import never, not_now
from holdfast.solvers.http_store import WELL_KNOWN


class Webroot:
    type = "http-01"
    side_by_side = True

    def __init__(self, files: Files, folder: Path) -> None:
        self._files = files
        self._folder = folder

    async def publish(self, proof: Proof) -> None:
        try:
            self._files.put_within(self._folder, _name(proof), proof.key_authorization.encode())
        except FileNotFoundError:
            raise never(f"The folder {self._folder}, where proofs are to be put, is not there.") from None
        except OSError as error:  # a full disk, a link in the way, no permission
            raise not_now(f"A proof cannot be written below {self._folder}: {error.strerror}.") from None

    async def visible(self, proof: Proof) -> bool:
        try:
            content = self._files.read(self._folder / _name(proof))
        except OSError as error:
            raise not_now(f"A proof cannot be read below {self._folder}: {error.strerror}.") from None
        return content == proof.key_authorization.encode()

    async def clean(self, proof: Proof) -> None:
        try:
            self._files.remove_within(self._folder, _name(proof))
        except OSError as error:
            raise not_now(f"A proof cannot be removed below {self._folder}: {error.strerror}.") from None


def _name(proof: Proof) -> str:
    """Checked again, here where it becomes a path: the token is the CA's word."""
    return f"{WELL_KNOWN}/{token(proof.token)}"
