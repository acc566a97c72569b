"""The entry to all validators: a challenge in, a result out, within its time for any behaviour of the other side."""

from __future__ import annotations

import asyncio
from typing import Final

from holdfast.pki import names
from holdfast.pki.refused import NameRefused
from holdfast.ports import Clock, Net, Random
from holdfast.validators import dns_challenges, http01, tlsalpn01
from holdfast.validators.caa import Caa
from holdfast.validators.dialer import Addresses, Crowd, SafeDialer, TooCrowded
from holdfast.validators.http01 import Ports
from holdfast.validators.resolver import DnsProblem, Resolver
from holdfast.validators.verdict import (
    ChallengeFailed,
    ChallengeToCheck,
    Crowded,
    Invalid,
    Trace,
    Valid,
    ValidationResult,
    ValidationSettings,
)

MOST_AT_ONE_ADDRESS: Final = 64


class Validator:
    """Checks challenges, any number at a time."""

    def __init__(self, net: Net, clock: Clock, random: Random, settings: ValidationSettings) -> None:
        self._clock = clock
        self._settings = settings
        self._ports = Ports(settings.http_port, settings.tls_port)
        self._issuers = frozenset(name.lower() for name in settings.caa_identities)
        self._resolver = Resolver(net, random, settings.resolvers)
        self._caa = Caa(self._resolver, clock, settings.caa_identities)
        self._crowd = Crowd(MOST_AT_ONE_ADDRESS)
        self._dialer = SafeDialer(
            net,
            self._resolver,
            Addresses(settings.allowed_networks),
            ports=frozenset(self._ports),
            each=settings.timeout / 2,
            crowd=self._crowd,
        )

    async def check(self, challenge: ChallengeToCheck) -> ValidationResult:
        """Never raises for the behaviour of remotes. CAA comes last: it does not matter if the response is missing."""
        began, trace = self._clock.monotonic(), Trace()
        failed = None
        try:
            async with asyncio.timeout(self._settings.timeout):
                await self._prove(challenge, trace)
                await self._caa.check(challenge, trace)
        except TooCrowded:
            return Crowded()
        except ChallengeFailed as why:
            failed = why
        except DnsProblem as why:
            failed = ChallengeFailed("dns", f"{why}.", retryable=why.retryable)
        except TimeoutError:
            failed = ChallengeFailed(
                "connection", f"The check did not end in {self._settings.timeout:g} s.", retryable=True
            )
        finally:
            self._crowd.leave(trace.held)
        evidence = trace.evidence(self._clock.monotonic() - began)
        return Valid(evidence) if failed is None else Invalid(failed.problem, evidence, failed.retryable)

    async def _prove(self, challenge: ChallengeToCheck, trace: Trace) -> None:
        """A type of challenge that is not listed here is refused: a new type must never pass by default."""
        _must_be_spelled_right(challenge)
        match challenge.type:
            case "http-01":
                await http01.check(challenge, self._dialer, self._ports, self._settings.user_agent, trace)
            case "dns-01":
                await dns_challenges.check_dns01(challenge, self._resolver, trace)
            case "tls-alpn-01":
                await tlsalpn01.check(challenge, self._dialer, self._ports.tls, trace)
            case "dns-account-01":
                await dns_challenges.check_dns_account01(challenge, self._resolver, trace)
            case "dns-persist-01":
                await dns_challenges.check_dns_persist01(
                    challenge, self._resolver, self._issuers, self._clock.now(), trace
                )
            case _:
                raise ChallengeFailed("malformed", f"There is no challenge of the type {challenge.type!r}.")


def _must_be_spelled_right(challenge: ChallengeToCheck) -> None:
    """Checked when it was asked for, and again where it becomes a part of requests."""
    spell = {"dns": names.dns_name, "ip": names.ip_address}.get(challenge.identifier_type)
    if spell is None:
        raise ChallengeFailed("unsupportedIdentifier", "Only names and addresses can be proved.")
    try:
        right = spell(challenge.identifier) == challenge.identifier
    except NameRefused:
        right = False
    if not right:
        raise ChallengeFailed("rejectedIdentifier", "The identifier is not in the one spelling of its kind.")
