"""A desk with channels in tests: how they are added, and the engine's part that sends what they are owed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from holdfast.engine.notifications import delivery
from holdfast.world import SystemClock
from tests.support.api import Asker, Desk
from tests.support.inboxes import Inbox
from tests.support.secrets_planted import HOOK_KEY as KEY
from tests.support.secrets_planted import HOOK_PATH as PATH


def a_webhook(web: Inbox, name: str = "ops", **more: Any) -> dict[str, Any]:
    """What the API is asked for one whose receiver is `web`."""
    return {"name": name, "kind": "webhook", "credentials": {"url": web.url(PATH), "secret": KEY}, **more}


@asynccontextmanager
async def draining(desk: Desk) -> AsyncIterator[None]:
    """What is owed is sent, by the same way that a test takes."""
    house = desk.house
    services = delivery.DeliveryServices(
        db=house.db,
        make_sender=desk.services.post.open,  # type: ignore[arg-type]
        clock=SystemClock(),
        random=house.certificate_context.random,
        telemetry=house.watch.telemetry,
    )
    async with house.working(kinds=[delivery.kind(services)], only=True):
        yield


async def states(asker: Asker) -> dict[str, str]:
    return {each["id"]: each["state"] for each in (await asker.get("/notifications"))["items"]}
