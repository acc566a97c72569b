"""`holdfast challenge test`: what a CA would see of a name, looked at from this machine before anybody asks a CA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.calling import ServerOption, connected
from holdfast.cli.config import ConfigOption, settings
from holdfast.cli.findings import FINDINGS, show
from holdfast.cli.terminal import FormatOption, say
from holdfast.errors import UserError

if TYPE_CHECKING:
    from holdfast.config import Settings
    from holdfast.core.finding import Finding

app = typer.Typer(name="challenge", help="See from here what a CA would see of a name.")


@app.callback()
def group() -> None:
    """Keep `test` a subcommand although it is the only one."""


@app.command("test")
def look(
    name: Annotated[str, typer.Argument(metavar="CERT", help="A certificate, or any DNS name.")],
    config: ConfigOption = None,
    server: ServerOption = None,
    output: FormatOption = "table",
) -> None:
    """Look at what its solver needs: addresses and web server, or the zone; and at CAA. Nothing is ordered.

    Exit code 10: something is wrong.
    """
    import asyncio

    names, chosen = _names(config, server, name), settings(config)
    found = asyncio.run(_look(chosen, names, _solvers(chosen, server)))
    rows = [(each, finding) for each, findings in zip(names, found, strict=True) for finding in findings]
    if show(rows, output):
        raise typer.Exit(FINDINGS)
    say(f"Nothing is in the way. Try it: holdfast renew {name} --wait")


def _names(config: Path | None, server: str | None, name: str) -> list[str]:
    """Those of the certificate; if there is none, or nobody to ask, the name itself."""
    try:
        with connected(config, server) as client:
            return [str(each) for each in client.get(f"/certificates/{name}")["names"]]
    except UserError as why:
        if why.status not in (404, 503):
            raise
        return [name.strip().lower()]


def _solvers(chosen: Settings, server: str | None) -> list[Mapping[str, Any]] | None:
    """As this machine's server has them; None if another one is asked."""
    from holdfast.cli.client import named_elsewhere
    from holdfast.cli.importing_notes import solvers_of

    return None if server or named_elsewhere(chosen) else solvers_of(chosen.keeping.solvers_file)


async def _look(
    chosen: Settings, names: Sequence[str], solvers: Sequence[Mapping[str, Any]] | None
) -> list[list[Finding]]:
    import asyncio

    from holdfast.cli.resolvers import resolvers
    from holdfast.network import SystemNet
    from holdfast.solvers.preflight import Preflight
    from holdfast.validators.verdict import ValidationSettings
    from holdfast.world import SystemClock, SystemRandom

    acme = chosen.acme
    looks = ValidationSettings(
        resolvers=resolvers(chosen),
        http_port=acme.http_port,
        allowed_networks=acme.networks,
        timeout=acme.validation_timeout.total_seconds(),
    )
    preflight = Preflight(net=SystemNet(), clock=SystemClock(), random=SystemRandom(), looks=looks, solvers=solvers)
    return list(await asyncio.gather(*(preflight.look(each) for each in names)))
