"""Have a verb about many certificates carried out: on this machine, or by the server that is meant."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from holdfast.cli import client
from holdfast.cli.client import Client
from holdfast.cli.config import settings
from holdfast.cli.reaching import ask

Args = dict[str, Any]


def carried_out(config: Path | None, server: str | None, verb: str, **args: Any) -> Any:
    """What is read from local files is sent along: the other server never sees them."""
    chosen = settings(config)
    there = server or client.away(chosen)
    if not there and not client.token_set():
        return asyncio.run(ask(chosen, verb, **args))
    with client.elsewhere(there) if there else client.local(chosen) as line:
        return _ELSEWHERE[verb](line, args)


def _post(path: str) -> Callable[[Client, Args], Any]:
    def asked(line: Client, args: Args) -> Any:
        dry_run = args.pop("dry_run", False)
        return line.post(path, args, dry_run=dry_run)

    return asked


def _export(line: Client, args: Args) -> Any:
    return line.get("/desired", label=[f"{name}={value}" for name, value in args["scope"].items()])


_ELSEWHERE: Final[Mapping[str, Callable[[Client, Args], Any]]] = {
    "desired.plan": _post("/desired/plan"),
    "desired.apply": _post("/desired/apply"),
    "desired.export": _export,
    "import.account": _post("/imports/account"),
    "import.certificates": _post("/imports/certificates"),
}
