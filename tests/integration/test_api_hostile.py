"""What people may write into fields, and must not get out of them: scripts, line breaks, and secrets."""

import asyncio
import base64
import json
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from mcp import Client, StdioServerParameters
from tests.support.api import Asker, a_desk, on_a_port
from tests.support.commands import holdfast
from tests.support.foreign_layouts import SmallCa
from tests.support.messages import a_notification, owe
from tests.support.processes import Served, environment
from tests.support.reaper import PATIENCE, until
from tests.support.secrets_planted import MARK

from holdfast.store.database import Database, Engine
from holdfast.store.sqlite import SqliteEngine
from holdfast.world import SystemClock

pytestmark = pytest.mark.anyio


@pytest.fixture
def make_engine(tmp_path: Path) -> Callable[[], Engine]:
    """One store is enough here: what is hostile is hostile to the face."""
    return lambda: SqliteEngine(tmp_path / "holdfast.sqlite", SystemClock())


# ── Scripts and line breaks ──

CORPUS = (
    "<script>alert(1)</script>", "\"><img src=x onerror=alert(1)>", "javascript:alert(1)", "'-alert(1)-'",
    "</script><svg onload=alert(1)>", "{{7*7}}", "${7*7}", "<!--", "]]>", "\u202egpj.exe", "\u2066x\u2069", "\ufeff",
    "a\r\nSet-Cookie: a=b", "a\nevent: forged\ndata: {}", "a\r\n\r\n<html>", "a\u2028b", "a\u2029b", "a\x85b", "a\x0bb",
    "a\x1b[31mred", "a\x00b", "a%0d%0aX: y", "=cmd|' /C calc'!A0", "a\x7fb",
)  # fmt: skip


def _wishes(text: str) -> Iterator[tuple[str, str, Any]]:
    """Every field of free text that somebody may fill, and what they ask with it."""
    yield "POST", "/certificates", {"names": ["x.example.com"], "name": text}
    yield "POST", "/certificates", {"names": [text]}
    yield "POST", "/certificates", {"names": ["y.example.com"], "owner": text}
    yield "POST", "/certificates", {"names": ["z.example.com"], "labels": {"team": text}}
    yield "POST", "/certificates", {"names": ["l.example.com"], "labels": {text: "x"}}
    yield "POST", "/certificates", {"names": ["p.example.com"], "profile": text}
    yield "POST", "/certificates/a.example.com/cancel", {"why": text}
    yield "POST", "/issuers", {"name": "new", "kind": "test", "settings": {"note": text}}
    yield "POST", "/tokens", {"name": text, "role": "viewer"}
    yield "POST", f"/certificates/{httpx2.URL(path=text).raw_path.decode() if text.isprintable() else 'x'}/pause", None
    channel = {"name": "new", "kind": "webhook", "credentials": {"url": "https://127.0.0.1:1/"}}
    for field, value in (
        ("name", text), ("kind", text), ("settings", {text: text}), ("credentials", {"url": text}), ("owners", [text]),
        ("labels", {text: "x"}), ("labels", {"team": text}), ("fallback", text),
    ):  # fmt: skip
        yield "POST", "/channels", {**channel, field: value}
    yield "POST", "/dead-letters/resolve", {"note": text, "subject": text}
    yield "POST", "/dead-letters/requeue", {"channel": text}
    entry = {"name": "d.example.com", "names": ["d.example.com"]}
    for field, value in (
        ("name", text), ("names", [text]), ("owner", text), ("labels", {text: "x"}), ("labels", {"team": text}),
        ("issuers", [text]), ("profile", text), (text, "x"),
    ):  # fmt: skip
        yield "POST", "/documents/apply", {"document": {"certificates": [{**entry, field: value}]}}
    yield "POST", "/documents/plan", {"document": {"scope": {"labels": {text: text}}, "certificates": []}}
    yield "GET", "/certificates", {"q": text}
    yield "GET", "/events", {"subject": text}


