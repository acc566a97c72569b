"""`holdfast serve` and `holdfast dev`: run a server, and with dev get a first certificate from its own CA."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.installation.config import settings

if TYPE_CHECKING:
    from holdfast.config import Settings

app = typer.Typer()


@app.command("serve")
def serve(
    stop_after: Annotated[
        float | None, typer.Option("--stop-after", metavar="SECONDS", help="Stop by itself, for trials.")
    ] = None,
) -> None:
    """Run a server: the engine, the API, the ACME server and the probes."""
    import uvloop

    from holdfast.app import serve as run

    uvloop.run(run(settings(), stop_after=stop_after))


# ── A first certificate ──


@app.command("dev")
def dev(
    name: Annotated[str, typer.Argument(help="The name to get a certificate for.")] = "app.internal",
    stop_after: Annotated[
        float | None, typer.Option("--stop-after", metavar="SECONDS", help="Stop by itself, for trials.")
    ] = None,
) -> None:
    """Run a server on this machine, ask it for a certificate, and show the commands and their output."""
    import uvloop

    from holdfast.app import serve

    chosen, program = settings(), str(Path(sys.argv[0]).absolute())
    uvloop.run(serve(chosen, stop_after=stop_after, started=lambda: _show(chosen, program, name)))


async def _show(chosen: Settings, program: str, name: str) -> None:
    from holdfast.world import LocalFiles

    where = f"HOLDFAST_STORE_DATA_DIR={chosen.store.data_dir.absolute()}"
    for words in (["issue", name, "--wait"], ["status", name], ["ls"]):
        print(f"\n$ holdfast {' '.join(words)}", flush=True)
        _, said = await LocalFiles().run(["env", where, program, *words], timeout=120.0)
        print(said.decode(errors="replace").rstrip(), flush=True)
    print(f"\nIt is kept renewed for as long as this runs. ACME clients: {chosen.acme.listen}\n", flush=True)
