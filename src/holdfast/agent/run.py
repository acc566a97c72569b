"""The loop of an agent: long polls, its own identity renewed in time, and a way back from anywhere."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast.agent.evidence import evidence
from holdfast.agent.identity import Membership, renewal_due
from holdfast.agent.items import Worker
from holdfast.agent.log import AgentLog
from holdfast.agent.server import Server, ServerRefused
from holdfast.agent.state import Enrolled
from holdfast.core import base64url
from holdfast.core.agents import protocol
from holdfast.core.backoff import AGENT_RECONNECT, AGENT_RENEWAL
from holdfast.errors import TryLater, UserError

STATUS: Final = "status.json"
UNKNOWN_EVERY: Final = 86_400.0  # seconds: a deleted agent asks once a day whether it is known again
CLONED_EVERY: Final = 300.0
BUSY_FOR: Final = 20.0  # seconds that work may take before the server is told that we are still there
TICK: Final = 60.0  # seconds: longer waits are looked at again, so that a host that slept wakes in time
ENDS: Final = {"banned": "This agent is banned: it asks no more.", "retired": "This agent is retired."}
LOST: Final = frozenset({"identity-expired", "identity-unknown", "identity-superseded"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How waits are spread; trials use shorter ones."""

    start: float = 30.0  # seconds over which agents begin that start together
    reconnect: float = 120.0  # seconds over which agents come back that lost their server together
    watch: timedelta = timedelta(minutes=10)  # how often an agent without its server looks at what it serves


