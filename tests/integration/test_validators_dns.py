"""Proofs in DNS, CAA, and the resolver below them, against a real name server over UDP and TCP."""

import asyncio
from base64 import b32encode, urlsafe_b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256

import dns.flags
import dns.message
import dns.rrset
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.challenge_server import ACCOUNT, NAME, PROOF, a_challenge, a_validator
from tests.support.dns_server import DnsServer
from tests.support.ports import free_port

from holdfast.network import SystemNet
from holdfast.validators.caa import Caa
from holdfast.validators.resolver import DnsProblem, Resolver, server
from holdfast.validators.verdict import Invalid, Trace, Valid, ValidationResult
from holdfast.validators.wire import RecordKind
from holdfast.world import SystemRandom

pytestmark = pytest.mark.anyio

AT = f"_acme-challenge.{NAME}"
DIGEST = urlsafe_b64encode(sha256(PROOF.encode()).digest()).rstrip(b"=").decode()


@pytest.fixture
async def names() -> AsyncIterator[DnsServer]:
    async with DnsServer() as found:
        yield found


def resolver(*servers: str, try_for: float = 2.0) -> Resolver:
    return Resolver(SystemNet(), SystemRandom(), servers, try_for=try_for)


class Far(SystemNet):
    """The real network, but a name server elsewhere is one of ours."""

    async def ask(
        self, server: str, port: int, query: bytes, *, tcp: bool, deadline_for: float, fits: Callable[[bytes], bool]
    ) -> bytes:
        return await super().ask("127.0.0.1", port, query, tcp=tcp, deadline_for=deadline_for, fits=fits)


def from_afar(names: DnsServer) -> Resolver:
    """Between us and this server others may forge answers."""
    return Resolver(Far(), SystemRandom(), [f"192.0.2.53:{names.port}"])


def problem(verdict: ValidationResult) -> tuple[str, bool]:
    assert isinstance(verdict, Invalid), verdict
    return verdict.problem.type, verdict.retryable


# ── dns-01 ──


@pytest.mark.parametrize("name", [NAME, f"*.{NAME}"])
async def test_the_digest_in_a_txt_record_is_the_proof(names: DnsServer, name: str) -> None:
    names.add(AT, "TXT", f'"{DIGEST}"')
    verdict = await a_validator(names.address).check(a_challenge("dns-01", name))
    assert isinstance(verdict, Valid), verdict
    assert (verdict.evidence["record"], verdict.evidence["records"]) == (AT, 1)
    assert set(names.asked) == {(AT, "TXT")}


async def test_it_may_be_one_of_many_by_tcp_and_in_pieces(names: DnsServer) -> None:
    names.add(AT, "TXT", *(f'"{"x" * 200}{number}"' for number in range(40)), f'"{DIGEST[:20]}" "{DIGEST[20:]}"')
    assert isinstance(await a_validator(names.address).check(a_challenge("dns-01")), Valid)
    assert names.by_tcp[AT, "TXT"] == 1


async def test_it_may_be_where_an_alias_leads(names: DnsServer) -> None:
    names.alias(AT, "proofs.elsewhere.example")
    names.add("proofs.elsewhere.example", "TXT", f'"{DIGEST}"')
    assert isinstance(await a_validator(names.address).check(a_challenge("dns-01")), Valid)


@pytest.mark.parametrize(
    "texts",
    [[], ['"secret-of-ours"'], [f'"{PROOF}"'], [f'"{DIGEST}="'], [f'" {DIGEST}"'], [f'"{DIGEST.lower()}"'], ['""']],
)
async def test_any_other_text_is_no_proof_and_is_not_repeated(names: DnsServer, texts: list[str]) -> None:
    names.add(AT, "TXT", *texts)
    verdict = await a_validator(names.address).check(a_challenge("dns-01"))
    assert problem(verdict) == ("incorrectResponse", False)
    assert "secret" not in repr(verdict)


