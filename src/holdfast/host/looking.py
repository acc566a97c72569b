"""Certificates of one host: shown by what listens, named by configurations, and lying in folders.

Private keys are never read: of a key file, mode and owner are looked at. The same code runs in a command on the host,
and in an agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding

from holdfast.core.discovery import host as rules
from holdfast.core.discovery.host import FileFacts, Listener
from holdfast.core.endpoint import Endpoint
from holdfast.endpoints.probe import Glance
from holdfast.importing import haproxy_files, reading, uses
from holdfast.importing.found import ImportTrouble
from holdfast.pki.facts import MOST_SHOWN
from holdfast.ports import Tree

AT_ONCE: Final = 16  # handshakes
MOST_FILES: Final = 5_000  # of all folders together
_UNREADABLE: Final = (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion)
LookWhole = Callable[[Endpoint], Awaitable[Sequence[Glance]]]


class Host(Protocol):
    def listeners(self) -> list[Listener]: ...
    def facts(self, path: str) -> FileFacts | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFind:
    """One certificate at one place of the host."""

    chain: tuple[bytes, ...]  # DER, the leaf first
    place: str
    served: bool = False
    program: str = ""
    notes: str = ""


@dataclass(slots=True)
class HostLook:
    finds: list[HostFind] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what could not be looked at


async def look(host: Host, look_whole: LookWhole, *, etc: Tree, root: Tree, folders: Sequence[str]) -> HostLook:
    """All of it. `etc` is the folder of configurations; `folders` are paths below `root`."""
    found = HostLook()
    found.finds += await _listening(host, look_whole)
    _configured(found, host, etc, root)
    _lying(found, root, folders)
    return found


# ── What listens ──


async def _listening(host: Host, look_whole: LookWhole) -> list[HostFind]:
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(listener: Listener) -> list[HostFind]:
        async with slots:
            glances = await look_whole(listener.endpoint)
        where = listener.endpoint.shown
        return [
            HostFind(chain=each.shown, place=where, served=True, program=listener.program)
            for each in glances
            if each.shown and each.sighting.problem is None
        ]

    found = await asyncio.gather(*(one(each) for each in host.listeners()))
    return [each for several in found for each in several]


# ── What is configured ──


def _configured(found: HostLook, host: Host, etc: Tree, root: Tree) -> None:
    """Files that nginx, Apache, HAProxy, Postfix and Dovecot are told to serve, with what is known of their keys."""
    used, notes = uses.read(etc)
    found.notes += notes
    for use in used:
        key = rules.key_note(use.key, host.facts(use.key)) if use.key else ""
        _add(found, root, use.certificate, program=use.daemon.preset, notes=key)
    for path in haproxy_files.certificates(etc):
        _add(found, root, path, program="haproxy", notes=rules.key_note(path, host.facts(path)))


def _lying(found: HostLook, root: Tree, folders: Iterable[str]) -> None:
    number = 0
    for folder in folders:
        try:
            for path in reading.walk(root, folder.strip("/")):
                if not rules.may_be_certificate(path.rpartition("/")[2]):
                    continue
                number += 1
                if number > MOST_FILES:
                    found.notes.append(f"There are more than {MOST_FILES} files: the others were not looked at.")
                    return
                _add(found, root, f"/{path}")
        except ImportTrouble as trouble:
            found.notes.append(f"{trouble.problem.file}: {trouble.problem.problem}")


def _add(found: HostLook, root: Tree, path: str, *, program: str = "", notes: str = "") -> None:
    try:
        content = reading.content(root, path.lstrip("/"))
    except ImportTrouble as trouble:
        found.notes.append(f"{trouble.problem.file}: {trouble.problem.problem}")
        return
    chain = certificates_in(content or b"")
    if chain:
        found.finds.append(HostFind(chain=chain, place=root.shown(path.lstrip("/")), program=program, notes=notes))


def certificates_in(content: bytes) -> tuple[bytes, ...]:
    """The certificates of a file in PEM or DER; none, if it is a bundle of trusted roots or something else."""
    try:
        if b"-----BEGIN CERTIFICATE-----" in content:
            read = x509.load_pem_x509_certificates(content)
        elif content[:1] == b"\x30":
            read = [x509.load_der_x509_certificate(content)]
        else:
            return ()
        return () if len(read) > MOST_SHOWN or _is_authority(read[0]) else tuple(map(_der, read))
    except _UNREADABLE:
        return ()


def _der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.DER)


def _is_authority(certificate: x509.Certificate) -> bool:
    """Trusted roots lie on every host by the hundred, and are served by none."""
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, *_UNREADABLE):
        return False
