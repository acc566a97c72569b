"""Solvers made of what an operator configured: a kind, its options, and its secrets."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.ports import Files, Net, Random
from holdfast.secret import Secret
from holdfast.solvers.base import Solver
from holdfast.solvers.dns_client import DnsClient
from holdfast.solvers.dns_hook import Hook
from holdfast.solvers.dns_lexicon import Lexicon, LexiconSettings
from holdfast.solvers.dns_record import DnsSolver, Provider
from holdfast.solvers.dns_rfc2136 import Rfc2136, UpdateServer
from holdfast.solvers.http_store import Delete, HttpStore, Put
from holdfast.solvers.propagation import DNS_PORT, Propagation
from holdfast.solvers.tls_alpn import TlsAlpn
from holdfast.solvers.webroot import Webroot

_DNS_OPTIONS: Final = {"zone": str, "propagation": bool}


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverTools:
    """What solvers are made with."""

    files: Files
    net: Net
    random: Random
    resolvers: Sequence[str]  # as 192.0.2.1 or 192.0.2.1:5353
    python: str  # an interpreter that has dns-lexicon, if any has
    put: Put
    delete: Delete
    tls_alpn_shown: bool = False  # whether a listener of ours shows proofs of tls-alpn-01
    dns_port: int = DNS_PORT  # of the zones' own servers; another one in laboratories only

    @property
    def client(self) -> DnsClient:
        return DnsClient(self.net, self.random, self.resolvers)


Secrets = Mapping[str, Secret[str]]
Make = Callable[[SolverTools, Mapping[str, Any], Secrets], Solver]


@dataclass(frozen=True, slots=True)
class _Kind:
    make: Make
    options: Mapping[str, type]
    needed: tuple[str, ...] = ()
    secrets: tuple[str, ...] | None = ()  # those that it must have; None: whichever its provider wants


def make(kind: str, options: Mapping[str, Any], secrets: Secrets, tools: SolverTools) -> Solver:
    """The solver of this kind; ValueError says what is wrong with its options."""
    if kind not in KINDS:
        raise ValueError(f"there is no solver {kind!r:.40}; there are {', '.join(KINDS)}")
    found = KINDS[kind]
    for name, value in options.items():
        if name not in found.options:
            raise ValueError(f"{kind} has no option {name!r:.40}; it has {', '.join(found.options) or 'none'}")
        if not isinstance(value, found.options[name]):
            raise ValueError(f"{kind}: {name} must be of type {found.options[name].__name__}")
    missing = [name for name in found.needed if not options.get(name)]
    missing += [name for name in found.secrets or () if not secrets.get(name)]
    if missing:
        raise ValueError(f"{kind} needs {', '.join(missing)}")
    return found.make(tools, options, secrets)


def _webroot(tools: SolverTools, options: Mapping[str, Any], _: Secrets) -> Solver:
    folder = Path(options["folder"])
    if not folder.is_absolute():
        raise ValueError("webroot: folder must be an absolute path")
    return Webroot(tools.files, folder)


def _tls_alpn(tools: SolverTools, _: Mapping[str, Any], __: Secrets) -> Solver:
    if not tools.tls_alpn_shown:
        raise ValueError("tls-alpn: nobody would show its proofs; set keeping.tls_alpn_listen, such as 0.0.0.0:443")
    return TlsAlpn(tools.put, tools.delete)


def _hook(tools: SolverTools, options: Mapping[str, Any], _: Secrets) -> Solver:
    argv = options["argv"]
    if not all(isinstance(word, str) for word in argv):
        raise ValueError("dns-hook: argv must be a list of texts: a program, and its words")
    return _dns(tools, options, Hook(tools.files, argv))


def _rfc2136(tools: SolverTools, options: Mapping[str, Any], secrets: Secrets) -> Solver:
    try:
        key = b64decode(secrets["key"].reveal(), validate=True)
    except (Error, ValueError):
        raise ValueError("dns-rfc2136: the secret key must be base64, as in the name server's own settings") from None
    told = {name: options[name] for name in ("algorithm", "ttl") if name in options}
    server = UpdateServer(address=options["server"], key_name=options["key_name"], key=Secret(key), **told)
    return _dns(tools, options, Rfc2136(tools.client, server))


def _lexicon(tools: SolverTools, options: Mapping[str, Any], secrets: Secrets) -> Solver:
    told = {name: options[name] for name in ("ttl",) if name in options}
    settings = LexiconSettings(provider=options["provider"], options=secrets, **told)
    return _dns(tools, options, Lexicon(tools.files, tools.python, settings))


def _dns(tools: SolverTools, options: Mapping[str, Any], provider: Provider) -> Solver:
    looked_for = Propagation(tools.client, port=tools.dns_port) if options.get("propagation", True) else None
    zone = options.get("zone")
    return DnsSolver(provider, tools.client, looked_for, zone=zone.rstrip(".").lower() if zone else None)


KINDS: Final[Mapping[str, _Kind]] = {
    "http": _Kind(lambda tools, _, __: HttpStore(tools.put, tools.delete), {}),
    "webroot": _Kind(_webroot, {"folder": str}, ("folder",)),
    "tls-alpn": _Kind(_tls_alpn, {}),
    "dns-hook": _Kind(_hook, {"argv": list, **_DNS_OPTIONS}, ("argv",)),
    "dns-rfc2136": _Kind(
        _rfc2136,
        {"server": str, "key_name": str, "algorithm": str, "ttl": int, **_DNS_OPTIONS},
        ("server", "key_name"),
        ("key",),
    ),
    "dns-lexicon": _Kind(_lexicon, {"provider": str, "ttl": int, **_DNS_OPTIONS}, ("provider",), None),
}