@pytest.mark.shows_secrets("its texts are names in one wish and credentials in another")
async def test_hostile_text_is_refused_or_stays_text(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_()
        await ask.post("/certificates", {"names": ["a.example.com"]})
        for text in CORPUS:
            for method, path, body in _wishes(text):
                query = body if method == "GET" else {}
                answer = await ask(method, path, None if method == "GET" else body, **query)
                _harmless(answer)
        await _look_around(ask)
        rows = await ask("GET", "/audit/export")
        assert [json.loads(line)["seq"] for line in rows.text.split("\n")[:-1]] == list(
            range(1, len(rows.text.split("\n")))
        )


async def _look_around(ask: Asker) -> None:
    for path in ("/certificates", "/tokens", "/audit", "/events", "/issuances", "/jobs", "/notifications"):
        _harmless(await ask("GET", path, limit=500))
    for path in ("/issuers", "/channels", "/documents", "/notifications/summary"):
        _harmless(await ask("GET", path))
    _harmless(await ask("GET", "/approvals"))


async def test_hostile_words_about_approvals_and_notifications_stay_words(db: Database, tmp_path: Path) -> None:
    """What is kept of them is what was written, to the letter: nothing is cut out, and nothing is let out."""
    async with a_desk(db, tmp_path) as desk:
        ask, kept = await desk.as_(), dict[str, str]()
        for number, text in enumerate(CORPUS):
            name, notification = f"n{number}.example.com", f"notification_{number}"
            await desk.house.ask(name, approval_required=True)
            [waiting] = await desk.house.pending()
            _harmless(await ask("POST", f"/approvals/{waiting.id}/reject", {"note": text}))
            told = text.translate({0: None, 0x7F: None})  # both are taken out of what remotes say
            await owe(
                db,
                a_notification(id=notification, message=f"msg_{number}", title=told, text=told, facts={"said": told}),
            )
            answer = await ask("POST", f"/notifications/{notification}/resolve", {"note": text})
            _harmless(answer)
            _harmless(await ask("GET", f"/notifications/{notification}"))
            if answer.is_success:
                kept[notification] = text
            else:
                await ask.post(f"/approvals/{waiting.id}/reject", {"note": "no"})
        await _look_around(ask)
        assert len(kept) > len(CORPUS) / 2
        for notification, text in kept.items():
            assert (await ask.get(f"/notifications/{notification}"))["note"] == text


def _harmless(answer: httpx2.Response) -> None:
    """It is JSON and says so; nothing in it breaks a line, and no header carries what was sent."""
    assert answer.status_code < 500, answer.text
    sort = answer.headers.get("content-type", "" if answer.content else "application/json")
    assert sort.partition(";")[0] in ("application/json", "application/problem+json")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not re.search(rb"[\x00-\x1f\x7f]", answer.content)
    assert "set-cookie" not in answer.headers
    for name, value in answer.headers.items():
        assert "alert" not in value, (name, value)
        assert value.isprintable(), (name, value)


async def test_a_forged_event_stays_inside_its_line(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, on_a_port(desk) as url:
        ask = await desk.as_()
        await ask.post("/certificates", {"names": ["a.example.com"]})
        await ask.post("/certificates/a.example.com/cancel", {"why": "x\nid: 999\nevent: forged\ndata: {}"})
        headers = {"Authorization": f"Bearer {ask.token}"}
        async with (
            httpx2.AsyncClient(timeout=PATIENCE) as http,
            http.stream("GET", f"{url}/events/stream", params={"after": 0}, headers=headers) as answer,
        ):
            lines = []
            async for line in answer.aiter_lines():
                lines.append(line)
                if line.startswith("data: ") and "issuance.cancelled" in line:
                    break
        assert [line for line in lines if line.startswith("event: ")][-1] == "event: issuance.cancelled"
        assert not any("forged" in line and not line.startswith("data: {") for line in lines)


# ── Secrets ──


class Planted:
    """Texts that must be in no output, whatever becomes of them."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._numbers = count(1)

    def __call__(self) -> str:
        self.all.append(f"{MARK}h{next(self._numbers):04d}")
        return self.all[-1]

    def signing(self) -> str:
        """A secret of a webhook that is one."""
        self.all.append(base64.b64encode(self().encode() * 2).decode())
        return f"whsec_{self.all[-1]}"

    def key(self) -> str:
        """A key that is one: what must not be seen are the lines of its body."""
        made = ec.generate_private_key(ec.SECP256R1())
        pem = made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        self.all.append(pem.splitlines()[1])
        return pem


def _attempts(plant: Planted) -> Iterator[tuple[str, str, Any, dict[str, str]]]:
    """Secrets where they belong, where they do not, and in requests that fail."""
    directory = "https://127.0.0.1:1/directory"
    for number in range(10):
        wish = {"name": f"ca{number}", "settings": {"directory": directory}, "credentials": {"eab_key": plant()}}
        yield "POST", "/issuers", wish, {"Idempotency-Key": f"k{number}"}
    yield "POST", "/issuers/ca0/test", None, {}
    for wrong in ([plant()], {"x": plant()}, plant() * 200, 7):
        yield "POST", "/issuers", {"name": "x", "credentials": {"eab_key": wrong}}, {}
    yield "POST", "/issuers", {"name": "x", "credentials": plant()}, {}
    yield "POST", "/issuers", {"name": "x", "password": plant()}, {}
    yield from _to_channels(plant)
    for name in ("passphrase", "form"):
        for _ in range(4):
            yield "POST", "/certificates/kept.example.com/export", {"form": "pkcs12", name: plant()}, {}
    yield "POST", "/certificates/kept.example.com/export", {"form": "pkcs12", "passphrase": plant() * 100}, {}
    yield "POST", "/certificates/kept.example.com/export", {"form": "pkcs12", "passphrase": {"a": plant()}}, {}
    for _ in range(4):
        yield "GET", "/self", None, {"Authorization": f"Bearer hf_{plant()}"}
        yield "GET", "/self", None, {"Authorization": f"Bearer {plant()}"}
        yield "GET", "/self", None, {"Authorization": f"Basic {base64.b64encode(plant().encode()).decode()}"}
    for key in (plant.key(), f"-----BEGIN PRIVATE KEY-----\n{plant()}\n-----END PRIVATE KEY-----\n", plant()):
        yield "POST", "/imports/account", {"directory": directory, "key": key}, {}
        offer = {"name": "n", "names": ["n.example.com"], "chain": "no chain", "key": key, "key_kind": "ec-p256"}
        yield "POST", "/imports/certificates", {"certificates": [offer], "issuer": "own"}, {}
    yield "POST", "/imports/certificates", {"certificates": [{"name": "x", "key": [plant()]}]}, {}
    good = SmallCa().issue("kept.example.com")
    offer = {"name": "kept.example.com", "names": ["kept.example.com"], "key_kind": "ec-p256"}
    offer |= {"chain": good.chain, "key": good.key}
    plant.all.append(good.key.splitlines()[1])
    yield "POST", "/imports/certificates", {"certificates": [offer], "issuer": "own"}, {}
    for _ in range(3):
        yield "POST", "/certificates/kept.example.com/export", {"form": "pkcs12", "passphrase": plant()}, {}


def _to_channels(plant: Planted) -> Iterator[tuple[str, str, Any, dict[str, str]]]:
    """Two that are taken and tried out in vain, then what no channel takes."""
    known = {"url": f"http://127.0.0.1:1/{plant()}", "secret": plant.signing()}
    hook = {"name": "hook", "kind": "webhook", "credentials": known}
    yield "POST", "/channels", hook, {"Idempotency-Key": "hook"}
    letters = {"host": "127.0.0.1", "port": 1, "security": "none", "from": "a@example.com", "to": ["b@example.com"]}
    mail = {"name": "mail", "kind": "email", "settings": {**letters, "username": "us"}}
    yield "POST", "/channels", {**mail, "credentials": {"password": plant()}}, {}
    for name in ("hook", "mail"):
        yield "POST", f"/channels/{name}/test", None, {}
        yield "PATCH", f"/channels/{name}", {"credentials": {"url": plant()}}, {"If-Match": '"1"'}
        yield "PATCH", f"/channels/{name}", {"credentials": {"other": plant()}}, {"If-Match": '"1"'}
    for wrong in ({"url": [plant()]}, {"secret": plant()}, {"url": plant() * 100}, plant()):
        yield "POST", "/channels", {"name": "x", "kind": "webhook", "credentials": wrong}, {}


def _typed(folder: Path, plant: Planted) -> str:
    """What a command prints that takes credentials, and one that shows where they went."""
    file = folder / "address"
    file.write_text(f"http://127.0.0.1:1/{plant()}")
    env = environment(folder, {}) | {"HOME": str(folder), "RIGHT": plant.signing(), "WRONG": plant()}
    words = ["notify", "channel", "add", "typed", "--kind", "webhook", "--credential", f"url={file}"]
    taken = _run(env, *words, "--credential", "secret=env:RIGHT", "-o", "json")
    assert taken.returncode == 0, taken.stderr
    refused = _run(env, *words, "--credential", "secret=env:WRONG")
    assert refused.returncode != 0
    return taken.stdout + taken.stderr + refused.stdout + refused.stderr


def _run(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return holdfast(*words, env=env)


async def _told_to_an_assistant(folder: Path, url: str, token: str) -> str:
    env = environment(folder, {}) | {"HOME": str(folder), "HOLDFAST_SERVER_URL": url, "HOLDFAST_TOKEN": token}
    started = StdioServerParameters(command=sys.executable, args=["-m", "holdfast.cli.main", "mcp"], env=env)
    async with Client(started) as client:
        said = [await client.call_tool("needs_attention", {}), await client.call_tool("list_certificates", {})]
    assert not any(each.is_error for each in said), said
    return str(said)


def test_fifty_planted_secrets_are_in_no_output(tmp_path: Path) -> None:
    """A real server at its most talkative: its log, every answer, events, audit, metrics, and the file of the store."""
    plant, seen, sink = Planted(), list[str](), tmp_path / "audit.jsonl"
    settings = {"LOG_LEVEL": "debug", "KEYS_PASSPHRASE": plant(), "AUDIT_FILE": str(sink), "AUDIT_INTERVAL": "1s"}
    with Served(tmp_path, settings) as server:
        server.wait_for_event("holdfast.serving")
        transport = httpx2.HTTPTransport(uds=str(tmp_path / "holdfast.sock"))
        with httpx2.Client(transport=transport, base_url="http://local", timeout=PATIENCE) as local:
            tokens = [_token(local, f"t{number}") for number in range(5)]
        base = f"{server.url}/api/v1"
        with httpx2.Client(base_url=base, headers={"Authorization": f"Bearer {tokens[0]}"}, timeout=PATIENCE) as api:
            for method, path, body, headers in _attempts(plant):
                answer = api.request(method, f"{base}{path}", json=body, headers=headers)
                assert answer.status_code < 500, answer.text
                seen.append(answer.text if "/export" not in path or answer.is_error else "")  # a key, as asked for
            pages = ("issuers", "tokens", "audit?limit=500", "events?limit=500", "jobs", "certificates", "cluster",
                         "audit/export", "stats/summary", "channels", "notifications?limit=500",
                         "channels/hook", "certificates/kept.example.com/versions")  # fmt: skip
            seen += [api.get(f"{base}/{path}").text for path in pages]
            seen.append(httpx2.get(f"{server.url}/metrics", timeout=PATIENCE, trust_env=False).text)
        seen.append(_typed(tmp_path, plant))
        seen.append(asyncio.run(_told_to_an_assistant(tmp_path, server.url, tokens[1])))
        until(lambda: sink.exists() and "certificate_adopted" in sink.read_text(), "the audit log in its second place")
        server.stop()
        seen.append(server.output())
    plant.all += [token.split("_", 2)[2] for token in tokens]
    with closing(sqlite3.connect(tmp_path / "holdfast.sqlite")) as file:
        kept = "\n".join(file.iterdump())
    assert len(plant.all) >= 50
    everything = "\n".join([*seen, kept, sink.read_text()])
    assert [each for each in plant.all if each in everything] == []
    assert "issuer_added" in everything  # it was really looked at
    assert all(f'"{name}"' in everything for name in ("hook", "mail", "typed"))


def _token(local: httpx2.Client, name: str) -> str:
    answer = local.post("/api/v1/tokens", json={"name": name, "role": "admin", "rights": ["export"]})
    return str(answer.raise_for_status().json()["token"])


# ── Many mistakes at once ──

MANY = 2000
LINE = "expires_before_owner"


@pytest.mark.parametrize(
    ("method", "path", "query", "body"),
    [
        ("GET", "/certificates", {f"{LINE}{n}": "" for n in range(MANY)}, None),
        ("GET", "/certificates", {LINE * 1200: ""}, None),
        ("POST", "/certificates", {}, {f"{LINE}{n}": "" for n in range(4 * MANY)}),
        ("POST", "/certificates", {}, {"names": ["!"] * 60_000}),
        ("POST", "/documents/plan", {}, {"document": {"certificates": [{LINE: "x"}] * (4 * MANY)}}),
        ("POST", "/documents/plan", {}, {"document": {f"{LINE}{n}": "" for n in range(4 * MANY)}}),
        (
            "POST", "/documents/plan", {},
            {"document": {"certificates": [{"name": "x", **{f"{LINE}{n}": "" for n in range(4 * MANY)}}]}},
        ),
        ("POST", "/channels", {}, {"name": "x", "kind": "webhook", "settings": {LINE * 10_000: "x"}}),
    ],
    ids=["parameters", "long parameter", "fields", "names", "entries", "document", "entry's fields", "setting"],
)  # fmt: skip
async def test_many_mistakes_in_one_request_take_no_time(
    db: Database, tmp_path: Path, method: str, path: str, query: Any, body: Any
) -> None:
    """Each mistake is answered with a suggestion, on the thread that answers everybody: only the first few are."""
    async with a_desk(db, tmp_path) as desk:
        admin = await desk.as_()
        took = []
        for _ in range(4):  # the first one makes what is made once, and any of them may have to collect garbage
            began = time.process_time()
            answer = await admin(method, path, body, **query)
            took.append(time.process_time() - began)
            assert answer.status_code in (400, 413, 422), answer.text[:300]
            assert len(answer.content) < 20_000
        assert min(took) < 0.06, f"{min(took):.2f} s of CPU"
