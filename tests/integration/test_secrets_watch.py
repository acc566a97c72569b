"""The watch over the suite's outputs can fail: what is let out on purpose, in a run of its own, is found and named."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from tests.support.postgres import Cluster
from tests.support.secrets_planted import HOOK_KEY, MARK, NAMES, SMTP_PASSWORD, forms
from tests.support.secrets_watch import Watch, rows

ROOT = Path(__file__).parents[2]
NAME = NAMES[SMTP_PASSWORD]

# Each lets something out by another door. They are run by a pytest of their own, which must end in red for all but one.
LEAKS = """
import logging, subprocess, sys
import httpx2, pytest
from holdfast.errors import Refused, UserError
from holdfast.secret import Secret
from tests.support.engine import Memory
from tests.support.secrets_planted import SMTP_PASSWORD as IT

def test_says_nothing(): print(Secret(IT))
def test_prints(): print(IT)
def test_writes_on_stderr(): sys.stderr.write(IT)
def test_logs_at_debug(): logging.getLogger("any.library").debug("login with %s", IT)
def test_logs_a_fact(): Memory().debug("mail.sent", password=IT)
def test_raises():
    with pytest.raises(UserError): raise UserError("the password " + IT + " is wrong")
def test_quotes(): Refused(f"they said {IT.encode().hex()}")
def test_fails(): raise ValueError(IT)
def test_starts_one_that_prints():
    subprocess.run([sys.executable, "-c", "import holdfast; print(%r)" % IT], capture_output=True)
def test_answers():
    def app(request): return httpx2.Response(200, json={"password": IT})
    httpx2.Client(transport=httpx2.MockTransport(app)).get("https://holdfast.test/api/v1/channels")
def test_keeps(tmp_path): (tmp_path / "holdfast.sqlite").write_bytes(b"SQLite" + IT.encode())
def test_prints_what_was_made_here():
    print(Secret("of-no-other-test-0815").reveal())
@pytest.mark.shows_secrets("on purpose")
def test_shows_it_on_purpose(): print(IT)
"""


def test_every_leak_is_found_in_the_test_that_has_it(tmp_path: Path) -> None:
    """Shared out, as the whole suite is, so that what a worker finds is seen to arrive."""
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_configure\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider --strict-markers\n")
    (tmp_path / "test_leaks.py").write_text(LEAKS)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "1", "-rA", "-p", "no:anyio", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
        said = run.stdout.read() if run.stdout else ""  # not by communicate: these leaks are not of this test
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, said
    red = {line.partition("::")[2].split(" ")[0] for line in said.splitlines() if line.startswith("ERROR ")}
    every = {line.partition("(")[0].removeprefix("def ") for line in LEAKS.splitlines() if line.startswith("def test")}
    assert every - red == {"test_says_nothing", "test_shows_it_on_purpose"}, said
    assert said.count(f": {NAME}") >= len(red) - 1
    assert "Captured stdout call: a Secret" in said


ENCODINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "JSON": json.dumps,
    "an address": quote,
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64 after one octet": lambda text: base64.b64encode(b"\xff" + text.encode()).decode(),
    "base64 after two octets": lambda text: base64.b64encode(b"\xff\xff" + text.encode()).decode(),
    "base64url": lambda text: base64.urlsafe_b64encode(b"user:" + text.encode()).decode(),
    "hex": lambda text: text.encode().hex(),
    "upper-case hex": lambda text: text.encode().hex().upper(),
    "a representation": lambda text: repr({"password": text.encode()}),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_planted_secret_is_found_in_every_encoding(encoding: str) -> None:
    watch = Watch()
    watch.look("here", f"before {ENCODINGS[encoding](SMTP_PASSWORD)} after")
    assert watch.settle() == [f"here: {NAME}"]
    assert watch.settle() == [], "it belongs to one test only"


def test_at_least_fifty_are_planted_each_with_the_mark_and_none_of_them_in_another() -> None:
    assert len(NAMES) >= 50
    assert len(set(NAMES.values())) == len(NAMES)
    assert all(text.startswith(MARK) for text in NAMES)
    assert not [text for text in NAMES for other in NAMES if text != other and text in other]
    assert MARK.isalnum()
    assert not any(b"+" in each or b"/" in each for each in forms(MARK)), "both alphabets write it alike"


@pytest.mark.parametrize("form", [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL])
@pytest.mark.parametrize("kind", ["ec", "rsa"])
def test_any_private_key_is_found(kind: str, form: PrivateFormat) -> None:
    key = ec.generate_private_key(ec.SECP256R1()) if kind == "ec" else rsa.generate_private_key(65537, 2048)
    pem = key.private_bytes(Encoding.PEM, form, NoEncryption()).decode()
    for content in (pem, json.dumps({"key": pem}), repr(pem)):
        watch = Watch()
        watch.look("here", content)
        assert watch.settle() == ["here: a private key"]


BARE: dict[str, Callable[[], Any]] = {
    "P-256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "P-384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "RSA": lambda: rsa.generate_private_key(65537, 2048),
    "Ed25519": ed25519.Ed25519PrivateKey.generate,
}


@pytest.mark.parametrize("kind", BARE)
def test_a_private_key_is_found_without_its_frame(kind: str) -> None:
    der = BARE[kind]().private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    watch = Watch()
    watch.look("here", base64.b64encode(der))
    assert watch.settle() == ["here: a private key"]


def test_a_key_that_is_handed_over_is_none_of_its_business_but_a_planted_secret_is() -> None:
    pem = ec.generate_private_key(ec.SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    watch = Watch()
    watch.look("export", pem, hands_over=True)
    watch.look("token", "hf_t1_" + "A" * 43, hands_over=True)
    assert watch.settle() == []
    watch.look("export", pem + HOOK_KEY.encode(), hands_over=True)
    assert watch.settle() == ["export: the key of a web hook"]


def test_rows_of_a_store_are_read_whole(postgres: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    url = postgres.create_database()
    watch = Watch()
    monkeypatch.setattr("tests.support.secrets_watch.look", watch.look)
    with psycopg.connect(url, autocommit=True) as line:
        line.execute("CREATE TABLE audit (seq int, details jsonb)")
        line.execute("INSERT INTO audit SELECT n, jsonb_build_object('n', n) FROM generate_series(1, 100) n")
        line.execute("INSERT INTO audit VALUES (101, %s)", (json.dumps({"a": [SMTP_PASSWORD]}),))
    rows(url)
    postgres.drop_database(url)
    assert watch.settle() == [f"table audit: {NAME}"]
