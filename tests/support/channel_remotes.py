"""A real server behind every kind of channel: the conformance suite of senders runs on these."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.notifiers.base import Sender
from holdfast.ports import Transport
from tests.support.inboxes import Answer, Inbox, Mailbox
from tests.support.messages import a_sender
from tests.support.ports import free_port
from tests.support.secrets_planted import GENIE_KEY, HIDDEN_PATH, HOOK_KEY, ROUTING_KEY, SMTP_PASSWORD

SOON = 0.2  # seconds that a sender waits, where its remote never answers


@dataclass(kw_only=True)
class Remote:
    """One service, and a sender for it. `answer` queues what the next message is told."""

    sender: Callable[[], Sender]
    hurried: Callable[[], Sender]  # one that waits for SOON only
    elsewhere: Callable[[], Sender]  # one whose service is not there
    came: Callable[[], list[str]]  # the messages that were accepted, as they came
    accept: Callable[[], None]
    refuse: Callable[[], None]  # for good, quoting what was sent
    limit: Callable[[], None]  # too many, for 77 s
    fail: Callable[[], None]  # it cannot now
    lose: Callable[[], None]  # the answer is lost
    hang: Callable[[], None]
    secrets: tuple[str, ...]
    tells_refusals: bool = True  # its library says why; else every failure is one to try again
    tells_times: bool = True  # it has a Retry-After


Open = Callable[[Transport], AbstractAsyncContextManager[Remote]]


@dataclass(frozen=True, slots=True)
class Http:
    """A kind that is posted to."""

    kind: str
    usual: Answer = field(default_factory=Answer)
    secrets: dict[str, str] = field(default_factory=dict)
    hidden_in_url: bool = True  # its address is a credential
    scheme: str = "http"

    @asynccontextmanager
    async def __call__(self, transport: Transport) -> AsyncIterator[Remote]:
        async with Inbox(self.usual) as web:
            remote = Remote(
                sender=lambda: self._sender(web.port, transport),
                hurried=lambda: _hurried(self._sender(web.port, transport)),
                elsewhere=lambda: self._sender(free_port(), transport),
                came=lambda: [each.body.decode() for each in web.requests],
                accept=web.answers.clear,
                refuse=lambda: web.answers.append(Answer(400, echo=True)),
                limit=lambda: web.answers.append(Answer(429, {"Retry-After": "77"})),
                fail=lambda: web.answers.append(Answer(503, echo=True)),
                lose=lambda: web.answers.append(Answer(hang_up=True)),
                hang=lambda: web.answers.append(Answer(never=True)),
                secrets=(*self.secrets.values(), *((HIDDEN_PATH,) if self.hidden_in_url else ())),
                tells_refusals=self.scheme == "http",
                tells_times=self.scheme == "http",
            )
            yield remote

    def _sender(self, port: int, transport: Transport) -> Sender:
        url = f"{self.scheme}://127.0.0.1:{port}{HIDDEN_PATH if self.hidden_in_url else '/v2'}"
        if self.hidden_in_url:
            return a_sender(self.kind, transport, secrets={"url": url, **self.secrets})
        return a_sender(self.kind, transport, settings={"url": url}, secrets=self.secrets)


def _hurried(sender: Any) -> Sender:
    if hasattr(sender, "line"):
        return replace(sender, line=replace(sender.line, deadline_for=SOON))
    return replace(sender, deadline_for=SOON)


@asynccontextmanager
async def _email(transport: Transport) -> AsyncIterator[Remote]:
    async with Mailbox(users={"u": SMTP_PASSWORD}) as mail, Inbox(Answer(never=True)) as silent:

        def sender(port: int = 0) -> Any:
            settings = {"host": "127.0.0.1", "port": port or mail.port, "security": "none", "username": "u"}
            settings |= {"from": "holdfast@example.com", "to": "ops@example.com"}
            return a_sender("email", transport, settings=settings, secrets={"password": SMTP_PASSWORD})

        hanging = False

        def hang() -> None:
            nonlocal hanging
            hanging = True

        def hurried() -> Any:
            made = sender(silent.port if hanging else 0)
            made.deadline_for = SOON
            return made

        yield Remote(
            sender=sender,
            hurried=hurried,
            elsewhere=lambda: sender(free_port()),
            came=lambda: [f"{each.subject}\n{each.text}" for each in mail.letters],
            accept=mail.answers.clear,
            refuse=lambda: mail.answers.append(f"554 not {SMTP_PASSWORD}"),
            limit=lambda: mail.answers.append("451 too many"),
            fail=lambda: mail.answers.append(f"421 {SMTP_PASSWORD} later"),
            lose=lambda: mail.answers.append("421 good-bye"),
            hang=hang,
            secrets=(SMTP_PASSWORD,),
            tells_times=False,
        )


REMOTES: dict[str, Open] = {
    "webhook": Http("webhook", secrets={"secret": HOOK_KEY}),
    "slack": Http("slack"),
    "teams": Http("teams", Answer(202, body=b"")),
    "pagerduty": Http(
        "pagerduty", Answer(202, body=b'{"status":"success"}'), {"routing_key": ROUTING_KEY}, hidden_in_url=False
    ),
    "opsgenie": Http("opsgenie", Answer(202, body=b'{"result":"ok"}'), {"api_key": GENIE_KEY}, hidden_in_url=False),
    "apprise": Http("apprise", scheme="json"),
    "email": _email,
}
