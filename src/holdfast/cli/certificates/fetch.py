"""`holdfast fetch`: a certificate, its chain and its key as files; who may have the key is decided by the server."""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from holdfast.cli.calling import connected
from holdfast.cli.certificates.ls import CertArgument
from holdfast.cli.terminal import say
from holdfast.errors import UserError

app = typer.Typer()
Form = Literal["chain", "pem", "combined", "pkcs12"]


class NoFolder(UserError):
    code = "no-folder"
    hint = "Make the folder first, and name it with --to."


@app.command("fetch")
def fetch(
    certificate: CertArgument,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FOLDER", help="The folder for the files; without it, the chain is printed."),
    ] = None,
    form: Annotated[Form, typer.Option("--form", help="The chain alone, or chain and key in this form.")] = "chain",
    passphrase_stdin: Annotated[
        bool, typer.Option("--passphrase-stdin", help="For pkcs12: read it from stdin.")
    ] = False,
) -> None:
    """Print the chain of a certificate, or write it into files. Its key needs the right to export."""
    with connected() as client:
        if form == "chain":
            _put_chain(client.get(f"/certificates/{certificate}/chain"), to)
            return
        if to is None:
            raise NoFolder("A private key is not printed.")
        asked: dict[str, Any] = {"form": form}
        if passphrase_stdin:
            asked["passphrase"] = sys.stdin.readline().rstrip("\r\n")
        found = client.post(f"/certificates/{certificate}/export", asked)
    _put_files(found, to)


def _put_chain(chain: str, to: Path | None) -> None:
    if to is None:
        print(chain, end="")
        return
    _write(to / "chain.pem", chain.encode())


def _put_files(found: dict[str, Any], to: Path) -> None:
    match found["form"]:
        case "pkcs12":
            _write(to / "bundle.p12", base64.b64decode(found["pkcs12"]))
        case "combined":
            _write(to / "combined.pem", found["key_pem"].encode())
        case _:
            _write(to / "key.pem", found["key_pem"].encode())
            _write(to / "chain.pem", found["chain_pem"].encode())


def _write(path: Path, content: bytes) -> None:
    """Only for this user's eyes, from the first byte on."""
    from holdfast.world import LocalFiles

    try:
        LocalFiles().write_private(path, content, replace=True)
    except OSError as error:
        raise NoFolder(f"{path} cannot be written: {error.strerror}.") from None
    say(f"Written: {path}")
