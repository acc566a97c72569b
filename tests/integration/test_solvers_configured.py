"""Solvers made of an operator's options: each kind does its work, and what is wrong with an option is said."""

import sys
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.bind import KEY, KEY_NAME, OURS, Bind
from tests.support.issuing import Rows, a_dns_proof
from tests.support.ports import free_port
from tests.support.secrets_planted import LEXICON_TOKEN

from holdfast import plugins
from holdfast.network import SystemNet
from holdfast.secret import Secret
from holdfast.solvers.base import Solver
from holdfast.solvers.kind import SolverParts
from holdfast.solvers.kind import make as made_of
from holdfast.world import LocalFiles, SystemRandom

pytestmark = pytest.mark.anyio

RIGHT_KEY = b64encode(KEY).decode()
UPDATE = {"server": "127.0.0.1:53", "key_name": KEY_NAME}


def tools(*resolvers: str, rows: Rows | None = None, shown: bool = True) -> SolverParts:
    rows = rows or Rows()
    return SolverParts(
        files=LocalFiles(),
        net=SystemNet(),
        random=SystemRandom(),
        resolvers=resolvers,
        python=sys.executable,
        put=rows.put,
        delete=rows.delete,
        tls_alpn_shown=shown,
    )


def make(kind: str, settings: Mapping[str, Any], secrets: Mapping[str, Secret[str]], parts: SolverParts) -> Solver:
    return made_of(kind, settings, replace(parts, credentials=secrets))


@pytest.fixture(scope="module")
def bind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bind]:
    with Bind(tmp_path_factory.mktemp("bind"), free_port()) as bind:
        yield bind


async def test_a_solver_by_dynamic_update_works_as_configured(bind: Bind) -> None:
    options = {"server": bind.address, "key_name": KEY_NAME, "propagation": False, "zone": f"{OURS.upper()}."}
    solver = make("dns-rfc2136", options, {"key": Secret(RIGHT_KEY)}, tools(bind.address))
    response = a_dns_proof(f"configured.{OURS}")
    await solver.publish(response)
    assert len(bind.ask(f"_acme-challenge.configured.{OURS}", "TXT")) == 1
    assert await solver.visible(response)  # nobody is asked
    await solver.clean(response)
    assert bind.ask(f"_acme-challenge.configured.{OURS}", "TXT") == []


@pytest.mark.parametrize(("kind", "type_"), [("http", "http-01"), ("tls-alpn", "tls-alpn-01")])
async def test_solvers_of_the_store_put_rows(kind: str, type_: str) -> None:
    rows = Rows()
    solver = make(kind, {}, {}, tools(rows=rows))
    assert solver.type == type_
    await solver.publish(a_dns_proof("a.test"))
    assert len(rows.proofs) == 1


def test_a_proof_that_nobody_would_show_is_refused_with_the_setting_that_shows_it() -> None:
    with pytest.raises(ValueError, match=r"keeping\.tls_alpn_listen"):
        make("tls-alpn", {}, {}, tools(shown=False))


async def test_a_webroot_is_written_to(tmp_path: Path) -> None:
    solver = make("webroot", {"folder": str(tmp_path)}, {}, tools())
    await solver.publish(a_dns_proof("a.test"))
    assert await solver.visible(a_dns_proof("a.test"))


@pytest.mark.parametrize(
    ("kind", "options", "secrets", "said"),
    [
        ("telepathy", {}, {}, "there is no solver"),
        ("http", {"port": 80}, {}, "there is no setting 'port'"),
        ("webroot", {}, {}, "folder is missing"),
        ("webroot", {"folder": 7}, {}, "folder is not well-formed"),
        ("webroot", {"folder": "www"}, {}, "absolute"),
        ("dns-hook", {"argv": []}, {}, "argv must be a list, such as"),
        ("dns-hook", {"argv": "rm -rf"}, {}, "argv must be a list, such as"),
        ("dns-hook", {"argv": ["a", 7]}, {}, "argv must be a list, such as"),
        ("dns-rfc2136", UPDATE, {}, "the credential key is missing"),
        ("dns-rfc2136", UPDATE, {"key": "not base64!"}, "base64"),
        ("dns-rfc2136", {**UPDATE, "server": "ns1.example"}, {"key": RIGHT_KEY}, "ns1.example"),
        ("dns-rfc2136", {**UPDATE, "algorithm": "hmac-md5"}, {"key": RIGHT_KEY}, "algorithm"),
        ("dns-lexicon", {}, {"auth_token": LEXICON_TOKEN}, "provider is missing"),
    ],
)
def test_what_is_wrong_with_an_option_is_said_without_its_secrets(
    kind: str, options: dict[str, Any], secrets: dict[str, str], said: str
) -> None:
    with pytest.raises(ValueError, match=said) as why:
        make(kind, options, {name: Secret(value) for name, value in secrets.items()}, tools())
    assert not any(value in str(why.value) for value in secrets.values())


def test_every_kind_of_proof_has_a_solver() -> None:
    given = {
        "webroot": ({"folder": "/srv"}, {}),
        "dns-hook": ({"argv": ["hook"]}, {}),
        "dns-rfc2136": (UPDATE, {"key": Secret(RIGHT_KEY)}),
        "dns-lexicon": ({"provider": "cloudflare"}, {"auth_token": Secret(LEXICON_TOKEN)}),
    }
    made = {kind: make(kind, *given.get(kind, ({}, {})), tools()).type for kind in plugins.kinds(plugins.SOLVERS)}
    assert set(made.values()) == {"http-01", "dns-01", "tls-alpn-01"}
