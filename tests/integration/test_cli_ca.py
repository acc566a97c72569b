"""`holdfast ca` in a process of its own: beside a server that holds the database, and without one."""

import json
import ssl
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from cryptography import x509
from tests.support.commands import holdfast
from tests.support.postgres import Cluster
from tests.support.processes import Served, environment
from tests.support.reaper import PATIENCE, until


@dataclass
class Ground:
    """A store, and the data folder of whoever uses it."""

    folder: Path
    settings: dict[str, str]
    environment: dict[str, str] = field(default_factory=dict)

    def holdfast(self, *args: str) -> subprocess.CompletedProcess[str]:
        return holdfast(*args, env=environment(self.folder, self.settings) | self.environment)

    def ca(self, *args: str) -> Any:
        """What `holdfast ca … -o json` says."""
        done = self.holdfast("ca", *args, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def audit(self) -> str:
        done = self.holdfast("audit", "verify")
        assert done.returncode == 0, done.stdout
        return done.stdout


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def ground(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    folder = tmp_path_factory.mktemp("data")
    if request.param == "sqlite":
        yield Ground(folder, {})
        return
    cluster: Cluster = request.getfixturevalue("postgres")
    url = cluster.create_database()
    yield Ground(folder, {"STORE_URL": url})
    cluster.drop_database(url)


@pytest.fixture(scope="module")
def served(ground: Ground) -> Iterator[Served]:
    with Served(ground.folder, ground.settings) as server:
        server.wait_until_ready()
        yield server
        assert server.stop() == 0


# ── Beside a running server ──


def test_the_socket_is_for_our_user_alone(ground: Ground, served: Served) -> None:
    mode = (ground.folder / "holdfast.sock").stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


def test_the_first_start_made_a_ca_whose_root_clients_can_trust(ground: Ground, served: Served) -> None:
    [listed] = ground.ca("ls")
    assert (listed["ca"], listed["state"]) == ("default", "active")
    root = ground.holdfast("ca", "chain", "default", "--root").stdout
    trust = ssl.create_default_context(cadata=root)
    with urlopen(ground.ca("show", "default")["directory"], context=trust, timeout=PATIENCE) as answer:
        assert json.load(answer)["newOrder"].endswith("/acme/default/new-order")


def test_the_chain_is_printed_without_its_root(ground: Ground, served: Served) -> None:
    chain = ground.holdfast("ca", "chain", "default").stdout
    [issuer] = x509.load_pem_x509_certificates(chain.encode())
    assert issuer.subject != issuer.issuer


def test_a_change_holds_for_the_running_server_at_once(ground: Ground, served: Served) -> None:
    ground.ca("create", "lab", "--name", "Lab", "--eab-required", "--challenge", "http-01")
    directory = ground.ca("show", "lab")["directory"]
    trust = ssl.create_default_context(cadata=ground.holdfast("ca", "chain", "default", "--root").stdout)

    def eab_required() -> bool:
        with urlopen(directory, context=trust, timeout=PATIENCE) as answer:
            return bool(json.load(answer)["meta"].get("externalAccountRequired", False))

    assert eab_required()
    ground.ca("set", "lab", "--no-eab-required")
    assert not eab_required()


def test_an_eab_key_is_made_shown_once_listed_and_revoked(ground: Ground, served: Served) -> None:
    made = ground.ca("eab", "create", "default", "--name", "*.example.internal", "--note", "web", "--lifetime", "7d")
    assert len(made["mac"]) == 43
    rows = {each["kid"]: each for each in ground.ca("eab", "ls")}
    assert rows[made["kid"]]["state"] == "free"
    assert made["mac"] not in served.output()
    ground.ca("eab", "revoke", made["kid"], "--yes")
    rows = {each["kid"]: each for each in ground.ca("eab", "ls")}
    assert rows[made["kid"]]["state"] == "revoked"


def test_a_revoked_certificate_is_on_the_list_that_everyone_can_fetch(ground: Ground, served: Served) -> None:
    [certificate, *_] = ground.ca("certificates", "default")
    ground.ca("revoke", certificate["serial"], "--ca", "default", "--reason", "superseded", "--yes")

    def listed() -> bool:
        with urlopen(f"{served.url}/pki/default/0.crl", timeout=PATIENCE) as answer:
            crl = x509.load_der_x509_crl(answer.read())
        return crl.get_revoked_certificate_by_serial_number(int(certificate["serial"], 16)) is not None

    until(listed, "the certificate on the list", every=0.2)


def test_what_shuts_others_out_asks_back_and_can_be_tried_first(ground: Ground, served: Served) -> None:
    tried = ground.holdfast("ca", "renew", "default", "--years", "9", "--dry-run")
    assert (tried.returncode, "Nothing was changed" in tried.stderr) == (0, True)
    assert ground.holdfast("ca", "renew", "default", "--years", "9", "--yes").returncode == 0
    asked = ground.holdfast("--no-input", "ca", "close", "default")
    assert asked.returncode == 1
    assert "This needs --yes" in asked.stderr
    tried = ground.holdfast("ca", "close", "default", "--dry-run")
    assert tried.returncode == 0
    assert "Nothing was changed" in tried.stderr
    assert ground.ca("show", "default")["state"] == "active"


def test_every_change_is_in_the_audit_with_whoever_made_it(ground: Ground, served: Served) -> None:
    assert "The audit chain holds" in ground.audit()
    names = {each["ca"] for each in ground.ca("ls")}
    ground.ca("close", "default", "--yes")
    tested = ground.holdfast("issuer", "test", "own")
    assert tested.returncode == 1
    assert "To open it: holdfast ca open default" in tested.stdout + tested.stderr
    ground.ca("open", "default")
    assert {each["ca"] for each in ground.ca("ls")} == names
    assert "The audit chain holds" in ground.audit()


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("show", "nope"), 6, "There is no CA 'nope'."),
        (("create", "default"), 5, "There is a CA 'default' already."),
        (("create", "Not-A-Name"), 1, "is no name for a CA"),
        (("set", "default"), 1, "No setting of the CA is given."),
        (("set", "default", "--challenge", "http-99"), 1, "There is no challenge 'http-99'."),
        (("set", "default", "--crl-lifetime", "soon"), 2, "'soon' is no span of time"),
        (("revoke", "ab", "--ca", "default"), 2, "Missing option '--reason'"),
        (("revoke", "ab", "--ca", "default", "--reason", "superseded"), 6, "There is no certificate ab"),
        (("orders", "nosuch"), 6, "There is no CA 'nosuch'."),
        (("orders", "--account", "nosuch"), 6, "There is no account nosuch."),
        (("revoke-account", "acct_listener_default", "--yes"), 1, "is this installation's own"),
        (("unpause-name", "acct_x", "a.example"), 6, "There is no pause of a.example"),
        (("eab", "revoke", "eab_x"), 6, "There is no EAB key eab_x."),
        (("adopt", "old", "--chain", "/nowhere.pem"), 1, "There is no file /nowhere.pem"),
        (("revoke", "ab", "--ca", "default", "--reason", "boredom"), 2, "boredom"),
    ],
)
def test_what_cannot_be_done_is_told_with_the_right_exit_code(
    ground: Ground, served: Served, args: tuple[str, ...], code: int, words: str
) -> None:
    done = ground.holdfast("ca", *args)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_tables_are_for_people(ground: Ground, served: Served) -> None:
    told = ground.holdfast("ca", "ls").stdout
    assert told.splitlines()[0].split() == ["CA", "STATE", "MODE", "EAB", "REQUIRED", "SUBJECT", "EXPIRES", "AT"]
    assert ground.holdfast("ca", "pauses").stderr == "Nothing is paused.\n"
    assert "https://localhost" in ground.holdfast("ca", "show", "default").stdout


