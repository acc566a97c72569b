"""What other clients keep is adopted as it is: nothing is issued, nothing taken by half, and it renews from then on."""

import json
import os
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import ValidationError
from tests.interop.packages import CannotBeHad, Debian, Package, Pip, obtain
from tests.support import foreign_layouts as layouts
from tests.support.acme_face import open_front
from tests.support.ca import a_vault, services_for
from tests.support.commands import holdfast
from tests.support.foreign_layouts import ACCOUNT_URL, DAY, DIRECTORY, NOW, SmallCa
from tests.support.lifecycle import House, a_house
from tests.support.pebble import Pebble
from tests.support.ports import free_port
from tests.support.processes import Served, environment
from tests.support.running import run
from tests.support.stores import migrated, open_store
from tests.support.upstream import Site, Through, a_site, add, ask

from holdfast.core import renewal
from holdfast.core.certificate import VersionState
from holdfast.core.own_ca.ca import CaOptions
from holdfast.core.status import Phase
from holdfast.engine.issuance import renewals
from holdfast.importing import acme_sh, certbot, lego
from holdfast.importing.found import FoundCertificate
from holdfast.operations.certificates import imports, key_export
from holdfast.operations.certificates.imports import AccountImported, CertificateImported, NoAddress, new_name
from holdfast.operations.installation.secret_store import account_key
from holdfast.operations.runner import Options
from holdfast.store import issuances, issuers, journal, versions
from holdfast.store.database import Database
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.tx import Tx
from holdfast.world import HttpTransport, LocalTree, SystemClock

pytestmark = pytest.mark.anyio
CA = SmallCa()
ACCOUNT = ec.generate_private_key(ec.SECP256R1())
NAME = "www.example.com"
LOCAL = "127.0.0.1"
TRIAL = Options(dry_run=True)
TABLES = ("issuers", "issuer_accounts", "certificates", "certificate_versions", "secrets", "issuances", "jobs", "audit")


def _found(folder: Path) -> FoundCertificate:
    layouts.certbot(folder, NAME, CA.issue(NAME, "example.com"), account_key=ACCOUNT, reuse_key="True")
    [found] = certbot.read(LocalTree(folder), NOW).certificates
    return found


def _account(found: FoundCertificate) -> dict[str, Any]:
    assert found.account is not None
    return {
        "directory": found.account.directory,
        "key": found.account.key.reveal().decode(),
        "url": found.account.url,
        "contacts": list(found.account.contacts),
    }


def _offer(found: FoundCertificate) -> dict[str, Any]:
    return {
        "name": found.name,
        "names": list(found.names),
        "chain": found.chain.decode(),
        "key": found.key.reveal().decode(),
        "key_kind": found.key_kind,
        "directory": found.directory,
        "account_url": None if found.account is None else found.account.url,
        "reuse_key": found.reuse_key,
    }


def _counted(tx: Tx) -> dict[str, int]:
    return {table: tx.rows(f"SELECT COUNT(*) AS n FROM {table}")[0]["n"] for table in TABLES}


async def _adopt_account(house: House, offer: dict[str, Any], actor: str = "local:alice", **more: Any) -> Any:
    return await run(services_for(house.certificate_context), imports.import_account, actor=actor, **more, **offer)


async def _adopt_all(
    house: House, offers: list[dict[str, Any]], actor: str = "local:alice", **more: Any
) -> list[CertificateImported]:
    found: list[CertificateImported] = await run(
        services_for(house.certificate_context), imports.import_certificates, actor=actor, certificates=offers, **more
    )
    return found


async def _adopt(house: House, found: FoundCertificate, **more: Any) -> CertificateImported:
    await _adopt_account(house, _account(found), **more)
    [outcome] = await _adopt_all(house, [_offer(found)], **more)
    return outcome


# ── Adopting ──


