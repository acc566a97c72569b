"""The whole product in one process: a client with an EAB key gets a certificate, the operator revokes it."""

import json
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.request import urlopen

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from tests.support.acme_client import AcmeClient, b64, binding, problem, unb64
from tests.support.commands import holdfast
from tests.support.engine import eventually
from tests.support.postgres import Cluster
from tests.support.processes import Served, environment
from tests.support.reaper import PATIENCE, until

from holdfast.pki import chain, csr, keys, lint

pytestmark = pytest.mark.anyio
BUSY = ("pending", "processing")


class Proofs(BaseHTTPRequestHandler):
    """A web server that shows the key authorization of whatever token it is asked for."""

    thumbprint = ""

    def do_GET(self) -> None:
        content = f"{self.path.rsplit('/', 1)[1]}.{self.thumbprint}".encode()
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *words: object) -> None:
        """It has nothing to say."""


@pytest.fixture(scope="module")
def web() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Proofs) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class Installation:
    """A running server, and the commands of its operator."""

    def __init__(self, folder: Path, settings: dict[str, str]) -> None:
        self.folder, self.settings = folder, settings
        self.served = Served(folder, settings)

    def ca(self, *args: str) -> Any:
        done = holdfast("ca", *args, "-o", "json", env=environment(self.folder, self.settings))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def published(self, name: str) -> bytes:
        with urlopen(f"{self.served.url}/pki/default/{name}", timeout=PATIENCE) as answer:
            return bytes(answer.read())

    @asynccontextmanager
    async def client(self) -> AsyncIterator[AcmeClient]:
        directory = self.ca("show", "default")["directory"]
        trust = ssl.create_default_context(cadata=self.published("root.pem").decode())
        async with httpx2.AsyncClient(verify=trust, timeout=PATIENCE) as http:
            yield await AcmeClient(http, directory).start()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def installed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, web: ThreadingHTTPServer
) -> Iterator[Installation]:
    settings = {
        "ACME_HTTP_PORT": str(web.server_address[1]),
        "ACME_NETWORKS": "127.0.0.0/8",
        "ACME_LINT": "pkilint",
        "ACME_CHAOS_NONCES": "0",
    }
    url = None
    if request.param == "postgresql":
        cluster: Cluster = request.getfixturevalue("postgres")
        url = settings["STORE_URL"] = cluster.create_database()
    installation = Installation(tmp_path_factory.mktemp("data"), settings)
    with installation.served as served:
        served.wait_until_ready()
        yield installation
        assert served.stop() == 0
    if url is not None:
        cluster.drop_database(url)


async def settled(client: AcmeClient, url: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    async def decided() -> bool:
        found.update((await client.get(url)).json())
        return found["status"] not in BUSY

    await eventually(decided)
    return found


async def proved(client: AcmeClient, order: dict[str, Any]) -> None:
    Proofs.thumbprint = client.signer.thumbprint
    for url in order["authorizations"]:
        authz = (await client.get(url)).json()
        [challenge] = [each for each in authz["challenges"] if each["type"] == "http-01"]
        assert (await client.post(challenge["url"], {})).status_code == 200
        assert (await settled(client, url))["status"] == "valid"


async def finished(client: AcmeClient, placed: httpx2.Response, ips: list[str], names: list[str]) -> bytes:
    """Finalize, wait, download: the chain as the client gets it."""
    content = csr.build(names, ec.generate_private_key(ec.SECP256R1()), ips=ips)
    reply = await client.post(placed.json()["finalize"], {"csr": b64(content)})
    assert reply.status_code == 200, reply.text
    order = await settled(client, placed.headers["location"])
    assert order["status"] == "valid", order
    return (await client.get(order["certificate"])).content


async def test_a_client_with_a_key_of_ours_gets_a_certificate_and_the_operator_revokes_it(
    installed: Installation,
) -> None:
    installed.ca("set", "default", "--eab-required")
    key = installed.ca("eab", "create", "default", "--note", "e2e")
    async with installed.client() as client:
        stranger = client.other()
        assert problem(await stranger.register())[1].endswith("externalAccountRequired")
        bound = binding(key["kid"], unb64(key["mac"]), client.urls["newAccount"], client.signer.jwk)
        assert (await client.register(externalAccountBinding=bound)).status_code == 201
        placed = await client.order("127.0.0.1")
        assert placed.status_code == 201, placed.text
        await proved(client, placed.json())
        pem = await finished(client, placed, ["127.0.0.1"], [])
    certificates = chain.parse_bundle(pem)
    roots = chain.parse_bundle(installed.published("root.pem"))
    leaf = certificates[0]
    now = leaf.not_valid_before_utc + (leaf.not_valid_after_utc - leaf.not_valid_before_utc) / 2
    assert chain.verification_problem(leaf, certificates[1:], roots, now) is None
    assert lint.pkilint_findings(leaf.public_bytes(Encoding.DER)) == []
    installed.ca("revoke", f"{leaf.serial_number:x}", "--ca", "default", "--reason", "key-compromise", "--yes")

    def listed() -> bool:
        crl = x509.load_der_x509_crl(installed.published("0.crl"))
        return crl.get_revoked_certificate_by_serial_number(leaf.serial_number) is not None

    until(listed, "the certificate on the list", every=0.2)
    [mine] = [each for each in installed.ca("accounts") if each["eab_key"] == key["kid"]]
    [order] = installed.ca("orders", "--account", mine["account"])
    assert (order["state"], order["names"]) == ("valid", ["127.0.0.1"])


async def test_a_trusting_ca_gives_the_names_of_the_key_and_no_others(installed: Installation) -> None:
    if "lab" not in {each["ca"] for each in installed.ca("ls")}:
        installed.ca("create", "lab", "--mode", "trust", "--eab-required")
    key = installed.ca("eab", "create", "lab", "--name", "*.lab.internal")
    async with installed.client() as client:
        lab = await AcmeClient(client.http, installed.ca("show", "lab")["directory"]).start()
        bound = binding(key["kid"], unb64(key["mac"]), lab.urls["newAccount"], lab.signer.jwk)
        assert (await lab.register(externalAccountBinding=bound)).status_code == 201
        placed = await lab.order("a.lab.internal")
        assert placed.json()["status"] == "ready"
        [leaf, *_] = chain.parse_bundle(await finished(lab, placed, [], ["a.lab.internal"]))
        assert chain.subject_names(leaf)[0] == ["a.lab.internal"]
        assert problem(await lab.order("a.elsewhere.internal"))[1].endswith("rejectedIdentifier")


async def test_a_closed_ca_takes_no_new_orders_until_it_is_opened_again(installed: Installation) -> None:
    installed.ca("set", "default", "--no-eab-required")
    async with installed.client() as client:
        assert (await client.register()).status_code == 201
        installed.ca("close", "default", "--yes")
        status, _ = problem(await client.order("127.0.0.1"))
        assert status == 403
        installed.ca("open", "default")
        assert (await client.order("127.0.0.1")).status_code == 201


async def test_a_blocked_key_gets_no_certificate(installed: Installation) -> None:
    installed.ca("set", "default", "--no-eab-required")
    private = ec.generate_private_key(ec.SECP256R1())
    installed.ca("block-key", keys.spki_sha256(private.public_key()).hex(), "--why", "published", "--yes")
    async with installed.client() as client:
        await client.register()
        placed = await client.order("127.0.0.1")
        await proved(client, placed.json())
        content = csr.build([], private, ips=["127.0.0.1"])
        reply = await client.post(placed.json()["finalize"], {"csr": b64(content)})
        assert problem(reply)[1].endswith(("badCSR", "badPublicKey"))
