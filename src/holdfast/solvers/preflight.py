"""What a CA would see of a name, looked at from here: its addresses, its web server, its zone, and its CAA records."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.core.finding import Finding, bad, note, ok
from holdfast.core.own_ca.acme import Identifier, permits
from holdfast.errors import Refused, TryLater
from holdfast.ports import Clock, Net, NetProblem, Random
from holdfast.solvers.dns_client import DnsClient, values
from holdfast.validators import wire
from holdfast.validators.check import Validator
from holdfast.validators.resolver import DnsProblem, Resolver
from holdfast.validators.verdict import ChallengeToCheck, Crowded, Valid, ValidationSettings
from holdfast.validators.wire import RecordKind

DNS_PORT: Final = 53
UNREACHED: Final = frozenset({"connection", "dns", "tls"})  # problems in which no web server answered
_WAYS: Final = {"http": "http-01", "webroot": "http-01", "tls-alpn": "tls-alpn-01"}  # all others: dns-01
_LOOKS: Final = {"http-01": ("address", "http-01"), "tls-alpn-01": ("address",), "dns-01": ("dns-01",)}
_SERVED: Final[Mapping[str, Any]] = {"kind": "http", "names": ["*"]}  # what holds where no solver is configured


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    net: Net
    clock: Clock
    random: Random
    looks: ValidationSettings
    dns_port: int = DNS_PORT  # of the zone's own servers: another one in laboratories only
    solvers: Sequence[Mapping[str, Any]] | None = None  # as configured; None: that is another machine's to know

    async def look(self, name: str) -> list[Finding]:
        """Each check is made by itself: a failed one does not hide the result of another."""
        base = name.removeprefix("*.")
        solver = self._solver(name)
        checks: list[tuple[str, Callable[[str], Coroutine[Any, Any, Finding]]]] = [
            ("address", self._addresses),
            ("http-01", self._web),
            ("dns-01", lambda at: self._zone(at, solver or {})),
            ("caa", self._caa),
        ]
        wanted = [each for each in checks if each[0] in self._wanted(solver, wildcard=name != base)]
        found = await asyncio.gather(*(self._safely(check, look, base) for check, look in wanted))
        return [*self._by_whom(solver), *found]

    # ── Which way ──

    def _solver(self, name: str) -> Mapping[str, object] | None:
        """The first that fits, as the engine chooses; a wildcard is offered no other challenge than dns-01."""
        wildcard, identifier = name.startswith("*."), Identifier("dns", name)
        for each in (*(self.solvers or ()), _SERVED):
            if permits(_patterns(each), identifier) and not (wildcard and _way(each) != "dns-01"):
                return each
        return None

    def _wanted(self, solver: Mapping[str, object] | None, *, wildcard: bool) -> tuple[str, ...]:
        if self.solvers is None or solver is None:
            return ("dns-01", "caa") if wildcard else ("address", "http-01", "dns-01", "caa")
        return (*_LOOKS[_way(solver)], "caa")

    def _by_whom(self, solver: Mapping[str, object] | None) -> list[Finding]:
        if self.solvers is None:
            return []
        if solver is None:
            fix = "Add one: docs/guides/certificates.md, How names are proved."
            return [
                bad("solver", "none of keeping.solvers_file proves it, and a wildcard is proved by dns-01 alone", fix)
            ]
        return [ok("solver", f"{solver['kind']}: it is proved by {_way(solver)}")]

    async def _safely(self, check: str, look: Callable[[str], Awaitable[Finding]], name: str) -> Finding:
        try:
            async with asyncio.timeout(self.looks.timeout):
                return await look(name)
        except TimeoutError:
            return bad(check, "no answer in time", "Look whether this machine may ask DNS and the web.")
        except (DnsProblem, NetProblem, TryLater, Refused) as why:
            return bad(check, str(why), f"Put the records of {name} right, or wait until they are everywhere.")

    # ── The looks ──

    async def _addresses(self, name: str) -> Finding:
        found = await self._resolver().addresses(name)
        if not found:
            return bad("address", "there is no A and no AAAA record", f"Give {name} an address, or prove it by dns-01.")
        return ok("address", ", ".join(str(each) for each in found))

    async def _web(self, name: str) -> Finding:
        """With a random token: it is enough that a web server answers where a challenge response would be."""
        token = self.random.token(16).hex()
        asked = ChallengeToCheck(
            type="http-01", identifier_type="dns", identifier=name, token=token, thumbprint="preflight"
        )
        verdict = await Validator(self.net, self.clock, self.random, self.looks).check(asked)
        if isinstance(verdict, Crowded):
            raise AssertionError("one look cannot be too many")
        if isinstance(verdict, Valid) or verdict.problem.type not in UNREACHED:
            where = ", then ".join(str(each) for each in _hops(verdict.evidence))
            return ok("http-01", f"a web server answers at {where.replace(token, 'TOKEN')}")
        fix = f"Let port {self.looks.http_port} of {name} be reached, or prove it by dns-01 (keeping.solvers_file)."
        return bad("http-01", verdict.problem.detail, fix)

    async def _zone(self, name: str, solver: Mapping[str, object]) -> Finding:
        client = DnsClient(self.net, self.random, self.looks.resolvers)
        at = f"_acme-challenge.{name}"
        target = await client.target(at)
        zone = str(solver.get("zone") or "").rstrip(".").lower()
        if zone and target != zone and not target.endswith(f".{zone}"):
            return bad(
                "dns-01", f"{target} is not in the zone {zone} of its solver", "Let the solver's zone be its own."
            )
        if solver.get("propagation", True) is False:
            place = f"the zone {zone}" if zone else f"the zone of {target}"
            return note("dns-01", f"the record goes to {place}, and is not looked for (propagation = false)", _ITS_WORD)
        servers = await client.name_servers(await client.zone(target))
        told = await asyncio.gather(*(self._texts(client, addresses, target) for addresses in servers.values()))
        silent = [server for server, found in zip(servers, told, strict=True) if found is None]
        alias = "" if target == at else f"{at} is an alias of {target}; "
        left = {text for found in told if found for text in found}
        saw = f"{alias}{len(servers)} name servers, {len(left)} TXT record{'' if len(left) == 1 else 's'} there now"
        if silent or not servers:
            who = ", ".join(silent) or f"the zone of {target}"
            return bad("dns-01", f"{saw}; no answer from {who}", "Let every name server of the zone answer.")
        return ok("dns-01", saw)

    async def _texts(self, client: DnsClient, addresses: list[str], name: str) -> set[bytes] | None:
        for address in addresses:
            try:
                return values(await client.ask_at(address, self.dns_port, name, "TXT"))
            except NetProblem:
                continue
        return None

    async def _caa(self, name: str) -> Finding:
        """The first records on the way up count (RFC 8659 §3)."""
        labels = name.split(".")
        for start in range(len(labels)):
            place = ".".join(labels[start:])
            named = await self._issuers(place)
            if named is None:
                continue
            if named == {""}:
                return bad("caa", f"CAA at {place} names no CA", f"Name your CA in a CAA record of {place}.")
            who = ", ".join(sorted(each for each in named if each)) or "all of them"
            return note("caa", f"CAA at {place} lets {who} issue", "Make sure that your CA is among them.")
        return ok("caa", "no CAA record: every CA may issue")

    async def _issuers(self, place: str) -> set[str] | None:
        """Who may issue, by the records right there; None if there are none."""
        try:
            answer = await self._resolver().ask(place, RecordKind.CAA)
        except DnsProblem as why:
            if why.kind != "nxdomain":
                raise
            return None
        found = [wire.caa(data) for data in answer.data]
        if not found:
            return None
        return {each.value.partition(";")[0].strip() for each in found if each.tag == "issue"}

    def _resolver(self) -> Resolver:
        return Resolver(self.net, self.random, self.looks.resolvers)


_ITS_WORD: Final = "Nothing has to be done, if every name server of the zone has it soon after it is written."


def _way(solver: Mapping[str, object]) -> str:
    return _WAYS.get(str(solver.get("kind")), "dns-01")


def _patterns(solver: Mapping[str, object]) -> list[str]:
    names = solver.get("names")
    return [str(each) for each in names] if isinstance(names, list) else []


def _hops(evidence: Any) -> list[Any]:
    return list(evidence.get("hops") or ["no address"])