# ── Without one ──


@pytest.fixture
def alone(tmp_path: Path) -> Ground:
    """A data folder of a server that has stopped, and left its socket behind."""
    place = Ground(tmp_path / "data", {})
    with Served(place.folder, place.settings) as server:
        server.wait_until_ready()
        assert server.stop() == 0
    return place


def test_a_command_works_on_the_store_itself_when_no_server_runs(alone: Ground) -> None:
    assert (alone.folder / "holdfast.sock").exists()
    alone.ca("set", "default", "--permit", "*.example.internal")
    assert alone.ca("show", "default")["options"]["permitted"] == ["*.example.internal"]
    with Served(alone.folder, alone.settings) as server:
        server.wait_until_ready()
        assert alone.ca("show", "default")["options"]["permitted"] == ["*.example.internal"]


def test_a_ceremony_elsewhere_is_taken_over_with_its_key(alone: Ground, tmp_path: Path) -> None:
    out, secret = tmp_path / "pki", tmp_path / "words"
    alone.settings |= {"PKI_ROOT_PASSPHRASE": "a passphrase for the root"}
    secret.write_text("the passphrase of the other\n")
    env = environment(alone.folder, {}) | {"HOLDFAST_PKI_ROOT_PASSPHRASE": "a passphrase for the root"}
    made = holdfast("pki", "init", "--name", "Old", "--out", out, "--intermediate-passphrase-file", secret, env=env)
    assert made.returncode == 0, made.stderr
    alone.settings = {}
    chains = ("--chain", str(out / "intermediate.pem"), "--chain", str(out / "root.pem"))
    key = ("--key", str(out / "intermediate-key.pem"), "--passphrase-file", str(secret))
    told = alone.ca("adopt", "old", *chains, *key)
    assert told["subject"].startswith("CN=Old Intermediate CA")
    wrong = alone.holdfast("ca", "adopt", "older", *chains, "--key", str(out / "root-key.pem"))
    assert wrong.returncode == 1
    assert "no passphrase was given" in wrong.stderr
    assert "--passphrase-file" in wrong.stderr
    again = alone.holdfast("ca", "adopt", "older", *chains, *key)
    assert again.returncode == 5
    assert "CA 'old' signs with this issuer's key already" in again.stderr
    assert alone.ca("create", "lab")["subject"].startswith("CN=Holdfast lab Intermediate CA")


