"""`holdfast challenge test`: test from this machine what a CA would see of a name, before an order is placed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.calling import connected
from holdfast.cli.everywhere import FINDINGS, Row, chosen
from holdfast.cli.installation.config import settings
from holdfast.cli.installation.doctor import show
from holdfast.cli.terminal import say
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
) -> None:
    """Check what the solver of a name needs: addresses and web server, or the DNS zone; and CAA. Nothing is ordered.

    Exit code 10: something is wrong.
    """
    import asyncio

    names, here = _names(name), settings()
    found = asyncio.run(_look(here, names, _solvers(here)))
    rows = [(each, finding) for each, findings in zip(names, found, strict=True) for finding in findings]
    if show(rows):
        raise typer.Exit(FINDINGS)
    say(f"Nothing is in the way. Try it: holdfast renew {name} --wait")


def _names(name: str) -> list[str]:
    """The names of the certificate; without such a certificate or a server, the name itself."""
    try:
        with connected() as client:
            return [str(each) for each in client.get(f"/certificates/{name}")["names"]]
    except UserError as why:
        if why.status not in (404, 503):
            raise
        return [name.strip().lower()]


def _solvers(here: Settings) -> list[Row] | None:
    """As this machine's server has them; None if another one is asked."""
    from holdfast.cli.certificates.imports import solvers_of
    from holdfast.cli.client import named_elsewhere

    return None if chosen().server or named_elsewhere(here) else solvers_of(here.keeping.solvers_file)


async def _look(here: Settings, names: Sequence[str], solvers: Sequence[Row] | None) -> list[list[Finding]]:
    import asyncio

    from holdfast.cli.installation.doctor import resolvers
    from holdfast.network import SystemNet
    from holdfast.solvers.preflight import Preflight
    from holdfast.validators.verdict import ValidationSettings
    from holdfast.world import SystemClock, SystemRandom

    acme = here.acme
    looks = ValidationSettings(
        resolvers=resolvers(here),
        http_port=acme.http_port,
        allowed_networks=acme.networks,
        timeout=acme.validation_timeout.total_seconds(),
    )
    preflight = Preflight(net=SystemNet(), clock=SystemClock(), random=SystemRandom(), looks=looks, solvers=solvers)
    return list(await asyncio.gather(*(preflight.look(each) for each in names)))
