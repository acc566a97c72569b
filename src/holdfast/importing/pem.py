"""Loose PEM files: certificates and keys are matched by their public keys, chains are put together by signatures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from holdfast.importing import reading
from holdfast.importing.found import FoundCertificate, FoundInFolder, ImportProblem, ImportTrouble
from holdfast.pki import chain, keys
from holdfast.pki.keys import PrivateKey
from holdfast.pki.signing import is_self_signed
from holdfast.ports import Tree

PemSource = tuple[Tree, Sequence[str] | None]  # a folder, or some files of it
_LONGEST_CHAIN: Final = chain.MAX_CERTIFICATES
_NO_KEY: Final = "Put its key beside it, in PEM format; without it, ask for the certificate anew."


@dataclass
class _Pool:
    """All that lies about, before it is put together."""

    leaves: dict[bytes, tuple[x509.Certificate, str]] = field(default_factory=dict)  # by fingerprint; where it was
    authorities: dict[bytes, x509.Certificate] = field(default_factory=dict)
    keys: dict[bytes, tuple[PrivateKey, str]] = field(default_factory=dict)  # by the hash of their public part
    problems: list[ImportProblem] = field(default_factory=list)


def read(sources: Iterable[PemSource], now: datetime) -> FoundInFolder:
    pool = _Pool()
    for tree, files in sources:
        for path in reading.walk(tree) if files is None else files:
            try:
                _collect(pool, tree, path)
            except ImportTrouble as trouble:
                pool.problems.append(trouble.problem)
    return _newest(_matched(pool, now), pool)


def _collect(pool: _Pool, tree: Tree, path: str) -> None:
    content, file = reading.content(tree, path), tree.shown(path)
    if content is None:
        raise ImportTrouble(file, "There is no such file.", "Check the path.")
    for block in reading.key_blocks(content):
        key = reading.private_key(block, file)
        pool.keys.setdefault(keys.spki_sha256(key.public_key()), (key, file))
    if b"-----BEGIN CERTIFICATE-----" in content:
        for each in reading.certificates(content, file):
            if _is_authority(each):
                pool.authorities[each.fingerprint(hashes.SHA256())] = each
            else:
                pool.leaves.setdefault(each.fingerprint(hashes.SHA256()), (each, file))


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, ValueError, x509.DuplicateExtension):
        return False


def _matched(pool: _Pool, now: datetime) -> list[FoundCertificate]:
    found = []
    for leaf, file in pool.leaves.values():
        try:
            found.append(_with_key(pool, leaf, file, now))
        except ImportTrouble as trouble:
            pool.problems.append(trouble.problem)
    return found


def _with_key(pool: _Pool, leaf: x509.Certificate, file: str, now: datetime) -> FoundCertificate:
    public = leaf.public_key()
    held = pool.keys.get(keys.spki_sha256(public)) if isinstance(public, keys.PublicKey) else None
    if held is None:
        raise ImportTrouble(file, "No key that was found belongs to this certificate.", _NO_KEY)
    key, key_file = held
    parts = (leaf, *_above(leaf, pool.authorities.values()))
    return reading.found(parts, key, file=file, key_file=key_file, name=None, now=now)


def _above(leaf: x509.Certificate, authorities: Iterable[x509.Certificate]) -> list[x509.Certificate]:
    """The chain as far as it was found, without a root: clients have it, or do not trust it."""
    path: list[x509.Certificate] = []
    below, left = leaf, list(authorities)
    while len(path) < _LONGEST_CHAIN - 1:
        issuer = next((each for each in left if below.issuer == each.subject and chain.issued_by(below, each)), None)
        if issuer is None or is_self_signed(issuer):
            break
        path.append(issuer)
        left.remove(issuer)
        below = issuer
    return path


def _newest(found: list[FoundCertificate], pool: _Pool) -> FoundInFolder:
    """Of several for the same names the one that lives longest is kept; the others are named."""
    kept: dict[tuple[str, tuple[str, ...]], FoundCertificate] = {}
    notes = []
    for each in sorted(found, key=lambda each: (each.not_after, each.file), reverse=True):
        same = (each.key_kind.partition("-")[0], tuple(sorted(each.names)))
        if same in kept:
            notes.append(f"{each.file} is older than {kept[same].file}, for the same names: it is left out.")
        else:
            kept[same] = each
    certificates = sorted(kept.values(), key=lambda each: each.name)
    return FoundInFolder(certificates=tuple(_named(certificates)), problems=tuple(pool.problems), notes=tuple(notes))


def _named(found: Sequence[FoundCertificate]) -> Iterable[FoundCertificate]:
    """Each with a name of its own: the first of its names, and a number where that is taken."""
    taken: set[str] = set()
    for each in found:
        names = (each.name, *(f"{each.name}-{number}" for number in range(2, len(found) + 2)))
        name = next(candidate for candidate in names if candidate not in taken)
        taken.add(name)
        yield replace(each, name=name)
