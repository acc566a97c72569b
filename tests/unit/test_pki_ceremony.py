"""A ceremony makes a root and an intermediate that verify, under passphrases, and a record without secrets."""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from tests.support.keys import Draws
from tests.support.pki import DAY, NOW
from tests.support.secrets_planted import CEREMONY_INTERMEDIATE, CEREMONY_ROOT

from holdfast.core.key_kind import KeyKind
from holdfast.errors import UserError
from holdfast.pki import ceremony, chain, keys
from holdfast.pki.ceremony import CeremonyPlan, FilesExist, Passphrases, transcript
from holdfast.pki.refused import PkiRefused
from holdfast.pki.signing import issuer_problem
from holdfast.secret import Secret

PASSPHRASES = Passphrases(root=Secret(CEREMONY_ROOT), intermediate=Secret(CEREMONY_INTERMEDIATE))
PLAN = CeremonyPlan(name="Example", permit=(".example.internal", "10.0.0.0/8"))


@cache
def result() -> ceremony.Result:
    return asyncio.run(ceremony.perform(PLAN, PASSPHRASES, now=NOW, random=Draws()))


def basic(certificate: x509.Certificate) -> x509.BasicConstraints:
    return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value


class Shelf:
    """Files in memory."""

    def __init__(self, *, full_after: int = 100) -> None:
        self.files: dict[Path, bytes] = {}
        self._full_after = full_after

    def read(self, path: Path) -> bytes | None:
        return self.files.get(path)

    def write_private(self, path: Path, content: bytes, *, replace: bool) -> None:
        assert not replace
        if path in self.files:
            raise FileExistsError(path)
        if len(self.files) == self._full_after:
            raise OSError(28, "No space left on device")
        self.files[path] = content


def test_the_intermediate_is_signed_by_the_root_and_the_root_by_itself():
    made = result()
    assert chain.ordered([made.root, made.intermediate]) == (made.intermediate, made.root)
    assert chain.issued_by(made.root, made.root)
    assert made.root.subject.rfc4514_string() == "CN=Example Root CA 2026,O=Example"
    assert made.intermediate.subject.rfc4514_string() == "CN=Example Intermediate CA 2026,O=Example"


def test_the_root_may_have_one_ca_below_it_and_the_intermediate_none():
    assert basic(result().root) == x509.BasicConstraints(ca=True, path_length=1)
    assert basic(result().intermediate) == x509.BasicConstraints(ca=True, path_length=0)


def test_they_live_for_twenty_and_five_years():
    for certificate, years in ((result().root, 20), (result().intermediate, 5)):
        span = certificate.not_valid_after_utc - certificate.not_valid_before_utc
        assert abs(span - years * 365.25 * DAY) < DAY


def test_only_the_intermediate_can_be_an_issuer():
    assert issuer_problem(result().intermediate, dev=False, now=NOW) is None
    assert "self-signed" in (issuer_problem(result().root, dev=False, now=NOW) or "")


def test_only_the_intermediate_is_confined_to_the_permitted_names():
    found = result().intermediate.extensions.get_extension_for_class(x509.NameConstraints)
    assert found.critical
    assert [str(tree.value) for tree in found.value.permitted_subtrees or ()] == ["example.internal", "10.0.0.0/8"]
    with pytest.raises(x509.ExtensionNotFound):
        result().root.extensions.get_extension_for_class(x509.NameConstraints)


