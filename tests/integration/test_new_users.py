"""What new users stumbled over, each as they typed it against a served Holdfast."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from tests.support.commands import holdfast
from tests.support.inboxes import mail_server
from tests.support.processes import Served, environment


@dataclass(frozen=True)
class Site:
    """A served Holdfast, and somebody who types on its machine."""

    server: Served
    folder: Path

    def type(self, *words: object, stdin: str = "", **env: str) -> CompletedProcess[str]:
        return holdfast(*words, env=environment(self.folder, {}) | env, stdin=stdin)

    def ok(self, *words: object, **more: Any) -> str:
        done = self.type(*words, **more)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def data(self, *words: object) -> Any:
        return json.loads(self.ok(*words, "-o", "json"))

    @property
    def directory(self) -> str:
        base = self.server.wait_for_event("holdfast.serving")["acme"]
        return f"{base}/acme/default/directory"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with Served(folder, {}) as server:
        server.wait_until_ready()
        yield Site(server, folder)


# ── A person must act ──


def test_an_error_that_no_waiting_cures_is_told_at_once_everywhere(site: Site) -> None:
    site.ok("issuer", "add", "acme", "untrusted", "--directory", site.directory)
    waited = site.type("issue", "x.internal", "--issuer", "untrusted", "--wait", "--timeout", "5m")
    assert waited.returncode == 1
    assert "An operator of Holdfast must act first: " in waited.stderr
    assert "CA_TLS_FAILED" in waited.stdout
    assert site.type("wait", "x.internal", "--timeout", "5m").returncode == 1
    everything = site.type("status", "--check")
    assert everything.returncode == 10
    assert "x.internal   PENDING" in everything.stdout
    alerts = [each["event"] for each in site.data("notify", "ls")]  # a dead letter, as there is no channel
    assert "issuer.down" in alerts
    site.ok("archive", "x.internal", "--yes")
    site.ok("issuer", "rm", "untrusted", "--yes")


# ── What is impossible is refused at the prompt ──


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--lifetime", "1000d"), "Profile 'default' issues for at most 398 days."),
        (("--profile", "nonsense"), "CA default has no profile 'nonsense'."),
        (("--key", "ed25519"), "does not allow this kind of key"),
    ],
)
def test_what_our_own_ca_would_refuse_is_refused_at_the_prompt(
    site: Site, words: tuple[str, ...], problem: str
) -> None:
    refused = site.type("issue", "impossible.internal", *words)
    assert refused.returncode == 1
    assert problem in refused.stderr
    assert "impossible.internal" not in site.ok("ls")


def test_a_name_outside_the_constraints_of_our_ca_is_refused_at_the_prompt(site: Site) -> None:
    site.ok("ca", "create", "narrow", "--permit", "*.corp.example")
    site.ok("issuer", "add", "local", "narrow")
    refused = site.type("issue", "pay.elsewhere.example", "--issuer", "narrow")
    assert "CA narrow does not issue for pay.elsewhere.example." in refused.stderr
    site.ok("issue", "pay.corp.example", "--issuer", "narrow", "--wait")
    changed = site.type("change", "pay.corp.example", "--add-name", "pay.elsewhere.example")
    assert changed.returncode == 1
    site.ok("change", "pay.corp.example", "--owner", "payments")


# ── Channels ──


def test_a_channel_is_ok_only_after_something_was_delivered(site: Site) -> None:
    def state() -> str:
        return str(next(each["health"] for each in site.data("notify", "channel", "ls") if each["name"] == "mail"))

    def add(port: int) -> None:
        facts = ("host=127.0.0.1", f"port={port}", "security=none", "from=holdfast@example.com", "to=you@example.com")
        site.ok("notify", "channel", "add", "mail", "--kind", "email", *(w for fact in facts for w in ("--set", fact)))

    with mail_server() as mail:
        add(mail.port)
        assert state() == "untested"
        mail.refusals["you@example.com"] = "550 5.1.1 no such user"
        assert site.type("notify", "test", "mail").returncode == 1
        assert state() == "failing"
        mail.refusals["you@example.com"] = "451 4.7.1 greylisted"
        later = site.type("notify", "test", "mail")
        assert "Its address is right: it answered." in later.stdout
        mail.refusals.clear()
        site.ok("notify", "test", "mail")
        assert state() == "ok"
    site.ok("notify", "channel", "rm", "mail", "--yes")


# ── Words at the prompt ──


def test_an_empty_token_is_no_token(site: Site) -> None:
    refused = site.type("ls", HOLDFAST_TOKEN="")
    assert refused.returncode == 2
    assert "HOLDFAST_TOKEN is set, and empty." in refused.stderr


def test_hints_name_the_option_the_folder_and_the_right(site: Site, tmp_path: Path) -> None:
    site.ok("issue", "hints.internal", "--wait")
    assert "--passphrase-stdin" in site.type("fetch", "hints.internal", "--form", "pkcs12", "--to", tmp_path).stderr
    nowhere = site.type("ls", HOLDFAST_STORE_DATA_DIR=str(tmp_path / "nothing"))
    assert str(tmp_path / "nothing") in nowhere.stderr
    assert "unknown, expired or revoked" in site.type("ls", HOLDFAST_TOKEN="hf_bogus").stderr
    admin = site.ok("token", "create", "boss", "--role", "admin").strip()
    denied = site.type("fetch", "hints.internal", "--form", "pem", "--to", tmp_path, HOLDFAST_TOKEN=admin)
    assert "--right export" in denied.stderr


def test_a_dry_run_names_no_issuance_and_commands_are_quoted(site: Site) -> None:
    tried = site.ok("issue", "dry.internal", "--dry-run")
    assert "issuance_" not in tried
    assert "it would begin now" in tried
    shown = site.ok("issue", "*.corp.internal")
    assert "holdfast explain '*.corp.internal'" in shown


def test_keys_are_shown_while_the_server_runs(site: Site) -> None:
    assert "current" in site.ok("key", "status")


def test_doctor_finds_nothing_wrong_where_nothing_is(site: Site, tmp_path: Path) -> None:
    """With a login, in a folder without data, though the environment names the database."""
    token = site.ok("token", "create", "me", "--role", "admin").strip()
    home = {"HOME": str(tmp_path), "HOLDFAST_STORE_DATA_DIR": str(tmp_path / "none")}
    site.ok("login", site.server.url, stdin=f"{token}\n", **home)
    database = {"HOLDFAST_STORE_URL": f"sqlite:///{site.folder / 'holdfast.sqlite'}"}
    rows = json.loads(site.type("doctor", "-o", "json", **home, **database).stdout)
    wrong = {row["check"] for row in rows if row["level"] == "bad"} - {"DNS", "dead letters", "key file"}
    assert wrong == set()
    assert "server" in {row["check"] for row in rows if row["level"] == "ok"}


# ── Output ──


def test_help_has_an_example_and_no_types_of_the_program(site: Site) -> None:
    shown = site.ok("issue", "--help")
    assert "Example: holdfast issue www.example.com --wait" in shown
    assert "list[str]" not in shown
    assert "<str>" not in shown


def test_lists_come_as_csv_with_exact_times(site: Site) -> None:
    site.ok("issue", "csv.internal", "--wait")
    head, *rows = csv.reader(site.ok("ls", "csv.internal", "-o", "csv").splitlines())
    [row] = [dict(zip(head, each, strict=True)) for each in rows]
    assert (row["name"], row["phase"], row["owner"]) == ("csv.internal", "OK", "")
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\dZ", row["expires"])


def test_events_and_audit_entries_name_certificates(site: Site) -> None:
    site.ok("issue", "named.internal", "--wait")
    assert re.search(r"certificate\.activated +named\.internal", site.ok("events"))
    assert "named.internal" in site.ok("audit", "ls", "--limit", "20")


# ── The API for people ──


def test_jobs_are_about_names_and_have_no_last_attempt_where_there_is_none(site: Site) -> None:
    jobs = {row["kind"]: row for row in site.data("jobs", "ls")}
    assert jobs["ca.root_crl"]["about"] in {row["ca"] for row in site.data("ca", "ls")}
    table = site.ok("jobs", "ls", "--columns", "KIND,ABOUT,ATTEMPT")
    assert re.search(r"^ca\.root_crl +default +0 *$", table, re.MULTILINE), table


def test_lists_of_a_ca_are_asked_for_alike(site: Site) -> None:
    for words in (("accounts",), ("orders",), ("certificates",), ("eab", "ls")):
        assert site.data("ca", *words, "default") is not None
        assert "There is no CA 'nosuch'." in site.type("ca", *words, "nosuch").stderr


def test_docs_answers_with_a_reference_that_asks_nobody_else(site: Site) -> None:
    status, text = site.server.get("/docs")
    assert status == 200
    assert "certificates.request" in text
    assert "/certificates/{ref}/renew" in text
    assert "<script" not in text
    assert not re.search(r"(?:src|href)=\"?(?:https?:)?//", text)


def test_every_operation_has_a_tag_and_an_id_of_its_own(site: Site) -> None:
    document = json.loads(site.server.get("/api/v1/openapi.json")[1])
    operations = [each for methods in document["paths"].values() for each in methods.values()]
    assert len({each["operationId"] for each in operations}) == len(operations)
    assert {each["tags"][0] for each in operations} == {each["name"] for each in document["tags"]}


def test_client_certificates_are_a_switch(site: Site) -> None:
    site.ok("ca", "set", "default", "--client-certificates")
    site.ok("issue", "worker.internal", "--profile", "client", "--wait")
    leaf = x509.load_pem_x509_certificate(site.ok("fetch", "worker.internal").encode())
    usages = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert ExtendedKeyUsageOID.CLIENT_AUTH in usages
    site.ok("ca", "set", "default", "--no-client-certificates")
    assert site.type("issue", "other.internal", "--profile", "client").returncode == 1
