"""http-01 by a file and by the store, tls-alpn-01 by a listener of ours: seen by our own validators, as a CA would."""

import os
import stat
from pathlib import Path

import pytest
from tests.support.challenge_server import NAME, PROOF, TOKEN, a_challenge, a_validator
from tests.support.dns_server import DnsServer
from tests.support.issuing import Rows

from holdfast.core.own_ca.acme import Identifier
from holdfast.core.reasons import Reason
from holdfast.errors import Refused, TryLater
from holdfast.issuers.base import ChallengeResponse
from holdfast.solvers.http01 import HttpStore, Webroot
from holdfast.solvers.tls_alpn import TlsAlpn, showing
from holdfast.validators.verdict import Invalid, Valid, ValidationResult
from holdfast.web.serve import bind
from holdfast.world import LocalFiles, SystemClock

pytestmark = pytest.mark.anyio

WELL_KNOWN = ".well-known/acme-challenge"


def a_proof(type_: str = "http-01", name: str = NAME, *, token: str = TOKEN) -> ChallengeResponse:
    identifier = Identifier("ip" if name[0].isdigit() or ":" in name else "dns", name)
    return ChallengeResponse(type=type_, identifier=identifier, token=token, key_authorization=PROOF)


# ── a folder that a web server serves ──


async def test_a_file_is_put_for_all_to_read_and_taken_away(tmp_path: Path) -> None:
    solver, file = Webroot(LocalFiles(), tmp_path), tmp_path / WELL_KNOWN / TOKEN
    before = os.umask(0o077)
    try:
        assert not await solver.visible(a_proof())
        await solver.publish(a_proof())
        await solver.publish(a_proof())
    finally:
        os.umask(before)
    assert file.read_text() == PROOF
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert [each.name for each in file.parent.iterdir()] == [TOKEN]  # nothing half done lies about
    assert await solver.visible(a_proof())
    await solver.clean(a_proof())
    await solver.clean(a_proof())
    assert list(file.parent.iterdir()) == []


def _everything_in(folder: Path) -> list[Path]:
    return list(folder.rglob("*"))


@pytest.mark.parametrize("token", ["../../x", "a/b", "..", "", "a\0b"])
async def test_a_token_never_leads_out_of_the_folder(tmp_path: Path, token: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    for step in (Webroot(LocalFiles(), root).publish, Webroot(LocalFiles(), root).clean):
        with pytest.raises(Refused):
            await step(a_proof(token=token))
    assert _everything_in(tmp_path) == [root]


@pytest.mark.parametrize("link", [".well-known", WELL_KNOWN])
async def test_a_link_that_somebody_put_there_is_not_followed(tmp_path: Path, link: str) -> None:
    root, victim = tmp_path / "root", tmp_path / "victim"
    victim.mkdir()
    (root / link).parent.mkdir(parents=True)
    (root / link).symlink_to(victim)
    (victim / TOKEN).write_text("precious")
    solver = Webroot(LocalFiles(), root)
    for step in (solver.publish, solver.clean):
        with pytest.raises(TryLater) as later:
            await step(a_proof())
        assert later.value.reason == Reason.SOLVER_FAILED
    assert [each.name for each in victim.iterdir()] == [TOKEN]
    assert (victim / TOKEN).read_text() == "precious"


async def test_a_link_in_the_place_of_the_file_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    victim, file = tmp_path / "victim", tmp_path / WELL_KNOWN / TOKEN
    victim.write_text("precious")
    file.parent.mkdir(parents=True)
    file.symlink_to(victim)
    await Webroot(LocalFiles(), tmp_path).publish(a_proof())
    assert victim.read_text() == "precious"
    assert not file.is_symlink()


async def test_a_folder_that_is_missing_is_a_matter_for_a_person(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="is not there") as refused:
        await Webroot(LocalFiles(), tmp_path / "missing").publish(a_proof())
    assert refused.value.reason == Reason.SOLVER_FAILED
    await Webroot(LocalFiles(), tmp_path / "missing").clean(a_proof())  # what is not there need not be removed


# ── the store ──


async def test_a_row_is_there_for_every_replica_until_it_is_cleaned() -> None:
    rows = Rows()
    solver = HttpStore(rows.put, rows.delete)
    await solver.publish(a_proof())
    assert await solver.visible(a_proof())
    async with rows.served(0) as web:
        assert isinstance(await _validated(web.port), Valid)
        await solver.clean(a_proof())
        assert isinstance(await _validated(web.port), Invalid)


async def _validated(http_port: int) -> ValidationResult:
    async with DnsServer() as dns:
        dns.add(NAME, "A", "127.0.0.1")
        return await a_validator(dns.address, http_port=http_port).check(a_challenge())


# ── tls-alpn-01 ──


@pytest.mark.parametrize("name", [NAME, "127.0.0.1"])
async def test_our_listener_proves_a_name_or_an_address_to_our_validator(name: str) -> None:
    rows = Rows()
    solver = TlsAlpn(rows.put, rows.delete)
    await solver.publish(a_proof("tls-alpn-01", name))

    line = bind("127.0.0.1", 0)
    async with DnsServer() as dns, showing(line, rows.by_identifier, SystemClock()):
        dns.add(NAME, "A", "127.0.0.1")
        validator = a_validator(dns.address, tls_port=line.getsockname()[1])
        assert isinstance(await validator.check(a_challenge("tls-alpn-01", name)), Valid)
        await solver.clean(a_proof("tls-alpn-01", name))
        assert isinstance(await validator.check(a_challenge("tls-alpn-01", name)), Invalid)


async def test_a_wildcard_has_no_place_in_tls_alpn() -> None:
    rows = Rows()
    with pytest.raises(Refused, match="wildcard"):
        await TlsAlpn(rows.put, rows.delete).publish(a_proof("tls-alpn-01", "*.example.internal"))