async def test_certificate_key_names_dates_and_account_are_adopted_and_nothing_is_issued(
    db: Database, tmp_path: Path
) -> None:
    house, found = await a_house(db, tmp_path), _found(tmp_path / "le")
    outcome = await _adopt(house, found)
    assert (outcome.verdict, outcome.issuer) == ("adopted", "letsencrypt")
    view = await house.view(NAME)
    assert view.current is not None
    assert (view.current.state, view.current.serial) == (VersionState.IMPORTED, found.serial)
    assert (view.current.not_before, view.current.not_after) == (NOW - 30 * DAY, NOW + 60 * DAY)
    assert [each.value for each in view.certificate.wanted.identifiers] == [NAME, "example.com"]
    assert (view.certificate.wanted.issuers, view.certificate.wanted.reuse_key) == (("letsencrypt",), True)
    assert view.certificate.next_action_at == renewal.lifetime_due(view.certificate, view.current)
    assert view.status.phase is Phase.OK
    kept = await house.key_of(view)
    assert kept == found.key
    account = await db.read(lambda tx: issuers.current_account(tx, "letsencrypt", DIRECTORY))
    assert account is not None
    assert (account.url, account.state) == (ACCOUNT_URL, "valid")
    assert found.account is not None
    assert (
        await house.certificate_context.secret_store.reveal(account.key_secret, account_key(account.id))
        == found.account.key
    )
    assert await renewals.sweep_due(house.certificate_context) == 0
    counts = await db.read(_counted)
    assert (counts["issuances"], counts["jobs"]) == (0, 0)
    actions = [each.action for each in await db.read(lambda tx: journal.audit_page(tx, 0))]
    assert actions[-3:] == ["issuer_added", "account_adopted", "certificate_adopted"]


async def test_adopting_again_changes_nothing(db: Database, tmp_path: Path) -> None:
    house, found = await a_house(db, tmp_path), _found(tmp_path / "le")
    await _adopt(house, found)
    before = await db.read(_counted)
    outcome = await _adopt(house, found)
    assert outcome.verdict == "here already"
    assert await db.read(_counted) == before


async def test_a_plan_says_what_would_be_and_leaves_everything_as_it_is(db: Database, tmp_path: Path) -> None:
    house, found = await a_house(db, tmp_path), _found(tmp_path / "le")
    before = await db.read(_counted)
    outcome = await _adopt(house, found, options=TRIAL)
    assert (outcome.verdict, outcome.issuer) == ("adopt", "letsencrypt")
    assert outcome.renewal_at is not None
    assert await db.read(_counted) == before


async def test_one_that_is_refused_leaves_nothing_behind_and_the_others_alone(db: Database, tmp_path: Path) -> None:
    house, good = await a_house(db, tmp_path), _offer(_found(tmp_path / "le"))
    await house.ask("taken.example.com")
    other = CA.issue("b.example.com")
    bad = [
        {"name": "taken.example.com"},
        {"name": "other-key", "key": other.key},
        {"name": "other-names", "names": ["c.example.com"]},
        {"name": "no-chain", "chain": "nothing"},
        {"name": "no-key", "key": "nothing"},
        {"name": "no-such-ca", "directory": "https://nowhere.example/directory"},
        {"name": "a name\x1b[2J"},
        {"name": "a name\0"},
        {"name": "odd-profile", "profile": "a\nb"},
        {"name": "odd-key", "key_kind": "dsa"},
    ]
    offers = [{**good, "directory": None, **each} for each in (*bad, {})]
    before = await db.read(_counted)
    outcomes = await _adopt_all(house, offers, issuer="ca")
    assert [each.verdict for each in outcomes] == ["refused"] * 10 + ["adopted"]
    assert all(each.why.isprintable() and each.next_step for each in outcomes[:-1]), outcomes
    after = await db.read(_counted)
    grown = {table: after[table] - before[table] for table in TABLES if after[table] != before[table]}
    assert grown == {"certificates": 1, "certificate_versions": 1, "secrets": 1, "audit": 1}


