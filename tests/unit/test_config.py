"""Settings are read once, wholly or not at all; whatever is wrong is named, with the way to put it right."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, asdict, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.secrets_planted import SETTING

from holdfast.cli.installation.config import toml_lines
from holdfast.config import (
    KINDS,
    SECTIONS,
    Described,
    Settings,
    StoreSettings,
    describe,
    load,
    variable,
)
from holdfast.config_values import duration
from holdfast.core.durations import brief, in_words
from holdfast.errors import SettingRefused
from holdfast.secret import Secret

FILE = Path("h.toml")
SENTINEL = SETTING


def read(toml: str = "", env: Mapping[str, str] | None = None, **files: bytes) -> Settings:
    """Load from texts: `files` are secret files, by name."""

    def reader(path: Path) -> bytes:
        if path == FILE:
            return toml.encode()
        if path.name in files:
            return files[path.name]
        raise FileNotFoundError(2, "No such file or directory", str(path))

    return load(FILE, env or {}, reader)


def no_files(path: Path) -> bytes:
    raise AssertionError(f"{path} must not be read")


def shown(settings: Settings) -> dict[str, Described]:
    return {row.key: row for row in describe(settings)}


# ── What is read ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("toml", "env", "name"),
    [
        ("", {"POD_NAME": "holdfast-0"}, "holdfast-0"),
        ("", {"POD_NAME": "holdfast-0", "HOLDFAST_REPLICA_NAME": "a"}, "a"),
        ('[replica]\nname = "b"', {"POD_NAME": "holdfast-0"}, "b"),
        ("", {"POD_NAME": ""}, ""),
    ],
    ids=["pod", "variable", "file", "empty"],
)
def test_a_replica_that_was_given_no_name_is_called_as_its_pod(toml: str, env: dict[str, str], name: str):
    assert read(toml, env).replica.name == name


def test_without_a_file_and_variables_everything_is_a_default():
    settings = load(None, {}, no_files)
    assert settings == Settings()
    assert settings.server.listen == "127.0.0.1:8630"
    assert settings.replica.name == ""
    assert settings.store.data_dir == Path("data")
    assert not settings.store.url
    assert settings.store.deadline == timedelta(seconds=10)
    assert settings.store.connections == 2
    assert settings.store.sqlite_file == Path("data/holdfast.sqlite")
    assert settings.key_file == Path("data/holdfast.key")
    assert settings.keys.passphrase is None
    assert settings.scheduler.retry_interval == timedelta(minutes=5)
    assert settings.scheduler.reconcile_interval == timedelta(minutes=1)
    assert settings.scheduler.timeout_interval == timedelta(minutes=10)
    assert settings.scheduler.cleanup_interval == timedelta(hours=1)
    assert settings.scheduler.selfcheck_interval == timedelta(minutes=1)
    assert settings.notification.retry_interval == timedelta(minutes=2)
    assert settings.notification.process_interval == timedelta(minutes=1)
    assert settings.engine.slots == 64
    assert settings.engine.poll_interval == timedelta(seconds=1)
    assert settings.engine.lease_ttl == timedelta(seconds=30)
    assert settings.engine.drain == timedelta(seconds=30)
    assert settings.engine.history_for == timedelta(days=90)
    assert (settings.log.level, settings.log.format) == ("info", "auto")


ONE_OF_EACH = {  # key: (as TOML, as a variable, the value)
    "server.listen": ('"[::1]:0"', "[::1]:0", "[::1]:0"),
    "server.trusted_proxies": ('["10.0.0.0/8"]', "10.0.0.0/8", ("10.0.0.0/8",)),
    "audit.file": (
        '"/var/log/holdfast-audit.jsonl"',
        "/var/log/holdfast-audit.jsonl",
        Path("/var/log/holdfast-audit.jsonl"),
    ),
    "audit.syslog": ('"tcp://log.example.com:601"', "tcp://log.example.com:601", "tcp://log.example.com:601"),
    "audit.interval": ('"30s"', "30s", timedelta(seconds=30)),
    "replica.name": ('"böse \\"katze\\""', 'böse "katze"', 'böse "katze"'),
    "store.data_dir": ('"/var/lib/holdfast"', "/var/lib/holdfast", Path("/var/lib/holdfast")),
    "store.deadline": ("2.5", "2.5", timedelta(seconds=2.5)),
    "listeners.connections": ("8", "8", 8),
    "listeners.connections_per_address": ("0", "0", 0),
    "listeners.head_size": ("4096", "4096", 4096),
    "listeners.head_fields": ("20", "20", 20),
    "listeners.head_timeout": ('"1s"', "1", timedelta(seconds=1)),
    "listeners.body_timeout": ('"1m"', "60", timedelta(minutes=1)),
    "listeners.idle_timeout": ('"1h"', "1h", timedelta(hours=1)),
    "listeners.reserved_descriptors": ("64", "64", 64),
    "store.connections": ("64", "64", 64),
    "keys.file": ('"/etc/holdfast.key"', "/etc/holdfast.key", Path("/etc/holdfast.key")),
    "scheduler.retry_interval": ("1", "1", timedelta(seconds=1)),
    "scheduler.reconcile_interval": ('"1500ms"', "1500ms", timedelta(seconds=1.5)),
    "scheduler.timeout_interval": ('"2h"', "2h", timedelta(hours=2)),
    "scheduler.cleanup_interval": ('"1.5h"', "1.5h", timedelta(minutes=90)),
    "scheduler.selfcheck_interval": ('"7d"', "7d", timedelta(days=7)),
    "scheduler.renewal_interval": ('"1h"', "1h", timedelta(hours=1)),
    "scheduler.ari_interval": ('"1h"', "1h", timedelta(hours=1)),
    "scheduler.turns_interval": ('"1h"', "1h", timedelta(hours=1)),
    "scheduler.approval_interval": ('"1h"', "1h", timedelta(hours=1)),
    "agents.ca": ('"fleet"', "fleet", "fleet"),
    "agents.identity_lifetime": ('"2d"', "2d", timedelta(days=2)),
    "agents.poll": ('"50s"', "50s", timedelta(seconds=50)),
    "agents.parked": ("500", "500", 500),
    "agents.recoveries": ("3", "3", 3),
    "keeping.approval_for": ('"90s"', "1.5m", timedelta(seconds=90)),
    "deployment.local_file": (
        '"/etc/holdfast/deployment.toml"',
        "/etc/holdfast/deployment.toml",
        Path("/etc/holdfast/deployment.toml"),
    ),
    "deployment.interval": ('"20s"', "20s", timedelta(seconds=20)),
    "endpoints.check_interval": ('"1h"', "1h", timedelta(hours=1)),
    "endpoints.timeout": ('"5s"', "5s", timedelta(seconds=5)),
    "endpoints.networks": ('["10.1.0.0/16"]', "10.1.0.0/16", ("10.1.0.0/16",)),
    "discovery.networks": ('["10.1.0.0/16"]', "10.1.0.0/16", ("10.1.0.0/16",)),
    "discovery.logs": ('["https://log.example.com/a"]', "https://log.example.com/a", ("https://log.example.com/a",)),
    "discovery.rate": ("10", "10", 10),
    "discovery.timeout": ('"3s"', "3s", timedelta(seconds=3)),
    "endpoints.resolvers": ('["192.0.2.53"]', "192.0.2.53", ("192.0.2.53",)),
    "notification.retry_interval": ('"5m"', "5m", timedelta(minutes=5)),
    "notification.process_interval": ('"30s"', "30s", timedelta(seconds=30)),
    "notification.expiry_interval": ('"6h"', "6h", timedelta(hours=6)),
    "engine.slots": ("1", "1", 1),
    "engine.poll_interval": ('"1s"', "1s", timedelta(seconds=1)),
    "engine.lease_ttl": ("3", "3", timedelta(seconds=3)),
    "engine.drain": ("0", "0s", timedelta(0)),
    "engine.history_for": ('"1d"', "24h", timedelta(days=1)),
    "acme.listen": ('"0.0.0.0:443"', "0.0.0.0:443", "0.0.0.0:443"),
    "acme.base_url": ('"https://ca.example"', "https://ca.example/", "https://ca.example"),
    "acme.publish_url": ('"http://[::1]:80"', "http://[::1]:80", "http://[::1]:80"),
    "acme.first_ca": ('""', "", ""),
    "acme.resolvers": (
        '["192.0.2.1", "[2001:db8::1]:5353"]',
        "192.0.2.1, [2001:db8::1]:5353",
        ("192.0.2.1", "[2001:db8::1]:5353"),
    ),
    "acme.networks": ('["10.0.0.0/8", "::1/128"]', "10.0.0.0/8,::1/128", ("10.0.0.0/8", "::1/128")),
    "acme.http_port": ("5002", "5002", 5002),
    "acme.tls_port": ("5001", "5001", 5001),
    "acme.order_lifetime": ('"1h"', "1h", timedelta(hours=1)),
    "acme.authz_lifetime": ('"1m"', "60", timedelta(minutes=1)),
    "acme.validation_timeout": ('"5s"', "5", timedelta(seconds=5)),
    "acme.validation_tries": ("1", "1", 1),
    "acme.caa_identities": ('["ca.example"]', "ca.example", ("ca.example",)),
    "acme.terms_url": ('"https://ca.example/tos?v=1"', "https://ca.example/tos?v=1", "https://ca.example/tos?v=1"),
    "acme.website": ('"http://ca.example"', "http://ca.example", "http://ca.example"),
    "acme.accounts_per_address": ("0", "0", 0),
    "acme.orders_per_account": ("1", "1", 1),
    "acme.names_per_account": ("4", "4", 4),
    "acme.names_per_address": ("5", "5", 5),
    "acme.pending_per_account": ("6", "6", 6),
    "acme.pending_per_address": ("7", "7", 7),
    "acme.changes_per_account": ("8", "8", 8),
    "acme.requests_per_account": ("9", "9", 9),
    "acme.requests_per_address": ("10", "10", 10),
    "acme.orders_per_identifier": ("2", "2", 2),
    "acme.failures_per_identifier": ("3", "3", 3),
    "acme.pause_after": ("0", "0", 0),
    "acme.uncollected_after": ('"1h"', "1h", timedelta(hours=1)),
    "acme.chaos_nonces": ("100", "100", 100),
    "acme.repeat_finalize": ("true", "true", True),
    "acme.listener_backdate": ('"10m"', "10m", timedelta(minutes=10)),
    "acme.lint": ('"pkilint"', "pkilint", "pkilint"),
    "keeping.solvers_file": ('"solvers.toml"', "solvers.toml", Path("solvers.toml")),
    "keeping.tls_alpn_listen": ('"[::]:443"', "[::]:443", "[::]:443"),
    "digicert.poll_max_wait_seconds": ("0", "0", 0),
    "sectigo.poll_max_wait_seconds": ("60", "60", 60),
    "entrust.poll_max_wait_seconds": ("86400", "86400", 86400),
    "globalsign.poll_max_wait_seconds": ("1", "1", 1),
    "store.pooler": ('"transaction"', "transaction", "transaction"),
    "server.public_url": ('"https://holdfast.example"', "https://holdfast.example", "https://holdfast.example"),
    "oidc.issuer": ('"https://id.example"', "https://id.example", "https://id.example"),
    "oidc.client_id": ('"holdfast"', "holdfast", "holdfast"),
    "oidc.name": ('"Example"', "Example", "Example"),
    "oidc.scopes": ('["openid"]', "openid", ("openid",)),
    "oidc.name_claim": ('"email"', "email", "email"),
    "oidc.groups_claim": ('"roles"', "roles", "roles"),
    "oidc.groups": ('["admins=admin"]', "admins=admin", ("admins=admin",)),
    "oidc.roots_file": ('"/etc/roots.pem"', "/etc/roots.pem", Path("/etc/roots.pem")),
    "people.session_lifetime": ('"8h"', "8h", timedelta(hours=8)),
    "people.session_idle": ('"30m"', "30m", timedelta(minutes=30)),
    "people.link_lifetime": ('"2h"', "2h", timedelta(hours=2)),
    "witness.folder": ('"/mnt/witness"', "/mnt/witness", Path("/mnt/witness")),
    "witness.megabytes": ("64", "64", 64),
    "backup.folder": ('"/mnt/backups"', "/mnt/backups", Path("/mnt/backups")),
    "backup.interval": ('"6h"', "6h", timedelta(hours=6)),
    "backup.keep": ("7", "7", 7),
    "log.level": ('"debug"', "debug", "debug"),
    "log.format": ('"console"', "console", "console"),
    "metrics.interval": ('"1m"', "60", timedelta(minutes=1)),
    "metrics.certificate_series": ("0", "0", 0),
    "otel.endpoint": ('"http://127.0.0.1:4318"', "http://127.0.0.1:4318", "http://127.0.0.1:4318"),
}


def value_of(settings: Settings, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(settings, section), name)


def test_the_table_of_examples_covers_every_key_that_is_no_secret_and_no_file_of_one():
    assert set(ONE_OF_EACH) == {key for key, kind in KINDS.items() if not kind.secret} - {
        f"{key}_file" for key, kind in KINDS.items() if kind.secret
    }


@pytest.mark.parametrize("key", ONE_OF_EACH)
def test_every_key_can_be_set_by_the_file(key: str):
    section, _, name = key.partition(".")
    toml, _, value = ONE_OF_EACH[key]
    settings = read(f"[{section}]\n{name} = {toml}\n")
    assert value_of(settings, key) == value
    assert shown(settings)[key].source == "file"


@pytest.mark.parametrize("key", ONE_OF_EACH)
def test_every_key_can_be_set_by_its_variable_which_wins_over_the_file(key: str):
    section, _, name = key.partition(".")
    _, text, value = ONE_OF_EACH[key]
    other = {"log.level": '"error"', "log.format": '"json"', "server.listen": '"h:1"', "store.pooler": '"none"'}.get(
        key, '"9s"'
    )
    other = '"9m"' if section == "people" else other
    other = "9" if isinstance(value, int) else "[]" if isinstance(value, tuple) else other
    empty = ("_url", ".website", "oidc.issuer", ".first_ca", ".syslog", ".endpoint", ".tls_alpn_listen")
    other = "false" if value is True else '""' if key.endswith(empty) else other
    other = {
        "acme.listen": '"h:1"',
        "acme.lint": '"own"',
        "acme.validation_timeout": '"9s"',
        "backup.interval": '"9h"',
    }.get(key, other)
    other = (
        '"2m"'
        if key in ("acme.order_lifetime", "acme.authz_lifetime", "acme.uncollected_after", "keeping.approval_for")
        else other
    )
    other = '"5d"' if key in ("engine.history_for", "agents.identity_lifetime") else other
    other = {"listeners.head_size": "9000", "listeners.head_fields": "99", "listeners.reserved_descriptors": "99"}.get(
        key, other
    )
    settings = read(f"[{section}]\n{name} = {other}\n", {variable(key): text})
    assert value_of(settings, key) == value
    assert shown(settings)[key].source == "environment"


def test_other_variables_and_the_name_of_the_file_are_left_alone():
    assert load(None, {"PATH": "/bin", "HOLDFAST_CONFIG": "x.toml", "XHOLDFAST_Y": "1"}, no_files) == Settings()


def test_the_passphrases_that_pki_init_asks_for_may_stay_in_the_environment():
    env = {"HOLDFAST_PKI_ROOT_PASSPHRASE": "words", "HOLDFAST_PKI_INTERMEDIATE_PASSPHRASE": "others"}
    assert load(None, env, no_files) == Settings()


def test_the_variables_that_kubernetes_adds_beside_a_service_are_no_mistake():
    env = {
        "HOLDFAST_SERVICE_HOST": "10.0.0.1",
        "HOLDFAST_SERVICE_PORT": "8630",
        "HOLDFAST_SERVICE_PORT_HTTP": "8630",
        "HOLDFAST_PORT": "tcp://10.0.0.1:8630",
        "HOLDFAST_PORT_8630_TCP": "tcp://10.0.0.1:8630",
        "HOLDFAST_PORT_8630_TCP_PROTO": "tcp",
        "HOLDFAST_WEB_UI_SERVICE_HOST": "10.0.0.2",
        "HOLDFAST_WEB_UI_PORT": "tcp://10.0.0.2:80",
    }
    assert load(None, env, no_files) == Settings()
    with pytest.raises(SettingRefused, match="HOLDFAST_SERVER_PORT"):
        load(None, {"HOLDFAST_SERVER_PORT": "8630"}, no_files)


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        ("127.0.0.1:8630", ("127.0.0.1", 8630)),
        ("[::1]:0", ("::1", 0)),
        ("[fe80::1%eth0]:443", ("fe80::1%eth0", 443)),
        ("holdfast.internal:65535", ("holdfast.internal", 65535)),
    ],
)
def test_the_address_to_listen_on_is_split_into_host_and_port(listen: str, address: tuple[str, int]):
    assert read(env={"HOLDFAST_SERVER_LISTEN": listen}).server.address == address


def test_nobody_listens_for_tls_alpn_unless_told_where():
    assert read().keeping.tls_alpn_address is None
    assert read(env={"HOLDFAST_KEEPING_TLS_ALPN_LISTEN": ""}).keeping.tls_alpn_address is None
    assert read('[keeping]\ntls_alpn_listen = "[::]:443"').keeping.tls_alpn_address == ("::", 443)


@pytest.mark.parametrize(
    ("url", "file"),
    [
        ("postgresql://u:p@host/db", None),
        ("postgresql:///db?host=/run", None),
        ("sqlite:///here.db", Path("here.db")),
        ("sqlite:////var/lib/here.db", Path("/var/lib/here.db")),
    ],
)
def test_the_store_is_in_a_file_or_on_a_server(url: str, file: Path | None):
    store = read(env={"HOLDFAST_STORE_URL": url}).store
    assert store.url.reveal() == url
    assert store.sqlite_file == file


def test_files_follow_the_data_directory():
    settings = read('[store]\ndata_dir = "/srv"')
    assert settings.store.sqlite_file == Path("/srv/holdfast.sqlite")
    assert settings.key_file == Path("/srv/holdfast.key")
    assert read('[keys]\nfile = "/k"').key_file == Path("/k")


def test_settings_cannot_be_changed_after_they_are_read():
    settings = Settings()
    with pytest.raises(FrozenInstanceError):
        settings.log = settings.log  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        settings.engine.slots = 3  # type: ignore[misc]
    assert not hasattr(settings, "__dict__")


# ── Secrets ───────────────────────────────────────────────────────────────────────────────────────────────

SECRETS = [key for key, kind in KINDS.items() if kind.secret]
URL = f"postgresql://u:{SENTINEL}@host/db"


def test_every_secret_is_declared_with_its_file():
    assert SECRETS == [
        "oidc.client_secret",
        "store.url",
        "store.migrate_url",
        "keys.passphrase",
        "keys.previous_passphrase",
        "otel.headers",
    ]
    assert all(f"{key}_file" in KINDS for key in SECRETS)
    for section in SECTIONS.values():
        for field in fields(section):
            assert ("Secret" in str(field.type)) == field.metadata["kind"].secret


@pytest.mark.parametrize("key", SECRETS)
@pytest.mark.parametrize("ending", ["", "\n", "\r\n", "\n\n"])
@pytest.mark.parametrize("named_by", ["file", "environment"])
def test_a_secret_is_read_from_its_file_without_the_line_break(key: str, ending: str, named_by: str):
    section, _, name = key.partition(".")
    if named_by == "file":
        settings = read(f'[{section}]\n{name}_file = "/run/token"', token=(URL + ending).encode())
    else:
        settings = read(env={f"{variable(key)}_FILE": "/run/token"}, token=(URL + ending).encode())
    assert value_of(settings, key) == Secret(URL)
    assert shown(settings)[key].source == "secret file"
    assert shown(settings)[f"{key}_file"].value == "/run/token"


def test_spaces_around_a_passphrase_belong_to_it():
    settings = read(env={"HOLDFAST_KEYS_PASSPHRASE_FILE": "token"}, token=b" two words \n")
    assert settings.keys.passphrase == Secret(" two words ")


@pytest.mark.parametrize("key", SECRETS)
def test_a_secret_in_the_file_is_refused_and_the_way_to_give_it_is_told(key: str):
    section, _, name = key.partition(".")
    with pytest.raises(SettingRefused) as refusal:
        read(f'[{section}]\n{name} = "{URL}"')
    assert str(refusal.value) == f"{key} (h.toml): a secret may not stand in this file"
    assert variable(key) in refusal.value.hint
    assert f"{key}_file" in refusal.value.hint
    assert SENTINEL not in str(refusal.value) + refusal.value.hint


@pytest.mark.parametrize("key", SECRETS)
def test_a_secret_given_twice_is_refused(key: str):
    with pytest.raises(SettingRefused, match=rf"{key}: both {variable(key)} and {key}_file are given"):
        read(env={variable(key): URL, f"{variable(key)}_FILE": "token"}, token=URL.encode())


@pytest.mark.parametrize("key", SECRETS)
def test_an_empty_secret_is_refused_rather_than_taken_for_none(key: str):
    with pytest.raises(SettingRefused, match=rf"{key} \({variable(key)}\): is given but empty"):
        read(env={variable(key): ""})
    with pytest.raises(SettingRefused, match=rf"{key} \(token\): is given but empty"):
        read(env={f"{variable(key)}_FILE": "token"}, token=b"\n")


def test_no_refusal_quotes_a_secret():
    bad = [
        lambda: read(env={"HOLDFAST_STORE_URL": f"mysql://u:{SENTINEL}@host"}),
        lambda: read(env={"HOLDFAST_STORE_URL": SENTINEL}),
        lambda: read(env={"HOLDFAST_STORE_URL": f"postgresql://{SENTINEL}\nx"}),
        lambda: read(env={"HOLDFAST_STORE_URL_FILE": "token"}, token=SENTINEL.encode()),
        lambda: read(env={"HOLDFAST_STORE_URL_FILE": "token"}, token=SENTINEL.encode() + b"\xff"),
        lambda: read(env={"HOLDFAST_KEYS_PASSPHRAS": SENTINEL}),
        lambda: read(f'[keys]\npasphrase = "{SENTINEL}"'),
        lambda: read(f'store = "{URL}"'),
        lambda: read(f'url = "{URL}"'),
        lambda: read(f'[store]\nurl = "{URL}'),
    ]
    for attempt in bad:
        with pytest.raises(SettingRefused) as refusal:
            attempt()
        assert SENTINEL not in str(refusal.value) + refusal.value.hint + repr(refusal.value)


def test_settings_can_be_printed_and_copied_without_showing_a_secret():
    settings = read(env={"HOLDFAST_STORE_URL": URL, "HOLDFAST_KEYS_PASSPHRASE": SENTINEL})
    for text in (
        repr(settings),
        str(settings),
        f"{settings}",
        repr(asdict(settings)),
        repr(describe(settings)),
    ):
        assert "***" in text
        assert SENTINEL not in text
    assert copy.deepcopy(settings) == settings
    assert SENTINEL not in repr(settings.provenance)


# ── What is refused ───────────────────────────────────────────────────────────────────────────────────────

BAD_NAMES = [  # (TOML, the sentence, a part of the hint)
    ("[sever]", "sever (h.toml): there is no such section", "Did you mean server?"),
    ("[zzz]", "zzz (h.toml): there is no such section", "config show"),
    ('listen = "h:1"', "listen (h.toml): there is no such section", "Did you mean server.listen?"),
    ("[engine]\nslotz = 1", "engine.slotz (h.toml): there is no such setting", "Did you mean engine.slots?"),
    ("[server]\nlevel = 1", "server.level (h.toml): there is no such setting", "Did you mean log.level?"),
    ("[engine]\nSLOTS = 1", "engine.SLOTS (h.toml): there is no such setting", ""),
    ("[engine.slots]\na = 1", "engine.slots (h.toml): expected a whole number", ""),
    ("engine = 3", "engine (h.toml): expected a section, such as [engine]", ""),
    ("[[engine]]\nslots = 3", "engine (h.toml): expected a section, such as [engine]", ""),
    ("[server\n", "h.toml, line 1, column 8: Expected ']'", ""),
    ("[log]\nlevel = debug\n", "h.toml, line 2, column 9: Invalid value", "quotes"),
    ("[log]\nlevel =", "h.toml, line 2, column 8: Invalid value", ""),
    ("[log]\n[log]\n", "h.toml, line 2, column 5: Cannot declare", ""),
    ('[store]\nurl_file = "/no"', "store.url_file: cannot read /no: No such file or directory", "Check"),
    ('[keys]\npassphrase_file = "/no"', "keys.passphrase_file: cannot read /no: No such file", "Check"),
]

BAD_VARIABLES = [  # (variable, a part of the hint)
    ("HOLDFAST_ENGINE_SLOT", "Did you mean HOLDFAST_ENGINE_SLOTS?"),
    ("HOLDFAST_SERVER_LISTN", "Did you mean HOLDFAST_SERVER_LISTEN?"),
    ("HOLDFAST_CONFG", "Did you mean HOLDFAST_CONFIG?"),
    ("HOLDFAST_DATA", "config show"),
    ("HOLDFAST_engine_slots", ""),
    ("HOLDFAST_", "config show"),
]

BAD_IN_FILE = [  # (key, as TOML, the problem)
    ("engine.slots", '"16"', "expected a whole number from 1 to 256, such as 4, but got '16'"),
    ("engine.slots", "1.5", "expected a whole number"),
    ("engine.slots", "true", "expected a whole number"),
    ("engine.slots", "[1]", "expected a whole number"),
    ("engine.slots", "0", "0 is not between 1 and 256"),
    ("engine.slots", "257", "257 is not between 1 and 256"),
    ("store.connections", "65", "65 is not between 1 and 64"),
    ("listeners.connections", "7", "7 is not between 8 and 100000"),
    ("listeners.head_size", "100", "100 is not between 4096 and 1048576"),
    ("listeners.head_fields", "5000", "5000 is not between 20 and 1000"),
    ("listeners.reserved_descriptors", "0", "0 is not between 64 and 100000"),
    ("server.listen", "8630", "expected host:port, such as 127.0.0.1:8630"),
    ("keeping.tls_alpn_listen", '":443"', "expected host:port, such as 0.0.0.0:443 or [::]:443, or nothing"),
    ("keeping.tls_alpn_listen", "443", "expected host:port"),
    ("replica.name", "1979-05-27", "expected text on one line"),
    ("replica.name", '"a\\nb"', "expected text on one line"),
    ("store.data_dir", "1", "expected a path, such as /var/lib"),
    ("store.data_dir", '""', "a path cannot be empty"),
    ("log.level", '"INFO"', "expected one of debug, info, warning, error, such as debug, but got 'INFO'"),
    ("log.level", "[]", "expected one of debug, info, warning, error"),
    ("log.format", '"xml"', "expected one of auto, json, console"),
    ("engine.lease_ttl", "2.9", "2.9s is below the minimum of 3 seconds"),
    ("engine.drain", '"31s"', "31s is above the maximum of 30 seconds"),
    ("engine.drain", "-1", "-1s is below the minimum of 0 seconds"),
    ("engine.history_for", '"23h"', "23h is below the minimum of 1 day"),
    ("engine.history_for", '"36501d"', "36501d is above the maximum of 36500 days"),
    ("store.deadline", "0", "0s is below the minimum of 1 second"),
    ("store.deadline", "nan", "expected a duration from 1 second to 36500 days, such as 30s, 5m, 1h or 90d"),
    ("store.deadline", "inf", "expected a duration"),
    ("store.deadline", "-inf", "expected a duration"),
    ("store.deadline", "1e400", "expected a duration"),
    ("store.deadline", "1e300", "1e+300s is not between 1 second and 36500 days"),
    ("store.deadline", "-1e300", "-1e+300s is not between 1 second and 36500 days"),
    ("store.deadline", "9" * 400, "9999"),
    ("store.deadline", f'"{"9" * 400}d"', "9999"),
    ("store.deadline", "true", "expected a duration"),
    ("store.deadline", '"soon"', "expected a duration"),
    ("store.deadline", '"nan"', "expected a duration"),
    ("store.deadline", '""', "expected a duration"),
    ("store.deadline", '"5 weeks"', "expected a duration"),
    ("store.deadline", '"1m30s"', "expected a duration"),
    ("store.deadline", '"٣s"', "expected a duration"),
]

BAD_IN_VARIABLE = [  # (key, as text, the problem)
    ("engine.slots", "many", "expected a whole number"),
    ("engine.slots", "", "expected a whole number"),
    ("engine.slots", "1_0", "expected a whole number"),
    ("engine.slots", "9" * 5000, "expected a whole number"),
    ("store.connections", "-1", "-1 is not between 1 and 64"),
    ("listeners.head_timeout", "0", "0s is below the minimum of 1 second"),
    ("listeners.idle_timeout", "2h", "2h is above the maximum of 1 hour"),
    ("store.data_dir", "a\0b", "expected a path"),
    ("store.data_dir", "\udcff", "expected a path"),
    ("store.deadline", "1e3", "expected a duration"),
    ("store.deadline", "30s\n", "expected a duration"),
    ("server.listen", "127.0.0.1", "expected host:port"),
    ("server.listen", ":8630", "expected host:port"),
    ("server.listen", "::1:8630", "expected host:port"),
    ("server.listen", "[::zz]:1", "::zz is not an IP address"),
    ("server.listen", "999.0.0.1:1", "999.0.0.1 is not an IP address"),
    ("server.listen", "h:65536", "port 65536 is not between 0 and 65535"),
    ("store.url", "mysql://h/d", "expected postgresql://"),
    ("store.url", "postgresql://", "expected postgresql://"),
    ("store.url", "sqlite:///", "expected postgresql://"),
    ("store.url", "sqlite:///:memory:", "expected postgresql://"),
]


def refusal_of(toml: str = "", env: Mapping[str, str] | None = None) -> SettingRefused:
    with pytest.raises(SettingRefused) as caught:
        read(toml, env)
    sentence = str(caught.value)
    assert sentence.isprintable()
    assert len(sentence) < 200
    return caught.value


@pytest.mark.parametrize(("toml", "sentence", "hint"), BAD_NAMES)
def test_a_file_that_cannot_be_understood_is_refused_with_its_place(toml: str, sentence: str, hint: str):
    refusal = refusal_of(toml)
    assert str(refusal).startswith(sentence)
    assert hint in refusal.hint


@pytest.mark.parametrize(("name", "hint"), BAD_VARIABLES)
def test_an_unknown_variable_is_refused_with_a_suggestion(name: str, hint: str):
    refusal = refusal_of(env={name: "x"})
    assert str(refusal) == f"{name}: there is no such setting"
    assert hint in refusal.hint


@pytest.mark.parametrize(("key", "toml", "problem"), BAD_IN_FILE)
def test_a_bad_value_in_the_file_is_refused_by_key_and_file(key: str, toml: str, problem: str):
    section, _, name = key.partition(".")
    assert str(refusal_of(f"[{section}]\n{name} = {toml}")).startswith(f"{key} (h.toml): {problem}")


@pytest.mark.parametrize(("key", "text", "problem"), BAD_IN_VARIABLE)
def test_a_bad_value_in_a_variable_is_refused_by_key_and_variable(key: str, text: str, problem: str):
    assert str(refusal_of(env={variable(key): text})).startswith(f"{key} ({variable(key)}): {problem}")


def test_of_several_mistakes_it_is_always_the_same_one_that_is_named():
    """The file's names come first, then the variables' names, then values in the order of declaration."""
    zzz, qqqq = "[zzz]", {"HOLDFAST_QQQQ": "x", "HOLDFAST_RRRR": "x"}
    assert refusal_of(zzz, qqqq).setting == "zzz (h.toml)"
    assert refusal_of("[engine]\nslots = 0", qqqq).setting == "HOLDFAST_QQQQ"
    assert refusal_of("[engine]\nslots = 0", dict(reversed(qqqq.items()))).setting == "HOLDFAST_QQQQ"
    assert refusal_of("[log]\nlevel = 1\n[engine]\nslots = 0").setting == "engine.slots (h.toml)"


def test_a_value_that_a_variable_overrides_is_checked_all_the_same():
    refusal = refusal_of("[engine]\nslots = 0", {"HOLDFAST_ENGINE_SLOTS": "5"})
    assert refusal.setting == "engine.slots (h.toml)"


SCHEDULED = ("retry", "reconcile", "timeout", "cleanup", "selfcheck", "renewal", "ari", "turns", "approval")
INTERVALS = [f"scheduler.{each}_interval" for each in SCHEDULED]
INTERVALS += ["engine.poll_interval", "endpoints.check_interval"]
INTERVALS += [f"notification.{each}_interval" for each in ("retry", "process", "expiry")]


def test_every_interval_is_in_the_table_of_intervals():
    assert set(INTERVALS) == {key for key in KINDS if key.endswith("_interval")}


@pytest.mark.parametrize("key", INTERVALS)
@pytest.mark.parametrize("text", ["0.5s", "0.5", "999ms", "0", "-5m"])
def test_an_interval_below_one_second_is_refused_by_name(key: str, text: str):
    written = text if text[-1] in "sm" else f"{text}s"
    with pytest.raises(SettingRefused) as refusal:
        read(env={variable(key): text})
    assert str(refusal.value) == f"{key} ({variable(key)}): {written} is below the minimum of 1 second"
    section, _, name = key.partition(".")
    with pytest.raises(SettingRefused) as refusal:
        read(f'[{section}]\n{name} = "{text}"')
    assert str(refusal.value) == f"{key} (h.toml): {written} is below the minimum of 1 second"


def test_an_interval_below_one_second_is_refused_as_a_number_too():
    with pytest.raises(SettingRefused) as refusal:
        read("[scheduler]\nretry_interval = 0.5")
    assert str(refusal.value) == "scheduler.retry_interval (h.toml): 0.5s is below the minimum of 1 second"


@pytest.mark.parametrize(
    ("failure", "sentence"),
    [
        (
            FileNotFoundError(2, "No such file or directory"),
            "cannot read h.toml: No such file or directory",
        ),
        (PermissionError(13, "Permission denied"), "cannot read h.toml: Permission denied"),
        (IsADirectoryError(21, "Is a directory"), "cannot read h.toml: Is a directory"),
        (OSError("odd"), "cannot read h.toml: odd"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(failure: OSError, sentence: str):
    def reader(path: Path) -> bytes:
        raise failure

    with pytest.raises(SettingRefused, match=f"configuration file: {sentence}"):
        load(FILE, {}, reader)


def test_a_file_that_is_not_text_is_named():
    with pytest.raises(SettingRefused, match=r"configuration file: h\.toml is not UTF-8 text"):
        load(FILE, {}, lambda path: b"\xff\xfe")


# ── What is shown ─────────────────────────────────────────────────────────────────────────────────────────


def test_every_key_is_described_in_order_by_a_sentence():
    rows = describe(Settings())
    assert [row.key for row in rows] == list(KINDS)
    for row in rows:
        assert row.variable == f"HOLDFAST_{row.key.replace('.', '_').upper()}"
        assert row.doc[0].isupper()
        assert row.doc.endswith(".")
        assert row.doc.isascii()
        assert row.source == "default"
        assert row.value == row.default
        assert row.expected


def test_a_secret_is_shown_as_a_mask_and_only_when_there_is_one():
    rows = shown(read(env={"HOLDFAST_KEYS_PASSPHRASE": SENTINEL}))
    assert (rows["keys.passphrase"].value, rows["keys.passphrase"].default) == ("***", None)
    assert rows["keys.passphrase"].source == "environment"
    assert rows["keys.previous_passphrase"].value is None


def test_a_default_that_follows_the_data_directory_is_shown_where_it_is():
    rows = shown(read('[store]\ndata_dir = "/srv"'))
    assert rows["store.url"].value == rows["store.url"].default == "sqlite:////srv/holdfast.sqlite"
    assert rows["keys.file"].value == rows["keys.file"].default == "/srv/holdfast.key"
    assert rows["store.data_dir"].default == "data"
    assert shown(Settings())["store.url"].value == "sqlite:///data/holdfast.sqlite"
    assert read(env={"HOLDFAST_STORE_URL": "sqlite:////srv/holdfast.sqlite"}).store.sqlite_file == Path(
        "/srv/holdfast.sqlite"
    )


def test_the_toml_that_is_shown_reads_back_as_the_same_settings():
    env = {variable(key): text for key, (_, text, _) in ONE_OF_EACH.items()}
    settings = read(env=env)
    again = read("\n".join(toml_lines(describe(settings))))
    assert again == settings
    assert {row.source for row in describe(again)} == {"default", "file"}


def test_the_toml_of_defaults_sets_nothing_and_mentions_everything():
    text = "\n".join(toml_lines(describe(Settings())))
    assert all(not keys for keys in tomllib.loads(text).values())
    for key in KINDS:
        assert f"#{key.partition('.')[2]} = " in text


def test_a_secret_is_never_live_in_the_toml_that_is_shown():
    settings = read(env={"HOLDFAST_STORE_URL": URL, "HOLDFAST_KEYS_PASSPHRASE_FILE": "token"}, token=b"x")
    text = "\n".join(toml_lines(describe(settings)))
    assert SENTINEL not in text
    assert tomllib.loads(text)["store"] == {}
    assert tomllib.loads(text)["keys"] == {"passphrase_file": "token"}


def test_what_is_described_can_be_written_as_json():
    rows = [asdict(row) for row in describe(read(env={"HOLDFAST_STORE_URL": URL}))]
    assert SENTINEL not in json.dumps(rows)


@pytest.mark.parametrize(
    ("span", "short", "words"),
    [
        (timedelta(0), "0s", "0 seconds"),
        (timedelta(milliseconds=500), "500ms", "500 milliseconds"),
        (timedelta(seconds=1), "1s", "1 second"),
        (timedelta(seconds=90), "90s", "90 seconds"),
        (timedelta(minutes=5), "5m", "5 minutes"),
        (timedelta(hours=1), "1h", "1 hour"),
        (timedelta(days=90), "90d", "90 days"),
    ],
)
def test_a_duration_is_written_in_its_largest_whole_unit(span: timedelta, short: str, words: str):
    assert brief(span) == short
    assert in_words(span) == words
    assert duration("0s").parse(short) == span


def test_a_duration_of_microseconds_is_written_exactly():
    span = timedelta(seconds=1, microseconds=1)
    assert brief(span) == "1.000001s"
    assert duration("0s").parse(brief(span)) == span


def test_a_test_may_build_settings_that_people_may_not():
    quick = replace(Settings(), store=StoreSettings(deadline=timedelta(milliseconds=1)))
    assert quick.store.deadline < timedelta(seconds=1)


def test_reading_settings_imports_nothing_that_is_slow_to_import():
    code = "import holdfast.config, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not {"pydantic", "typer", "rich", "cryptography", "structlog"} & set(done.stdout.split())


# ── Lists, and what else only ACME has ────────────────────────────────────────────────────────────────────


def acme(toml: str = "", env: Mapping[str, str] | None = None) -> Settings:
    return read(f"[acme]\n{toml}\n", {f"HOLDFAST_ACME_{name}": text for name, text in (env or {}).items()})


@pytest.mark.parametrize("kind", ["digicert", "sectigo", "entrust", "globalsign"])
def test_a_window_that_a_compose_file_leaves_empty_is_the_default(kind: str):
    assert read(env={f"HOLDFAST_{kind.upper()}_POLL_MAX_WAIT_SECONDS": ""}).poll_windows[kind] == timedelta(0)
    assert read(env={f"HOLDFAST_{kind.upper()}_POLL_MAX_WAIT_SECONDS": "90"}).poll_windows[kind].total_seconds() == 90


def test_a_list_in_a_variable_is_divided_by_commas_and_may_be_empty():
    assert acme(env={"NETWORKS": " 10.0.0.0/8 ,192.168.0.0/16"}).acme.networks == ("10.0.0.0/8", "192.168.0.0/16")
    assert acme('networks = ["10.0.0.0/8"]', {"NETWORKS": ""}).acme.networks == ()


@pytest.mark.parametrize(
    ("toml", "problem"),
    [
        ('networks = "10.0.0.0/8"', "expected a list of values, each a network, such as 10.0.0.0/8, but got"),
        ('networks = ["10.0.0.0/8", "ten"]', "'ten' is not a network, such as 10.0.0.0/8"),
        ('networks = ["10.0.0.1/8"]', "'10.0.0.1/8' is no network: 10.0.0.1/8 has host bits set"),
        ("networks = [10]", "10 is not a network, such as 10.0.0.0/8"),
        ('networks = [["10.0.0.0/8"]]', "['10.0.0.0/8'] is not a network, such as 10.0.0.0/8"),
        ('resolvers = ["dns.example"]', "'dns.example' is not an address, with or without a port, such as"),
        ('resolvers = ["192.0.2.1:0"]', "'192.0.2.1:0' is not an address, with or without a port, such as"),
        ('resolvers = ["192.0.2.1:99999"]', "'192.0.2.1:99999' is not an address"),
        ('resolvers = ["192.0.2.256"]', "'192.0.2.256' does not appear to be an IPv4 or IPv6 address"),
        ('caa_identities = ["CA.example"]', "'CA.example' is not a domain in lower case, such as ca.example.internal"),
        ('caa_identities = [""]', "'' is not a domain in lower case, such as ca.example.internal"),
        ('base_url = "http://ca.example"', "expected https://host or https://host:port in lower case"),
        ('base_url = "https://ca.example/acme"', "expected https://host or https://host:port in lower case"),
        ('base_url = "https://u:p@ca.example"', "expected https://host or https://host:port in lower case"),
        ('publish_url = "https://ca.example"', "expected http://host or http://host:port in lower case"),
        ('first_ca = "My CA"', "expected 1 to 32 of a-z, 0-9 and -, such as default, or nothing, but got 'My CA'"),
        ('terms_url = "javascript:alert(1)"', "expected a URL, such as https://example.internal/terms"),
        ('repeat_finalize = "yes"', "expected true or false, but got 'yes'"),
        ("repeat_finalize = 1", "expected true or false, but got 1"),
        ("chaos_nonces = 101", "101 is not between 0 and 100"),
        ("http_port = 0", "0 is not between 1 and 65535"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_list_or_an_address_is_named_with_an_example(toml: str, problem: str):
    with pytest.raises(SettingRefused) as refusal:
        acme(toml)
    assert problem in str(refusal.value)


def test_one_wrong_value_of_a_list_in_a_variable_is_named():
    with pytest.raises(SettingRefused, match=r"acme\.networks \(HOLDFAST_ACME_NETWORKS\): 'x' is not a network"):
        acme(env={"NETWORKS": "10.0.0.0/8,x"})
