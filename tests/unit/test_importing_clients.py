"""What certbot, acme.sh and lego keep is found as they keep it; whatever is wrong is told with file and next step."""

import base64
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import PrivateFormat
from tests.support import foreign_layouts as layouts
from tests.support.foreign_layouts import ACCOUNT_ID, ACCOUNT_URL, DAY, DIRECTORY, HOST, NOW, SmallCa, key_pem, put

from holdfast.cli.certificates.imports import _left_out, _others
from holdfast.importing import acme_sh, certbot, lego
from holdfast.importing.found import STEPS, FoundInFolder, ImportProblem, ImportTrouble
from holdfast.pki import keys
from holdfast.ports import Unreadable
from holdfast.world import LocalTree

CA = SmallCa()
ACCOUNT = ec.generate_private_key(ec.SECP256R1())
NAMES = ("www.example.com", "example.com")


def _certbot(folder: Path) -> FoundInFolder:
    return certbot.read(LocalTree(folder), NOW)


def _acme_sh(folder: Path) -> FoundInFolder:
    return acme_sh.read(LocalTree(folder), NOW)


def _lego(folder: Path, directory: str | None = None, known: tuple[str, ...] = (DIRECTORY,)) -> FoundInFolder:
    return lego.read(LocalTree(folder), NOW, directory=directory, known=known)


def _only_problem(found: FoundInFolder) -> ImportProblem:
    assert found.certificates == ()
    [problem] = found.problems
    assert "PRIVATE" not in f"{problem}"
    assert problem.next_step
    return problem


# ── certbot ──


def test_a_lineage_of_certbot_is_found_with_names_dates_key_and_account(tmp_path: Path) -> None:
    pair = CA.issue(*NAMES)
    layouts.certbot(
        tmp_path, "www.example.com", pair, account_key=ACCOUNT, reuse_key="True", preferred_chain='"Root X1"'
    )
    [found] = _certbot(tmp_path).certificates
    assert (found.name, found.names, found.serial) == ("www.example.com", NAMES, pair.serial)
    assert (found.not_before, found.not_after) == (NOW - 30 * DAY, NOW + 60 * DAY)
    assert (found.directory, found.key_kind, found.reuse_key) == (DIRECTORY, "ec-p256", True)
    assert (found.preferred_chain, found.proved_by) == ("Root X1", "http-01 (webroot)")
    assert found.chain.decode() == pair.chain
    assert found.key.reveal().decode() == pair.key
    assert found.account is not None
    assert (found.account.url, found.account.directory) == (ACCOUNT_URL, DIRECTORY)
    assert keys.from_pem(found.account.key).public_key() == ACCOUNT.public_key()


def test_an_rsa_account_key_of_certbot_is_understood(tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 2048)
    layouts.certbot(tmp_path, "a.example.com", CA.issue("a.example.com"), account_key=key)
    [found] = _certbot(tmp_path).certificates
    assert found.account is not None
    assert keys.from_pem(found.account.key).public_key() == key.public_key()


def test_without_its_account_a_lineage_is_found_all_the_same_and_that_is_noted(tmp_path: Path) -> None:
    layouts.certbot(tmp_path, "a.example.com", CA.issue("a.example.com"))
    [found] = _certbot(tmp_path).certificates
    assert found.account is None
    assert "a new one is made" in found.notes[0]


def test_an_account_key_that_cannot_be_used_holds_its_certificates_back(tmp_path: Path) -> None:
    layouts.certbot(tmp_path, "a.example.com", CA.issue("a.example.com"), account_key=ACCOUNT)
    place = tmp_path / "accounts" / HOST / "directory" / ACCOUNT_ID / "private_key.json"
    for text in ("{", "[]", '{"kty": "oct", "k": "c2VjcmV0"}', '{"kty": "EC", "crv": "P-256", "x": "AQ", "y": "AQ"}'):
        place.write_text(text)
        problem = _only_problem(_certbot(tmp_path))
        assert problem.file == str(place)
        assert "c2VjcmV0" not in problem.problem


