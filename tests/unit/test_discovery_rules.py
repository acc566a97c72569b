"""The rules of discovery: what a find means, which command settles it, and which places a scan looks at."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest

from holdfast.core.discovery import judgement, network
from holdfast.core.discovery.find import CertificateFacts, Find, FindState, Manager, move, seen_again
from holdfast.core.discovery.network import ScanPlan, ScanRules, port_of, problem_with
from holdfast.errors import IllegalMove
from holdfast.validators.dialer import Addresses

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def a_find(*, days: float = 60, manager: Manager = Manager.UNKNOWN, **more: object) -> Find:
    facts = CertificateFacts(
        fingerprint="ab" * 32, serial="1", serial_key="k", issuer="CN=Elsewhere", names=("www.example.org",),
        not_before=NOW - timedelta(days=30), not_after=NOW + timedelta(days=days), spki_sha256="cd" * 32,
    )  # fmt: skip
    row = Find(
        id="find_1", key=facts.key, facts=facts, manager=manager, places=1, served=True, first_seen_at=NOW,
        last_seen_at=NOW,
    )  # fmt: skip
    return replace(row, **more)  # type: ignore[arg-type]


# ── Finds ──


@pytest.mark.parametrize(
    ("path", "manager"),
    [
        ("/etc/letsencrypt/live/www.example.org/fullchain.pem", Manager.CERTBOT),
        ("/root/.acme.sh/www.example.org_ecc/fullchain.cer", Manager.ACME_SH),
        ("/srv/.lego/certificates/www.example.org.crt", Manager.LEGO),
        ("/etc/ssl/certs/web.pem", Manager.UNKNOWN),
    ],
)
def test_the_client_that_keeps_a_file_is_known_by_its_path(path: str, manager: Manager) -> None:
    assert judgement.manager_of(path) is manager


def test_each_find_tells_the_one_command_that_adopts_it_and_the_one_that_ignores_it() -> None:
    assert judgement.remedy_of(a_find()).adopt == "holdfast finds adopt find_1"
    assert judgement.remedy_of(a_find()).ignore == "holdfast finds ignore find_1 --reason TEXT"
    assert "holdfast import certbot" in judgement.remedy_of(a_find(manager=Manager.CERTBOT)).adopt
    assert "holdfast import acme.sh" in judgement.remedy_of(a_find(manager=Manager.ACME_SH)).adopt
    for settled in (a_find(manager=Manager.HOLDFAST), a_find(state=FindState.ADOPTED), a_find(state=FindState.GONE)):
        assert judgement.remedy_of(settled) == judgement.Remedy(adopt="", ignore="")


def test_a_find_that_cannot_be_adopted_says_why() -> None:
    nameless = replace(a_find(), facts=replace(a_find().facts, names=()))
    authority = replace(a_find(), facts=replace(a_find().facts, authority=True))
    many = replace(a_find(), facts=replace(a_find().facts, names=tuple(f"n{n}.example.org" for n in range(101))))
    assert "no DNS name" in judgement.remedy_of(nameless).why_not
    assert "certificate of a CA" in judgement.remedy_of(authority).why_not
    assert "more names than the 100" in judgement.remedy_of(many).why_not
    assert judgement.remedy_of(nameless).adopt == ""


def test_people_are_told_of_a_find_once_at_each_threshold() -> None:
    assert judgement.tell_now(a_find(days=31), NOW) is None
    assert judgement.tell_now(a_find(days=29), NOW) == 30
    assert judgement.tell_now(a_find(days=29, told_days=30), NOW) is None
    assert judgement.tell_now(a_find(days=2, told_days=30), NOW) == 3
    assert judgement.tell_now(a_find(days=-1, told_days=3), NOW) == 0
    assert judgement.tell_now(a_find(days=-1, told_days=0), NOW) is None


@pytest.mark.parametrize(
    "settled",
    [
        {"manager": Manager.HOLDFAST}, {"manager": Manager.ACME_CLIENT}, {"state": FindState.IGNORED, "why": "x"},
        {"state": FindState.GONE}, {"places": 0}, {"state": FindState.ADOPTED, "served": False},
    ],
)  # fmt: skip
def test_people_are_not_told_of_a_find_that_is_settled(settled: dict[str, object]) -> None:
    assert judgement.tell_now(a_find(days=1, **settled), NOW) is None  # type: ignore[arg-type]


def test_an_adopted_find_that_is_still_served_at_its_end_is_told_of() -> None:
    assert judgement.tell_now(a_find(days=2, state=FindState.ADOPTED, certificate="cert_1"), NOW) == 3


def test_a_find_that_comes_back_is_as_it_was_decided() -> None:
    gone = a_find(state=FindState.GONE)
    assert seen_again(gone) is FindState.NEW
    assert seen_again(replace(gone, why="a printer")) is FindState.IGNORED
    assert seen_again(replace(gone, certificate="cert_1")) is FindState.ADOPTED
    with pytest.raises(IllegalMove):
        move(FindState.GONE, "adopted")


# ── Scans ──


def test_all_hosts_are_met_at_one_port_before_any_is_met_at_the_next() -> None:
    plan = ScanPlan(["192.0.2.0/30", "www.example.org", "2001:db8::1"], ["443", "587"])
    shown = [each.shown for each in plan.places(0, 100)]
    assert shown == [
        "tls://192.0.2.1:443", "tls://192.0.2.2:443", "tls://www.example.org:443", "tls://[2001:db8::1]:443",
        "smtp://192.0.2.1:587", "smtp://192.0.2.2:587", "smtp://www.example.org:587", "smtp://[2001:db8::1]:587",
    ]  # fmt: skip
    assert (plan.total, plan.hosts) == (8, 4)
    assert [each.shown for each in plan.places(3, 2)] == shown[3:5], "a scan goes on where it was"
    assert plan.places(8, 64) == []


def test_a_port_says_how_tls_begins_there() -> None:
    assert [port_of(each).protocol.value for each in ("443", "25", "143", "5432", "smtp:2525", "993")] == [
        "tls", "smtp", "imap", "postgres", "smtp", "tls",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["0", "65536", "x", "gopher:70", "", "443;id", "４４３"])
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"port|protocol"):
        port_of(text)


@pytest.mark.parametrize("text", ["10.0.0.0/33", "10.0.0/8", "a b", "http://x/", "x" * 300, "10.0.0.0/-1"])
def test_what_is_neither_a_network_nor_a_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"network|host|written"):
        ScanPlan([text], ["443"])


@pytest.mark.parametrize(
    ("where", "networks", "said"),
    [
        (["10.0.0.0/24"], (), "discovery.networks is empty"),
        (["10.1.0.0/24"], ("10.0.0.0/16",), "10.1.0.0/24 may not be scanned: discovery.networks lists 10.0.0.0/16"),
        (["10.0.0.0/8"], ("10.0.0.0/16",), "10.0.0.0/8 may not be scanned"),
        (["10.0.0.0/8"], ("10.0.0.0/8",), "16777214 places"),
        (["fd00::/8"], ("fd00::/8",), "a scan has at most 65536"),
        (["fd00::/120"], ("10.0.0.0/8",), "may not be scanned"),
        (["10.0.3.0/24", "www.example.org"], ("10.0.0.0/16",), ""),
    ],
)
def test_only_listed_networks_are_scanned_and_only_so_much_at_once(
    where: list[str], networks: tuple[str, ...], said: str
) -> None:
    found = problem_with(ScanPlan(where, ["443"]), ScanRules(networks=networks))
    assert said in found if said else found == ""


def test_a_step_of_a_scan_is_paid_for_all_of_its_connections() -> None:
    from holdfast.operations.discovery.discoveries import pace

    assert pace(32).every == timedelta(seconds=network.AT_ONCE / 32)


def test_a_scan_dials_no_address_that_its_setting_does_not_list_be_it_public() -> None:
    rule = Addresses(["10.0.0.0/8", "192.0.0.0/8"], only=network.NETWORKS_SETTING)
    assert rule.denied(ip_address("10.1.2.3")) is None
    assert rule.denied(ip_address("9.9.9.9")) == "an address that discovery.networks does not list"
    assert rule.denied(ip_address("2606:4700::1")) == "an address that discovery.networks does not list"
    assert rule.denied(ip_address("192.0.2.1")) is not None, "some are never dialled, whatever is listed"
    assert Addresses(["10.0.0.0/8"]).denied(ip_address("9.9.9.9")) is None
