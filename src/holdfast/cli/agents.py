"""`holdfast agent`: commands on a host that is an agent. What people decide about agents is derived from operations."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from holdfast.errors import UserError

if TYPE_CHECKING:
    from holdfast.agent.identity import Membership
    from holdfast.agent.token_file import TokenText

app = typer.Typer(name="agent", help="Run an agent on this host; let agents in, list, ban and retire them.")
tokens = typer.Typer(name="token", help="Tokens that let agents in: create, list and revoke; read one offline.")
app.add_typer(tokens)
TOKEN_VARIABLE: Final = "HOLDFAST_AGENT_TOKEN"  # noqa: S105  (its name, not its value)
STATE_VARIABLE: Final = "HOLDFAST_AGENT_STATE"
STATE: Final = "/var/lib/holdfast-agent"
State = Annotated[
    Path | None, typer.Option("--state", metavar="DIR", help=f"Folder of its keys; ${STATE_VARIABLE}, or {STATE}.")
]
TokenFile = Annotated[
    str, typer.Option("--token-file", metavar="FILE", help=f"File of the token, - for stdin; else ${TOKEN_VARIABLE}.")
]

CONFIG: Final = Path("/etc/holdfast/agent.toml")
HostFile = Annotated[Path, typer.Option("--host-file", metavar="FILE", help="What may be done on this host.")]


def _state(given: Path | None) -> Path:
    found = given or os.environ.get(STATE_VARIABLE) or os.environ.get("STATE_DIRECTORY") or STATE
    return Path(found).absolute()


def _token(file: str) -> TokenText:
    """Never from an argument: those are shown by ps, and kept by shells."""
    from holdfast.agent.token_file import read
    from holdfast.machine import LocalFiles

    if file == "-":
        return read(sys.stdin.read(8192))
    if file:
        return read((LocalFiles().read(Path(file)) or b"").decode(errors="replace"))
    return read(os.environ.get(TOKEN_VARIABLE, ""))


def _membership(state: Path) -> Membership:
    from holdfast.agent.identity import Membership
    from holdfast.agent.line import AgentTransport
    from holdfast.agent.state import AgentFolder
    from holdfast.machine import LocalFiles, SystemRandom
    from holdfast.system_clock import SystemClock

    folder = AgentFolder(path=state, files=LocalFiles())
    return Membership(folder=folder, transport=AgentTransport(), clock=SystemClock(), random=SystemRandom())


@tokens.command("show")
def show(file: TokenFile = "") -> None:
    """Show what an agent token says, without its secret. No server is asked."""
    found = _token(file)
    print(f"server  {', '.join(found.urls)}")
    print(f"pin     sha256:{found.pin}")
    print(f"id      {found.id}")
    print(f"TLS     {'the roots of this host' if found.system_roots else 'the root with this pin'}")


@app.command("enrol")
def enrol(
    file: TokenFile = "",
    name: Annotated[str, typer.Option("--name", help="Name of the agent; left out: the host's name.")] = "",
    state: State = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until a person has approved it.")] = True,
) -> None:
    """Enrol this host as an agent. Repeat it if it was cut off: it is the same agent."""
    from holdfast.agent.evidence import hostname
    from holdfast.agent.identity import Pending
    from holdfast.agent.log import AgentLog
    from holdfast.agent.run import wait_for_approval
    from holdfast.errors import TryLater

    token, membership = _token(file), _membership(_state(state))
    chosen = name or hostname(membership.folder.files).lower()
    try:
        if wait:
            done = asyncio.run(wait_for_approval(membership, AgentLog(membership.clock), token, chosen))
        else:
            found = asyncio.run(membership.enrol(token, chosen))
            if isinstance(found, Pending):
                print(f"Agent {chosen} waits for approval. Its fingerprint: {found.fingerprint}")
                raise typer.Exit(3)
            done = found
    except TryLater as why:
        raise UserError(f"The server cannot be reached: {why}.") from None
    print(f"This host is agent {done.name} ({done.agent}). Run it: holdfast agent run --state {membership.folder.path}")


@app.command("run")
def run(
    state: State = None,
    host_file: HostFile = CONFIG,
    start_within: Annotated[float, typer.Option(help="Seconds over which agents begin that start together.")] = 30.0,
    reconnect_within: Annotated[
        float, typer.Option(help="Seconds over which agents come back that lost their server together.")
    ] = 120.0,
) -> None:
    """Run the agent of this host. It asks the server for work, and is asked nothing itself."""
    spread = ["--start-within", str(start_within), "--reconnect-within", str(reconnect_within)]
    given = ["--state", str(_state(state)), "--host-file", str(host_file.absolute())]
    program = [sys.executable, "-m", "holdfast.agent", *given, *spread]
    os.execv(sys.executable, program)  # noqa: S606  a process of its own: it needs nothing of what commands load


@app.command("status")
def status(state: State = None) -> None:
    """Show what this host's agent last did and what it does next. No server is asked."""
    import json

    from holdfast.agent.run import STATUS
    from holdfast.agent.state import lived
    from holdfast.core.agents.protocol import fingerprint_words
    from holdfast.pki import agent_keys, keys

    folder = _membership(_state(state)).folder
    found = folder.load()
    binding = keys.spki_sha256(agent_keys.public_der(folder.binding())).hex()
    begins, ends = lived(found.chain)
    print(f"agent        {found.name} ({found.agent})")
    print(f"server       {', '.join(found.urls)}")
    print(f"fingerprint  {fingerprint_words(binding)}")
    print(f"identity     generation {found.generation}, {begins:%F %T}Z to {ends:%F %T}Z")
    told = json.loads(folder.files.read(folder.path / STATUS) or b"{}")
    if told.get("last_contact"):
        print(f"last answer  {told['at']}")
    elif told.get("error"):
        again = f"; asked again after {told['again_s']:.0f} s" if "again_s" in told else ""
        print(f"no answer    since {told['at']}: {told['error']}{again}")
    else:
        print("last answer  none yet: run it with holdfast agent run")