@dataclass(slots=True, kw_only=True)
class AgentLoop:
    membership: Membership
    log: AgentLog
    worker: Worker
    pace: Pace = field(default_factory=Pace)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    _session: str = ""
    _watched: datetime | None = None  # when it last looked for itself
    _failures: int = 0
    _met: bool = False  # the server has answered this process
    _renewal_failures: int = 0
    _renew_after: datetime | None = None

    async def run(self) -> int:
        """Until it is told to stop, banned or retired; the exit code."""
        state = self.membership.folder.load()
        self._session = base64url.encode(self.membership.random.token(12))
        server = self.membership.server_of(state)
        self.worker.load()
        working = asyncio.ensure_future(self.worker.work())
        try:
            return await self._loop(state, server)
        finally:
            working.cancel()

    async def _loop(self, state: Enrolled, server: Server) -> int:
        self.log("started", name=state.name, agent=state.agent, generation=state.generation, server=state.urls[0])
        await self._wait(self.pace.start * state.jitter)
        while not self.stop.is_set():
            try:
                state = await self._round(state, server)
                self._failures = 0
            except ServerRefused as refused:
                if refused.code in ENDS:
                    self._tell(state, error=str(refused), code=refused.code)
                    self.log(refused.code, why=ENDS[refused.code], served="what this host serves stays as it is")
                    return 0
                state = await self._refused(state, server, refused)
            except TryLater as why:
                await self._failed(state, str(why))
        return 0

    async def _round(self, state: Enrolled, server: Server) -> Enrolled:
        """The server judges an identity first, by its own clock: ours may be wrong by years."""
        if not self.worker.idle.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BUSY_FOR):
                    await self.worker.idle.wait()
        body = self._body(state)
        signer = self.membership.signer(state)
        told = await server.ask(protocol.POLL, body, signer=signer, within=state.poll_s + 30.0)
        state, self._met = self._heard(state, server, told), True
        now = self._now(server)
        if renewal_due(state, now) and (self._renew_after is None or now >= self._renew_after):
            state = await self._renewed(state, server)
        return state

    def _body(self, state: Enrolled) -> dict[str, Any]:
        results = self.worker.results()
        return {
            "protocol": protocol.PROTOCOL,
            "session": self._session,
            "evidence": evidence(self.membership.folder.files),
            "results": results,
            "running": sorted(self.worker.running),
            "wait_s": state.poll_s if self._met and not (self._failures or results or self.worker.running) else 0,
        }

    def _heard(self, state: Enrolled, server: Server, told: dict[str, Any]) -> Enrolled:
        self._tell(state, last_contact=True)
        self.worker.acknowledged(told.get("ack"))
        self.worker.accept(state, told.get("work"))
        poll = told.get("poll_s")
        after = replace(
            state,
            offset_s=server.offset,
            poll_s=float(poll) if isinstance(poll, int | float) and 0 < poll <= 900 else state.poll_s,
        )
        if after != state:
            self.membership.folder.save(after)
        return after

    # ── Its own identity ──

    async def _renewed(self, state: Enrolled, server: Server) -> Enrolled:
        try:
            after = await self.membership.renew(state, server, self.membership.signer(state))
        except (TryLater, ServerRefused) as why:
            if isinstance(why, ServerRefused) and (why.code in ENDS or why.code in LOST):
                raise
            self._renewal_failures += 1
            self._renew_after = self._now(server) + AGENT_RENEWAL.wait(self._renewal_failures, state.agent)
            self.log("not_renewed", why=str(why), again=self._renew_after.isoformat())
            return state
        self._renewal_failures, self._renew_after = 0, None
        self.log("renewed", generation=after.generation)
        return after

    async def _recovered(self, state: Enrolled, server: Server, why: str) -> Enrolled:
        self.log("recovering", why=why)
        after = await self.membership.recover(state, server)
        self.log("recovered", generation=after.generation)
        return after

    async def _refused(self, state: Enrolled, server: Server, refused: ServerRefused) -> Enrolled:
        if refused.code in LOST:
            try:
                return await self._recovered(state, server, refused.code)
            except (TryLater, ServerRefused) as why:
                if isinstance(why, ServerRefused) and why.code in ENDS:
                    raise
                await self._failed(state, str(why), _asked(why))
                return state
        waits = {"agent-unknown": UNKNOWN_EVERY, "cloned": CLONED_EVERY}
        await self._failed(state, str(refused), waits.get(refused.code, _asked(refused)))
        return state

    # ── Waiting ──

    async def _failed(self, state: Enrolled, why: str, asked: float | None = None) -> None:
        """The first wait is this agent's own share of the spread, drawn once and kept; then the ladder."""
        self._failures += 1
        wait = AGENT_RECONNECT.wait(self._failures, state.agent).total_seconds()
        if self._failures == 1:
            wait = self.pace.reconnect * state.jitter
        wait = wait if asked is None else asked
        self._tell(state, error=why, again_s=wait)
        self.log("unanswered", why=why, again_s=round(wait))
        if self._watched is None or self.membership.clock.now() - self._watched >= self.pace.watch:
            self._watched = self.membership.clock.now()
            await self.worker.without_server()
        await self._wait(wait)

    async def _wait(self, seconds: float) -> None:
        """In ticks by the wall clock: a host that slept for a day has waited for a day."""
        until = self.membership.clock.now() + timedelta(seconds=seconds)
        while not self.stop.is_set() and (left := (until - self.membership.clock.now()).total_seconds()) > 0:
            try:
                async with asyncio.timeout(min(left, TICK)):
                    await self.stop.wait()
            except TimeoutError:
                continue

    def _now(self, server: Server) -> datetime:
        return self.membership.clock.now() + timedelta(seconds=server.offset)

    def _tell(self, state: Enrolled, **facts: Any) -> None:
        """For `holdfast agent status`, which asks nobody."""
        now = self.membership.clock.now().isoformat()
        content = {"at": now, "agent": state.agent, "generation": state.generation, **facts}
        folder = self.membership.folder
        try:
            folder.files.write_private(folder.path / STATUS, json.dumps(content).encode(), replace=True)
        except OSError as error:
            self.log("status_not_written", why=str(error))


def _asked(why: Exception) -> float | None:
    return why.retry_after if isinstance(why, ServerRefused) else None


async def wait_for_approval(membership: Membership, log: AgentLog, token: Any, name: str) -> Enrolled:
    """Ask again until a person has approved this agent."""
    from holdfast.agent.identity import Pending

    while isinstance(done := await membership.enrol(token, name), Pending):
        log("pending", fingerprint=done.fingerprint, next=f"holdfast agent approve {name}, by a person")
        await membership.clock.sleep(done.retry_after)
    return done


class NoName(UserError):
    code, hint = "agent-name", "Give it one: --name NAME"