def test_without_a_store_nothing_is_made_by_mistake(tmp_path: Path) -> None:
    place = Ground(tmp_path / "none", {})
    done = place.holdfast("ca", "ls")
    assert done.returncode == 1
    assert "There is no database" in done.stderr
    assert not (tmp_path / "none").exists()


def test_a_token_counts_without_a_server_too(alone: Ground) -> None:
    with Served(alone.folder, alone.settings) as server:
        server.wait_until_ready()
        made = alone.holdfast("token", "create", "looker", "--role", "viewer", "-o", "json")
        assert made.returncode == 0, made.stderr
        assert server.stop() == 0
    alone.environment["HOLDFAST_TOKEN"] = json.loads(made.stdout)["token"]
    assert [each["ca"] for each in alone.ca("ls")] == ["default"]
    refused = alone.holdfast("ca", "set", "default", "--eab-required")
    assert refused.returncode == 4
    assert "may not change our CAs" in refused.stderr


# ── From another machine ──


def test_our_cas_are_administered_from_another_machine_by_role(ground: Ground, served: Served, tmp_path: Path) -> None:
    tokens = {}
    for role in ("admin", "viewer"):
        made = ground.holdfast("token", "create", f"remote-{role}", "--role", role, "-o", "json")
        assert made.returncode == 0, made.stderr
        tokens[role] = json.loads(made.stdout)["token"]
    there = Ground(tmp_path / "none", {}, {"HOLDFAST_SERVER_URL": served.url, "HOLDFAST_TOKEN": tokens["admin"]})
    there.ca("create", "remote", "--permit", "*.remote.example")
    assert "remote" in {each["ca"] for each in there.ca("ls")}
    issued = there.holdfast("issue", "remote.internal", "--wait")
    assert issued.returncode == 0, issued.stderr
    listed = there.ca("certificates", "default")
    [certificate] = [each for each in listed if each["names"] == ["remote.internal"]]
    revoke = ("revoke", certificate["serial"], "--ca", "default", "--reason", "superseded", "--yes")
    there.environment["HOLDFAST_TOKEN"] = tokens["viewer"]
    assert "remote" in {each["ca"] for each in there.ca("ls")}
    for args in (revoke, ("close", "remote", "--yes"), ("eab", "create", "remote")):
        refused = there.holdfast("ca", *args)
        assert (refused.returncode, "may not" in refused.stderr) == (4, True), refused.stderr
    there.environment["HOLDFAST_TOKEN"] = tokens["admin"]
    assert there.ca(*revoke)["revoked_at"] is not None
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("args", "env", "words"),
    [
        ((), {"HOLDFAST_SERVER_URL": "https://holdfast.example"}, "A server elsewhere needs a token."),
        (("--server", "https://holdfast.example"), {}, "A server elsewhere needs a token."),
        ((), {"HOLDFAST_CONTEXT": "here"}, "The server cannot be reached"),
        ((), {}, "The server cannot be reached"),
    ],
    ids=["variable", "option", "context", "login"],
)
def test_a_command_goes_to_the_server_elsewhere_that_is_named(
    tmp_path: Path, args: tuple[str, ...], env: dict[str, str], words: str
) -> None:
    place = Ground(tmp_path / "none", {}, {"HOME": str(tmp_path), **env})
    if not args and "HOLDFAST_SERVER_URL" not in env:
        login = tmp_path / ".config" / "holdfast" / "login.json"
        login.parent.mkdir(parents=True)
        known = {"here": {"server": "http://127.0.0.1:1", "token": "hf_x"}}
        login.write_text(json.dumps({"current": "here", "contexts": known}))
    done = place.holdfast("ca", "create", "lab", *args)
    assert done.returncode != 0
    assert words in done.stderr
    assert not (tmp_path / "none").exists()


def test_what_works_on_files_of_the_server_says_so_when_a_server_is_named(tmp_path: Path) -> None:
    done = Ground(tmp_path / "none", {}).holdfast("key", "rotate", "--server", "https://holdfast.example")
    assert done.returncode == 2
    assert "works only on the machine of the server" in done.stderr