@pytest.mark.parametrize(
    ("rcode", "retryable"), [("NXDOMAIN", False), ("SERVFAIL", True), ("REFUSED", True), ("FORMERR", True)]
)
async def test_an_error_of_the_name_server_is_told(names: DnsServer, rcode: str, retryable: bool) -> None:
    names.fail(AT, "TXT", rcode)
    assert problem(await a_validator(names.address).check(a_challenge("dns-01"))) == ("dns", retryable)


async def test_an_address_cannot_be_proved_by_dns(names: DnsServer) -> None:
    for type_ in ("dns-01", "dns-account-01", "dns-persist-01"):
        verdict = await a_validator(names.address, caa=["ca.example"]).check(a_challenge(type_, "192.0.2.1"))
        assert problem(verdict) == ("rejectedIdentifier", False)
    assert not names.asked


# ── dns-account-01 ──


async def test_an_account_has_a_label_of_its_own(names: DnsServer) -> None:
    label = "_" + b32encode(sha256(ACCOUNT.encode()).digest()[:10]).decode().lower()
    names.add(f"{label}.{AT}", "TXT", f'"{DIGEST}"')
    validator = a_validator(names.address)
    assert len(label) == 17
    assert isinstance(await validator.check(a_challenge("dns-account-01")), Valid)
    other = replace(a_challenge("dns-account-01"), account_url="https://ca.example/acme/account/2")
    assert problem(await validator.check(other)) == ("incorrectResponse", False)
    assert problem(await validator.check(a_challenge("dns-01"))) == ("incorrectResponse", False)


async def test_the_label_is_that_of_the_draft() -> None:
    from holdfast.validators.dns_challenges import label

    assert label("https://example.com/acme/acct/ExampleAccount") == "_ujmmovf2vn55tgye"


# ── dns-persist-01 ──

PERSIST = f"_validation-persist.{NAME}"


@pytest.mark.parametrize(
    ("text", "name", "valid"),
    [
        (f"ca.example; accounturi={ACCOUNT}", NAME, True),
        (f"CA.Example;accounturi={ACCOUNT};future=1", NAME, True),
        (f"ca.example; accounturi={ACCOUNT}; persistUntil=4102444800", NAME, True),
        (f"ca.example; accounturi={ACCOUNT}; policy=wildcard", NAME, True),
        (f"ca.example; accounturi={ACCOUNT}; policy=WildCard", f"*.{NAME}", True),
        (f"ca.example; accounturi={ACCOUNT}", f"*.{NAME}", False),
        (f"ca.example; accounturi={ACCOUNT}; policy=other", f"*.{NAME}", False),
        (f"ca.example; accounturi={ACCOUNT}; persistUntil=1000000000", NAME, False),
        (f"ca.example; accounturi={ACCOUNT}; persistUntil=soon", NAME, False),
        (f"ca.example; accounturi={ACCOUNT}; persistUntil=-1", NAME, False),
        (f"ca.example; accounturi={ACCOUNT}; persistUntil=4102444800; persistUntil=1", NAME, False),
        (f"ca.example; accounturi={ACCOUNT}0", NAME, False),
        (f"ca.example; accounturi={ACCOUNT}; accounturi={ACCOUNT}", NAME, False),
        ("ca.example", NAME, False),
        (f"other.example; accounturi={ACCOUNT}", NAME, False),
        (f"; accounturi={ACCOUNT}", NAME, False),
        (f"ca.example accounturi={ACCOUNT}", NAME, False),
        ("", NAME, False),
    ],
)
async def test_a_persistent_record_names_us_and_the_account(
    names: DnsServer, text: str, name: str, valid: bool
) -> None:
    names.add(PERSIST, "TXT", '"other.example; accounturi=https://other"', f'"{text}"')
    verdict = await a_validator(names.address, caa=["ca.example"]).check(a_challenge("dns-persist-01", name))
    assert isinstance(verdict, Valid) is valid, verdict
    if not valid:
        assert problem(verdict) == ("incorrectResponse", False)


