"""Odd folders of other clients: what is not taken over is noted, and what was not to be renewed is not."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from tests.support import foreign_layouts as layouts
from tests.support.foreign_layouts import NOW, SmallCa

from holdfast.cli.certificates.imports import by_nobody, solvers_of, unproved
from holdfast.importing import acme_sh, certbot
from holdfast.importing.found import MEANWHILE, FoundCertificate
from holdfast.world import LocalTree

CA = SmallCa()
ACCOUNT = ec.generate_private_key(ec.SECP256R1())
NAME = "www.example.com"


def _certbot(folder: Path, *names: str, **wishes: str) -> FoundCertificate:
    layouts.certbot(folder, NAME, CA.issue(NAME, *names), account_key=ACCOUNT, **wishes)
    [found] = certbot.read(LocalTree(folder), NOW).certificates
    return found


def _notes(found: FoundCertificate, *words: str) -> list[str]:
    return [next((word for word in words if word in note), note) for note in found.notes]


@pytest.mark.parametrize("hook", ["pre_hook", "post_hook", "renew_hook", "deploy_hook"])
def test_a_hook_of_certbot_is_noted_and_its_command_is_not_shown(tmp_path: Path, hook: str) -> None:
    found = _certbot(tmp_path, **{hook: "curl -H token:hush https://lb"})
    assert _notes(found, f"its {hook} is not taken over") == [f"its {hook} is not taken over"]
    assert "hush" not in str(found.notes)


def test_a_plugin_that_installed_it_is_noted(tmp_path: Path) -> None:
    assert _notes(_certbot(tmp_path, installer="nginx"), "nginx installed it") == ["nginx installed it"]


def test_what_is_not_set_is_not_noted(tmp_path: Path) -> None:
    assert _certbot(tmp_path, installer="None", renew_hook="None", autorenew="True").notes == ()


def test_one_that_certbot_was_not_to_renew_is_found_paused(tmp_path: Path) -> None:
    found = _certbot(tmp_path, autorenew="False")
    assert found.paused
    assert _notes(found, "adopted paused") == ["adopted paused"]


@pytest.mark.parametrize(
    ("text", "span", "noted"),
    [
        ("30 days", timedelta(days=30), False),
        ("720 hours", timedelta(hours=720), False),
        ("1 week", timedelta(weeks=1), False),
        ("next tuesday", None, True),
        ("0 days", None, True),
    ],
)
def test_when_certbot_was_to_renew_it_is_taken_over_or_noted(
    tmp_path: Path, text: str, span: timedelta | None, noted: bool
) -> None:
    _certbot(tmp_path)
    conf = tmp_path / "renewal" / f"{NAME}.conf"
    conf.write_text(f"renew_before_expiry = {text}\n{conf.read_text()}")
    [found] = certbot.read(LocalTree(tmp_path), NOW).certificates
    assert (found.renew_before, bool(found.notes)) == (span, noted)


def test_what_acme_sh_did_with_new_files_is_noted(tmp_path: Path) -> None:
    coded = "__ACME_BASE64__START_bmdpbnggLXMgcmVsb2FkICNodXNo__ACME_BASE64__END_"
    layouts.acme_sh(
        tmp_path, NAME, CA.issue(NAME), account_key=ACCOUNT, Le_ReloadCmd=coded, Le_RealKeyPath="/etc/nginx/k.pem"
    )
    [found] = acme_sh.read(LocalTree(tmp_path), NOW).certificates
    assert found.notes == (
        "its Le_ReloadCmd is not taken over: what it did is for you to arrange",
        "Le_RealKeyPath: nothing writes new files to /etc/nginx/k.pem yet",
    )


# ── what nothing here would prove, or renew ──


def test_names_that_were_proved_by_dns_need_a_solver_here(tmp_path: Path) -> None:
    by_dns = _certbot(tmp_path / "dns", authenticator="dns-cloudflare")
    wild = _certbot(tmp_path / "wild", "*.example.com")
    plain = _certbot(tmp_path / "plain")
    solvers = layouts.put(tmp_path / "solvers.toml", '[[solver]]\nkind = "dns-hook"\nnames = ["*.example.com"]\n')
    for found in (by_dns, wild):
        [told] = unproved([found, plain], [])
        assert told.startswith(f"{NAME}: ")
        assert "no DNS solver is set up here" in told
        assert unproved([found], solvers_of(solvers)) == []
        assert "see that the server has a DNS solver" in unproved([found], None)[0]
    http = [{"kind": "http", "names": ["*"]}]
    assert len(unproved([by_dns, replace(wild, names=("a.example",))], http)) == 1
    assert solvers_of(None) == []


def test_what_is_not_adopted_is_renewed_by_nobody_once_the_timer_is_off() -> None:
    assert by_nobody({"problems": []}) == []
    [told] = by_nobody({"problems": [{"file": f"live/{n}"} for n in range(7)]})
    assert told.startswith("Careful: 7 not adopted (live/0, live/1,")
    assert told.endswith("and 2 more). Once the old timer is off, nothing renews them.")


def test_before_a_timer_goes_off_it_is_said_what_nothing_does_yet() -> None:
    assert "keeps its present certificate" in MEANWHILE[0]
    assert any("holdfast fetch NAME" in line for line in MEANWHILE)
