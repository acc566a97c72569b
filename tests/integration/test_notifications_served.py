"""The same with real servers: mail and a web hook that are away for six hours, and for three days."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.ca import a_vault
from tests.support.engine import eventually
from tests.support.inboxes import Inbox, Mailbox
from tests.support.lifecycle import MovedClock
from tests.support.notifications import HOUR, Newsroom, a_newsroom
from tests.support.secrets_planted import SERVED_HOOK_KEY
from tests.support.stores import migrated, open_store

from holdfast.core.notifications.notification import WAITING
from holdfast.engine.notifications.senders import Senders
from holdfast.operations.notifications import channels, notifications
from holdfast.secret import Secret
from holdfast.store.sqlite import SqliteEngine
from holdfast.world import HttpTransport

pytestmark = pytest.mark.anyio
NAMES = [f"cert-{n:02}" for n in range(25)]
SIGNED_WITH = Secret(SERVED_HOOK_KEY.encode())


class Town:
    """A newsroom with a post office, and servers that can be closed and opened again at the same address."""

    def __init__(self, room: Newsroom, senders: Senders, clock: MovedClock) -> None:
        self.room, self.senders, self.clock = room, senders, clock
        self.mail, self.web = Mailbox(), Inbox()
        self._open = AsyncExitStack()

    async def open(self) -> None:
        await self._open.enter_async_context(self.mail)
        await self._open.enter_async_context(self.web)

    async def shut(self) -> None:
        await self._open.aclose()

    async def add_channels(self) -> None:
        letters = {
            "host": "127.0.0.1", "port": self.mail.port, "security": "none", "from": "h@example.com",
            "to": "ops@example.com",
        }  # fmt: skip
        self.room.post = self.senders
        await self.room.run(channels.add, name="mail", kind="email", settings=letters)
        given = {"url": self.web.url("/hook"), "secret": SERVED_HOOK_KEY}
        await self.room.run(channels.add, name="hook", kind="webhook", credentials=given)

    async def work(self) -> None:
        """Until both channels have been tried, and nobody is at work any more."""
        before = self.sends()

        async def rests() -> bool:
            tried = all(now > then for now, then in zip(self.sends(), before, strict=True))
            return tried and not await self.busy()

        async with self.room.running():
            await eventually(rests)

    async def busy(self) -> bool:
        under_way = "SELECT id FROM jobs WHERE kind = 'notify' AND (state <> 'ready' OR due_at <= now_us())"
        return bool(await self.room.db.read(lambda tx: tx.rows(under_way)))

    async def none_waits(self) -> bool:
        """But for what the channels are told of each other."""
        return all(each.state not in WAITING for each in await self.room.all(event="certificate.stranded"))

    def sends(self) -> list[float]:
        [counted] = [each.samples for each in self.room.watch.metrics.notification_deliveries.collect()]
        total = [sample for sample in counted if sample.name.endswith("_total")]
        return [sum(each.value for each in total if each.labels["channel"] == name) for name in ("mail", "hook")]

    async def pass_time(self, span: timedelta) -> None:
        self.clock.ahead += span

    async def letters_and_calls(self) -> tuple[Counter[str], Counter[str]]:
        """How often each notification came, by itself or as the line of a digest."""
        letters = [each.subject + each.text for each in self.mail.letters]
        calls = [each.body.decode() for each in self.web.requests]
        heard = {"mail": Counter[str](), "hook": Counter[str]()}
        for each in await self.room.all(event="certificate.stranded"):  # and not what one channel hears of the other
            heard[each.channel][each.subject] += sum(
                each.title in text for text in (letters if each.channel == "mail" else calls)
            )
        return heard["mail"], heard["hook"]


@asynccontextmanager
async def a_town(folder: Path) -> AsyncIterator[Town]:
    clock = MovedClock()
    db = open_store(SqliteEngine(folder / "holdfast.sqlite", clock), clock=clock, deadline=10)
    await migrated(db)
    secret_store = await a_vault(db, folder)
    transport = HttpTransport()
    senders = Senders(secret_store=secret_store, transport=transport, clock=clock)
    room = a_newsroom(db, clock=clock, vault=secret_store)
    room.boxes = senders  # type: ignore[assignment]  # the post office of this town
    town = Town(room, senders, clock)
    try:
        await town.open()
        await town.add_channels()
        yield town
    finally:
        await town.shut()
        await transport.close()
        await db.close()


async def test_servers_that_are_away_for_six_hours_get_all_of_it_once_within_the_hour(tmp_path: Path) -> None:
    async with a_town(tmp_path) as town:
        await town.shut()
        await town.room.fail(*NAMES)
        for _ in range(7):
            await town.work()
            await town.pass_time(HOUR)
        assert (await town.room.states())["dead"] == 0
        await town.open()
        await town.work()
        assert set(await town.room.states()) == {"sent"}
        mail, hook = await town.letters_and_calls()
        assert set(mail.values()) == set(hook.values()) == {1}
        assert len(mail) == len(hook) == len(NAMES)


async def test_servers_that_are_away_for_three_days_leave_dead_letters_and_a_requeue_delivers_them(
    tmp_path: Path,
) -> None:
    async with a_town(tmp_path) as town:
        await town.shut()
        await town.room.fail(*NAMES)
        for wait in (HOUR, 2 * HOUR, 72 * HOUR):
            await town.work()
            await town.pass_time(wait)
        async with town.room.running():
            await eventually(town.none_waits)
        dead = await town.room.all(state="dead", event="certificate.stranded")
        assert {(each.channel, each.subject) for each in dead} == {(c, n) for c in ("mail", "hook") for n in NAMES}
        assert {each.why for each in dead} == {"CHANNEL_DOWN"}
        await town.open()
        assert await notifications.requeue_all(town.room.db.write, actor="x") >= len(dead)
        await town.pass_time(HOUR)
        await town.work()
        mail, hook = await town.letters_and_calls()
        assert set(mail.values()) == set(hook.values()) == {1}
        assert set(await town.room.states()) == {"sent"}
