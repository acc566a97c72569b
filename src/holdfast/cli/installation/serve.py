"""`holdfast serve` and `holdfast dev`: run a server, and with dev get a first certificate from its own CA."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from holdfast.cli.installation.config import settings

if TYPE_CHECKING:
    from holdfast.config import Settings

app = typer.Typer()
LOOPBACK: Final = ("127.0.0.0/8", "::1/128")


@app.command("serve")
def serve(
    processes: Annotated[
        int,
        typer.Option(
            "--processes", min=1, max=64, metavar="N", help="Run N replicas at the same addresses; PostgreSQL only."
        ),
    ] = 1,
    stop_after: Annotated[
        float | None, typer.Option("--stop-after", metavar="SECONDS", help="Stop by itself, for trials.")
    ] = None,
) -> None:
    """Run a server: the engine, the API, the ACME server and the probes."""
    import uvloop

    from holdfast.app import serve as run
    from holdfast.app import supervise

    if processes == 1:
        uvloop.run(run(settings(), stop_after=stop_after))
        return
    place = supervise(settings(), processes, stop_after=stop_after)
    uvloop.run(run(place.settings, place=place))


# ── A first certificate ──


@app.command("dev")
def dev(
    name: Annotated[str, typer.Argument(help="The name to get a certificate for.")] = "app.internal",
    demo: Annotated[
        bool, typer.Option("--demo", help="Fill an empty database with 300 made-up certificates, and ask no CA.")
    ] = False,
    stop_after: Annotated[
        float | None, typer.Option("--stop-after", metavar="SECONDS", help="Stop by itself, for trials.")
    ] = None,
) -> None:
    """Run a server on this machine, ask it for a certificate, and show the commands and their output."""
    import uvloop

    from holdfast.app import serve

    chosen, program = for_trials(settings()), str(Path(sys.argv[0]).absolute())
    uvloop.run(serve(chosen, stop_after=stop_after, started=lambda: _show(chosen, program, name, demo=demo), demo=demo))


def for_trials(chosen: Settings) -> Settings:
    """With `dev`, ACME clients of this machine get certificates for localhost, unless the settings say otherwise."""
    if "acme.networks" in dict(chosen.provenance):
        return chosen
    return replace(chosen, acme=replace(chosen.acme, networks=LOOPBACK))


async def _show(chosen: Settings, program: str, name: str, *, demo: bool) -> None:
    from holdfast.cli.client import user_name
    from holdfast.world import LocalFiles

    where = f"HOLDFAST_STORE_DATA_DIR={chosen.store.data_dir.absolute()}"
    first = [] if demo else [["issue", name, "--wait"], ["status", name], ["ls"]]
    for words in (*first, ["people", "recover", user_name()]):
        print(f"\n$ holdfast {' '.join(words)}", flush=True)
        _, said = await LocalFiles().run(["env", where, program, *words], timeout=120.0)
        print(said.decode(errors="replace").rstrip(), flush=True)
    print("\n".join(_what_next(chosen, where)), flush=True)


def _what_next(chosen: Settings, where: str) -> list[str]:
    """The commands that a newcomer types next, in another terminal."""
    acme = chosen.acme.base_url or f"https://localhost:{chosen.acme.address[1]}"
    lines = [
        "",
        "Holdfast renews these certificates for as long as this command runs. In another terminal:",
        f"  export {where}",
        "  holdfast issue www.internal --wait      get another certificate",
    ]
    if chosen.acme.first_ca:
        lines.append(f"  holdfast trust install {chosen.acme.first_ca}          let this machine trust the CA")
        lines.append(f"ACME clients use this directory: {acme}/acme/{chosen.acme.first_ca}/directory")
    return [*lines, ""]