async def test_how_long_a_persistent_record_holds_is_evidence(names: DnsServer) -> None:
    validator = a_validator(names.address, caa=["ca.example"])
    for instant in (4102444800, 4102444900, 4102444801):
        names.add(PERSIST, "TXT", f'"ca.example; accounturi={ACCOUNT}; persistUntil={instant}"')
    assert (await validator.check(a_challenge("dns-persist-01"))).evidence["persist_until"] == 4102444900
    names.add(PERSIST, "TXT", f'"ca.example; accounturi={ACCOUNT}"')
    assert (await validator.check(a_challenge("dns-persist-01"))).evidence["persist_until"] is None


async def test_a_ca_without_a_name_finds_no_persistent_record(names: DnsServer) -> None:
    names.add(PERSIST, "TXT", f'"ca.example; accounturi={ACCOUNT}"')
    assert problem(await a_validator(names.address).check(a_challenge("dns-persist-01")))[0] == "incorrectResponse"


# ── CAA ──


async def checked(names: DnsServer, name: str = NAME, *, caa: tuple[str, ...] = ("ca.example",)) -> ValidationResult:
    names.add(f"_acme-challenge.{name.removeprefix('*.')}", "TXT", f'"{DIGEST}"')
    return await a_validator(names.address, caa=caa).check(a_challenge("dns-01", name))


async def test_without_any_record_we_may_issue_after_the_climb(names: DnsServer) -> None:
    verdict = await checked(names)
    assert isinstance(verdict, Valid)
    assert verdict.evidence["caa"] == {"at": None, "records": 0}
    assert [name for name, kind in names.asked if kind == "CAA"] == [NAME, "example.internal", "internal"]


@pytest.mark.parametrize("at", [NAME, "example.internal", "internal"])
async def test_the_first_records_on_the_way_up_decide(names: DnsServer, at: str) -> None:
    names.add(at, "CAA", '0 issue "other.example"')
    verdict = await checked(names)
    assert problem(verdict) == ("caa", False)
    assert verdict.evidence["caa"] == {"at": at, "records": 1}
    names.add(NAME if at != NAME else "example.internal", "CAA", '0 issue "ca.example"')
    assert isinstance(await checked(names), Valid if at != NAME else Invalid)


async def test_a_name_that_does_not_exist_has_parents_that_do(names: DnsServer) -> None:
    names.fail(NAME, "CAA", "NXDOMAIN")
    names.add("example.internal", "CAA", '0 issue ";"')
    assert problem(await checked(names)) == ("caa", False)


async def test_an_alias_is_followed_but_the_climb_goes_on_from_the_name(names: DnsServer) -> None:
    names.alias(NAME, "host.elsewhere.example")
    names.add("elsewhere.example", "CAA", '0 issue ";"')
    assert isinstance(await checked(names), Valid)
    names.add("host.elsewhere.example", "CAA", '0 issue ";"')
    assert problem(await checked(names)) == ("caa", False)


async def test_a_wildcard_asks_at_its_base_for_issuewild(names: DnsServer) -> None:
    names.add(NAME, "CAA", '0 issue "ca.example"', '0 issuewild ";"')
    assert isinstance(await checked(names), Valid)
    assert problem(await checked(names, f"*.{NAME}")) == ("caa", False)


@pytest.mark.parametrize("rcode", ["SERVFAIL", "REFUSED"])
@pytest.mark.parametrize("at", [NAME, "example.internal", "internal"])
async def test_silence_is_no_permission(names: DnsServer, rcode: str, at: str) -> None:
    names.fail(at, "CAA", rcode)
    assert problem(await checked(names)) == ("dns", True)


async def test_a_record_below_a_failure_decides_without_it(names: DnsServer) -> None:
    names.fail("internal", "CAA", "SERVFAIL")
    names.add("example.internal", "CAA", '0 issue "ca.example"')
    assert isinstance(await checked(names), Valid)


async def test_a_malformed_record_is_no_permission(names: DnsServer) -> None:
    def broken(query: dns.message.Message, tcp: bool) -> bytes:
        response = bytearray(dns.message.make_response(query).to_wire()[:-11])  # without its OPT
        response[7], response[11] = 1, 0
        return bytes(response) + bytes.fromhex("c00c 0101 0001 0000003c 0003 000969")  # a tag of nine octets, says it

    names.answer(NAME, "CAA", broken)
    assert problem(await checked(names)) == ("dns", False)