def test_each_key_opens_with_its_own_passphrase_only():
    made = result()
    assert keys.from_pem(made.root_key_pem, PASSPHRASES.root).public_key() == made.root.public_key()
    opened = keys.from_pem(made.intermediate_key_pem, PASSPHRASES.intermediate)
    assert opened.public_key() == made.intermediate.public_key()
    with pytest.raises(PkiRefused):
        keys.from_pem(made.root_key_pem, PASSPHRASES.intermediate)


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"name": ""}, "pki-name"),
        ({"name": " x"}, "pki-name"),
        ({"name": "x" * 41}, "pki-name"),
        ({"name": "a\nb"}, "pki-name"),
        ({"root_years": 5}, "pki-years"),
        ({"root_years": 26}, "pki-years"),
        ({"intermediate_years": 0}, "pki-years"),
        ({"permit": ("10.0.0.1/8",)}, "subtree-malformed"),
        ({"permit": ("*.example",)}, "name-wildcard"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused_before_a_key_is_made(wrong: dict[str, object], code: str):
    with pytest.raises(UserError) as refused:
        CeremonyPlan(**{"name": "Example", **wrong})  # type: ignore[arg-type]
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("root", "intermediate"), [("short", "x" * 12), ("x" * 12, ""), ("the same one", "the same one")]
)
def test_bad_passphrases_are_refused(root: str, intermediate: str):
    with pytest.raises(PkiRefused) as refused:
        Passphrases(root=Secret(root), intermediate=Secret(intermediate))
    assert refused.value.code == "pki-passphrase"


def test_a_passphrase_that_we_make_up_is_long_and_never_the_same():
    made = [ceremony.new_passphrase(Draws(seed)).reveal() for seed in range(500)]
    assert len(set(made)) == 500
    assert {len(each.replace("-", "")) for each in made} == {26}
    assert all(set(each) <= set("0123456789abcdefghjkmnpqrstvwxyz-") for each in made)


# ── The record, and the files ──


def written() -> str:
    return transcript(PLAN, result(), Path("/vault"), now=NOW, version="1.2.3")


def test_the_transcript_names_what_was_made_and_what_to_do_with_each_file():
    text = written()
    for certificate in (result().root, result().intermediate):
        assert certificate.fingerprint(hashes.SHA256()).hex() in text
        assert f"{certificate.serial_number:x}" in text
        assert keys.spki_sha256(certificate.public_key()).hex() in text  # type: ignore[arg-type]
        assert f"{certificate.not_valid_after_utc:%F %T}Z" in text
    for name in ("root.pem", "root-key.pem", "intermediate.pem", "intermediate-key.pem"):
        assert f"  {name} " in text
    assert ".example.internal, 10.0.0.0/8 and below" in text
    assert max(map(len, text.splitlines())) <= 120


def test_the_transcript_holds_no_secret():
    text = written()
    assert "s3ntinel" not in text
    assert "PRIVATE" not in text


def test_the_transcript_is_written_last_and_all_files_are():
    shelf = Shelf()
    ceremony.save(shelf, Path("/vault"), result(), written())  # type: ignore[arg-type]
    assert [path.name for path in shelf.files][-1] == "transcript.txt"
    assert {path.name for path in shelf.files} == set(ceremony.FILES)
    assert b"BEGIN ENCRYPTED PRIVATE KEY" in shelf.files[Path("/vault/root-key.pem")]
    assert not any(b"BEGIN PRIVATE KEY" in content for content in shelf.files.values())


@pytest.mark.parametrize("name", ceremony.FILES)
def test_no_file_is_ever_overwritten(name: str):
    shelf = Shelf()
    shelf.files[Path("/vault") / name] = b"precious"
    with pytest.raises(FilesExist):
        ceremony.save(shelf, Path("/vault"), result(), written())  # type: ignore[arg-type]
    assert shelf.files == {Path("/vault") / name: b"precious"}


def test_a_disk_that_is_full_is_told_and_leaves_no_transcript():
    shelf = Shelf(full_after=3)
    with pytest.raises(PkiRefused, match="No space left"):
        ceremony.save(shelf, Path("/vault"), result(), written())  # type: ignore[arg-type]
    assert Path("/vault/transcript.txt") not in shelf.files


@pytest.mark.parametrize("kind", [KeyKind.EC_P384, KeyKind.ED25519])
def test_other_kinds_of_keys_will_do(kind: KeyKind):
    made = asyncio.run(
        ceremony.perform(CeremonyPlan(name="Other", key_kind=kind), PASSPHRASES, now=NOW, random=Draws(2))
    )  # fmt: skip
    assert keys.kind_of(made.intermediate.public_key()) is kind  # type: ignore[arg-type]
    assert chain.issued_by(made.intermediate, made.root)
