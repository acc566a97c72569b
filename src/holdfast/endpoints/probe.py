"""Looks at an endpoint: a fresh handshake for every sample at every address, and what was shown in it."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Sequence
from contextlib import closing
from hashlib import sha256
from itertools import product
from typing import Final, NamedTuple

from cryptography import x509

from holdfast.core.endpoint import MAX_ADDRESSES, Endpoint, EndpointProtocol, KeyFamily, Sighting, SightingProblem
from holdfast.endpoints import starttls
from holdfast.endpoints.starttls import NoUpgrade
from holdfast.pki import chain as chains
from holdfast.pki.describe import name_in_words
from holdfast.pki.names import IPAddress
from holdfast.ports import Net, NetProblem, Random, Tls
from holdfast.validators.dialer import Addresses, NotPermitted, SafeDialer
from holdfast.validators.resolver import DnsProblem, Resolver

AT_ONCE: Final = 8  # connections to one endpoint: a look must not be an attack
MOST_SHOWN: Final = 20  # certificates of a chain that are read
NETWORKS_SETTING: Final = "endpoints.networks"
_PROBLEMS: Final = {
    "refused": SightingProblem.REFUSED,
    "reset": SightingProblem.REFUSED,
    "timeout": SightingProblem.UNREACHABLE,
    "unreachable": SightingProblem.UNREACHABLE,
    "tls": SightingProblem.TLS,
}


class Glance(NamedTuple):
    """A sighting, and the certificates that were shown in it, in DER."""

    sighting: Sighting
    shown: tuple[bytes, ...] = ()


class Probe:
    """Looks at endpoints, any number at a time. It never raises for the behaviour of remotes."""

    def __init__(self, dialer: SafeDialer, *, each: float, whole: float) -> None:
        self._dialer = dialer
        self._each = each  # seconds for one handshake, with all that comes before it
        self._whole = whole  # seconds for one endpoint

    async def look(self, endpoint: Endpoint) -> tuple[Sighting, ...]:
        """One sighting for each sample of each kind of key at each address; one without an address if there is none."""
        return tuple(each.sighting for each in await self.look_whole(endpoint))

    async def look_whole(self, endpoint: Endpoint) -> tuple[Glance, ...]:
        """The same, with the certificates themselves."""
        try:
            async with asyncio.timeout(self._each):
                found = await self._addresses(endpoint)
        except (DnsProblem, TimeoutError) as why:
            return (_unseen("", SightingProblem.UNREACHABLE, str(why) or f"{endpoint.host}: DNS took too long"),)
        if not found:
            return (_unseen("", SightingProblem.UNREACHABLE, f"{endpoint.host} has no address"),)
        return await self._sample(endpoint, found)

    async def _addresses(self, endpoint: Endpoint) -> Sequence[IPAddress]:
        if endpoint.addresses:
            return [ipaddress.ip_address(each) for each in endpoint.addresses]
        return (await self._dialer.resolve(endpoint.host))[:MAX_ADDRESSES]

    async def _sample(self, endpoint: Endpoint, found: Sequence[IPAddress]) -> tuple[Glance, ...]:
        wanted = list(product(found, endpoint.keys or (None,), range(endpoint.samples)))
        slots = asyncio.Semaphore(AT_ONCE)

        async def one(address: IPAddress, key: KeyFamily | None) -> Glance:
            async with slots:
                return await self._glance(endpoint, address, key)

        tasks = [asyncio.ensure_future(one(address, key)) for address, key, _ in wanted]
        try:
            await asyncio.wait(tasks, timeout=self._whole)
        finally:
            for task in tasks:
                task.cancel()
        late = f"{endpoint.host} was not looked at to the end within {self._whole:g} s"
        return tuple(
            task.result()
            if task.done() and not task.cancelled()
            else _unseen(str(address), SightingProblem.UNREACHABLE, late, key)
            for task, (address, key, _) in zip(tasks, wanted, strict=True)
        )

    async def _glance(self, endpoint: Endpoint, address: IPAddress, key: KeyFamily | None) -> Glance:
        at = str(address)
        try:
            async with asyncio.timeout(self._each):
                return _read(at, key, *await self._handshake(endpoint, address, key))
        except NotPermitted as why:
            return _unseen(at, SightingProblem.DENIED, f"we do not connect to {at}, {why}, {_remedy(address)}", key)
        except NoUpgrade as why:
            return _unseen(at, SightingProblem.PROTOCOL, f"{at} port {endpoint.port} did not begin TLS: {why}", key)
        except NetProblem as why:
            if why.shown:
                return _read(at, key, why.shown, "")
            return _unseen(at, _PROBLEMS[why.kind], str(why), key)
        except TimeoutError:
            said = f"{at} port {endpoint.port} did not finish a handshake within {self._each:g} s"
            return _unseen(at, SightingProblem.UNREACHABLE, said, key)

    async def _handshake(
        self, endpoint: Endpoint, address: IPAddress, key: KeyFamily | None
    ) -> tuple[tuple[bytes, ...], str]:
        """The certificates that were shown, and the version of TLS. Nothing is resumed and nothing more is said."""
        tls = Tls(server_name=endpoint.sni, key=key, any_version=True)
        if endpoint.protocol is EndpointProtocol.TLS:
            with closing(await self._dialer.dial(address, endpoint.port, tls=tls)) as secured:
                return secured.chain, secured.version
        with closing(await self._dialer.dial(address, endpoint.port)) as line:
            await starttls.begin(endpoint.protocol, line, endpoint.name)
            secured = await line.upgrade(tls, deadline_for=self._each)
            return secured.chain, secured.version


def make(
    net: Net, random: Random, *, resolvers: Sequence[str], networks: Sequence[str], each: float, only: str = ""
) -> Probe:
    """A probe with the one dialer. `each` are seconds for one handshake; an endpoint has three times as many.

    `only` is the setting that lists the networks, if no other address may be looked at.
    """
    allowed = Addresses(networks, only=only)
    dialer = SafeDialer(net, Resolver(net, random, resolvers), allowed, ports=None, each=each)
    return Probe(dialer, each=each, whole=3 * each)


def _remedy(address: IPAddress) -> str:
    """Some addresses are never dialled, and no setting changes that."""
    if Addresses([str(address)]).denied(address) is None:
        return f"unless {NETWORKS_SETTING} lists its network"
    return f"whatever {NETWORKS_SETTING} lists"


def _unseen(address: str, problem: SightingProblem, why: str, key: KeyFamily | None = None) -> Glance:
    return Glance(Sighting(address=address, problem=problem, why=why.rstrip("."), key=key))


def _read(address: str, key: KeyFamily | None, shown: Sequence[bytes], version: str) -> Glance:
    try:
        certificates = [x509.load_der_x509_certificate(each) for each in shown[:MOST_SHOWN]]
        leaf = certificates[0]
        dns, ips = chains.subject_names(leaf)
        seen = Sighting(
            address=address,
            key=key,
            leaf=sha256(shown[0]).hexdigest(),
            chain=tuple(sha256(each).hexdigest() for each in shown[:MOST_SHOWN]),
            names=(*dns, *ips),
            issuer=name_in_words(leaf.issuer),
            not_after=leaf.not_valid_after_utc,
            gap=chains.gap(certificates),
            tls=version,
        )
        return Glance(seen, tuple(shown[:MOST_SHOWN]))
    except (ValueError, IndexError, x509.DuplicateExtension, x509.InvalidVersion):
        return _unseen(address, SightingProblem.TLS, f"{address} shows a certificate that cannot be read", key)
