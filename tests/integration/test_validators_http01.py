"""http-01 against real web servers on loopback, which drip, redirect, lie and send too much."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from cryptography import x509
from tests.support.challenge_server import (
    NAME,
    PATH,
    PROOF,
    Answer,
    Detour,
    Trap,
    Watched,
    WebServer,
    a_certificate,
    a_challenge,
    a_validator,
    page,
    redirect,
    server_context,
    told,
)
from tests.support.dns_server import DnsServer
from tests.support.ports import free_port
from tests.support.reaper import PATIENCE

from holdfast.validators.check import MOST_AT_ONE_ADDRESS
from holdfast.validators.verdict import Invalid, Valid, ValidationResult

pytestmark = pytest.mark.anyio


@pytest.fixture
async def dns() -> AsyncIterator[DnsServer]:
    async with DnsServer() as server:
        server.add(NAME, "A", "127.0.0.1")
        yield server


async def validated(dns: DnsServer, answer: Answer, *, timeout: float = 10.0) -> tuple[ValidationResult, WebServer]:
    async with WebServer(answer) as web:
        return await a_validator(dns.address, http_port=web.port, timeout=timeout).check(a_challenge()), web


def problem(verdict: ValidationResult) -> tuple[str, bool]:
    assert isinstance(verdict, Invalid), verdict
    return verdict.problem.type, verdict.retryable


# ── the proof ──


async def test_the_key_authorization_at_its_place_is_the_proof(dns: DnsServer) -> None:
    verdict, web = await validated(dns, told(page(PROOF.encode())))
    assert isinstance(verdict, Valid)
    assert verdict.evidence["resolved"] == {NAME: ["127.0.0.1"]}
    assert verdict.evidence["address"] == "127.0.0.1"
    assert verdict.evidence["hops"] == [f"http://{NAME}:{web.port}{PATH}"]
    assert verdict.evidence["tries"] == [f"127.0.0.1 port {web.port}: connected"]
    assert 0 < float(str(verdict.evidence["duration"])) < 10


async def test_the_request_is_as_plain_as_can_be(dns: DnsServer) -> None:
    _, web = await validated(dns, told(page(PROOF.encode())))
    [asked] = web.asked
    line, *headers = asked.split("\r\n")[:-2]
    assert line == f"GET {PATH} HTTP/1.1"
    assert headers[0] == f"Host: {NAME}:{web.port}"
    assert {"Accept-Encoding: identity", "Connection: close"} <= set(headers)
    assert not any(header.lower().startswith(("authorization", "cookie", "content-")) for header in headers)


@pytest.mark.parametrize(
    "answer",
    [
        [page(PROOF.encode() + b"\n")],
        [page(PROOF.encode() + b" \r\n\t\n")],
        [page(PROOF.encode() + b"\x0b\x0c\n")],
        [b"HTTP/1.0 200 OK\r\n\r\n" + PROOF.encode()],  # until the line is closed
        [b"HTTP/1.1 200\r\n\r\n" + PROOF.encode()],
        [b"HTTP/1.0 200 OK\nContent-Length: 87\n\n" + PROOF.encode()],  # as `echo` writes it in a shell
        [b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + page(PROOF.encode())],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n57\r\n" + PROOF.encode() + b"\r\n0\r\n\r\n"],
        [
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\nContent-Length: 3\r\n\r\n",
            *(b"1;x=y\r\n%c\r\n" % char for char in PROOF.encode()),
            b"0\r\n\r\n",
        ],
        [page(PROOF.encode(), headers=["Content-Type: text/html", "Server: " + "x" * 8000])],
        [bytes([byte]) for byte in page(PROOF.encode())],
    ],
    ids=lambda pieces: repr(pieces[0][:40]),
)
async def test_it_is_recognised_however_a_server_sends_it(dns: DnsServer, answer: list[bytes]) -> None:
    verdict, _ = await validated(dns, told(*answer))
    assert isinstance(verdict, Valid), verdict


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nothing",
        PROOF[:-1].encode(),
        PROOF.encode() + b"x",
        b" " + PROOF.encode(),
        PROOF.upper().encode(),
        PROOF.encode() + b"\0",
        PROOF.split(".")[0].encode(),
        PROOF.encode() * 2,
        PROOF.encode() + b" " * 200,
        PROOF.encode() + b" " * 41 + b"x",
        b"x" * 1_000_000,
    ],
    ids=lambda body: repr(body[-30:]),
)
@pytest.mark.parametrize("chunked", [False, True])
async def test_anything_else_is_not_the_proof(dns: DnsServer, body: bytes, chunked: bool) -> None:
    whole = page(body)
    if chunked:
        chunk = b"%x\r\n%s\r\n" % (len(body), body) if body else b""
        whole = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk + b"0\r\n\r\n"
    verdict, _ = await validated(dns, told(whole))
    assert problem(verdict) == ("incorrectResponse", False)


@pytest.mark.parametrize(
    "status", ["404 Not Found", "500 Oops", "204 No Content", "206 Partial", "303 See Other", "300 X"]
)
async def test_any_other_status_than_200_is_not_the_proof(dns: DnsServer, status: str) -> None:
    verdict, web = await validated(dns, told(page(PROOF.encode(), status=status, headers=["Location: /elsewhere"])))
    assert problem(verdict) == ("incorrectResponse", False)
    assert isinstance(verdict, Invalid)
    assert f"status {status[:3]} instead of 200" in verdict.problem.detail
    assert web.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1e3\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 500 + b"\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"x" * 1000 + b"\r\nx\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 3000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X" * 100_000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 50,
        b"\n" * 100_000,
    ],
    ids=lambda answer: repr(answer[:60]),
)
async def test_what_is_no_answer_of_http_is_not_the_proof(dns: DnsServer, answer: bytes) -> None:
    verdict, _ = await validated(dns, told(answer))
    assert problem(verdict) == ("incorrectResponse", False)


# ── what is worth another try ──


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 87\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n57\r\nabc",
    ],
    ids=repr,
)
async def test_a_server_that_hangs_up_is_worth_another_try(dns: DnsServer, answer: bytes) -> None:
    verdict, _ = await validated(dns, told(answer))
    assert problem(verdict) == ("connection", True)


async def test_nobody_listening_is_worth_another_try(dns: DnsServer) -> None:
    port = free_port()
    verdict = await a_validator(dns.address, http_port=port).check(a_challenge())
    assert problem(verdict) == ("connection", True)
    assert verdict.evidence["tries"] == [f"127.0.0.1 port {port}: refused"]


async def test_a_server_that_drips_is_left_when_the_time_is_up(dns: DnsServer) -> None:
    async def drip(_: str, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"H")
            await writer.drain()
            await asyncio.sleep(0.02)

    verdict, web = await validated(dns, drip, timeout=0.3)
    assert problem(verdict) == ("connection", True)
    assert web.connections == 1


async def test_a_server_that_says_nothing_is_left_and_its_line_is_closed(dns: DnsServer) -> None:
    async with WebServer(told(), holds=True) as web:
        verdict = await a_validator(dns.address, http_port=web.port, timeout=0.2).check(a_challenge())
        assert problem(verdict) == ("connection", True)
        async with asyncio.timeout(PATIENCE):
            await web.left.wait()


async def test_no_more_is_read_than_is_of_use(dns: DnsServer) -> None:
    async with WebServer(
        told(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n" + b"x" * 200), holds=True
    ) as web:
        verdict = await a_validator(dns.address, http_port=web.port).check(a_challenge())
        assert problem(verdict) == ("incorrectResponse", False)
        async with asyncio.timeout(PATIENCE):
            await web.left.wait()


# ── redirects ──


def by_path(pages: dict[str, bytes]) -> Answer:
    async def answer(head: str, writer: asyncio.StreamWriter) -> None:
        writer.write(pages.get(head.split(" ")[1], page(b"", status="404 Not Found")))

    return answer


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_followed_to_another_host(dns: DnsServer, status: int) -> None:
    dns.add("other.example.internal", "A", "127.0.0.2")
    web = WebServer(told())
    async with web, WebServer(told(page(PROOF.encode())), host="127.0.0.2", port=web.port) as other:
        web.answer = told(redirect("http://other.example.internal/proof?a=b", status=status))
        verdict = await a_validator(dns.address, http_port=web.port).check(a_challenge())
    assert isinstance(verdict, Valid), verdict
    assert other.asked[0].startswith(f"GET /proof?a=b HTTP/1.1\r\nHost: other.example.internal:{web.port}\r\n")
    assert verdict.evidence["hops"] == [
        f"http://{NAME}:{web.port}{PATH}",
        f"http://other.example.internal:{web.port}/proof?a=b",
    ]
    assert verdict.evidence["address"] == "127.0.0.2"


async def test_a_redirect_to_https_asks_for_no_trust_but_tells_the_name(dns: DnsServer) -> None:
    seen: list[str] = []
    secure = server_context(*a_certificate([x509.DNSName("elsewhere.example")], None), seen=seen)
    async with WebServer(told(page(PROOF.encode())), tls=secure) as tls, WebServer(told()) as web:
        web.answer = told(redirect(f"https://{NAME}/proof"))
        verdict = await a_validator(dns.address, http_port=web.port, tls_port=tls.port).check(a_challenge())
    assert isinstance(verdict, Valid), verdict
    assert seen == [NAME]
    assert tls.asked[0].startswith(f"GET /proof HTTP/1.1\r\nHost: {NAME}:{tls.port}\r\n")


async def test_ten_redirects_are_followed_and_no_more(dns: DnsServer) -> None:
    for count, kind in ((10, Valid), (11, Invalid)):
        pages = {PATH: redirect("/1")} | {f"/{i}": redirect(f"/{i + 1}") for i in range(1, count)}
        verdict, web = await validated(dns, by_path(pages | {f"/{count}": page(PROOF.encode())}))
        assert isinstance(verdict, kind), verdict
        assert web.connections == 11


@pytest.mark.parametrize("location", [PATH, "/a", f"http://{NAME.upper()}{PATH}#x"])
async def test_a_redirect_that_comes_back_is_a_loop(dns: DnsServer, location: str) -> None:
    verdict, web = await validated(dns, by_path({PATH: redirect(location), "/a": redirect("/b"), "/b": redirect("/a")}))
    assert problem(verdict) == ("connection", False)
    assert "back to itself" in str(isinstance(verdict, Invalid) and verdict.problem.detail)
    assert web.connections <= 3


@pytest.mark.parametrize("host", ["127.0.0.1", "trap.example.internal"])
async def test_a_redirect_to_another_port_is_not_followed(dns: DnsServer, host: str) -> None:
    dns.add("trap.example.internal", "A", "127.0.0.1")
    async with Trap() as trap:
        verdict, _ = await validated(dns, told(redirect(f"http://{host}:{trap.port}/")))
        assert problem(verdict) == ("connection", False)
        assert trap.connections == 0


async def test_a_redirect_without_a_location_is_not_followed(dns: DnsServer) -> None:
    verdict, _ = await validated(dns, told(page(b"", status="302 Found")))
    assert problem(verdict) == ("connection", False)


async def test_a_redirect_to_a_name_without_an_address_ends_there(dns: DnsServer) -> None:
    verdict, _ = await validated(dns, told(redirect("http://nowhere.example.internal/")))
    assert problem(verdict) == ("dns", False)


# ── what is repeated of a wrong answer ──


async def test_a_body_from_a_private_address_is_never_repeated(dns: DnsServer) -> None:
    verdict, _ = await validated(dns, told(page(b"root-password-1234")))
    assert "password" not in repr(verdict)


async def test_a_body_after_a_redirect_is_never_repeated(dns: DnsServer) -> None:
    verdict, _ = await validated(dns, by_path({PATH: redirect("/secret"), "/secret": page(b"root-password-1234")}))
    assert "/secret did not answer" in repr(verdict)
    assert "password" not in repr(verdict)


async def test_a_little_of_a_body_from_a_public_address_is_shown_in_harmless_characters(dns: DnsServer) -> None:
    dns.remove(NAME, "A")
    dns.add(NAME, "A", "8.8.8.8")
    async with WebServer(told(page(b"<h1>\x1b[2J\xff\r\n" + b"x" * 100))) as web:
        verdict = await a_validator(dns.address, http_port=web.port, allowed=(), net=Detour()).check(a_challenge())
    assert isinstance(verdict, Invalid)
    assert verdict.problem.detail.endswith('but with "<h1>?[2J???' + "x" * 53 + '".')
    async with WebServer(told(redirect(f"http://{NAME}/b"), page(b"secret"))) as web:
        web.answer = by_path({PATH: redirect("/b"), "/b": page(b"secret")})
        verdict = await a_validator(dns.address, http_port=web.port, allowed=(), net=Detour()).check(a_challenge())
    assert "secret" not in repr(verdict)


# ── addresses ──


async def test_ipv6_is_tried_first(dns: DnsServer) -> None:
    dns.add(NAME, "AAAA", "::1")
    async with WebServer(told(page(PROOF.encode())), host="::1") as web:
        verdict = await a_validator(dns.address, http_port=web.port).check(a_challenge())
    assert isinstance(verdict, Valid)
    assert verdict.evidence["resolved"] == {NAME: ["::1", "127.0.0.1"]}
    assert verdict.evidence["tries"] == [f"::1 port {web.port}: connected"]


async def test_ipv4_is_tried_when_ipv6_does_not_answer(dns: DnsServer) -> None:
    dns.add(NAME, "AAAA", "::1")
    verdict, web = await validated(dns, told(page(PROOF.encode())))
    assert isinstance(verdict, Valid)
    assert verdict.evidence["tries"] == [f"::1 port {web.port}: refused", f"127.0.0.1 port {web.port}: connected"]


@pytest.mark.parametrize(("address", "host"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
async def test_an_address_is_asked_itself_and_no_name_server_is(dns: DnsServer, address: str, host: str) -> None:
    async with WebServer(told(page(PROOF.encode())), host=address) as web:
        validator = a_validator(dns.address, http_port=web.port, caa=["ca.example"])
        verdict = await validator.check(a_challenge(name=address))
    assert isinstance(verdict, Valid), verdict
    assert f"\r\nHost: {host}:{web.port}\r\n" in web.asked[0]
    assert not dns.asked


@pytest.mark.parametrize("name", ["localhost", "app.localhost"])
async def test_localhost_is_this_machine_whatever_name_servers_say(dns: DnsServer, name: str) -> None:
    """RFC 6761 §6.3; like every other way to this machine, it is taken only if the operator allows it."""
    dns.add(name, "A", "192.0.2.1")
    async with WebServer(told(page(PROOF.encode()))) as web:
        allowed = await a_validator(dns.address, http_port=web.port).check(a_challenge(name=name))
        denied = await a_validator(dns.address, http_port=web.port, allowed=()).check(a_challenge(name=name))
    assert isinstance(allowed, Valid), allowed
    assert problem(denied) == ("connection", False)
    assert "acme.networks" in str(denied)
    assert web.connections == 1
    assert not dns.asked


async def test_a_wildcard_cannot_be_proved_so(dns: DnsServer) -> None:
    verdict = await a_validator(dns.address).check(a_challenge(name=f"*.{NAME}"))
    assert problem(verdict) == ("rejectedIdentifier", False)


async def test_a_challenge_of_an_unknown_type_is_never_valid(dns: DnsServer) -> None:
    for type_ in ("", "http-02", "HTTP-01", "dns", "tls-sni-01"):
        assert problem(await a_validator(dns.address).check(a_challenge(type_)))[0] == "malformed"


@pytest.mark.parametrize("type_", ["http-01", "dns-01", "tls-alpn-01"])
@pytest.mark.parametrize(
    ("kind", "identifier"),
    [
        ("dns", "www.example.internal\r\nX: y"),
        ("dns", "WWW.example.internal"),
        ("dns", "www.example.internal."),
        ("dns", "www.example.internal:80"),
        ("dns", "user@www.example.internal"),
        ("dns", "127.0.0.1"),
        ("dns", "::1"),
        ("dns", ""),
        ("dns", "*.*.example.internal"),
        ("ip", "www.example.internal"),
        ("ip", "127.1"),
        ("ip", "::ffff:127.0.0.1"),
        ("ip", "fe80::1%lo"),
        ("email", "a@example.internal"),
        ("", "www.example.internal"),
    ],
)
async def test_an_identifier_that_is_misspelled_is_never_asked_about(
    dns: DnsServer, type_: str, kind: str, identifier: str
) -> None:
    net = Watched()
    challenge = replace(a_challenge(type_), identifier_type=kind, identifier=identifier)
    verdict = await a_validator(dns.address, net=net).check(challenge)
    assert problem(verdict) in {("rejectedIdentifier", False), ("unsupportedIdentifier", False)}
    assert (net.dialled, dict(dns.asked)) == ([], {})


@pytest.mark.parametrize("token", ["a b", "a\r\nb", "../../etc", "a/b", "a%2fb", "ü", "a" * 513])
async def test_a_token_that_would_change_the_request_cannot_be_asked_for(token: str) -> None:
    with pytest.raises(ValueError, match="token"):
        replace(a_challenge(), token=token)


async def test_many_checks_at_once_do_not_get_in_each_others_way(dns: DnsServer) -> None:
    for number in range(MOST_AT_ONE_ADDRESS):
        dns.add(f"h{number}.example.internal", "A", "127.0.0.1")
    async with WebServer(told(page(PROOF.encode()))) as web:
        validator = a_validator(dns.address, http_port=web.port, caa=["ca.example"])
        challenges = [a_challenge(name=f"h{number}.example.internal") for number in range(MOST_AT_ONE_ADDRESS)]
        verdicts = await asyncio.gather(*map(validator.check, challenges))
    assert [type(verdict) for verdict in verdicts] == [Valid] * MOST_AT_ONE_ADDRESS