async def test_the_account_and_the_method_of_rfc_8657_count(names: DnsServer) -> None:
    names.add(NAME, "CAA", f'0 issue "ca.example; accounturi={ACCOUNT}; validationmethods=dns-01"')
    assert isinstance(await checked(names), Valid)
    names.remove(NAME, "CAA")
    names.add(NAME, "CAA", '0 issue "ca.example; validationmethods=http-01"')
    assert problem(await checked(names)) == ("caa", False)


async def test_with_no_name_of_ours_caa_is_not_looked_at(names: DnsServer) -> None:
    names.add(NAME, "CAA", '0 issue ";"')
    assert isinstance(await checked(names, caa=()), Valid)
    assert not [name for name, kind in names.asked if kind == "CAA"]


async def test_a_name_with_too_many_labels_is_not_climbed(names: DnsServer) -> None:
    assert problem(await checked(names, ".".join(["a"] * 33))) == ("caa", False)
    assert isinstance(await checked(names, ".".join(["b"] * 32)), Valid)


class Hand:
    """A clock that is moved by hand."""

    at = 1000.0

    def monotonic(self) -> float:
        return self.at

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.at, UTC)

    async def sleep(self, seconds: float) -> None:
        self.at += seconds


async def test_parents_are_remembered_for_their_ttl_and_the_name_itself_never(names: DnsServer) -> None:
    names.soa_minimum, names.ttl = 120, 3600
    clock = Hand()
    caa = Caa(resolver(names.address), clock, ["ca.example"])
    for _ in range(3):
        await caa.check(a_challenge("dns-01"), Trace())
    assert names.asked[NAME, "CAA"] == 3
    assert names.asked["example.internal", "CAA"] == names.asked["internal", "CAA"] == 1
    clock.at += 121
    names.add("internal", "CAA", '0 issue "ca.example"')
    await caa.check(a_challenge("dns-01"), Trace())
    assert names.asked["internal", "CAA"] == 2
    clock.at += 299
    await caa.check(a_challenge("dns-01"), Trace())
    assert names.asked["internal", "CAA"] == 2
    clock.at += 2  # five minutes are the most, whatever the TTL
    await caa.check(a_challenge("dns-01"), Trace())
    assert names.asked["internal", "CAA"] == 3


async def test_an_empty_answer_without_a_soa_is_not_remembered(names: DnsServer) -> None:
    caa = Caa(resolver(names.address), Hand(), ["ca.example"])
    for _ in range(3):
        await caa.check(a_challenge("dns-01"), Trace())
    assert names.asked["internal", "CAA"] == 3


async def test_no_more_than_a_thousand_parents_are_remembered(names: DnsServer) -> None:
    names.soa_minimum = 300
    caa = Caa(resolver(names.address), Hand(), ["ca.example"])
    for number in range(1100):
        await caa.check(a_challenge("dns-01", f"a.p{number}.internal"), Trace())
    assert len(caa._parents) == 1024


# ── the resolver ──


async def test_both_families_are_asked_and_ipv6_comes_first(names: DnsServer) -> None:
    names.add(NAME, "A", "192.0.2.1")
    names.add(NAME, "AAAA", "2001:db8::1")
    assert [str(each) for each in await resolver(names.address).addresses(NAME)] == ["2001:db8::1", "192.0.2.1"]


@pytest.mark.parametrize("rcode", ["SERVFAIL", "NXDOMAIN", "REFUSED"])
async def test_one_family_may_fail_if_the_other_has_something(names: DnsServer, rcode: str) -> None:
    names.fail(NAME, "AAAA", rcode)
    names.add(NAME, "A", "192.0.2.1")
    assert [str(each) for each in await resolver(names.address).addresses(NAME)] == ["192.0.2.1"]
    names.remove(NAME, "A")
    with pytest.raises(DnsProblem) as caught:
        await resolver(names.address).addresses(NAME)
    assert caught.value.kind == rcode.lower()