@app.command("doctor")
def doctor(state: State = None, host_file: HostFile = CONFIG) -> None:
    """Look for problems of this host's agent: keys, identity, clock, its file, and what its endpoints serve.

    No server is asked. It exits with 10 if there is something to do.
    """
    from datetime import timedelta

    from holdfast.agent.items import Worker
    from holdfast.agent.log import AgentLog
    from holdfast.agent.state import BINDING, SEALING, lived

    membership = _membership(_state(state))
    folder, clock = membership.folder, membership.clock
    found = folder.load()
    problems: list[str] = []
    for each in (BINDING, SEALING, folder.identity_file(found.generation).name):
        if folder.files.read(folder.path / each) is None:
            problems.append(f"{folder.path / each} is missing.")
        elif folder.files.mode(folder.path / each) & 0o077:
            problems.append(f"{folder.path / each} can be read by others: chmod 600.")
    ends, now = lived(found.chain)[1], clock.now() + timedelta(seconds=found.offset_s)
    if now >= ends:
        problems.append(f"The identity expired at {ends:%F %T}Z. It recovers by itself once the server answers.")
    if abs(found.offset_s) > 300:
        problems.append(f"CLOCK_SKEW: the server's clock is {found.offset_s:+.0f} s ahead of this host's.")
    worker = Worker(folder=folder, config=host_file.absolute(), log=AgentLog(clock), clock=clock)
    asked = {"config": str(host_file.absolute()), "target": "", "call": "watch", "body": {}, "keys": {}}
    result = asyncio.run(worker.carry_out(asked))
    if not result.get("ok"):
        problems.append(str(result.get("why")))
    for each in result.get("data", {}).get("seen", []):
        if each.get("problem"):
            place = " ".join(filter(None, (each["target"], each.get("endpoint", ""))))
            problems.append(f"Target {place}: {each.get('why') or each['problem']}")
    for problem in problems:
        print(problem)
    print(f"{len(problems)} problems." if problems else f"Agent {found.name} has no problems that can be seen here.")
    raise typer.Exit(10 if problems else 0)


@app.command("reset")
def reset(state: State = None) -> None:
    """Forget who this host is, so that it can enrol anew: for the copy of a host. Served files stay as they are."""
    from holdfast.agent.state import BINDING, FILE, NEXT, SEALING

    folder = _membership(_state(state)).folder
    found = folder.load()
    kept = [folder.identity_file(each).name for each in range(max(found.generation - 2, 0), found.generation + 1)]
    for each in (FILE, BINDING, SEALING, NEXT, *kept):
        folder.files.remove_within(folder.path, each)
    print(f"This host is not agent {found.name} any more. Enrol it: holdfast agent enrol --token-file FILE")
