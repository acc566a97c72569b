"""`holdfast version`: of this program, and of the server."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast import __version__

app = typer.Typer()


@app.command()
def version(
    with_server: Annotated[bool, typer.Option("--with-server", help="And the server's; 10 if they differ.")] = False,
) -> None:
    """Print the version of this program."""
    print(__version__)
    if with_server:
        from holdfast.cli.installation.cluster import show_versions

        raise typer.Exit(show_versions())
