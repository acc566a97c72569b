"""The ACME server on a real socket: what HTTP itself may do to it."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from tests.support.acme_client import JOSE, AcmeClient, flattened, problem
from tests.support.acme_desk import limits
from tests.support.acme_face import Front, open_front
from tests.support.jobs import ON_SQLITE
from tests.support.reaper import PATIENCE

from holdfast.store.database import Database
from holdfast.web.serve import bind, serving

pytestmark = [pytest.mark.anyio, ON_SQLITE]


@pytest.fixture
async def served(db: Database, tmp_path: Path) -> AsyncIterator[Front]:
    line = bind("127.0.0.1", 0)
    policy = limits(base_url=f"http://127.0.0.1:{line.getsockname()[1]}")
    http = httpx2.AsyncClient(trust_env=False, timeout=PATIENCE)
    http = httpx2.AsyncClient(trust_env=False, timeout=PATIENCE)
    async with open_front(db, tmp_path, policy=policy) as front, serving(front.site, line), http:
        front.http = http
        yield front


async def said(front: Front, request: bytes) -> bytes:
    """Everything the server says to these bytes, until it ends the connection."""
    host, _, port = front.office.acme_context.policy.base_url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        async with asyncio.timeout(PATIENCE):
            return await reader.read()
    finally:
        writer.close()


async def signed(front: Front, client: AcmeClient, url: str) -> bytes:
    header = {"alg": "ES256", "kid": client.kid, "nonce": await client.nonce(), "url": url}
    return json.dumps(flattened(client.signer, header, None)).encode()


async def test_a_certificate_is_issued_over_a_socket(served: Front) -> None:
    async with served.office.working():
        client = await served.client()
        order = await served.issued(client)
        assert (await client.get(order["certificate"])).status_code == 200


async def test_head_and_get_of_new_nonce_have_no_body(served: Front) -> None:
    for method, status in ((b"HEAD", b"200 OK"), (b"GET", b"204 No Content")):
        answer = await said(served, method + b" /acme/ca1/new-nonce HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        head, _, rest = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 " + status)
        assert b"replay-nonce: " in head.lower()
        assert rest == b""


async def test_a_body_said_to_be_too_large_is_not_waited_for(served: Front) -> None:
    answer = await said(
        served,
        b"POST /acme/ca1/new-account HTTP/1.1\r\nHost: x\r\nContent-Type: application/jose+json\r\n"
        b"Content-Length: 1000000000\r\n\r\n{",
    )
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer.lower()


async def test_a_chunked_body_that_grows_too_large_is_cut_off(served: Front) -> None:
    chunk = b"1000\r\n" + b" " * 4096 + b"\r\n"
    answer = await said(
        served,
        b"POST /acme/ca1/new-account HTTP/1.1\r\nHost: x\r\nContent-Type: application/jose+json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 17,
    )
    assert answer.startswith(b"HTTP/1.1 413 ")


async def test_a_chunked_body_is_read(served: Front) -> None:
    client = await served.client()
    url = client.kid or ""
    content = await signed(served, client, url)

    async def pieces() -> AsyncIterator[bytes]:
        for n in range(0, len(content), 100):
            yield content[n : n + 100]

    reply = await served.http.post(url, content=pieces(), headers={"content-type": JOSE})
    assert reply.status_code == 200


async def test_the_absolute_form_of_a_request_is_the_same_request(served: Front) -> None:
    client = await served.client()
    url = client.kid or ""
    content = await signed(served, client, url)
    answer = await said(
        served,
        f"POST {url} HTTP/1.1\r\nHost: elsewhere\r\nContent-Type: {JOSE}\r\nConnection: close\r\n"
        f"Content-Length: {len(content)}\r\n\r\n".encode()
        + content,
    )
    assert answer.startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("target", [b"*", b"/acme/ca1/\xff", b"/acme/ca1/a%20b", b"/acme/ca1/order/../directory"])
async def test_an_odd_target_is_not_found(served: Front, target: bytes) -> None:
    answer = await said(served, b"GET " + target + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert answer[:12] in (b"HTTP/1.1 404", b"HTTP/1.1 400")


async def test_a_client_that_hangs_up_in_mid_sentence_hurts_nobody(served: Front) -> None:
    host, _, port = served.office.acme_context.policy.base_url.removeprefix("http://").partition(":")
    for _ in range(5):
        _, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /acme/ca1/new-account HTTP/1.1\r\nHost: x\r\nContent-Type: {JOSE}\r\nContent-Length: 50\r\n\r\n{{"
        writer.write(head.encode())
        await writer.drain()
        writer.transport.abort()
    assert (await served.client()).kid
    assert not served.watch.log.told("acme.failed")


async def test_connections_are_kept_after_an_error(served: Front) -> None:
    client = await served.client()
    for _ in range(3):
        assert problem(await client.post(client.urls["newOrder"], {})) == (400, "malformed")
    assert (await client.get(client.kid or "")).status_code == 200