async def test_nothing_can_be_guessed_from_one_question_to_the_next(names: DnsServer) -> None:
    asking = from_afar(names)
    for _ in range(100):
        await asking.ask("abcdefghijklmnopqrstuvwxyz.example", RecordKind.A)
    assert len(set(names.ids)) > 95
    assert len(set(names.ports)) > 80
    assert len(set(names.spelled)) == 100
    assert {name.lower() for name in names.spelled} == {"abcdefghijklmnopqrstuvwxyz.example"}


async def test_a_forged_answer_is_dropped_and_the_right_one_is_waited_for(names: DnsServer) -> None:
    """An answer with another id, or to another question, is as if it had never come."""

    def forged(query: dns.message.Message, tcp: bool) -> None:
        right = dns.message.make_response(query)
        right.answer.append(dns.rrset.from_text(query.question[0].name, 1, "IN", "A", "192.0.2.1"))
        wrong = dns.message.make_response(query)
        wrong.answer.append(dns.rrset.from_text(query.question[0].name, 1, "IN", "A", "6.6.6.6"))
        wrong.id ^= 1
        other = dns.message.make_response(dns.message.make_query("other.example", "A", id=query.id))
        peer = ("127.0.0.1", names.ports[-1])
        for packet in (wrong.to_wire(), other.to_wire(), b"", b"\0" * 12, b"x" * 500, query.to_wire(), right.to_wire()):
            names._udp.sendto(packet, peer)

    names.answer(NAME, "A", forged)
    for n, asking in enumerate((resolver(names.address), from_afar(names)), start=1):
        answer = await asking.ask(NAME, RecordKind.A)
        assert answer.data == (b"\xc0\x00\x02\x01",)
        assert names.asked[NAME, "A"] == n


async def test_an_alias_that_a_server_leaves_to_us_is_followed(names: DnsServer) -> None:
    """RFC 8555 §8.4 wants the record of the name; where it is kept is for CNAME to say."""

    def alias_to(target: str) -> Callable[[dns.message.Message, bool], bytes]:
        def only_the_alias(query: dns.message.Message, tcp: bool) -> bytes:
            response = dns.message.make_response(query)
            response.answer.append(dns.rrset.from_text(query.question[0].name, 1, "IN", "CNAME", target))
            return response.to_wire()

        return only_the_alias

    names.answer(AT, "TXT", alias_to("one.example."))
    names.answer("one.example", "TXT", alias_to("_two.example."))
    names.add("_two.example", "TXT", f'"{DIGEST}"')
    assert isinstance(await a_validator(names.address).check(a_challenge("dns-01")), Valid)
    names.answer("_two.example", "TXT", alias_to("one.example."))  # and round and round
    assert problem(await a_validator(names.address).check(a_challenge("dns-01"))) == ("dns", False)
    assert names.asked["one.example", "TXT"] <= 6


async def test_a_server_on_this_machine_may_tell_upper_from_lower_case(names: DnsServer) -> None:
    """pebble-challtestsrv does; and nobody can forge its answers."""
    for _ in range(5):
        await resolver(names.address).ask(NAME, RecordKind.A)
    assert names.spelled == [NAME] * 5


async def test_a_server_that_does_not_repeat_our_letters_is_asked_by_tcp(names: DnsServer) -> None:
    def lowered(query: dns.message.Message, tcp: bool) -> bytes:
        plain = dns.message.make_query(NAME, "A", id=query.id)
        response = dns.message.make_response(plain)
        response.answer.append(dns.rrset.from_text(f"{NAME}.", 1, "IN", "A", "192.0.2.1" if tcp else "6.6.6.6"))
        return response.to_wire()

    names.answer(NAME, "A", lowered)
    assert (await from_afar(names).ask(NAME, RecordKind.A)).data == (b"\xc0\x00\x02\x01",)
    assert names.by_tcp[NAME, "A"] == 1


async def test_what_is_cut_off_by_tcp_too_is_malformed(names: DnsServer) -> None:
    def cut(query: dns.message.Message, tcp: bool) -> bytes:
        response = dns.message.make_response(query)
        response.flags |= dns.flags.TC
        return response.to_wire()

    names.answer(NAME, "A", cut)
    with pytest.raises(DnsProblem) as caught:
        await resolver(names.address).ask(NAME, RecordKind.A)
    assert caught.value.kind == "malformed"


