"""`holdfast dev`: the whole product on this machine, and a first certificate from its own CA."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.config import ConfigOption, settings

if TYPE_CHECKING:
    from holdfast.config import Settings

app = typer.Typer()


@app.command("dev")
def dev(
    name: Annotated[str, typer.Argument(help="The name to get a certificate for.")] = "app.internal",
    config: ConfigOption = None,
    stop_after: Annotated[
        float | None, typer.Option("--stop-after", metavar="SECONDS", help="Stop by itself, for trials.")
    ] = None,
) -> None:
    """Run Holdfast, ask it for a certificate, and show what it says: by the commands that anybody would type."""
    import uvloop

    from holdfast.app import serve

    chosen, program = settings(config), str(Path(sys.argv[0]).absolute())
    uvloop.run(serve(chosen, stop_after=stop_after, started=lambda: _show(chosen, program, name)))


async def _show(chosen: Settings, program: str, name: str) -> None:
    from holdfast.world import LocalFiles

    where = f"HOLDFAST_STORE_DATA_DIR={chosen.store.data_dir.absolute()}"
    for words in (["issue", name, "--wait"], ["status", name], ["ls"]):
        print(f"\n$ holdfast {' '.join(words)}", flush=True)
        _, said = await LocalFiles().run(["env", where, program, *words], timeout=120.0)
        print(said.decode(errors="replace").rstrip(), flush=True)
    print(f"\nIt is kept renewed for as long as this runs. ACME clients: {chosen.acme.listen}\n", flush=True)
