"""What every sender promises, whatever its service is like: each installed kind runs against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from tests.support.channel_remotes import REMOTES, Remote
from tests.support.messages import a_message
from tests.support.reaper import PATIENCE

from holdfast import plugins
from holdfast.core.notifications.notification import Why
from holdfast.errors import Refused, TryLater
from holdfast.notifiers.base import RATE_LIMITED, Sender
from holdfast.world import HttpTransport

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore:'imghdr' is deprecated")]
KINDS = sorted(plugins.kinds(plugins.NOTIFIERS))


def test_every_installed_kind_of_channel_has_a_fake_service() -> None:
    missing = sorted(set(KINDS) - set(REMOTES))
    assert missing == [], f"add a fake service for {', '.join(missing)} to tests/support/channel_remotes.py"


@pytest.fixture(params=KINDS)
async def remote(request: pytest.FixtureRequest) -> AsyncIterator[Remote]:
    if request.param not in REMOTES:
        pytest.fail(f"{request.param} has no fake service in tests/support/channel_remotes.py")
    transport = HttpTransport()
    async with REMOTES[request.param](transport) as found:
        yield found
    await transport.close()


async def ends_in(remote: Remote, sender: Sender) -> TryLater | Refused:
    """How sending fails, which it must, soon, and without a secret in words."""
    async with asyncio.timeout(PATIENCE):
        with pytest.raises((TryLater, Refused)) as why:
            await sender.send(a_message())
        await sender.close()
    said = f"{why.value} {why.value!r} {why.value.__cause__!r}"
    assert not [each for each in remote.secrets if each in said]
    return why.value


async def test_an_accepted_message_arrives_once_and_whole(remote: Remote) -> None:
    sender = remote.sender()
    assert await sender.send(a_message()) is None
    await sender.close()
    await sender.close()
    [came] = remote.came()
    assert "www.example.com could not be renewed" in came
    assert "The CA refused the order." in came


async def test_a_second_message_goes_the_same_way(remote: Remote) -> None:
    sender = remote.sender()
    await sender.send(a_message())
    await sender.send(a_message(id="notification_02", title="www.example.org could not be renewed"))
    await sender.close()
    assert ["www.example.org" in each for each in remote.came()] == [False, True]


async def test_a_refusal_is_final_and_names_the_channel(remote: Remote) -> None:
    remote.refuse()
    why = await ends_in(remote, remote.sender())
    assert str(why).startswith("Channel ops: ")
    if remote.tells_refusals:
        assert isinstance(why, Refused)
        assert why.reason in (Why.REFUSED, Why.CHANNEL_MISCONFIGURED)


async def test_too_many_messages_are_tried_later_at_the_time_that_the_service_names(remote: Remote) -> None:
    remote.limit()
    why = await ends_in(remote, remote.sender())
    assert isinstance(why, TryLater)
    if remote.tells_times:
        assert (why.after, why.reason) == (timedelta(seconds=77), RATE_LIMITED)


async def test_a_service_that_cannot_now_is_tried_later_and_works_again(remote: Remote) -> None:
    remote.fail()
    sender = remote.sender()
    why = await ends_in(remote, sender)
    assert (type(why), why.reason) == (TryLater, Why.CHANNEL_DOWN)
    before = len(remote.came())
    remote.accept()
    await sender.send(a_message())
    await sender.close()
    assert len(remote.came()) == before + 1


async def test_a_lost_answer_is_tried_later(remote: Remote) -> None:
    remote.lose()
    why = await ends_in(remote, remote.sender())
    assert (type(why), why.reason) == (TryLater, Why.CHANNEL_DOWN)


async def test_a_service_that_takes_its_time_does_not_take_ours(remote: Remote) -> None:
    remote.hang()
    why = await ends_in(remote, remote.hurried())
    assert (type(why), why.reason) == (TryLater, Why.CHANNEL_DOWN)


async def test_a_service_that_is_not_there_is_tried_later(remote: Remote) -> None:
    why = await ends_in(remote, remote.elsewhere())
    assert (type(why), why.reason) == (TryLater, Why.CHANNEL_DOWN)
    assert str(why).startswith("Channel ops: ")