async def test_the_next_server_is_asked_when_one_fails(names: DnsServer) -> None:
    names.add(NAME, "A", "192.0.2.1")
    async with DnsServer() as failing:
        failing.fail(NAME, "A", "SERVFAIL")
        nobody = f"127.0.0.1:{free_port()}"
        answer = await resolver(failing.address, nobody, names.address).ask(NAME, RecordKind.A)
        assert len(answer.data) == 1
        assert failing.asked[NAME, "A"] == 1


async def test_a_server_that_loses_a_question_is_asked_again(names: DnsServer) -> None:
    lost = []

    def losing(query: dns.message.Message, tcp: bool) -> bytes | None:
        lost.append(query)
        return None if len(lost) == 1 else dns.message.make_response(query).to_wire()

    names.answer(NAME, "A", losing)
    asking = resolver(names.address, try_for=0.1)
    assert (await asking.ask(NAME, RecordKind.A)).data == ()
    names.answer(NAME, "A", lambda query, tcp: None)
    with pytest.raises(DnsProblem) as caught:
        await asking.ask(NAME, RecordKind.A)
    assert (caught.value.kind, caught.value.retryable) == ("timeout", True)
    assert names.asked[NAME, "A"] == 4


async def test_a_name_that_does_not_exist_is_asked_for_once(names: DnsServer) -> None:
    names.fail(NAME, "A", "NXDOMAIN")
    with pytest.raises(DnsProblem, match="NXDOMAIN"):
        await resolver(names.address, names.address).ask(NAME, RecordKind.A)
    assert names.asked[NAME, "A"] == 1


async def test_without_a_server_nothing_is_found() -> None:
    with pytest.raises(DnsProblem) as caught:
        await resolver().ask(NAME, RecordKind.A)
    assert caught.value.kind == "refused"


async def test_a_server_may_be_reached_by_ipv6() -> None:
    async with DnsServer("::1") as names:
        names.add(NAME, "A", "192.0.2.1")
        assert len((await resolver(names.address).ask(NAME, RecordKind.A)).data) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("192.0.2.1", ("192.0.2.1", 53)),
        ("192.0.2.1:5353", ("192.0.2.1", 5353)),
        ("2001:DB8::1", ("2001:db8::1", 53)),
        ("[2001:db8::1]", ("2001:db8::1", 53)),
        ("[2001:db8::1]:5353", ("2001:db8::1", 5353)),
    ],
)
async def test_a_server_is_an_address_and_a_port(text: str, expected: tuple[str, int]) -> None:
    assert server(text) == expected


@pytest.mark.parametrize(
    "text", ["", "localhost", "192.0.2.1:", "192.0.2.1:x", "192.0.2.1:65536", "192.0.2.1:0", "[::1", "[::1]x"]
)
async def test_a_server_that_is_no_address_is_refused_at_once(text: str) -> None:
    with pytest.raises(ValueError, match=r"address|int|port"):
        server(text)


@given(st.lists(st.binary(max_size=200), min_size=4, max_size=4), st.booleans())
@settings(max_examples=200)
def test_whatever_a_server_sends_it_ends_in_an_answer_or_a_problem(rubbish: list[bytes], counts: bool) -> None:
    """Packets that fit up to the question, and anything behind it; through the real network."""

    async def scene() -> None:
        async with DnsServer() as names:
            pieces = iter(rubbish)

            def reply(query: dns.message.Message, tcp: bool) -> bytes:
                head = bytearray(dns.message.make_response(query).to_wire())
                piece = next(pieces, b"")
                if counts and len(piece) > 6:  # flags and counts at will, too
                    head[3], head[7], head[9] = piece[0], piece[1], piece[2]
                return bytes(head[:-11]) + piece

            names.answer(NAME, "TXT", reply)
            with suppress(DnsProblem):
                await resolver(names.address).texts(NAME)

    asyncio.run(scene())
