"""An ACME client that goes on: it asks until it is answered, and never gives an order up because an answer was lost."""

import asyncio
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, count, repeat
from typing import Any, Final

import httpx2
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from holdfast.core.own_ca.acme import Identifier
from tests.support.acme_child import DIRECTORY
from tests.support.acme_client import AcmeClient, Signer, b64, problem
from tests.support.acme_desk import a_csr
from tests.support.acme_replica import Answerer
from tests.support.reaper import PATIENCE

PAUSE: Final = 0.25  # seconds before making a request again
PAUSES: Final = (0.05, 0.1, 0.2, 0.4)  # seconds before looking again
OVER: Final = ("valid", "invalid")


class Routes(httpx2.AsyncBaseTransport):
    """All replicas have one base URL; requests go to each of these addresses in turn, or to the next that is there."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.addresses = list(addresses)
        self._turns = count()
        self._inner: httpx2.AsyncHTTPTransport | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self._inner is None:
            self._inner = _transport()
        for left in reversed(range(len(self.addresses))):
            address = self.addresses[next(self._turns) % len(self.addresses)]
            request.url = request.url.copy_with(host=address)
            try:
                return await self._inner.handle_async_request(request)
            except httpx2.ConnectError:
                if not left:
                    raise
        raise AssertionError("there is an address")

    async def aclose(self) -> None:
        if self._inner is not None:
            await self._inner.aclose()
        self._inner = None


def _transport() -> httpx2.AsyncHTTPTransport:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # who signs for the listener is tested elsewhere
    context.verify_mode = ssl.CERT_NONE
    return httpx2.AsyncHTTPTransport(verify=context, trust_env=False)


@dataclass(frozen=True, slots=True)
class Wanted:
    """One order to place: its names, and how its challenges are answered."""

    name: str
    hosts: tuple[str, ...]
    right: bool = True
    late: bool = False  # the first look at it finds a connection that is closed


@dataclass(slots=True)
class Held:
    """What became of an order, as the client was told."""

    name: str
    url: str
    key: ec.EllipticCurvePrivateKey
    known_at: float = field(default_factory=time.monotonic)
    status: str = "pending"
    decided_at: float = 0.0
    certificate: x509.Certificate | None = None


@dataclass
class Patient:
    """One account, and its orders by name."""

    signer: Signer
    routes: Routes
    answerer: Answerer
    held: dict[str, Held] = field(default_factory=dict)
    bad_nonces: int = 0
    lost: int = 0  # requests without an answer
    failed: int = 0  # answers that say that the server is to blame

    def __post_init__(self) -> None:
        self._client = AcmeClient(self._http(), DIRECTORY, self.signer)

    def _http(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(transport=self.routes, timeout=httpx2.Timeout(PATIENCE))

    async def hang_up(self) -> None:
        """Close all connections; the next request opens a new one."""
        await self._client.http.aclose()
        self._client.http = self._http()

    # ── asking ──

    async def post(self, url: str, payload: Any = None, *, jwk: bool = False) -> httpx2.Response:
        """One request, as often as it takes to get an answer to it."""
        while True:
            try:
                reply = await self._client.post(url, payload, jwk=jwk)
            except (httpx2.HTTPError, KeyError):  # nobody there, or no nonce in the answer
                self.lost += 1
                self._client.nonces.clear()
                await asyncio.sleep(PAUSE)
                continue
            if reply.status_code == 400 and reply.json()["type"].endswith(":badNonce"):
                self.bad_nonces += 1
            elif reply.status_code < 500:
                return reply
            else:
                self.failed += 1
                await asyncio.sleep(PAUSE)

    def complaints(self) -> list[str]:
        """What should not happen to a client while every replica lives."""
        counts = {"without an answer": self.lost, "refused for a good nonce": self.bad_nonces, "failed": self.failed}
        return [f"requests {what}: {number}" for what, number in counts.items() if number]

    async def until(self, url: str, *states: str) -> dict[str, Any]:
        for pause in chain(PAUSES, repeat(PAUSES[-1])):
            found: dict[str, Any] = (await self._good(url)).json()
            if found["status"] in states:
                return found
            await asyncio.sleep(pause)
        raise AssertionError("it repeats for ever")

    async def _good(self, url: str, payload: Any = None, *, jwk: bool = False) -> httpx2.Response:
        reply = await self.post(url, payload, jwk=jwk)
        if reply.status_code >= 400:
            raise AssertionError(f"{url}: {problem(reply)}: {reply.text}")
        return reply

    # ── going on ──

    async def answered_by(self, address: str) -> None:
        """Wait until this replica serves, and take a nonce of it: the first one decides on the key of all."""
        every, self.routes.addresses = self.routes.addresses, [address]
        self._client.urls = {}
        await self._look_up()
        self._client.nonces.append(await self._client.nonce())
        self.routes.addresses = every

    async def _look_up(self) -> None:
        while not self._client.urls:
            try:
                await self._client.start()
            except (httpx2.HTTPError, ValueError):
                self._client.urls = {}
                await asyncio.sleep(PAUSE)

    async def register(self) -> None:
        await self._look_up()
        self._client.kid = await self.new_account()

    async def new_account(self) -> str:
        """The URL of our account, made if it is not there yet."""
        reply = await self._good(self._client.urls["newAccount"], {"termsOfServiceAgreed": True}, jwk=True)
        return str(reply.headers["location"])

    async def obtain(self, wanted: Wanted) -> Held:
        """Place an order and lead it to its end."""
        held = await self.place(wanted)
        return await self.follow(held, wanted)

    async def place(self, wanted: Wanted) -> Held:
        identifiers = [{"type": "ip", "value": host} for host in wanted.hosts]
        reply = await self._good(self._client.urls["newOrder"], {"identifiers": identifiers})
        return self.know(wanted.name, reply.headers["location"])

    def know(self, name: str, url: str, key: ec.EllipticCurvePrivateKey | None = None) -> Held:
        held = self.held[name] = Held(name, url, key or ec.generate_private_key(ec.SECP256R1()))
        return held

    async def follow(self, held: Held, wanted: Wanted | None = None) -> Held:
        """Whatever is to be done with an order, from wherever it is."""
        order = await self.ready(held, wanted)
        if order["status"] == "ready":
            await self.finalize(held, order)
        return await self.end(held)

    async def ready(self, held: Held, wanted: Wanted | None = None) -> dict[str, Any]:
        """Prove its names, if that is to be done; the order after it."""
        order: dict[str, Any] = (await self._good(held.url)).json()
        if order["status"] != "pending":
            return order
        await asyncio.gather(*(self._prove(each, wanted) for each in order["authorizations"]))
        return await self.until(held.url, "ready", "processing", *OVER)

    async def _prove(self, authz_url: str, wanted: Wanted | None) -> None:
        authz = (await self._good(authz_url)).json()
        challenge = next(each for each in authz["challenges"] if each["type"] == "http-01")
        token, right = challenge["token"], wanted is None or wanted.right
        self.answerer.proofs[token] = f"{token}.{self.signer.thumbprint}" if right else "nonsense"
        if wanted is not None and wanted.late:
            self.answerer.late.add(token)
        if authz["status"] == "pending" and challenge["status"] == "pending":
            await self._good(challenge["url"], {})
        await self.until(authz_url, *OVER)

    async def finalize(self, held: Held, order: dict[str, Any]) -> httpx2.Response:
        """Ask for the certificate. An order that is no longer ready was asked for before, by us."""
        reply = await self.post(order["finalize"], {"csr": b64(a_csr(*self.names(order), key=held.key))})
        if reply.status_code != 200 and problem(reply) != (403, "orderNotReady"):
            raise AssertionError(f"{held.name}: {reply.text}")
        return reply

    def names(self, order: dict[str, Any]) -> list[Identifier]:
        return [Identifier(each["type"], each["value"]) for each in order["identifiers"]]

    async def end(self, held: Held) -> Held:
        """Wait until it is decided; collect the certificate."""
        order = await self.until(held.url, *OVER)
        held.decided_at = held.decided_at or time.monotonic()
        held.status = order["status"]
        if held.status == "valid":
            pem = (await self._good(order["certificate"])).content
            held.certificate = x509.load_pem_x509_certificates(pem)[0]
        elif "error" not in order:
            raise AssertionError(f"{held.name} is invalid without a problem: {order}")
        return held
