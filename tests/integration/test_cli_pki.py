"""`holdfast pki` in a process of its own: what it writes, what it prints, and what it never does."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509
from tests.support.commands import holdfast
from tests.support.pki import crl_findings, openssl
from tests.support.reaper import PATIENCE
from tests.support.secrets_planted import CEREMONY_INTERMEDIATE as INTERMEDIATE
from tests.support.secrets_planted import CEREMONY_ROOT as ROOT

from holdfast.core.key_kind import KeyKind
from holdfast.pki import chain, keys
from holdfast.pki.ceremony import FILES, crl_url_of
from holdfast.pki.refused import PkiRefused
from holdfast.secret import Secret

GIVEN = {"HOLDFAST_PKI_ROOT_PASSPHRASE": ROOT, "HOLDFAST_PKI_INTERMEDIATE_PASSPHRASE": INTERMEDIATE}
COMMAND = [sys.executable, "-m", "holdfast.cli.main", "pki"]


def environment(**more: str) -> dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}, **more}


def pki(*args: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    return holdfast("pki", *args, env=environment(**more))


def init(out: Path, *args: str, **more: str) -> subprocess.CompletedProcess[str]:
    return pki("init", "--name", "Example", "--out", out, *args, **(more or GIVEN))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("vault") / "pki"
    return folder, init(folder, "--permit", ".example.internal", "--permit", "10.0.0.0/8")


def test_init_writes_five_private_files_and_prints_what_it_wrote(made):
    folder, done = made
    assert (done.returncode, done.stderr) == (0, "")
    assert {path.name for path in folder.iterdir()} == set(FILES)
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert done.stdout.rstrip("\n") == (folder / "transcript.txt").read_text().rstrip("\n")
    assert done.stdout.startswith("Key ceremony for 'Example'\n")


def test_the_keys_are_encrypted_and_no_passphrase_is_printed_or_written(made):
    folder, done = made
    everything = b"".join(path.read_bytes() for path in folder.iterdir()) + done.stdout.encode()
    assert b"s3ntinel" not in everything
    assert b"BEGIN PRIVATE KEY" not in everything
    for name, right, wrong in (("root", ROOT, INTERMEDIATE), ("intermediate", INTERMEDIATE, ROOT)):
        pem = (folder / f"{name}-key.pem").read_bytes()
        [certificate] = chain.parse_bundle((folder / f"{name}.pem").read_bytes())
        assert keys.from_pem(pem, Secret(right)).public_key() == certificate.public_key()
        with pytest.raises(PkiRefused):
            keys.from_pem(pem, Secret(wrong))


def test_openssl_agrees_with_the_transcript(made):
    folder, done = made
    assert openssl("verify", "-x509_strict", "-CAfile", "root.pem", "intermediate.pem", folder=folder).returncode == 0
    for name in ("root.pem", "intermediate.pem"):
        shown = openssl("x509", "-in", name, "-noout", "-fingerprint", "-sha256", folder=folder).stdout.decode()
        assert shown.partition("=")[2].strip().replace(":", "").lower() in done.stdout


def test_show_tells_what_is_in_a_file(made):
    folder, _ = made
    done = pki("show", folder / "intermediate.pem")
    assert done.returncode == 0
    assert "CN=Example Intermediate CA" in done.stdout
    assert "yes, for end certificates only" in done.stdout
    assert "example.internal, 10.0.0.0/8" in done.stdout


def test_show_does_not_show_keys_and_says_what_it_cannot_read(made, tmp_path: Path):
    folder, _ = made
    for path, words in (
        (folder / "root-key.pem", "There is a private key in this file"),
        (tmp_path / "nothing.pem", "There is no file"),
        (tmp_path, "cannot be read: Is a directory"),
        (folder / "transcript.txt", "This is not a certificate"),
    ):
        done = pki("show", path)
        assert (done.returncode, done.stdout) == (1, "")
        assert words in done.stderr
        assert "Traceback" not in done.stderr


def test_a_second_ceremony_in_the_same_folder_is_refused_and_changes_nothing(made):
    folder, _ = made
    before = {path: path.read_bytes() for path in folder.iterdir()}
    done = init(folder)
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr.startswith(f"error: {folder}/root.pem exists already; nothing was written.\nhint: ")
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("args", "given", "words"),
    [
        ([], {"X": ""}, "no passphrase for the root's key, and no terminal"),
        ([], {"HOLDFAST_PKI_ROOT_PASSPHRASE": ROOT}, "no passphrase for the intermediate's key"),
        ([], {**GIVEN, "HOLDFAST_PKI_INTERMEDIATE_PASSPHRASE": ROOT}, "different passphrases"),
        ([], {**GIVEN, "HOLDFAST_PKI_ROOT_PASSPHRASE": "short"}, "at least 12 characters"),
        (["--permit", "10.0.0.1/8"], GIVEN, "10.0.0.1/8 is not a network"),
        (["--root-years", "99"], GIVEN, "at most 25 years"),
        (["--root-passphrase-file", "/nowhere"], GIVEN, "no passphrase in /nowhere"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_written(args, given, words: str, tmp_path: Path):
    done = init(tmp_path / "new", *args, **given)
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr
    assert "s3ntinel" not in done.stderr
    assert not (tmp_path / "new").exists()


def test_there_is_no_option_that_takes_a_passphrase_itself():
    """Others on the machine see the arguments of a program."""
    options = {word for word in pki("init", "--help").stdout.split() if word.startswith("--")}
    assert {word for word in options if "pass" in word} == {
        "--root-passphrase-file", "--intermediate-passphrase-file",
    }  # fmt: skip


def test_passphrases_come_from_files_too(tmp_path: Path):
    for role, text in (("root", ROOT), ("intermediate", INTERMEDIATE)):
        (tmp_path / role).write_text(f"{text}\nsecond line\n")
    done = init(
        tmp_path / "new", "--key", "ed25519", "--root-passphrase-file", str(tmp_path / "root"),
        "--intermediate-passphrase-file", str(tmp_path / "intermediate"), X="",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    key = keys.from_pem((tmp_path / "new" / "root-key.pem").read_bytes(), Secret(ROOT))
    assert keys.kind_of(key.public_key()) is KeyKind.ED25519


def test_on_a_terminal_missing_passphrases_are_made_up_and_shown_once(tmp_path: Path):
    """Standard error is a terminal here, standard output is not: a redirected transcript stays without secrets."""
    ours, theirs = pty.openpty()
    command = [*COMMAND, "init", "--name", "Example", "--out", str(tmp_path / "new")]
    done = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, stderr=theirs, timeout=PATIENCE)
    os.close(theirs)
    shown = os.read(ours, 10_000).decode()
    os.close(ours)
    assert done.returncode == 0
    for role in ("root", "intermediate"):
        [line] = [line for line in shown.splitlines() if f"the {role}'s key" in line]
        passphrase = line.rpartition(" ")[2]
        assert len(passphrase) == 30
        keys.from_pem((tmp_path / "new" / f"{role}-key.pem").read_bytes(), Secret(passphrase))
        assert passphrase.encode() not in done.stdout
        assert passphrase not in (tmp_path / "new" / "transcript.txt").read_text()


# ── With the root brought out again ──


def beside(folder: Path) -> list[str | Path]:
    return ["--root", folder / "root.pem", "--root-key", folder / "root-key.pem"]


def test_the_next_intermediate_is_made_under_the_same_root(made, tmp_path: Path):
    folder, _ = made
    out = tmp_path / "next"
    wishes = ["--like", folder / "intermediate.pem", "--crl-url", "http://ca.example/root.crl"]
    done = pki("intermediate", *beside(folder), "--out", out, "--years", "2", *wishes, **GIVEN)
    assert (done.returncode, done.stderr) == (0, "")
    assert {path.name for path in out.iterdir()} == {"intermediate.pem", "intermediate-key.pem", "transcript.txt"}
    assert openssl("verify", "-CAfile", folder / "root.pem", "intermediate.pem", folder=out).returncode == 0
    [new], [old] = (chain.parse_bundle((place / "intermediate.pem").read_bytes()) for place in (out, folder))
    assert new.public_key() != old.public_key()
    assert (new.not_valid_after_utc - new.not_valid_before_utc).days == 730
    limits = [each.extensions.get_extension_for_class(x509.NameConstraints) for each in (new, old)]
    assert limits[0] == limits[1]
    assert limits[0].critical
    assert crl_url_of(new) == "http://ca.example/root.crl"
    assert new.subject != old.subject  # one name with two keys would mislead
    key = keys.from_pem((out / "intermediate-key.pem").read_bytes(), Secret(INTERMEDIATE))
    assert key.public_key() == new.public_key()
    assert "The next intermediate of 'Example'" in done.stdout
    again = pki("intermediate", *beside(folder), "--out", out, **GIVEN)
    assert (again.returncode, "exists already" in again.stderr) == (5, True)


def test_an_intermediate_gets_a_later_end_under_the_same_root(made, tmp_path: Path):
    folder, _ = made
    given = [*beside(folder), "--intermediate", folder / "intermediate.pem", "--out", tmp_path / "corp.pem"]
    sooner = pki("recertify", *given, "--years", "1", **GIVEN)
    assert (sooner.returncode, "already expires" in sooner.stderr, (tmp_path / "corp.pem").exists()) == (1, True, False)
    done = pki("recertify", *given, "--years", "8", **GIVEN)
    assert (done.returncode, done.stderr) == (0, "")
    [new, root], [old] = (
        chain.parse_bundle(file.read_bytes()) for file in (tmp_path / "corp.pem", folder / "intermediate.pem")
    )
    assert (new.public_key(), new.subject) == (old.public_key(), old.subject)
    limits = [each.extensions.get_extension_for_class(x509.NameConstraints).value for each in (new, old)]
    assert limits[0] == limits[1]
    assert (new.not_valid_after_utc - new.not_valid_before_utc).days == 8 * 365 + 2
    assert [root] == list(chain.parse_bundle((folder / "root.pem").read_bytes()))
    again = pki("recertify", *given, "--years", "9", **GIVEN)
    assert (again.returncode, "exists already" in again.stderr) == (5, True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"HOLDFAST_PKI_ROOT_PASSPHRASE": "wrong-passphrase"}, "does not open the key"),
        ({"HOLDFAST_PKI_ROOT_PASSPHRASE": ""}, "no passphrase for the root's key"),
        ({"HOLDFAST_PKI_INTERMEDIATE_PASSPHRASE": ""}, "no passphrase for the intermediate's key"),
        ({"HOLDFAST_PKI_INTERMEDIATE_PASSPHRASE": "short"}, "at least 12 characters"),
        ({"HOLDFAST_PKI_INTERMEDIATE_PASSPHRASE": ROOT}, "different passphrases"),
    ],
)
def test_a_passphrase_that_will_not_do_makes_nothing(made, tmp_path: Path, change: dict[str, str], words: str):
    folder, _ = made
    done = pki("intermediate", *beside(folder), "--out", tmp_path / "next", **{**GIVEN, **change})
    assert done.returncode == 1
    assert words in done.stderr
    assert not (tmp_path / "next").exists()


def test_only_a_root_with_its_own_key_signs(made, tmp_path: Path):
    folder, _ = made
    for root, key, words in (
        ("intermediate.pem", "intermediate-key.pem", "not the certificate of a root"),
        ("root.pem", "intermediate-key.pem", "does not open the key"),
    ):
        done = pki("crl", "--root", folder / root, "--root-key", folder / key, "--out", tmp_path / "crl", **GIVEN)
        assert done.returncode == 1
        assert words in done.stderr
        assert not (tmp_path / "crl").exists()


def test_the_roots_list_names_the_intermediates_that_are_revoked(made, tmp_path: Path):
    folder, _ = made
    [root], [below] = (chain.parse_bundle((folder / f"{name}.pem").read_bytes()) for name in ("root", "intermediate"))
    out = tmp_path / "root.crl"
    for number, serials in (("1", []), ("2", ["--revoked", f"{below.serial_number:x}"])):
        done = pki("crl", *beside(folder), "--out", out, "--number", number, "--days", "90", *serials, **GIVEN)
        assert (done.returncode, done.stderr) == (0, "")
        found = x509.load_der_x509_crl(out.read_bytes())
        assert found.is_signature_valid(root.public_key())  # type: ignore[arg-type]
        assert found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number == int(number)
        assert len(found) == len(serials) // 2
    [first] = found
    kept = ["--previous", out, "--revoked", "abcdef", "--reason", "superseded"]
    done = pki("crl", *beside(folder), "--out", tmp_path / "next.crl", *kept, **GIVEN)
    assert (done.returncode, done.stderr) == (0, "")
    after = x509.load_der_x509_crl((tmp_path / "next.crl").read_bytes())
    assert after.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number > 2
    reasons = {
        each.serial_number: each.extensions.get_extension_for_class(x509.CRLReason).value.reason for each in after
    }
    assert reasons == {
        0xABCDEF: x509.ReasonFlags.superseded,
        below.serial_number: x509.ReasonFlags.cessation_of_operation,
    }
    again = after.get_revoked_certificate_by_serial_number(below.serial_number)
    assert again is not None
    assert again.revocation_date_utc == first.revocation_date_utc
    assert crl_findings(out.read_bytes()) == []
    check = ("-crl_check", "-CRLfile", str(out), "-CAfile", "root.pem", "intermediate.pem")
    assert b"certificate revoked" in openssl("verify", *check, folder=folder).stderr


@pytest.mark.parametrize("args", [["--help"], ["init", "--help"], ["show", "--help"], ["crl", "--help"]])
def test_help_imports_nothing_that_is_slow_to_import(args: list[str]):
    done = pki(*args, PYTHONPROFILEIMPORTTIME="1")
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "Usage: holdfast pki" in done.stdout
    assert "typer" in imported
    assert not {"pydantic", "rich", "cryptography", "asyncio"} & imported


def test_the_root_and_the_intermediate_are_what_they_say(made):
    folder, _ = made
    found = [chain.parse_bundle((folder / name).read_bytes())[0] for name in ("intermediate.pem", "root.pem")]
    assert chain.ordered(found) == tuple(found)
    assert found[0].extensions.get_extension_for_class(x509.NameConstraints).critical