def test_one_broken_lineage_does_not_hold_the_others_up(tmp_path: Path) -> None:
    for name in ("a.example.com", "b.example.com"):
        layouts.certbot(tmp_path, name, CA.issue(name), account_key=ACCOUNT)
    (tmp_path / "live" / "a.example.com" / "privkey.pem").unlink()
    found = _certbot(tmp_path)
    assert [each.name for each in found.certificates] == ["b.example.com"]
    [problem] = found.problems
    assert problem.file == str(tmp_path / "live/a.example.com/privkey.pem")
    assert problem.problem == "The file is not there."


def test_a_folder_that_is_not_certbots_is_refused_with_the_usual_place(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ImportTrouble) as caught:
            _certbot(folder)
        assert "/etc/letsencrypt" in caught.value.problem.next_step


def test_a_renewal_file_says_where_its_certificate_is(tmp_path: Path) -> None:
    layouts.certbot(tmp_path, "a.example.com", CA.issue("a.example.com"))
    (tmp_path / "renewal/a.example.com.conf").rename(tmp_path / "renewal/shop.conf")
    [found] = _certbot(tmp_path).certificates
    assert (found.name, found.names) == ("shop", ("a.example.com",))


def test_a_renewal_file_cannot_lead_elsewhere(tmp_path: Path) -> None:
    layouts.certbot(tmp_path, "a.example.com", CA.issue("a.example.com"))
    file = tmp_path / "renewal/a.example.com.conf"
    file.write_text(file.read_text().replace("/etc/letsencrypt/live/a.example.com/", "/x/live/../"))
    assert [each.name for each in _certbot(tmp_path).certificates] == ["a.example.com"]


def test_a_renewal_file_without_a_server_is_told(tmp_path: Path) -> None:
    layouts.certbot(tmp_path, "a.example.com", CA.issue("a.example.com"), server="")
    assert "which CA" in _only_problem(_certbot(tmp_path)).problem


# ── acme.sh ──


def test_a_certificate_of_acme_sh_is_found_with_its_account(tmp_path: Path) -> None:
    pair = CA.issue(*NAMES)
    coded = base64.b64encode(b"Root X1").decode()
    chain = f"__ACME_BASE64__START_{coded}__ACME_BASE64__END_"
    layouts.acme_sh(tmp_path, "www.example.com", pair, account_key=ACCOUNT, Le_Preferred_Chain=chain)
    [found] = _acme_sh(tmp_path).certificates
    assert (found.name, found.names, found.serial, found.directory) == (NAMES[0], NAMES, pair.serial, DIRECTORY)
    assert (found.preferred_chain, found.proved_by) == ("Root X1", "dns-01 (dns_cf)")
    assert found.account is not None
    assert (found.account.url, found.account.contacts) == (ACCOUNT_URL, ("mailto:ops@example.com",))
    assert keys.from_pem(found.account.key).public_key() == ACCOUNT.public_key()


def test_acme_sh_keeps_its_key_unless_it_was_told_otherwise(tmp_path: Path) -> None:
    layouts.acme_sh(tmp_path, "a.example.com", CA.issue("a.example.com"))
    layouts.acme_sh(tmp_path, "b.example.com", CA.issue("b.example.com"), Le_ForceNewDomainKey="1")
    assert [each.reuse_key for each in _acme_sh(tmp_path).certificates] == [True, False]


@pytest.mark.parametrize(
    ("days", "left", "noted"),
    [("", None, False), ("10", 10, False), ("0", None, True), ("9999", None, True), ("soon", None, True)],
    ids=["unsaid", "said", "at-once", "too-late", "no-number"],
)
def test_the_days_after_which_acme_sh_renews_are_counted_to_the_end(
    tmp_path: Path, days: str, left: int | None, noted: bool
) -> None:
    layouts.acme_sh(tmp_path, "a.example.com", CA.issue("a.example.com"), Le_RenewalDays=days)
    [found] = _acme_sh(tmp_path).certificates
    life = found.not_after - found.not_before
    assert found.renew_before == (None if left is None else life - timedelta(days=left))
    assert any("Le_RenewalDays" in each for each in found.notes) is noted


def test_an_older_acme_sh_has_one_account_for_a_host_and_separate_chain_files(tmp_path: Path) -> None:
    pair = CA.issue("a.example.com")
    layouts.acme_sh(tmp_path, "a.example.com", pair, ecc=False, account_key=ACCOUNT)
    (tmp_path / "a.example.com" / "fullchain.cer").unlink()
    (tmp_path / "ca" / HOST / "directory").rename(tmp_path / "old")
    for each in (tmp_path / "old").iterdir():
        each.rename(tmp_path / "ca" / HOST / each.name)
    [found] = _acme_sh(tmp_path).certificates
    assert found.chain.decode() == pair.chain
    assert found.account is not None


