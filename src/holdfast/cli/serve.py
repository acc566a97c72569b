"""`holdfast serve`: run a replica until it is told to stop."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.config import ConfigOption, settings

app = typer.Typer()


@app.command("serve")
def serve(
    config: ConfigOption = None,
    stop_after: Annotated[
        float | None, typer.Option("--stop-after", metavar="SECONDS", help="Stop by itself, for trials.")
    ] = None,
) -> None:
    """Run Holdfast: the engine, the ACME server, the API and the probes."""
    import uvloop

    from holdfast.app import serve as run

    uvloop.run(run(settings(config), stop_after=stop_after))
