"""Every kind of channel against a real server: what it sends, what answers mean, what it never says."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support.hostile_texts import HOSTILE
from tests.support.inboxes import Answer, Identity, Inbox, Mailbox, well_signed
from tests.support.messages import AT, a_message, a_sender, senders
from tests.support.secrets_planted import GENIE_KEY, MARK, ROUTING_KEY, SMTP_PASSWORD
from tests.support.secrets_planted import HIDDEN_PATH as PATH
from tests.support.secrets_planted import HOOK_KEY as KEY
from tests.support.secrets_planted import OLD_HOOK_KEY as OLD_KEY

from holdfast import plugins
from holdfast.core.notifications.notification import DIGEST_LINES, Severity
from holdfast.errors import Refused, TryLater
from holdfast.notifiers.apprise import AppriseSender
from holdfast.notifiers.base import Sender
from holdfast.notifiers.email import MOST_LETTERS
from holdfast.secret import Secret
from holdfast.webhook_signature import signature, signing_key
from holdfast.world import HttpTransport, SystemClock

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore:'imghdr' is deprecated")]
SENTINELS = (MARK, KEY.removeprefix("whsec_")[:8])
OVER_HTTP = ("webhook", "slack", "teams", "pagerduty", "opsgenie")


def usual(kind: str) -> Answer:
    """What the real service says when it takes a message."""
    told = {"slack": b"ok", "teams": b"", "pagerduty": b'{"status":"success"}', "opsgenie": b'{"result":"ok"}'}
    return Answer(200 if kind in ("slack", "webhook", "apprise") else 202, body=told.get(kind, b""))


@pytest.fixture
async def transport() -> AsyncIterator[HttpTransport]:
    found = HttpTransport()
    yield found
    await found.close()


def to(kind: str, web: Inbox, transport: HttpTransport, **settings: Any) -> Sender:
    """A channel of this kind whose service is `web`."""
    secrets = {
        "webhook": {"url": web.url(PATH), "secret": KEY},
        "slack": {"url": web.url(PATH)},
        "teams": {"url": web.url(PATH)},
        "pagerduty": {"routing_key": ROUTING_KEY},
        "opsgenie": {"api_key": GENIE_KEY},
        "apprise": {"url": web.url(PATH).replace("http://", "json://")},
    }[kind]
    if kind in ("pagerduty", "opsgenie"):
        settings["url"] = web.url("/v2")
    return a_sender(kind, transport, settings=settings, secrets=secrets)


def by_mail(mail: Mailbox, transport: HttpTransport, password: str = "", **settings: Any) -> Sender:
    given = {"host": "127.0.0.1", "port": mail.port, "security": "none", "from": "holdfast@example.com"}
    given |= {"to": ["ops@example.com", "oncall@example.com"], **settings}
    return a_sender("email", transport, settings=given, secrets={"password": password} if password else {})


async def told(sender: Sender, **changes: Any) -> Exception:
    """What sending ends in."""
    with pytest.raises((TryLater, Refused)) as caught:
        await sender.send(a_message(**changes))
    await sender.close()
    assert not [each for each in SENTINELS if each in f"{caught.value} {caught.value!r} {caught.value.__cause__!r}"]
    return caught.value


# ── What is sent ──


async def test_a_webhook_is_signed_and_says_all_in_fields(transport: HttpTransport) -> None:
    async with Inbox() as web:
        await to("webhook", web, transport).send(a_message())
        [call] = web.requests
        now = SystemClock().now().timestamp()
        assert (call.method, call.path, call.headers["webhook-id"]) == ("POST", PATH, "notification_01")
        assert well_signed(call, KEY, now=now)
        assert not well_signed(call, OLD_KEY, now=now)
        assert not well_signed(call, KEY, now=now + 301)
        assert not well_signed(replace(call, body=call.body + b" "), KEY, now=now)
        data = call.json()["data"]
        assert (call.json()["type"], call.json()["timestamp"]) == ("issuance.failed", AT.isoformat())
        assert (data["severity"], data["subject"], data["reason_code"]) == ("critical", "www.example.com", "CA_REFUSED")
        assert data["lines"] == ["The CA refused the order.", "It is tried again in an hour."]
        assert data["next"] == "holdfast explain www.example.com"


def test_a_signature_is_that_of_the_reference_implementations() -> None:
    key = signing_key(Secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"))
    made = signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", b'{"test": 2432232314}')
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


async def test_while_a_secret_is_changed_both_are_good(transport: HttpTransport) -> None:
    async with Inbox() as web:
        secrets = {"url": web.url(PATH), "secret": KEY, "old_secret": OLD_KEY}
        await a_sender("webhook", transport, secrets=secrets).send(a_message())
        now = SystemClock().now().timestamp()
        assert well_signed(web.requests[0], KEY, now=now)
        assert well_signed(web.requests[0], OLD_KEY, now=now)


async def test_a_repetition_has_the_same_id_and_content(transport: HttpTransport) -> None:
    async with Inbox() as web, Mailbox() as mail:
        for sender in (to("webhook", web, transport), by_mail(mail, transport)):
            await sender.send(a_message())
            await sender.send(a_message(attempt=2))
            await sender.close()
        assert [call.headers["webhook-id"] for call in web.requests] == ["notification_01"] * 2
        assert web.requests[0].body == web.requests[1].body
        assert [letter.message["Message-ID"] for letter in mail.letters] == ["<notification_01@example.com>"] * 2
        assert mail.letters[0].text == mail.letters[1].text


async def test_slack_gets_blocks_of_plain_text(transport: HttpTransport) -> None:
    async with Inbox() as web:
        await to("slack", web, transport).send(a_message())
        content = web.requests[0].json()
        assert content["text"] == "🔴 [critical] www.example.com could not be renewed"
        assert {each["type"] for each in content["blocks"]} == {"header", "section", "actions"}
        texts = [each["text"] for each in content["blocks"] if "text" in each]
        assert {each["type"] for each in texts} == {"plain_text"}
        assert "Next: holdfast explain www.example.com" in texts[-1]["text"]
        assert content["blocks"][-1]["elements"][0]["url"].startswith("https://holdfast.example.com/")


async def test_teams_gets_a_card_in_which_no_markdown_is_read(transport: HttpTransport) -> None:
    async with Inbox(Answer(202, body=b"")) as web:
        await to("teams", web, transport).send(a_message())
        [attachment] = web.requests[0].json()["attachments"]
        assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
        card = attachment["content"]
        assert {each["type"] for each in card["body"]} == {"RichTextBlock"}
        assert {run["type"] for each in card["body"] for run in each["inlines"]} == {"TextRun"}
        assert card["body"][0]["inlines"][0]["text"] == "[critical] www.example.com could not be renewed"


async def test_pagerduty_opens_one_incident_and_resolves_it(transport: HttpTransport) -> None:
    async with Inbox(Answer(202, body=b'{"status":"success"}')) as web:
        sender = to("pagerduty", web, transport)
        await sender.send(a_message())
        await sender.send(a_message(id="notification_02", resolved=True, title="www.example.com is fine again"))
        first, last = (call.json() for call in web.requests)
        assert (first["event_action"], last["event_action"]) == ("trigger", "resolve")
        assert first["dedup_key"] == last["dedup_key"] == "issuance.www.example.com"
        assert first["routing_key"] == ROUTING_KEY
        assert first["payload"]["severity"] == "critical"
        assert first["payload"]["summary"] == "www.example.com could not be renewed"


async def test_opsgenie_opens_one_alert_and_closes_it(transport: HttpTransport) -> None:
    async with Inbox(Answer(202, body=b'{"result":"Request will be processed"}')) as web:
        sender = to("opsgenie", web, transport)
        await sender.send(a_message())
        await sender.send(a_message(resolved=True))
        first, last = web.requests
        assert first.headers["authorization"] == f"GenieKey {GENIE_KEY}"
        assert (first.path, first.json()["alias"], first.json()["priority"]) == (
            "/v2",
            "issuance.www.example.com",
            "P1",
        )
        assert last.target == "/v2/issuance.www.example.com/close?identifierType=alias"


async def test_apprise_reaches_its_target_off_the_loop(transport: HttpTransport) -> None:
    async with Inbox() as web:
        await to("apprise", web, transport).send(a_message(severity=Severity.WARNING))
        [call] = web.requests
        assert call.path.startswith(PATH)
        assert call.json()["title"] == "⟦warning⟧ www.example.com could not be renewed"
        assert "The CA refused the order.\nIt is tried again" in call.json()["message"]
        assert call.json()["type"] == "warning"


@pytest.mark.parametrize(("asked", "parts"), [("", 2), ("?overflow=truncate", 1)], ids=["not-said", "said"])
async def test_what_is_too_long_for_a_service_of_apprise_comes_in_parts(asked: str, parts: int) -> None:
    """Unless its address says otherwise. This one takes 4000 characters."""
    async with Inbox() as web:
        url = Secret(web.url("").replace("http://", "mmost://") + "/3ccdd113474722377935511fc85d3dd4" + asked)
        await AppriseSender(channel="ops", url=url).send(a_message(text="\n".join(["x" * 110] * 50)))
        assert len(web.requests) == parts
        assert max(len(each.json()["text"]) for each in web.requests) <= 4000


async def test_a_letter_has_the_headers_that_mail_servers_expect(transport: HttpTransport) -> None:
    async with Mailbox() as mail:
        sender = by_mail(mail, transport)
        await sender.send(a_message())
        await sender.send(a_message(id="notification_02", resolved=True))
        await sender.close()
        letter, over = mail.letters
        found = letter.message
        assert (letter.sender, letter.recipients) == ("holdfast@example.com", ["ops@example.com", "oncall@example.com"])
        assert str(found["From"]) == "Holdfast <holdfast@example.com>"
        assert str(found["To"]) == "ops@example.com, oncall@example.com"
        assert found["Subject"] == "[critical] www.example.com could not be renewed"
        assert abs(parsedate_to_datetime(found["Date"]) - SystemClock().now()) < timedelta(minutes=5)
        assert (found["Auto-Submitted"], found["Importance"]) == ("auto-generated", "high")
        assert found.get_content_type() == "text/plain"
        assert found["References"] == over.message["References"]
        assert over.message["Importance"] is None
        assert over.subject.startswith("[resolved] ")
        assert "reason   CA_REFUSED (The CA refused the order)" in letter.text
        assert "Next: holdfast explain www.example.com" in letter.text
        assert mail.greeted == ["example.com"]  # one connection for both
        assert max(map(len, letter.content.split(b"\r\n"))) <= 998


@pytest.mark.parametrize("safety", ["starttls", "tls"])
async def test_letters_go_encrypted_and_with_a_password(transport: HttpTransport, safety: str) -> None:
    async with Mailbox(safety=safety, users={"holdfast": SMTP_PASSWORD}) as mail:  # type: ignore[arg-type]
        assert mail.identity is not None
        more = {"security": safety, "roots": mail.identity.roots, "username": "holdfast"}
        sender = by_mail(mail, transport, password=SMTP_PASSWORD, **more)
        await sender.send(a_message())
        await sender.close()
        [letter] = mail.letters
        assert (letter.user, letter.tls) == ("holdfast", True)
        wrong = await told(by_mail(mail, transport, password="other", **more))
        assert isinstance(wrong, Refused)
        assert "the credential password" in str(wrong)
        strangers = await told(by_mail(mail, transport, password=SMTP_PASSWORD, **(more | {"roots": ""})))
        assert isinstance(strangers, TryLater)
        assert "put that into the setting roots" in str(strangers)


# ── What answers mean ──


@pytest.mark.parametrize("kind", OVER_HTTP)
async def test_what_may_pass_is_tried_later(transport: HttpTransport, kind: str) -> None:
    async with Inbox() as web:
        web.answers = [Answer(429, {"Retry-After": "77"}), Answer(503, {"Retry-After": "9"}), Answer(hang_up=True)]
        sender = to(kind, web, transport)
        slower, away, lost = [await told(sender) for _ in range(3)]
        assert isinstance(slower, TryLater)
        assert (slower.after, slower.reason) == (timedelta(seconds=77), "RATE_LIMITED")
        assert isinstance(away, TryLater)
        assert (away.after, away.reason) == (timedelta(seconds=9), "CHANNEL_DOWN")
        assert isinstance(lost, TryLater)
    gone = await told(to(kind, web, transport))  # nobody listens there any more
    assert isinstance(gone, TryLater)
    assert str(gone).startswith("Channel ops: ")


@pytest.mark.parametrize("kind", OVER_HTTP)
@pytest.mark.parametrize(
    ("status", "reason", "words"),
    [
        (400, "REFUSED", "did not take the message (400"),
        (413, "REFUSED", "did not take the message (413"),
        (401, "CHANNEL_MISCONFIGURED", "Set the credential "),
        (403, "CHANNEL_MISCONFIGURED", "Set the credential "),
        (404, "CHANNEL_MISCONFIGURED", "has nothing at this address"),
        (410, "CHANNEL_MISCONFIGURED", "has nothing at this address"),
        (302, "CHANNEL_MISCONFIGURED", "points elsewhere (302), and is not followed"),
    ],
)
async def test_what_will_not_pass_is_refused_by_name(
    transport: HttpTransport, kind: str, status: int, reason: str, words: str
) -> None:
    async with Inbox() as web, Inbox() as elsewhere:
        web.answers = [Answer(status, {"Location": elsewhere.url("/")}, echo=True)]
        why = await told(to(kind, web, transport))
        assert isinstance(why, Refused)
        assert why.reason == reason
        assert words in str(why)
        assert len(str(why)) < 400
        assert elsewhere.requests == []


@pytest.mark.parametrize("kind", ["slack", "teams", "pagerduty", "opsgenie"])
async def test_a_page_of_somebody_else_is_no_delivery(transport: HttpTransport, kind: str) -> None:
    async with Inbox(Answer(200, body=b"<html>Please log in to the guest network</html>")) as web:
        why = await told(to(kind, web, transport))
        assert isinstance(why, TryLater)
        assert "answered 200, but not as it should: " in str(why)


async def test_many_letters_do_not_all_go_by_one_connection(transport: HttpTransport) -> None:
    async with Mailbox() as mail:
        sender = by_mail(mail, transport)
        for number in range(2 * MOST_LETTERS + 1):
            await sender.send(a_message(id=f"notification_{number}"))
        await sender.close()
        assert len(mail.letters) == 2 * MOST_LETTERS + 1
        assert len(mail.greeted) == 3


async def test_an_endless_answer_is_not_read(transport: HttpTransport) -> None:
    async with Inbox(Answer(200, body=b"x" * 100_000)) as web:
        assert isinstance(await told(to("webhook", web, transport)), TryLater)


async def test_a_webhook_may_have_a_certificate_of_our_own_ca(transport: HttpTransport) -> None:
    identity = Identity()
    async with Inbox(tls=identity) as web:
        await to("webhook", web, transport, roots=identity.roots).send(a_message())
        assert len(web.requests) == 1
        assert isinstance(await told(to("webhook", web, transport)), TryLater)
        assert len(web.requests) == 1


async def test_what_apprise_cannot_send_is_tried_later(transport: HttpTransport) -> None:
    async with Inbox(Answer(500)) as web:
        why = await told(to("apprise", web, transport))
        assert isinstance(why, TryLater)
        assert str(why).startswith("Channel ops: its service did not take the message: ")
        assert len(web.requests) == 1


async def test_a_service_that_hangs_is_left_to_itself(transport: HttpTransport) -> None:
    async with Inbox(Answer(never=True)) as web:
        url = Secret(web.url(PATH).replace("http://", "json://"))
        why = await told(AppriseSender(channel="ops", url=url, deadline_for=0.2))
        assert isinstance(why, TryLater)
        assert why.reason == "CHANNEL_DOWN"


@pytest.mark.parametrize(
    ("said", "error", "reason"),
    [
        ("451 later", TryLater, "CHANNEL_DOWN"),
        ("421 closing", TryLater, "CHANNEL_DOWN"),
        (f"554 {SMTP_PASSWORD} looks like spam", Refused, "REFUSED"),
        ("552 too large", Refused, "REFUSED"),
    ],
)
async def test_what_a_mail_server_says_of_a_letter(
    transport: HttpTransport, said: str, error: type[Exception], reason: str
) -> None:
    async with Mailbox(users={"u": SMTP_PASSWORD}) as mail:
        mail.answers = [said]
        sender = by_mail(mail, transport, password=SMTP_PASSWORD, username="u")
        why = await told(sender)
        assert isinstance(why, error)
        assert getattr(why, "reason", "") == reason
        await sender.send(a_message())  # on a new connection
        await sender.close()
        assert len(mail.letters) == 1


@pytest.mark.parametrize(
    ("refusals", "error", "words"),
    [
        ({"ops@example.com": "550 no", "oncall@example.com": "550 no"}, Refused, "Check the setting to."),
        ({"ops@example.com": "550 no", "oncall@example.com": "450 no"}, TryLater, "takes nothing now"),
    ],
    ids=["all-gone", "mixed"],
)
async def test_a_letter_that_nobody_takes_is_not_delivered(
    transport: HttpTransport, refusals: dict[str, str], error: type[Exception], words: str
) -> None:
    async with Mailbox() as mail:
        mail.refusals = refusals
        why = await told(by_mail(mail, transport))
        assert isinstance(why, error)
        assert words in str(why)
        assert mail.letters == []


@pytest.mark.parametrize("answer", ["550 no such user", "450 grey"])
async def test_one_recipient_who_cannot_be_reached_is_named_and_costs_the_others_no_second_letter(
    transport: HttpTransport, answer: str
) -> None:
    async with Mailbox() as mail:
        mail.refusals = {"ops@example.com": answer}
        missed = await by_mail(mail, transport).send(a_message())
        assert missed is not None
        assert f"ops@example.com ({answer}" in missed.said
        assert ("Check the setting to." in missed.said) is answer.startswith("5")
        who = ("ops@example.com",)
        assert (missed.again, missed.never) == ((), who) if answer.startswith("5") else (who, ())
        assert len(mail.letters) == 1


async def test_a_letter_comes_again_to_those_whom_it_missed_and_to_them_alone(transport: HttpTransport) -> None:
    async with Mailbox() as mail:
        sender, later = by_mail(mail, transport), {"ops@example.com": "450 grey"}
        mail.refusals = later
        assert await sender.send(a_message()) is not None
        missed = await sender.send(a_message(only=("ops@example.com",)))  # it is no trouble of the channel
        assert missed is not None
        assert missed.again == ("ops@example.com",)
        mail.refusals = {}
        assert await sender.send(a_message(only=("ops@example.com",))) is None
        assert await sender.send(a_message(only=("gone@example.com",))) is None  # not behind this channel any more
        await sender.close()
        assert [each.recipients for each in mail.letters] == [["oncall@example.com"], ["ops@example.com"]]
        assert len({each.message["Message-ID"] for each in mail.letters}) == 1


async def test_a_mail_server_that_does_not_encrypt_is_not_given_a_letter(transport: HttpTransport) -> None:
    async with Mailbox() as mail:
        why = await told(by_mail(mail, transport, security="starttls"))
        assert isinstance(why, Refused)
        assert "security" in str(why)
        assert mail.letters == []


async def test_a_mail_server_that_is_away_or_silent_is_tried_later(transport: HttpTransport) -> None:
    async with Inbox(Answer(never=True)) as silent:
        sender: Any = by_mail(Mailbox(port=silent.port), transport)
        sender.deadline_for = 0.1
        assert "did not answer in 0.1 s" in str(await told(sender))
    assert isinstance(await told(by_mail(Mailbox(port=silent.port), transport)), TryLater)


# ── Hostile texts ──


def _hostile(text: str) -> dict[str, Any]:
    return {
        "title": f"{text} could not be renewed",
        "text": text,
        "subject": text,
        "facts": {text[:50] or "empty": text},
        "reason": text,
        "next": f"holdfast explain {text}",
        "url": f"https://holdfast.example.com/{text}",
        "key": f"outage of {text}",
        "event": text,
        "id": text or "empty",
    }


@pytest.mark.parametrize("kind", [*OVER_HTTP, "apprise"])
async def test_a_hostile_name_is_harmless_over_http(transport: HttpTransport, kind: str) -> None:
    async with Inbox(usual(kind)) as web:
        sender = to(kind, web, transport)
        for text in HOSTILE.values():
            await sender.send(a_message(**_hostile(text)))
        assert len(web.requests) == len(HOSTILE)
        for call in web.requests:
            assert len(call.body) < 32 * 1024
            assert [each for each in _strings(call.json()) if _bad(kind, each)] == []
            assert re.fullmatch(r"[!-~]+", call.target)
            assert all(each.isprintable() for each in call.headers.values())


def _strings(value: Any) -> list[str]:
    match value:
        case str():
            return [value]
        case dict():
            return [text for key, each in value.items() for text in (key, *_strings(each))]
        case list():
            return [text for each in value for text in _strings(each)]
        case _:
            return []


def _bad(kind: str, text: str) -> bool:
    """Whether a channel of this kind would read it as more than text."""
    unseen = any(not char.isprintable() and char != "\n" for char in text)
    link = "://" in re.sub(r"(?:^|\n)https?://(?:holdfast\.example\.com|adaptivecards\.io)/", "", text)
    marks = {"slack": "<>", "teams": "", "webhook": "", "pagerduty": "", "opsgenie": "<>", "apprise": "<>"}[kind]
    functions = ("{{", "${") if kind == "teams" else ()
    return unseen or link or bool(set(marks) & set(text)) or any(each in text for each in functions)


async def test_a_hostile_name_is_harmless_in_a_letter(transport: HttpTransport) -> None:
    async with Mailbox() as mail:
        sender = by_mail(mail, transport)
        for text in HOSTILE.values():
            await sender.send(a_message(**_hostile(text)))
        await sender.close()
        assert len(mail.letters) == len(HOSTILE)
        usual = {"From", "To", "Subject", "Date", "Message-ID", "References", "In-Reply-To", "Auto-Submitted"}
        usual |= {"X-Auto-Response-Suppress", "Importance", "Content-Type", "Content-Transfer-Encoding", "MIME-Version"}
        for letter in mail.letters:
            assert set(letter.message.keys()) <= usual
            assert letter.recipients == ["ops@example.com", "oncall@example.com"]
            assert not [char for char in letter.subject if not char.isprintable()]
            assert re.fullmatch(r"<[\w.-]+@example\.com>", letter.message["Message-ID"])
            assert not [char for char in letter.text if not char.isprintable() and char != "\n"]
            assert max(map(len, letter.content.split(b"\r\n"))) <= 998


@pytest.mark.parametrize("kind", [*OVER_HTTP, "apprise"])
async def test_every_line_of_a_digest_arrives(transport: HttpTransport, kind: str) -> None:
    lines = [f"{number:03} {'<😀' * 300}" for number in range(DIGEST_LINES)]
    async with Inbox(usual(kind)) as web:
        await to(kind, web, transport).send(a_message(text="\n".join(lines)))
        text = "\n".join(_strings(web.requests[0].json()))
        assert [number for number in range(DIGEST_LINES) if f"{number:03} " not in text] == []
        assert len(web.requests[0].body) <= {"teams": 24 * 1024}.get(kind, 128 * 1024)
        if kind == "slack":  # of a section it takes 3000 characters, and of blocks fifty
            blocks = web.requests[0].json()["blocks"]
            assert max(len(each["text"]["text"]) for each in blocks if "text" in each) <= 3000
            assert len(blocks) <= 50


# ── Settings ──

HOOK = {"url": "https://hooks.example.com/x"}
MAIL = {"host": "mail.example.com", "from": "a@example.com", "to": "b@example.com"}
WRONG: list[tuple[str, dict[str, Any], dict[str, str], str]] = [
    ("smoke", {}, {}, "no installed package has a kind 'smoke'"),
    ("slack", {}, {}, "the credential url is missing"),
    ("slack", HOOK, {}, "url is a credential, and not a setting: give it by --credential url=FILE"),
    ("slack", {"colour": "red"}, HOOK, "there is no setting 'colour'; there are roots"),
    ("slack", {}, {**HOOK, "token": "x"}, "there is no credential 'token'; there are url"),
    ("slack", {}, {"url": "http://hooks.example.com/x"}, "the credential url must begin with https://"),
    ("slack", {}, {"url": "https://user:pw@hooks.example.com/x"}, "must not hold a user or password"),
    ("slack", {}, {"url": "https://hooks.example.com/x\r\nHost: evil"}, "visible ASCII"),
    ("slack", {}, {"url": "https://[half/x"}, "the credential url must be an address"),
    ("slack", {"roots": "no PEM"}, HOOK, "roots is not a list of certificates in PEM"),
    ("teams", {}, {"url": "file:///etc/passwd"}, "the credential url must be an address"),
    ("webhook", {}, HOOK, "the credential secret is missing"),
    ("webhook", {}, {**HOOK, "secret": "%%%"}, "the credential secret must be whsec_ and base64"),
    ("webhook", {}, {**HOOK, "secret": "whsec_YQ=="}, "the credential secret must have 24 to 64 bytes, and has 1"),
    ("webhook", {}, {**HOOK, "secret": KEY, "old_secret": "x"}, "the credential old_secret must be"),
    ("pagerduty", {"region": "mars"}, {"routing_key": "x"}, "region must be one of us, eu"),
    ("pagerduty", {}, {"routing_key": "a b"}, "the credential routing_key must be one word"),
    ("opsgenie", {"url": "http://example.com"}, {"api_key": "x"}, "url must begin with https://"),
    ("email", {}, {}, "host, from and to are missing"),
    ("email", {**MAIL, "port": "smtp"}, {}, "port must be a whole number from 1 to 65535"),
    ("email", {**MAIL, "port": True}, {}, "port must be a whole number from 1 to 65535"),
    ("email", {**MAIL, "port": 70000}, {}, "port must be a whole number from 1 to 65535"),
    ("email", {**MAIL, "security": "ssl3"}, {}, "security must be one of starttls, tls, none"),
    ("email", {**MAIL, "security": "none"}, {}, "may be none for this machine only"),
    ("email", {**MAIL, "username": "u"}, {}, "the setting username and the credential password go together"),
    ("email", {**MAIL, "from": "x@y\r\nBcc: z@y"}, {}, "from must hold addresses"),
    ("email", {**MAIL, "to": ["Ops <b@example.com>"]}, {}, "to must hold addresses"),
    ("email", {**MAIL, "to": [3]}, {}, "to must hold addresses"),
    ("email", {**MAIL, "to": ".a@example.com"}, {}, "to must hold addresses"),
    ("email", {**MAIL, "to": "a..b@example.com"}, {}, "to must hold addresses"),
    ("email", {**MAIL, "to": "a@example..com"}, {}, "to must hold addresses"),
    ("email", {**MAIL, "to": []}, {}, "to must have 1 to 50 addresses"),
    ("email", {**MAIL, "to": [f"a{n}@example.com" for n in range(51)]}, {}, "must have 1 to 50 addresses"),
    ("email", {**MAIL, "host": "a b"}, {}, "host must be"),
    ("email", {**MAIL, "hello": "a\r\nb"}, {}, "hello must be"),
    ("email", {**MAIL, "username": "a\r\nb"}, {"password": "x"}, "username is not well-formed"),
    ("apprise", {}, {"url": "nonsense"}, "names no target that Apprise knows"),
    ("apprise", {}, {"url": "json://a.example json://b.example"}, "names more than one target"),
    ("apprise", {}, {"url": "jsons://a.example/?verify=no"}, "switches the check of certificates off"),
    ("apprise", {}, {"url": "jsons://a.example/?optional=yes"}, "takes a failure for a success"),
]


@pytest.mark.parametrize(("kind", "settings", "secrets", "words"), WRONG)
async def test_what_is_wrong_with_a_channel_is_said_by_the_name_of_its_setting(
    transport: HttpTransport, kind: str, settings: dict[str, Any], secrets: dict[str, str], words: str
) -> None:
    hidden = {name: Secret(text.encode()) for name, text in secrets.items()}
    with pytest.raises(Refused) as caught:
        await senders(transport).check("ops", kind, settings, hidden)
    assert words in str(caught.value)
    assert str(caught.value).startswith("Channel ops: ")
    assert caught.value.reason == "CHANNEL_MISCONFIGURED"
    assert not [each for each in secrets.values() if len(each) > 6 and each in str(caught.value)]


async def test_without_the_extra_apprise_says_how_to_get_it(
    transport: HttpTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(Refused, match=r"pip install 'holdfast\[notify\]'"):
        a_sender("apprise", transport, secrets={"url": "json://localhost"})


async def test_every_kind_can_be_made(transport: HttpTransport) -> None:
    good: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
        "email": (MAIL, {}),
        "webhook": ({}, {**HOOK, "secret": KEY}),
        "slack": ({}, HOOK),
        "teams": ({}, HOOK),
        "pagerduty": ({"region": "eu"}, {"routing_key": "x"}),
        "opsgenie": ({"region": "eu"}, {"api_key": "x"}),
        "apprise": ({}, {"url": "jsons://a.example"}),
    }
    assert set(good) == set(plugins.kinds(plugins.NOTIFIERS))
    for kind, (settings, secrets) in good.items():
        assert callable(a_sender(kind, transport, settings=settings, secrets=secrets).send)


def test_the_guide_names_every_kind_setting_and_credential() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "notifications.md").read_text(encoding="utf-8")
    rows = {line.split("`")[1]: line for line in guide.splitlines() if line.startswith("| `")}
    for name, kind in plugins.kinds(plugins.NOTIFIERS).items():
        fields = {field.alias or each for each, field in kind.settings.model_fields.items()}
        wanted = {*fields, *(each.name for each in kind.credentials)}
        assert {each for each in wanted if f"`{each}`" not in rows[name]} == set(), name