def test_two_certificates_of_acme_sh_for_one_name_get_names_of_their_own(tmp_path: Path) -> None:
    layouts.acme_sh(tmp_path, "a.example.com", CA.issue("a.example.com"))
    rsa_key = rsa.generate_private_key(65537, 2048)
    layouts.acme_sh(tmp_path, "a.example.com", CA.issue("a.example.com", key=rsa_key), ecc=False)
    names = {each.name for each in _acme_sh(tmp_path).certificates}
    assert names == {"a.example.com-ec-p256", "a.example.com-rsa-2048"}


def test_values_of_acme_sh_are_read_and_never_run() -> None:
    parsed = acme_sh.parse("A='it'\\''s'\nB=\"$(touch /tmp/x)\"\nexport C=plain\n# D='no'\n E = 'no'\n")
    assert parsed == {"A": "it's", "B": "$(touch /tmp/x)", "C": "plain"}


def test_a_certificate_that_acme_sh_never_got_is_told(tmp_path: Path) -> None:
    layouts.acme_sh(tmp_path, "a.example.com", CA.issue("a.example.com"))
    for file in ("fullchain.cer", "a.example.com.cer"):
        (tmp_path / "a.example.com_ecc" / file).unlink()
    assert _only_problem(_acme_sh(tmp_path)).problem == "The file is not there."


def test_a_folder_that_is_not_acme_shs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImportTrouble, match=r"account\.conf"):
        _acme_sh(tmp_path)


# ── lego ──


def test_a_certificate_of_lego_is_found_with_its_account_and_the_directory_of_its_host(tmp_path: Path) -> None:
    pair = CA.issue("*.example.com", "example.com")
    layouts.lego(tmp_path, "*.example.com", pair, account_key=ACCOUNT)
    [found] = _lego(tmp_path).certificates
    assert (found.name, found.names, found.directory) == ("*.example.com", ("*.example.com", "example.com"), DIRECTORY)
    assert found.account is not None
    assert (found.account.url, found.account.directory) == (ACCOUNT_URL, DIRECTORY)
    assert keys.from_pem(found.account.key).public_key() == ACCOUNT.public_key()


def test_a_chain_that_lego_did_not_bundle_is_put_together(tmp_path: Path) -> None:
    pair = CA.issue("a.example.com")
    layouts.lego(tmp_path, "a.example.com", pair, bundle=False)
    [found] = _lego(tmp_path).certificates
    assert found.chain.decode() == pair.chain


def test_a_ca_that_nobody_knows_has_to_be_named(tmp_path: Path) -> None:
    layouts.lego(tmp_path, "a.example.com", CA.issue("a.example.com"), account_key=ACCOUNT)
    problem = _only_problem(_lego(tmp_path, known=()))
    assert "--directory" in problem.next_step
    [found] = _lego(tmp_path, DIRECTORY, known=()).certificates
    assert found.directory == DIRECTORY
    assert _only_problem(_lego(tmp_path, "https://other.example/dir", known=())).next_step == problem.next_step


def test_a_certificate_that_lego_got_for_a_csr_has_no_key_there(tmp_path: Path) -> None:
    layouts.lego(tmp_path, "a.example.com", CA.issue("a.example.com"))
    (tmp_path / "certificates" / "a.example.com.key").unlink()
    assert "CSR" in _only_problem(_lego(tmp_path)).next_step


# ── What is wrong with a certificate or a key, for all of them alike ──


def _with_key(tmp_path: Path, text: str) -> ImportProblem:
    layouts.certbot(tmp_path, "a.example.com", CA.issue("a.example.com"))
    put(tmp_path / "archive/a.example.com/privkey1.pem", text)
    return _only_problem(_certbot(tmp_path))


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    problem = _with_key(tmp_path, key_pem(ACCOUNT))
    assert problem.file == str(tmp_path / "live/a.example.com/privkey.pem")
    assert "does not belong" in problem.problem


