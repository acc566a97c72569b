"""Hostile texts in every field that people fill, seen where people look: a terminal, a shell, Prometheus, log lines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.integration.test_api_hostile import CORPUS
from tests.support.api import Asker, on_a_port
from tests.support.hostile_texts import HOSTILE
from tests.support.messages import a_notification, owe
from tests.support.terminal import Terminal, a_terminal

from holdfast.cli import completion
from holdfast.cli.client import elsewhere
from holdfast.cli.terminal import harmless, tame, tame_lines
from holdfast.store import journal
from holdfast.store.database import Database, Engine
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.tx import Tx
from holdfast.telemetry import Metrics, make_log
from holdfast.world import SystemClock

pytestmark = pytest.mark.anyio
C1 = "a\x9b31mred\x9d0;title\x9c"  # one character each, where a terminal knows them
TEXTS = [text for text in (*CORPUS, *HOSTILE.values(), C1, "$(reboot)", "`id`", "a;b|c&d", "'\"\\") if text.strip()]
STORED = [text for text in TEXTS if "\x00" not in text and "\ud800" not in text]  # which no store of ours takes

ALL = " ".join(text for text in STORED if len(text) < 100)[:1000]
NOTE = "".join(char for char in ALL if (char >= " " and char != "\x7f") or char in "\n\t")[:500]  # more is refused


@pytest.fixture
def make_engine(tmp_path: Path) -> Callable[[], Engine]:
    """One store is enough here: what is hostile is hostile to the face."""
    return lambda: SqliteEngine(tmp_path / "holdfast.sqlite", SystemClock())


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_nothing_of_it_is_an_order_to_a_terminal(text: str) -> None:
    assert tame(text).isprintable()
    assert tame({text: [text, 7, None]}) == {tame(text): [tame(text), 7, None]}
    assert all(line.isprintable() for line in tame_lines(text).split("\n"))
    written = harmless(json.dumps(text, ensure_ascii=False))
    assert written.isprintable()
    assert json.loads(written) == text, "to a program it says the same"


async def _fill(ask: Asker, db: Database, typed: Terminal) -> None:
    """Whatever may be said, said by everybody who may say it; what is refused is tested elsewhere."""
    for number, text in enumerate(STORED):
        await ask("POST", "/certificates", {"names": [f"n{number}.example.com"], "name": text[:200]})
    await typed.desk.house.ask("a.example.com", approval_required=True)
    [waiting] = await typed.desk.house.pending()
    await ask.post(f"/approvals/{waiting.id}/reject", {"note": NOTE})
    await owe(db, a_notification(title=ALL, text=ALL, name=ALL, last_error=ALL, facts={"CA": ALL}))
    await ask.post("/notifications/notification_01/resolve", {"note": NOTE})
    await db.write(_all_said)


def _all_said(tx: Tx) -> None:
    """As a CA or a name server says things, if nobody made them harmless on the way."""
    for text in STORED:
        journal.event(tx, "certificate.looked_at", "certificate_x", error=text, reason=text)


COMMANDS = [
    ["ls"], ["events", "--limit", "500"], ["audit", "ls"], ["jobs", "ls"], ["approvals", "ls"], ["token", "ls"],
    ["notify", "ls"], ["notify", "show", "notification_01"], ["get", "a.example.com"], ["explain", "a.example.com"],
]  # fmt: skip


async def test_commands_write_it_as_text(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path, works=False) as typed:
        ask = await typed.desk.as_()
        await _fill(ask, db, typed)
        for words in COMMANDS:
            for output in ("wide", "yaml", "name"):
                said = await typed(*words, "-o", output, tty=True, env={"NO_COLOR": "1"})
                assert [char for char in said.out + said.err if not char.isprintable() and char != "\n"] == [], words
                if said.code == 0 and output == "yaml":
                    assert yaml.safe_load(said.out) is not None
        exported = await typed.ok("audit", "export")
        assert [char for char in exported.out if not char.isprintable() and char != "\n"] == []
        numbers = [json.loads(line)["seq"] for line in exported.out.removesuffix("\n").split("\n")]
        assert numbers == list(range(1, len(numbers) + 1))
        await _same_to_programs(ask, typed)


async def test_the_next_event_is_read_after_a_line_that_looks_like_several(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path, works=False) as typed, on_a_port(typed.desk) as url:
        await db.write(_all_said)
        with elsewhere(url.removesuffix("/api/v1"), await typed.desk.token()) as line:
            seen = await asyncio.to_thread(
                lambda: list(islice(line.events(after=0, subject="certificate_x"), len(STORED)))
            )
    assert [each["details"]["error"] for each in seen] == STORED


async def _same_to_programs(ask: Asker, typed: Terminal) -> None:
    shown = (await typed.ok("events", "--limit", "500", "-o", "json")).json
    kept = (await ask.get("/events", after=0, limit=500))["items"]
    assert [each["details"] for each in shown] == [each["details"] for each in kept]
    assert C1 in {each["details"].get("error") for each in shown}
    shown = yaml.safe_load((await typed.ok("events", "--limit", "500", "-o", "yaml")).out)
    assert [each["details"] for each in shown] == [each["details"] for each in kept]


async def test_a_refusal_in_anothers_words_is_written_as_text(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path, works=False) as typed:
        octets = "a\udcffb"  # as a shell hands over what is no text
        for text in (HOSTILE["escape"], HOSTILE["crlf"], HOSTILE["bidi"], HOSTILE["long"], C1, octets):
            said = await typed("get", text)
            assert said.code != 0
            assert [char for char in said.err if not char.isprintable() and char != "\n"] == []


def test_a_shell_is_offered_no_word_that_it_would_run() -> None:
    good = ["*.example.com", "www.example.com", "a@b+c_d-e", "münchen.example"]
    assert completion._fitting("", [*TEXTS, *good]) == sorted([*good, *_harmless_words()])


def _harmless_words() -> list[str]:
    """Of the hostile ones, those that are hostile to something else."""
    return [text for text in TEXTS if all(char.isalnum() or char in "._@:/+*%,=-" for char in text)]


async def test_prometheus_reads_each_label_as_it_was_written(db: Database) -> None:
    metrics = Metrics()
    for text in STORED:
        metrics.certificates.labels(phase="ok", reason=text).set(1)
    lines = metrics.render().decode()
    [family] = [each for each in text_string_to_metric_families(lines) if each.name == "holdfast_certificates"]
    assert {each.labels["reason"] for each in family.samples} == set(STORED)


@pytest.mark.parametrize("style", ["json", "console"])
def test_a_log_line_stays_one_line(style: str, capsys: pytest.CaptureFixture[str]) -> None:
    log = make_log("debug", style)
    for text in TEXTS:
        log.error("job.failed", why=text, subject=text)
    lines = capsys.readouterr().err.removesuffix("\n").split("\n")
    assert len(lines) == len(TEXTS)
    assert all(line.isprintable() for line in lines)