@pytest.mark.parametrize("wish", [{"owner": "a b"}, {"labels": {"x y": "z"}}, {"issuer": "nobody"}])
async def test_what_is_asked_for_all_of_them_is_refused_for_all(
    db: Database, tmp_path: Path, wish: dict[str, Any]
) -> None:
    house, good = await a_house(db, tmp_path), _offer(_found(tmp_path / "le"))
    before = await db.read(_counted)
    with suppress(ValidationError):
        [outcome] = await _adopt_all(house, [{**good, "directory": None}], **wish)
        assert outcome.verdict == "refused"
    assert await db.read(_counted) == before


async def test_what_the_other_client_was_told_about_renewals_holds_here(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await _adopt_account(house, _account(_found(tmp_path / "le")), actor="local:test")
    found = replace(_found(tmp_path / "le2"), name="resting")
    offers = [
        {**_offer(found), "paused": True},
        {**_offer(found), "name": "early", "renew_before_s": 7 * 86400.0},
        {**_offer(found), "name": "odd", "directory": "http://ca.example/directory"},
    ]
    outcomes = await _adopt_all(house, offers, actor="local:test")
    assert [each.verdict for each in outcomes] == ["adopted", "adopted", "refused"]
    assert "begins with https://" in outcomes[2].next_step
    resting, early = await house.view("resting"), await house.view("early")
    assert (resting.status.phase, resting.status.next_attempt_at) == (Phase.PAUSED, None)
    assert early.certificate.wanted.rule.before == 7 * DAY


async def test_a_ca_that_is_known_by_its_directory_is_used_and_its_account_kept(db: Database, tmp_path: Path) -> None:
    house, found = await a_house(db, tmp_path), _found(tmp_path / "le")
    await house.add("mine", house.cas["ca"], directory=f"{DIRECTORY}/")
    told = await _adopt_account(house, _account(found))
    assert (told.issuer, told.added, told.account) == ("mine", False, True)
    before = await db.read(_counted)
    again = {**_account(found), "url": "https://acme-v02.api.letsencrypt.org/acme/acct/2"}
    told = await _adopt_account(house, again)
    assert (told.issuer, told.account) == ("mine", False)
    assert await db.read(_counted) == before
    [account] = await db.read(lambda tx: issuers.accounts_of(tx, "mine"))
    assert account.url == ACCOUNT_URL


async def test_an_account_without_an_address_is_left_to_be_found_by_its_key(db: Database, tmp_path: Path) -> None:
    house, found = await a_house(db, tmp_path), _found(tmp_path / "le")
    await _adopt_account(house, {**_account(found), "url": None})
    [account] = await db.read(lambda tx: issuers.accounts_of(tx, "letsencrypt"))
    assert (account.url, account.state) == (None, "creating")


async def test_where_the_files_name_no_ca_the_only_one_is_taken_or_somebody_must_say(
    db: Database, tmp_path: Path
) -> None:
    house, found = await a_house(db, tmp_path), _found(tmp_path / "le")
    loose = {**_offer(found), "directory": None, "account_url": None}
    [planned] = await _adopt_all(house, [loose], options=TRIAL)
    assert planned.issuer == "ca"
    await house.add("second", house.cas["ca"])
    [outcome] = await _adopt_all(house, [loose])
    assert outcome.verdict == "refused"
    assert "--issuer" in outcome.why
    assert "ca, second" in outcome.next_step


@pytest.mark.parametrize("directory", ["http://ca.example/dir", "ftp://x", "nonsense", "https://", "https://[x/dir"])
async def test_a_directory_that_is_no_https_address_is_refused(db: Database, tmp_path: Path, directory: str) -> None:
    house = await a_house(db, tmp_path)
    before = await db.read(_counted)
    with pytest.raises(NoAddress):
        await _adopt_account(house, {"directory": directory})
    assert await db.read(_counted) == before


def test_a_new_ca_is_called_as_people_call_it_or_by_its_host() -> None:
    assert new_name(DIRECTORY, set()) == "letsencrypt"
    assert new_name(DIRECTORY, {"letsencrypt", "letsencrypt-2"}) == "letsencrypt-3"
    assert new_name("https://CA.Example.com:14000/dir", set()) == "ca-example-com"
    assert new_name("https://[2001:db8::1]/dir", set()) == "2001-db8-1"


# ── What was adopted renews, with the account that it came from ──


@pytest.fixture
async def ours(db: Database, tmp_path: Path) -> AsyncIterator[tuple[Site, str]]:
    house = await a_house(db, tmp_path)
    async with open_front(db, tmp_path, options=CaOptions(permitted=(LOCAL,))) as front, front.office.working():
        site = a_site(house, Through(front), front.office.proofs)
        await add(site, directory=front.directory)
        yield site, front.directory


async def test_an_adopted_certificate_is_renewed_by_its_adopted_account_and_named_as_replaced(
    ours: tuple[Site, str],
) -> None:
    site, directory = ours
    context, db = site.house.certificate_context, site.house.db
    async with site.working():
        await ask(site, "before", LOCAL)
        await site.obtained("before")
        [account] = await db.read(lambda tx: issuers.accounts_of(tx, "acme"))
        theirs = await context.secret_store.reveal(account.key_secret, account_key(account.id))
        taken = await site.house.do(key_export.export, ref="before")
        await site.house.set_state("before", "archived")
        await db.write(lambda tx: issuers.account_ended(tx, account.id, "deactivated"))  # here, not at the CA

        offer = {"directory": directory, "key": theirs.reveal().decode(), "url": account.url}
        told = await _adopt_account(site.house, offer, actor="local:bob")
        assert told == AccountImported(issuer="acme", directory=directory, added=False, account=True)
        certificate = {
            "name": "site", "names": [LOCAL], "chain": taken.chain_pem, "key": taken.key_pem,
            "key_kind": "ec-p256", "directory": directory, "account_url": account.url,
        }  # fmt: skip
        [outcome] = await _adopt_all(site.house, [certificate], actor="local:bob")
        assert outcome.verdict == "adopted", outcome
        await site.house.renew("site", actor="local:bob")
        view = await site.obtained("site")
    assert view.current is not None
    assert (view.current.state, view.current.account) == (VersionState.ACTIVE, account.url)
    [attempt] = await db.read(lambda tx: issuances.of(tx, view.certificate.id))
    assert attempt.replaces is not None
    states = {each.state for each in await db.read(lambda tx: versions.of(tx, view.certificate.id))}
    assert states == {VersionState.ACTIVE, VersionState.SUPERSEDED}


# ── Folders that the clients themselves wrote, at pebble ──


def _program(package: Package, name: str) -> str:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast-interop"
    try:
        return obtain(package, cache).program(name)
    except CannotBeHad as why:
        pytest.skip(f"there is no {name} here: {why}")


def _run(*words: object, **env: object) -> None:
    variables = os.environ | {name: str(value) for name, value in env.items()}
    done = subprocess.run([str(each) for each in words], env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def _by_certbot(folder: Path, directory: str, trust: Path) -> FoundCertificate:
    places = ["--config-dir", folder / "c", "--work-dir", folder / "w", "--logs-dir", folder / "l"]
    common = ["--server", directory, "-n", "--agree-tos", "--register-unsafely-without-email", *places]
    how = ["--standalone", "--http-01-port", free_port(), "-d", NAME, "-d", "example.com"]
    _run(_program(Pip("certbot==5.8.0"), "certbot"), "certonly", *common, *how, REQUESTS_CA_BUNDLE=trust)
    [found] = certbot.read(LocalTree(folder / "c"), NOW).certificates
    return found


def _by_lego(folder: Path, directory: str, trust: Path) -> FoundCertificate:
    common = ["--server", directory, "--accept-tos", "--email", "ops@example.com", "--path", folder]
    how = ["--http", "--http.port", f"127.0.0.1:{free_port()}", "-d", NAME, "-d", "example.com", "run"]
    _run(_program(Debian(("lego",)), "lego"), *common, *how, LEGO_CA_CERTIFICATES=trust)
    [found] = lego.read(LocalTree(folder), NOW, directory=directory, known=()).certificates
    return found


def _by_acme_sh(folder: Path, directory: str, trust: Path) -> FoundCertificate:
    folder.mkdir()
    common = ["--home", folder, "--server", directory, "--ca-bundle", trust, "--accountemail", "ops@example.com"]
    how = ["-d", NAME, "-d", "example.com", "-w", folder.parent, "-k", "ec-256"]
    _run(_program(Debian(("acme.sh",), suite="trixie"), "acme.sh"), "--issue", *how, *common)
    [found] = acme_sh.read(LocalTree(folder), NOW).certificates
    return found


@pytest.mark.parametrize("client", [_by_certbot, _by_lego, _by_acme_sh], ids=["certbot", "lego", "acme.sh"])
async def test_what_a_client_wrote_is_adopted_and_renewed_with_its_account(client: Any, tmp_path: Path) -> None:
    pebble = Pebble(tmp_path, nonces=0, sleep=0)
    pebble._environment |= {"PEBBLE_VA_ALWAYS_VALID": "1", "PEBBLE_VA_NOSLEEP": "1"}
    with pebble:
        found = client(tmp_path / "client", pebble.place.directory, pebble._trust)
        db = await migrated(open_store(SqliteEngine(tmp_path / "holdfast.sqlite", SystemClock())))
        house, transport = await a_house(db, tmp_path), HttpTransport()
        site = a_site(house, transport)
        account = {**_account(found), "roots": pebble.place.roots.decode()}
        await _adopt_account(house, account)
        [outcome] = await _adopt_all(house, [_offer(found)])
        assert outcome.verdict == "adopted", outcome
        async with site.working():
            await house.renew(NAME, actor="local:alice")
            view = await site.obtained(NAME)
        await transport.close()
    assert view.current is not None
    assert (view.current.state, view.current.account) == (VersionState.ACTIVE, account["url"]), view.status
    assert view.current.serial != found.serial
    [row] = await db.read(lambda tx: issuers.accounts_of(tx, outcome.issuer))
    assert (row.url, row.state) == (account["url"], "valid")
    await db.close()


# ── The command ──


def _holdfast(folder: Path, *args: object) -> subprocess.CompletedProcess[str]:
    return holdfast(*args, env=environment(folder, {}))


async def _an_empty_store(folder: Path) -> None:
    db = await migrated(open_store(SqliteEngine(folder / "holdfast.sqlite", SystemClock())))
    await a_vault(db, folder)
    await db.close()


async def test_the_command_plans_adopts_and_says_how_to_switch_the_old_timer_off(tmp_path: Path) -> None:
    data, le = tmp_path / "data", tmp_path / "le"
    data.mkdir()
    await _an_empty_store(data)
    found = _found(le)
    layouts.certbot(le, "old.example.com", CA.issue("old.example.com", begins=-91 * DAY))
    layouts.certbot(le, "odd.example.com", CA.issue("odd.example.com"), server="http://ca.example/directory")
    layouts.certbot(le, "due.example.com", CA.issue("due.example.com", begins=-89 * DAY), authenticator="dns-x")
    planned = _holdfast(data, "import", "certbot", le, "--plan")
    assert planned.returncode == 10, planned.stderr
    assert NAME in planned.stdout
    assert "certbot.timer" in planned.stderr
    assert "would be added" in planned.stderr
    assert "holdfast issue old.example.com" in planned.stderr
    assert "'http://ca.example/directory' is no address of an ACME directory" in planned.stderr
    assert re.search(r"due\.example\.com .* at once +dns-01", planned.stdout)
    assert "no DNS solver is set up here for it" in planned.stderr
    said = [planned.stderr.index(words) for words in ("let Holdfast deploy", "Careful: 2", "certbot.timer")]
    assert said == sorted(said), "what to know comes before what to type"
    done = _holdfast(data, "import", "certbot", le, "-o", "json")
    assert done.returncode == 1, done.stderr  # one has expired, and one names no CA that can be asked
    report = json.loads(done.stdout)
    assert [each["verdict"] for each in report["certificates"]] == ["adopted", "refused", "adopted"]
    assert [each["url"] for each in report["accounts"]] == [ACCOUNT_URL]
    assert [each["file"].split("/")[-2] for each in report["problems"]] == ["old.example.com", "odd.example.com"]
    assert "PRIVATE" not in planned.stdout + planned.stderr + done.stdout + done.stderr
    assert found.key.reveal().decode() not in (data / "holdfast.sqlite").read_bytes().decode("latin-1")
    assert _holdfast(data, "import", "certbot", le, "--plan").returncode == 1  # nothing to adopt, and a problem
    missing = _holdfast(data, "import", "lego", tmp_path / "missing")
    assert missing.returncode == 1
    assert missing.stderr.startswith("error: ")
    assert "hint: " in missing.stderr


def test_the_command_adopts_into_a_running_server(tmp_path: Path) -> None:
    data, pair = tmp_path / "data", CA.issue("a.example.com")
    layouts.put(tmp_path / "pem/a.pem", pair.chain)
    layouts.put(tmp_path / "pem/a.key", pair.key)
    layouts.lego(tmp_path / "lego", NAME, CA.issue(NAME), account_key=ACCOUNT)
    with Served(data, {}) as server:
        server.wait_until_ready()
        assert _holdfast(data, "import", "lego", tmp_path / "lego", "-l", "team=web").returncode == 0
        files = (tmp_path / "pem/a.pem", tmp_path / "pem/a.key")
        done = _holdfast(data, "import", "pem", *files, "--issuer", "letsencrypt", "--owner", "web", "-o", "json")
        assert done.returncode == 0, done.stderr
        [told] = json.loads(done.stdout)["certificates"]
        assert (told["verdict"], told["issuer"], told["serial"]) == ("adopted", "letsencrypt", pair.serial)
        exported = json.loads(_holdfast(data, "export", "-o", "json").stdout)["certificates"]
        assert [(each["name"], each.get("owner"), each.get("labels")) for each in exported] == [
            ("a.example.com", "web", None),
            (NAME, None, {"team": "web"}),
        ]
        assert server.stop() == 0


def test_an_import_that_cannot_be_renewed_is_seen_before_it_fails(tmp_path: Path) -> None:
    data, name = tmp_path / "data", "by-dns.example.com"
    layouts.certbot(tmp_path / "le", name, CA.issue(name), authenticator="dns-cloudflare")
    with Served(data, {}) as server:
        server.wait_until_ready()
        assert _holdfast(data, "import", "certbot", tmp_path / "le").returncode == 0
        row = json.loads(_holdfast(data, "get", name, "-o", "json").stdout)
        assert (row["challenge"], row["status"]["phase"]) == ("dns-01", "ok")
        words = f"no solver can prove {name} by dns-01"
        for command in (("status", "--check"), ("status", name, "--check")):
            looked = _holdfast(data, *command)
            assert (looked.returncode, words in looked.stdout) == (10, True), looked.stdout
        assert words in _holdfast(data, "doctor").stdout
        assert f"no solver here can prove {name}" in _holdfast(data, "explain", name).stdout
        assert _holdfast(data, "change", name, "--challenge", "any").returncode == 0  # by http-01 from now on
        assert _holdfast(data, "status", "--check").returncode == 0
