"""Clients in a process of their own: ACME orders, revocations, renewals, and somebody who fetches the CRLs all along.

What they saw goes to a file, line by line: `{"at": …, "what": "certificate", …}`. A request that failed is asked again,
as clients do; an order that is gone, or came to nothing, is placed anew.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, TextIO

import httpx2
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtensionOID

from holdfast.pki import csr
from tests.cluster.space import HERE
from tests.support.acme_client import AcmeClient, Signer, b64

PAUSE_S: Final = 0.2
TIMEOUT_S: Final = 15.0
GIVES_UP_S: Final = 120.0  # on one request
REVOKED_EVERY: Final = 4  # certificates
RENEWED_EVERY_S: Final = 7.0
DIRECTORY: Final = f"https://{HERE}:8631/acme/default/directory"


class GaveUp(Exception):
    """An order came to nothing: it is gone, invalid, or nobody answered for long."""


class Clients:
    def __init__(self, out: TextIO, token: str, renewed: list[str]) -> None:
        self._out, self._token, self._renewed = out, token, renewed
        self._crls: set[str] = set()

    def say(self, what: str, **facts: object) -> None:
        self._out.write(json.dumps({"at": time.time(), "what": what, **facts}) + "\n")
        self._out.flush()

    # ── orders ──

    async def lane(self, number: int, signer: Signer) -> None:
        """One order after the other. Each has a connection of its own: the balancer gives each to another replica."""
        async with _http() as http:
            client = AcmeClient(http, DIRECTORY, signer)
            await self._asked(client.start)
            await self._posted(client, client.urls["newAccount"], {"termsOfServiceAgreed": True}, jwk=True)
        for order in range(1_000_000):
            async with _http() as client.http:
                try:
                    await self._order(client, f"o{order}-{number}.bench.test", revoke=order % REVOKED_EVERY == 0)
                except GaveUp as why:
                    self.say("order failed", why=str(why), lane=number)

    async def _order(self, client: AcmeClient, name: str, *, revoke: bool) -> None:
        identifiers = {"identifiers": [{"type": "dns", "value": name}]}
        placed = await self._posted(client, client.urls["newOrder"], identifiers)
        url, order = placed.headers["location"], placed.json()
        for each in order["authorizations"]:
            await self._proved(client, each)
        key = ec.generate_private_key(ec.SECP256R1())
        asked = b64(csr.build([name], key))
        order = await self._until(client, url, lambda found: found["status"] != "pending")
        if order["status"] == "ready":
            with contextlib.suppress(NotReady):  # it was finalized, and the answer was lost
                await self._posted(client, order["finalize"], {"csr": asked})
        order = await self._until(client, url, lambda found: found["status"] in ("valid", "invalid"))
        if order["status"] != "valid":
            raise GaveUp(f"the order is {order['status']}: {order.get('error')}")
        got = await self._posted(client, order["certificate"], None)
        certificate = x509.load_pem_x509_certificate(got.text.split("-----END CERTIFICATE-----")[0].encode()
                                                     + b"-----END CERTIFICATE-----\n")  # fmt: skip
        self.say("certificate", serial=f"{certificate.serial_number:x}", order=url.rpartition("/")[2])
        self._note_crls(certificate)
        if revoke:
            content = {"certificate": b64(certificate.public_bytes(Encoding.DER))}
            with contextlib.suppress(AlreadyRevoked):
                await self._posted(client, client.urls["revokeCert"], content)
            self.say("revoked", serial=f"{certificate.serial_number:x}")

    async def _proved(self, client: AcmeClient, url: str) -> None:
        found = (await self._posted(client, url, None)).json()
        challenge = next(each for each in found["challenges"] if each["type"] == "http-01")
        if challenge["status"] == "pending":
            await self._posted(client, challenge["url"], {})
        found = await self._until(client, url, lambda found: found["status"] != "pending")
        if found["status"] != "valid":
            raise GaveUp(f"the authorization is {found['status']}")

    async def _until(
        self, client: AcmeClient, url: str, over: Callable[[Mapping[str, Any]], bool]
    ) -> Mapping[str, Any]:
        begun = time.monotonic()
        while time.monotonic() - begun < GIVES_UP_S:
            found: Mapping[str, Any] = (await self._posted(client, url, None)).json()
            if over(found):
                return found
            await asyncio.sleep(PAUSE_S)
        raise GaveUp(f"{url} did not end")

    # ── requests ──

    async def _posted(self, client: AcmeClient, url: str, content: Any, *, jwk: bool = False) -> httpx2.Response:
        async def post() -> httpx2.Response:
            reply = await client.post(url, content, jwk=jwk)
            if jwk and reply.status_code in (200, 201):
                client.kid = reply.headers["location"]
            return reply

        return await self._asked(post, forget=client.nonces.clear)

    async def _asked(self, ask: Callable[[], Awaitable[Any]], forget: Callable[[], None] = lambda: None) -> Any:
        """Ask until there is an answer that asking again would not change."""
        begun = time.monotonic()
        while time.monotonic() - begun < GIVES_UP_S:
            try:
                reply = await ask()
            except (httpx2.TransportError, KeyError) as error:  # no answer, or none with a nonce
                self.say("request failed", why=type(error).__name__)
                forget()
                await asyncio.sleep(PAUSE_S)
                continue
            if not isinstance(reply, httpx2.Response) or reply.status_code < 400:
                self.say("request")
                return reply
            kind = _problem(reply)
            if kind == "badNonce":
                forget()
                continue
            if kind == "orderNotReady":
                raise NotReady
            if kind == "alreadyRevoked":
                raise AlreadyRevoked
            self.say("request failed", why=f"{reply.status_code} {kind}")
            if reply.status_code < 500 and reply.status_code != 429:
                raise GaveUp(f"{reply.status_code} {kind}: {reply.text[:200]}")
            await asyncio.sleep(PAUSE_S)
        raise GaveUp("nobody answered")

    # ── revocation lists ──

    def _note_crls(self, certificate: x509.Certificate) -> None:
        points = certificate.extensions.get_extension_for_oid(ExtensionOID.CRL_DISTRIBUTION_POINTS).value
        assert isinstance(points, x509.CRLDistributionPoints)
        self._crls |= {name.value for point in points for name in point.full_name or ()}

    async def watch_crls(self) -> None:
        async with httpx2.AsyncClient(timeout=TIMEOUT_S) as http:
            while True:
                for url in sorted(self._crls):
                    with contextlib.suppress(httpx2.TransportError):
                        reply = await http.get(url)
                        if reply.status_code == 200:
                            self._say_crl(url, reply.content)
                await asyncio.sleep(0.5)

    def _say_crl(self, url: str, content: bytes) -> None:
        found = x509.load_der_x509_crl(content)
        number = found.extensions.get_extension_for_oid(ExtensionOID.CRL_NUMBER).value
        assert isinstance(number, x509.CRLNumber)
        self.say("crl", url=url, number=number.crl_number, digest=hashlib.sha256(content).hexdigest())

    # ── renewals ──

    async def renew(self) -> None:
        """Certificates that Holdfast keeps, renewed one after the other."""
        headers = {"Authorization": f"Bearer {self._token}"}
        async with httpx2.AsyncClient(timeout=TIMEOUT_S, headers=headers) as http:
            while self._renewed:
                for name in self._renewed:
                    await asyncio.sleep(RENEWED_EVERY_S)
                    try:
                        reply = await http.post(f"http://{HERE}:8630/api/v1/certificates/{name}/renew", json={})
                    except httpx2.TransportError as error:
                        self.say("renewal refused", why=type(error).__name__)
                        continue
                    self.say("renewal" if reply.status_code < 400 else "renewal refused", status=reply.status_code)


def _http() -> httpx2.AsyncClient:
    return httpx2.AsyncClient(verify=False, timeout=TIMEOUT_S)  # whom it trusts is not tested here


class NotReady(Exception):
    pass


class AlreadyRevoked(Exception):
    pass


def _problem(reply: httpx2.Response) -> str:
    try:
        return str(reply.json().get("type", "")).rpartition(":")[2]
    except ValueError:
        return ""


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("keys", type=Path, help="JSON list of the account keys, in PEM")
    parser.add_argument("token", type=Path)
    parser.add_argument("renewed", nargs="*")
    asked = parser.parse_args()
    keys = [load_pem_private_key(each.encode(), None) for each in json.loads(asked.keys.read_text())]
    with asked.out.open("a") as out:
        clients = Clients(out, asked.token.read_text().strip(), asked.renewed)
        lanes = [
            clients.lane(n, Signer(key)) for n, key in enumerate(keys) if isinstance(key, ec.EllipticCurvePrivateKey)
        ]
        tasks = [asyncio.ensure_future(each) for each in (*lanes, clients.watch_crls(), clients.renew())]
        await asyncio.to_thread(sys.stdin.read)  # until the harness closes it
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                clients.say("broken", why=repr(result))


if __name__ == "__main__":
    asyncio.run(main())