def test_an_encrypted_key_is_refused_with_the_command_that_opens_it(tmp_path: Path) -> None:
    for at, form in enumerate((PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL)):
        problem = _with_key(tmp_path / str(at), key_pem(ACCOUNT, b"secret", form))
        assert problem.problem == "The key is encrypted."
        assert "openssl pkey -in" in problem.next_step


@pytest.mark.parametrize("text", ["", "no key", "-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----\n"])
def test_what_is_no_key_is_refused(tmp_path: Path, text: str) -> None:
    assert "key" in _with_key(tmp_path, text).problem


def test_an_expired_certificate_is_not_adopted_and_the_command_to_get_it_anew_is_told(tmp_path: Path) -> None:
    layouts.certbot(tmp_path, "a.example.com", CA.issue("a.example.com", begins=-91 * DAY))
    problem = _only_problem(_certbot(tmp_path))
    assert "expired at" in problem.problem
    assert problem.next_step.endswith("holdfast issue a.example.com")


def test_a_certificate_without_names_is_refused(tmp_path: Path) -> None:
    layouts.certbot(tmp_path, "a", CA.issue())
    assert "no subject alternative names" in _only_problem(_certbot(tmp_path)).problem


def test_a_chain_that_does_not_build_is_refused(tmp_path: Path) -> None:
    pair = CA.issue("a.example.com")
    layouts.certbot(tmp_path, "a.example.com", pair)
    put(tmp_path / "archive/a.example.com/fullchain1.pem", pair.leaf + SmallCa().issue("b.example.com").issuer)
    assert "does not build" in _only_problem(_certbot(tmp_path)).problem


def test_a_link_that_leads_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", put(tmp_path / "out.pem", key_pem(ACCOUNT))
    layouts.certbot(inside, "a.example.com", CA.issue("a.example.com"))
    link = inside / "live/a.example.com/privkey.pem"
    link.unlink()
    link.symlink_to(outside)
    problem = _only_problem(_certbot(inside))
    assert problem.file == str(link)
    assert "leads out" in problem.problem


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    problem = _with_key(tmp_path, "x" * 300_000)
    assert "longer than" in problem.problem


class Locked(LocalTree):
    """Somebody else's: its folders can be looked into, its keys not be read. Root, who runs tests, may read all."""

    def read(self, path: str, limit: int) -> bytes | None:
        if path.endswith(".key") or "privkey" in path:
            raise Unreadable("Permission denied")
        return super().read(path, limit)


def test_what_may_not_be_read_is_told_with_who_may(tmp_path: Path) -> None:
    layouts.certbot(tmp_path, "a.example.com", CA.issue("a.example.com"))
    problem = _only_problem(certbot.read(Locked(tmp_path), NOW))
    assert problem.file == str(tmp_path / "live/a.example.com/privkey.pem")
    assert problem.problem == "It cannot be read: permission denied."
    assert "root" in problem.next_step


def test_a_file_name_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    name = "a\x1b[2J\udcff.example.com"
    layouts.certbot(tmp_path, name, CA.issue("a.example.com", begins=-91 * DAY))
    problem = _only_problem(_certbot(tmp_path))
    assert problem.file.isprintable()
    assert "\\x1b[2J" in problem.file
    problem.file.encode()


def test_each_client_has_its_words_about_its_timer() -> None:
    assert "certbot.timer" in STEPS["certbot"][0]
    assert "--uninstall-cronjob" in STEPS["acme.sh"][0]
    assert "crontab" in STEPS["lego"][0]
    assert STEPS["pem"]


def test_accounts_that_are_left_out_are_named_with_the_certificates_that_came_by_them(tmp_path: Path) -> None:
    layouts.acme_sh(tmp_path, "a.example.com", CA.issue("a.example.com"), account_key=ACCOUNT)
    [first] = _acme_sh(tmp_path).certificates
    assert first.account is not None
    other = replace(first.account, file="/other/account.key")
    more = [replace(first, name=f"n{n}.example.com", account=other) for n in range(7)]
    [left] = _left_out([first, *more], first.account)
    assert (left["file"], len(left["certificates"])) == ("/other/account.key", 7)
    told = _others({"others": [left]})
    assert told.startswith("; left out: /other/account.key, of n0.example.com, n1.example.com, ")
    assert told.endswith(" and 2 more: the adopted one renews them")
    assert _others({"others": []}) == ""
