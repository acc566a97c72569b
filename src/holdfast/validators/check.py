"""The one entry: a challenge in, a verdict out, within its time and whatever the other side does."""

from __future__ import annotations

import asyncio

from holdfast.pki import names
from holdfast.pki.refused import NameRefused
from holdfast.ports import Clock, Net, Random
from holdfast.validators import dns01, dns_account01, dns_persist01, http01, tlsalpn01
from holdfast.validators.addresses import Addresses
from holdfast.validators.caa import Caa
from holdfast.validators.dialer import SafeDialer
from holdfast.validators.location import Ports
from holdfast.validators.resolver import DnsProblem, Resolver
from holdfast.validators.verdict import Challenge, Failed, Invalid, Trace, Valid, ValidationSettings, Verdict


class Validator:
    """Checks challenges, any number at a time."""

    def __init__(self, net: Net, clock: Clock, random: Random, settings: ValidationSettings) -> None:
        self._clock = clock
        self._settings = settings
        self._ports = Ports(settings.http_port, settings.tls_port)
        self._issuers = frozenset(name.lower() for name in settings.caa_identities)
        self._resolver = Resolver(net, random, settings.resolvers)
        self._caa = Caa(self._resolver, clock, settings.caa_identities)
        self._dialer = SafeDialer(
            net,
            self._resolver,
            Addresses(settings.allowed_networks),
            ports=frozenset(self._ports),
            each=settings.timeout / 2,
        )

    async def check(self, challenge: Challenge) -> Verdict:
        """Never raises for what others do. CAA comes last: it says nothing of use about a proof that is not there."""
        began, trace = self._clock.monotonic(), Trace()
        failed = None
        try:
            async with asyncio.timeout(self._settings.timeout):
                await self._prove(challenge, trace)
                await self._caa.check(challenge, trace)
        except Failed as why:
            failed = why
        except DnsProblem as why:
            failed = Failed("dns", f"{why}.", retryable=why.retryable)
        except TimeoutError:
            failed = Failed("connection", f"The check did not end in {self._settings.timeout:g} s.", retryable=True)
        evidence = trace.evidence(self._clock.monotonic() - began)
        return Valid(evidence) if failed is None else Invalid(failed.problem, evidence, failed.retryable)

    async def _prove(self, challenge: Challenge, trace: Trace) -> None:
        """Whatever is not named here is refused: a new kind of challenge must never be a proof by default."""
        _must_be_spelled_right(challenge)
        match challenge.type:
            case "http-01":
                await http01.check(challenge, self._dialer, self._ports, self._settings.user_agent, trace)
            case "dns-01":
                await dns01.check(challenge, self._resolver, trace)
            case "tls-alpn-01":
                await tlsalpn01.check(challenge, self._dialer, self._ports.tls, trace)
            case "dns-account-01":
                await dns_account01.check(challenge, self._resolver, trace)
            case "dns-persist-01":
                await dns_persist01.check(challenge, self._resolver, self._issuers, self._clock.now(), trace)
            case _:
                raise Failed("malformed", f"There is no challenge of the type {challenge.type!r}.")


def _must_be_spelled_right(challenge: Challenge) -> None:
    """Checked when it was asked for, and again where it becomes a part of requests."""
    spell = {"dns": names.dns_name, "ip": names.ip_address}.get(challenge.identifier_type)
    if spell is None:
        raise Failed("unsupportedIdentifier", "Only names and addresses can be proved.")
    try:
        right = spell(challenge.identifier) == challenge.identifier
    except NameRefused:
        right = False
    if not right:
        raise Failed("rejectedIdentifier", "The identifier is not in the one spelling of its kind.")
