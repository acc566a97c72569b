"""An ACME client that does what real ones do, and nothing else: one order at a time, each certificate checked."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from bench.acme.jws import AccountKey, b64
from bench.acme.wire import Answer, Line

NONCE_TRIES = 10
GROWTH = 1.5  # of the pause between two looks


class OrderFailed(Exception):
    """The server did not issue, or issued something else; the text is short, so that equal ones can be counted."""


@dataclass(frozen=True, slots=True)
class Directory:
    """Where a server's resources are."""

    origin: str
    new_nonce: str
    new_account: str
    new_order: str

    @classmethod
    async def fetch(cls, url: str) -> "Directory":
        origin = "/".join(url.split("/", 3)[:3])
        line = Line(origin)
        found = (await line.get(url)).json()
        line.close()
        return cls(origin, found["newNonce"], found["newAccount"], found["newOrder"])


@dataclass(frozen=True, slots=True)
class Request:
    """What one order is for, made before the clock starts."""

    name: str
    csr: str
    public_key: ec.EllipticCurvePublicKey

    @classmethod
    def make(cls, name: str) -> "Request":
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.DNSName(name)])
        builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
        csr = builder.add_extension(names, critical=False).sign(key, SHA256())
        return cls(name, b64(csr.public_bytes(Encoding.DER)), key.public_key())


class Client:
    """One caller with one connection; several may share an account's key."""

    def __init__(self, directory: Directory, key: AccountKey, *, poll_s: float) -> None:
        self.directory = directory
        self.key = key
        self.poll_s = poll_s
        self.line = Line(directory.origin)
        self.kid: str | None = None
        self.bad_nonces = 0
        self._nonce = ""

    async def register(self) -> None:
        """Make the account, or find it."""
        wish = {"termsOfServiceAgreed": True}
        answer = await self._post("newAccount", self.directory.new_account, wish, (200, 201))
        self.kid = answer.header("location")

    async def obtain(self, request: Request) -> None:
        """Order, prove, finalize, download, check."""
        wish = {"identifiers": [{"type": "dns", "value": request.name}]}
        placed = await self._post("newOrder", self.directory.new_order, wish, (201,))
        order = placed.json()
        for authorization in order["authorizations"]:
            await self._prove(authorization)
        finalized = await self._post("finalize", order["finalize"], {"csr": request.csr}, (200,))
        order = await self._settled("order", placed.header("location"), finalized.json(), ("ready", "processing"))
        certificate = await self._post("certificate", order["certificate"], None, (200,))
        check(certificate.body, request)

    async def _prove(self, url: str) -> None:
        authorization = (await self._post("authorization", url, None, (200,))).json()
        if authorization["status"] == "valid":
            return
        challenge = next(each for each in authorization["challenges"] if each["type"] == "http-01")
        told = (await self._post("challenge", challenge["url"], {}, (200,))).json()
        if told["status"] != "valid":
            await self._settled("authorization", url, authorization, ("pending", "processing"))

    async def _settled(self, what: str, url: str, seen: dict[str, Any], unsettled: Iterable[str]) -> dict[str, Any]:
        """Look again until it is valid; Retry-After is not minded, so that the server's speed is seen."""
        pause = self.poll_s
        while seen["status"] in unsettled:
            await asyncio.sleep(pause)
            pause *= GROWTH
            seen = (await self._post(f"{what} again", url, None, (200,))).json()
        if seen["status"] != "valid":
            raise OrderFailed(f"{what} became {seen['status']}: {reason(seen)}")
        return seen

    async def _post(self, what: str, url: str, payload: object, expected: tuple[int, ...]) -> Answer:
        for _ in range(NONCE_TRIES):
            nonce, self._nonce = self._nonce or await self._new_nonce(), ""
            answer = await self.line.post(url, self.key.signed(url, nonce, payload, kid=self.kid))
            self._nonce = answer.header("replay-nonce")
            if answer.status in expected:
                return answer
            if answer.status != 400 or b":badNonce" not in answer.body:
                raise OrderFailed(f"{what}: {answer.status} {problem(answer)}")
            self.bad_nonces += 1
        raise OrderFailed(f"{what}: {NONCE_TRIES} nonces refused")

    async def _new_nonce(self) -> str:
        # By GET: an answer to HEAD may name the length of a body that does not come.
        return (await self.line.get(self.directory.new_nonce)).header("replay-nonce")


def problem(answer: Answer) -> str:
    try:
        found = answer.json()
        return f"{found['type'].rpartition(':')[2]} {found.get('detail', '')[:80]}"
    except (ValueError, KeyError, TypeError):
        return ""


def reason(seen: dict[str, Any]) -> str:
    errors = [seen.get("error"), *(each.get("error") for each in seen.get("challenges", ()))]
    return next((str(each.get("type", "")).rpartition(":")[2] for each in errors if each), "no reason given")


def check(pem: bytes, request: Request) -> None:
    """Insist that it is the certificate that was ordered."""
    leaf = x509.load_pem_x509_certificate(pem)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if list(names) != [x509.DNSName(request.name)]:
        raise OrderFailed("certificate: other names than ordered")
    if leaf.public_key() != request.public_key:
        raise OrderFailed("certificate: another key than requested")
