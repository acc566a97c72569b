"""Texts from outside: whatever is stored, in any field that a page shows, is shown as text and never run."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.support.chromium import Watched, a_site

from holdfast.core.personal import SavedView, Snooze
from holdfast.operations.catalog import named
from holdfast.store import journal, personal
from holdfast.store.database import Database
from holdfast.store.tx import Tx

pytestmark = pytest.mark.anyio
PAGES = [
    "/", "/certificates", "/certificates?q=sort:name", "/approvals", "/targets", "/notifications?tab=all",
    "/notifications?tab=failing", "/notifications?tab=dead", "/jobs", "/issuers", "/cas", "/cluster", "/forecast",
    "/audit", "/settings/people", "/settings/tokens", "/settings/channels",
    "/settings/policies", "/settings/sessions", "/settings/values", "/palette?q=img",
]  # fmt: skip
ONE = "api.shop.example"


def evil(place: str) -> str:
    """Breaks out of text, attributes and scripts, and says where it was planted; no slash, as names are in paths."""
    return f"\"'><img src=x onerror=alert(1) data-planted={place}>{{{{7*7}}}}\u202e"


# Every stored text that comes from people, clients, remotes or files, by table: how a value is written there.
TEXTS: Mapping[str, tuple[str, ...]] = {
    "certificates": ("owner", "profile", "last_error", "changed_by", "ari_explanation"),
    "issuances": ("error", "requested_by"),
    "approvals": ("requested_by", "decided_by", "note"),
    "notifications": ("name", "title", "body", "last_error", "note", "settled_by", "next", "owner"),
    "jobs": ("last_error", "holder"),
    "deployments": ("error", "seen", "requested_by"),
    "endpoints": ("owner", "last_sentence"),
    "targets": ("owner", "host", "breaker_error"),
    "issuers": ("breaker_error",),
    "channels": ("breaker_error",),
    "replicas": ("name", "version"),
    "sessions": ("client", "address"),
    "people": ("created_by",),
    "tokens": ("name", "created_by"),
    "certificate_versions": ("serial", "account"),
}
LABELS = ("certificates", "targets", "endpoints", "people", "tokens", "channels")
# What the walk must have seen as text: a corpus that no page shows would prove nothing.
SHOWN = {
    "certificates.name", "certificates.owner", "certificates.labels", "certificates.names", "certificates.last_error",
    "certificates.changed_by", "certificates.profile", "approvals.requested_by", "approvals.note",
    "notifications.title", "notifications.name", "notifications.last_error", "jobs.subject", "deployments.error",
    "endpoints.last_sentence", "targets.owner", "targets.host", "issuers.name", "issuers.breaker_error",
    "channels.name", "sessions.client", "sessions.address", "tokens.name", "certificate_versions.serial",
    "audit.details", "audit.actor", "audit.client", "events.details", "snoozes.why", "saved_views.name",
    "policies.name", "people.labels", "tokens.labels",
}  # fmt: skip


def _plant(tx: Tx) -> None:
    for table, columns in TEXTS.items():
        for column in columns:
            tx.run(f"UPDATE {table} SET {column} = :text", text=evil(f"{table}.{column}"))
    for table in LABELS:
        text = json.dumps({evil(f"{table}.labels"): evil(f"{table}.labels")})
        but = " WHERE name <> 'alice'" if table == "people" else ""  # the walk is of one who sees everything
        tx.run(f"UPDATE {table} SET labels = :text{but}", text=text)
    tx.run("UPDATE jobs SET subject = :text || id", text=evil("jobs.subject"))
    _rename(tx, "issuers", "vault-lab")
    _rename(tx, "channels", "ops-mail")
    tx.run("UPDATE notifications SET channel = :to WHERE channel = 'ops-mail'", to=evil("channels.name"))
    tx.run("UPDATE certificates SET name = :to WHERE name = :was", to=evil("certificates.name"), was=ONE)
    names = json.dumps([("dns", evil("certificates.names"))])
    tx.run("UPDATE certificates SET identifiers = :names WHERE id = :id", names=names, id=_id(tx))
    told = json.dumps({"error": evil("events.details"), "reason": "CA_DOWN", "attempt": 1})
    tx.run("UPDATE events SET details = :told WHERE name = 'issuance.failed' AND subject = :of", told=told, of=_id(tx))
    tx.run("UPDATE approvals SET state = 'rejected' WHERE id = (SELECT MIN(id) FROM approvals)")
    tx.run("""INSERT INTO policies (name, names, owners, tokens, issuers, key_kinds, version, created_at)
              VALUES (:name, '[]', '[]', '[]', '[]', '[]', 1, 1)""", name=evil("policies.name"))  # fmt: skip
    tx.origin = {"face": "web", "client": evil("audit.client"), "address": evil("audit.address")}
    journal.audit(tx, "token_created", "x", actor=evil("audit.actor"), text=evil("audit.details"))


def _id(tx: Tx) -> str:
    return str(tx.rows("SELECT id FROM certificates WHERE name = :name", name=evil("certificates.name"))[0]["id"])


def _rename(tx: Tx, table: str, name: str) -> None:
    tx.run(f"UPDATE {table} SET name = :to WHERE name = :was", to=evil(f"{table}.name"), was=name)


def _mine(tx: Tx) -> None:
    """What the person of the walk keeps."""
    now = tx.now()
    personal.put_view(tx, SavedView(actor="human:alice", name=evil("saved_views.name"), query="", at=now))
    personal.put_snooze(
        tx,
        Snooze(actor="human:alice", what="paused", name="", standing="paused", number=99, why=evil("snoozes.why"),
               at=now, until=now.replace(year=now.year + 1)),
    )  # fmt: skip


async def _seen(seen: Watched, path: str) -> set[str]:
    """The fields whose text is on a page; the page itself must have none of their markup."""
    answer = await seen.go(path)
    assert answer.status < 500, (path, answer.status)
    alive = await seen.page.evaluate("document.querySelectorAll('[data-planted], img').length")
    assert alive == 0, f"{path} made markup of a stored text"
    text = await seen.page.evaluate("document.documentElement.textContent + document.documentElement.innerHTML")
    assert "49\u202e" not in text
    return {each.split(">")[0].split("&gt;")[0].split("<")[0].strip() for each in text.split("data-planted=")[1:]}


async def test_stored_texts_are_shown_on_every_page_and_never_run(db: Database, tmp_path: Path) -> None:
    async with a_site(db, tmp_path, demo=True) as site:
        seen = await site.logged_in()
        for operation, asked in (("people.add", {"name": "bob"}), ("tokens.create", {"name": "ci", "role": "viewer"})):
            await site.desk.do(operation, named(operation).input_model.model_validate(asked))
        alerts: list[str] = []
        seen.page.on("dialog", lambda dialog: alerts.append(dialog.message))
        await db.write(_plant)
        await db.write(_mine)
        shown: set[str] = set()
        name = evil("certificates.name")
        await seen.go("/certificates")
        one = await seen.page.evaluate("name => '/certificates/' + encodeURIComponent(name)", name)
        for path in [*PAGES, *(one + each for each in ("", "/explain", "/versions", "/served", "/raw", "/edit"))]:
            shown |= await _seen(seen, path)
        assert alerts == []
        wrong = [each for each in seen.wrong if "/palette" not in each]  # it names no icon, which is asked for
        assert not wrong, "\n".join(wrong)
        assert sorted(SHOWN - shown) == []
