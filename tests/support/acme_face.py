"""The ACME server in tests: a whole CA behind its ASGI application, without a socket."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from cryptography.hazmat.primitives.asymmetric import ec

from holdfast.acme.app import AcmeSite, site
from holdfast.acme.nonces import Nonces, nonces_for
from holdfast.core.own_ca.acme import Identifier
from holdfast.core.own_ca.ca import CaOptions, CaPolicy
from holdfast.store.database import Database
from holdfast.world import SystemClock
from tests.support.acme_client import AcmeClient, Signer, b64
from tests.support.acme_desk import Office, a_csr, open_office
from tests.support.engine import Watch, eventually

LOCAL = "127.0.0.1"


@dataclass
class Front:
    """The server, and the way to it."""

    office: Office
    site: AcmeSite
    nonces: Nonces
    http: httpx2.AsyncClient
    watch: Watch = field(default_factory=Watch)

    @property
    def directory(self) -> str:
        return self.office.acme_context.policy.acme_url(self.office.ca.id, "directory")

    async def stranger(self, signer: Signer | None = None) -> AcmeClient:
        """A client without an account."""
        client = AcmeClient(self.http, self.directory, **({} if signer is None else {"signer": signer}))
        return await client.start()

    async def client(self, signer: Signer | None = None) -> AcmeClient:
        """A client with an account."""
        client = await self.stranger(signer)
        reply = await client.register()
        assert reply.status_code == 201, reply.text
        return client

    async def prove(self, client: AcmeClient, authz_url: str, *, right: bool = True) -> dict[str, Any]:
        """Put the http-01 proof in place, say so, and wait for what comes of it."""
        authz = (await client.get(authz_url)).json()
        challenge = next(each for each in authz["challenges"] if each["type"] == "http-01")
        token = challenge["token"]
        self.office.proofs[token] = f"{token}.{client.signer.thumbprint}" if right else "nonsense"
        reply = await client.post(challenge["url"], {})
        assert reply.status_code == 200, reply.text
        return await self.until(client, authz_url, "valid", "invalid")

    async def until(self, client: AcmeClient, url: str, *states: str) -> dict[str, Any]:
        found: dict[str, Any] = {}

        async def reached() -> bool:
            found.update((await client.get(url)).json())
            return found["status"] in states

        await eventually(reached)
        return found

    async def ready(self, client: AcmeClient, *names: str, **fields: Any) -> dict[str, Any]:
        """An order that awaits its CSR; with its own address under `url`."""
        reply = await client.order(*(names or (LOCAL,)), **fields)
        assert reply.status_code == 201, reply.text
        url = reply.headers["location"]
        for authz in reply.json()["authorizations"]:
            if (await client.get(authz)).json()["status"] == "pending":
                await self.prove(client, authz)
        return {**await self.until(client, url, "ready"), "url": url}

    async def issued(
        self, client: AcmeClient, *names: str, key: ec.EllipticCurvePrivateKey | None = None, **fields: Any
    ) -> dict[str, Any]:
        """A valid order."""
        order = await self.ready(client, *names, **fields)
        reply = await client.post(order["finalize"], {"csr": csr_for(order, key=key)})
        assert reply.status_code == 200, reply.text
        done = await self.until(client, order["url"], "valid", "invalid")
        assert done["status"] == "valid", done
        return {**done, "url": order["url"]}


def csr_for(order: dict[str, Any], *, key: ec.EllipticCurvePrivateKey | None = None) -> str:
    return b64(a_csr(*(Identifier(each["type"], each["value"]) for each in order["identifiers"]), key=key))


@asynccontextmanager
async def open_front(
    db: Database,
    folder: Path,
    *,
    options: CaOptions | None = None,
    policy: CaPolicy | None = None,
    proxies: Sequence[str] = (),
    peer: str = "192.0.2.7",
) -> AsyncIterator[Front]:
    async with open_office(db, folder, options=options, policy=policy) as office:
        watch = Watch()
        nonces = nonces_for(office.acme_context, SystemClock(), shared=db.engine.shared)
        app = site(office.acme_context, nonces, SystemClock(), watch.telemetry, proxies=proxies)
        transport = httpx2.ASGITransport(app=app, client=(peer, 4711))
        async with httpx2.AsyncClient(transport=transport) as http:
            yield Front(office, app, nonces, http, watch)
