"""`holdfast trust`: let the programs of this machine trust the root of a private CA, and take that back."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.calling import connected
from holdfast.cli.everywhere import FINDINGS, chosen
from holdfast.cli.terminal import Column, emit, say
from holdfast.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.cli.trust.stores import Root, TrustStore

app = typer.Typer(name="trust", help="Let programs of this machine trust the root of a private CA; take that back.")


class StoreName(StrEnum):
    SYSTEM = "system"
    NSS = "nss"
    JAVA = "java"


CaArgument = Annotated[str, typer.Argument(metavar="CA", help="The name of the CA.")]
RootOption = Annotated[
    Path | None, typer.Option("--root", metavar="FILE", help="The root as a PEM file, instead of asking a server.")
]
StoreOption = Annotated[
    list[StoreName] | None,
    typer.Option("--store", help="Only this kind of store; may be repeated. nss: Firefox and Chrome."),
]
PinOption = Annotated[
    str, typer.Option("--sha256", metavar="HEX", help="Refuse a root with another fingerprint than this.")
]
PlanOption = Annotated[bool, typer.Option("--plan", help="Show what would change, and change nothing.")]


class OtherRoot(UserError):
    code = "other-root"
    hint = "Nothing was changed. Ask the operator of the CA for the fingerprint of its root."


@app.command()
def install(
    ca: CaArgument = "default",
    root: RootOption = None,
    store: StoreOption = None,
    sha256: PinOption = "",
    plan: PlanOption = False,
) -> None:
    """Let this machine trust the root of a CA: the system's store, Firefox and Chrome, Java. Each step is shown."""
    _change(_root(ca, root, sha256), store, install=True, dry_run=plan)


@app.command()
def uninstall(
    ca: CaArgument = "default", root: RootOption = None, store: StoreOption = None, plan: PlanOption = False
) -> None:
    """Take the root of a CA out of the stores of this machine again. Other certificates stay."""
    _change(_root(ca, root, ""), store, install=False, dry_run=plan)


@app.command()
def status(ca: CaArgument = "default", root: RootOption = None, store: StoreOption = None) -> None:
    """Show which stores of this machine trust the root of a CA. Exit code 10: not all of them do."""
    import asyncio

    wanted = _root(ca, root, "")
    rows = asyncio.run(_looked(wanted, _stores(store)))
    columns = [
        Column("STORE", lambda row: str(row["store"])),
        Column("TRUSTED", lambda row: "yes" if row["trusted"] else "no"),
        Column("WHERE", lambda row: str(row["where"])),
    ]
    emit(rows, columns, name="where", empty=NONE)
    if not all(row["trusted"] for row in rows):
        raise typer.Exit(FINDINGS)


NONE = "No store was found here. Let each program read the root by itself: holdfast ca chain CA --root > root.pem"


async def _looked(root: Root, stores: Sequence[TrustStore]) -> list[dict[str, object]]:
    return [{"store": each.kind, "trusted": await _has(each, root), "where": each.where} for each in stores]


async def _has(store: TrustStore, root: Root) -> bool:
    try:
        return await store.has(root)
    except FileNotFoundError:  # its tool is not installed
        return False


def _change(root: Root, kinds: Sequence[str] | None, *, install: bool, dry_run: bool) -> None:
    import asyncio

    say(f"{root.subject}\nSHA-256 {root.sha256}")
    stores = _stores(kinds)
    if not stores:
        raise UserError(NONE)
    problems = asyncio.run(_changed(root, stores, install=install, dry_run=dry_run or chosen().dry_run))
    if problems:
        raise problems[0]


async def _changed(root: Root, stores: Sequence[TrustStore], *, install: bool, dry_run: bool) -> list[UserError]:
    """Each store by itself: one that refuses does not keep the others from being changed."""
    problems: list[UserError] = []
    for each in stores:
        if await _has(each, root) is install:
            say(f"{each.kind}: {each.where} {'trusts it already' if install else 'does not have it'}.")
            continue
        say(f"{each.kind}: {'would ' if dry_run else ''}{each.plan(root, install=install)}")
        try:
            if not dry_run:
                await each.change(root, install=install)
        except UserError as why:
            say(f"{each.kind}: {why}")
            problems.append(why)
    return problems


def _stores(kinds: Sequence[str] | None) -> list[TrustStore]:
    from holdfast.cli.installation.config import environment
    from holdfast.cli.trust import stores
    from holdfast.world import LocalFiles

    known = {name: value for name in ("JAVA_HOME",) if (value := environment(name))}
    found = stores.found(LocalFiles(), Path(environment("HOME") or "/root"), known)
    return [each for each in found if not kinds or each.kind in kinds]


def _root(ca: str, file: Path | None, pinned: str) -> Root:
    from holdfast.cli.trust.stores import Root

    found = Root.read(_from_server(ca) if file is None else _from_file(file))
    if pinned and pinned.lower().replace(":", "") != found.sha256:
        raise OtherRoot(f"The root has the fingerprint {found.sha256}, not {pinned:.100}.")
    return found


def _from_file(file: Path) -> bytes:
    from holdfast.cli import input_files

    return input_files.content(file, 1 << 20)


def _from_server(ca: str) -> bytes:
    with connected(offline=True) as client:
        return str(client.get(f"/cas/{ca}/chain", root=True)).encode()
