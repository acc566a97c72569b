"""Files of another client, read within bounds: text, JSON, and a key with the chain that fits it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa

from holdfast.core.key_kind import KeyKind
from holdfast.importing.found import FoundCertificate, ImportTrouble
from holdfast.pki import chain, keys, names
from holdfast.pki.keys import PrivateKey, PublicKey
from holdfast.pki.refused import KeyRefused, PkiRefused
from holdfast.ports import Tree, Unreadable
from holdfast.secret import Secret

# ── Files ──
# A file that cannot be read raises ImportTrouble, which names it.


LIMIT: Final = 256 * 1024  # bytes of one file; a chain has a few KiB
_MOST_DEEP: Final = 8
_MOST_FOLDERS: Final = 20_000
READABLE: Final = "Run the import as a user who may read it, usually root."
_NEXT_STEPS: Final = {
    "it is a link": "Copy what it points to into the folder, or import from where that is.",
    "it is longer": "It is not a file of this kind; move it away, and import again.",
    "it is not a plain": "Replace it by a plain file, or move it away, and import again.",
}


def content(tree: Tree, path: str) -> bytes | None:
    """A file, or None if there is none."""
    try:
        return tree.read(path, LIMIT)
    except Unreadable as why:
        raise _trouble(tree, path, why) from None


def required(tree: Tree, path: str, next_step: str) -> bytes:
    found = content(tree, path)
    if found is None:
        raise ImportTrouble(tree.shown(path), "The file is not there.", next_step)
    return found


def text(tree: Tree, path: str) -> str | None:
    found = content(tree, path)
    try:
        return None if found is None else found.decode()
    except UnicodeDecodeError:
        raise ImportTrouble(tree.shown(path), "This is not a text file.", "Restore it from a backup.") from None


def json_object(tree: Tree, path: str) -> Mapping[str, object] | None:
    found = text(tree, path)
    if found is None:
        return None
    try:
        parsed = json.loads(found)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise ImportTrouble(tree.shown(path), "This is not a JSON object.", "Restore it from a backup.")
    return parsed


def file_names(tree: Tree, folder: str) -> list[str]:
    """The names in a folder; none, if there is no such folder."""
    try:
        return tree.names(folder) or []
    except Unreadable as why:
        raise _trouble(tree, folder, why) from None


def has_folder(tree: Tree, folder: str) -> bool:
    try:
        return tree.names(folder) is not None
    except Unreadable as why:
        raise _trouble(tree, folder, why) from None


def walk(tree: Tree, folder: str = "") -> Iterable[str]:
    """Every path below a folder that is not a folder itself, in order, hidden ones too."""
    to_read, seen = [(folder, 0)], 0
    while to_read:
        current, depth = to_read.pop()
        seen += 1
        if depth > _MOST_DEEP or seen > _MOST_FOLDERS:
            raise ImportTrouble(
                tree.shown(current), "The folder is nested too deeply.", "Import a folder further below."
            )
        for name in file_names(tree, current):
            path = f"{current}/{name}" if current else name
            if _is_folder(tree, path):
                to_read.append((path, depth + 1))
            else:
                yield path


def _is_folder(tree: Tree, path: str) -> bool:
    try:
        return tree.names(path) is not None
    except Unreadable:
        return False  # reading it names the problem


def _trouble(tree: Tree, path: str, why: Unreadable) -> ImportTrouble:
    said = str(why)
    step = next((step for start, step in _NEXT_STEPS.items() if said.startswith(start)), READABLE)
    return ImportTrouble(tree.shown(path), f"It cannot be read: {said[:1].lower()}{said[1:]}.", step)


# ── Keys and chains ──
# A key and a chain that were found side by side, checked before they are imported.


_KEY_BLOCK: Final = re.compile(
    rb"-----BEGIN ((?:[A-Z0-9]+ )?PRIVATE KEY)-----.*?-----END \1-----[^\S\n]*\n?", re.DOTALL
)
_CERTIFICATE_BLOCK: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\s?", re.DOTALL)
ANEW: Final = "Ask for it anew instead: holdfast issue"


# ── Parts of files ──


def key_blocks(content: bytes) -> list[bytes]:
    """The private keys of a PEM file, without what may stand around them, such as EC PARAMETERS."""
    return [match.group(0) for match in _KEY_BLOCK.finditer(content)]


def certificate_blocks(content: bytes) -> bytes:
    return b"".join(match.group(0).rstrip() + b"\n" for match in _CERTIFICATE_BLOCK.finditer(content))


def private_key(content: bytes, file: str) -> PrivateKey:
    """The one key of a file. An encrypted key is refused: it must be decrypted before the import."""
    blocks = key_blocks(content)
    if len(blocks) != 1:
        what = "There is no private key in this file." if not blocks else "There is more than one private key in it."
        raise ImportTrouble(file, what, "Put the key that belongs to the certificate there, in PEM format.")
    try:
        return keys.from_pem(blocks[0])
    except KeyRefused as refused:
        if refused.code == "key-needs-passphrase":
            step = f"Decrypt a copy first: openssl pkey -in {file} -out decrypted.key, and import that."
            raise ImportTrouble(file, "The key is encrypted.", step) from None
        raise ImportTrouble(file, str(refused), f"{ANEW}.") from None


def certificates(content: bytes, file: str) -> tuple[x509.Certificate, ...]:
    try:
        return chain.parse_bundle(certificate_blocks(content))
    except PkiRefused as refused:
        raise ImportTrouble(
            file, str(refused), "Restore the file from a backup, or ask for the certificate anew."
        ) from None


# ── Together ──


def found(
    parts: Sequence[x509.Certificate],
    key: PrivateKey,
    *,
    file: str,
    key_file: str,
    name: str | None,
    now: datetime,
    **more: Any,
) -> FoundCertificate:
    """A certificate with its key, if they belong together and are still of use; ImportTrouble says why not."""
    leaf, public = parts[0], key.public_key()
    wanted = _names(leaf, file)
    if leaf.public_key() != public:
        problem = f"The key does not belong to the certificate in {file}."
        raise ImportTrouble(key_file, problem, "Find the key that was made for it, or ask for the certificate anew.")
    if leaf.not_valid_after_utc <= now:
        again = f"{ANEW} {' '.join(wanted[:5])}{' …' if len(wanted) > 5 else ''}"
        raise ImportTrouble(file, f"The certificate expired at {leaf.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}.", again)
    problem_of_chain = _problem(parts, public, wanted)
    if problem_of_chain is not None:
        raise ImportTrouble(file, problem_of_chain, f"{ANEW} {wanted[0]}")
    kind, notes = _kind(public)
    more["notes"] = (*more.get("notes", ()), *notes)
    return FoundCertificate(
        file=file,
        name=name or wanted[0],
        names=wanted,
        chain=chain.certificates_pem(parts),
        key=Secret(keys.to_pem(key).reveal()),
        key_kind=kind,
        serial=f"{leaf.serial_number:x}",
        not_before=leaf.not_valid_before_utc,
        not_after=leaf.not_valid_after_utc,
        **more,
    )


def _names(leaf: x509.Certificate, file: str) -> tuple[str, ...]:
    try:
        dns, ips = chain.subject_names(leaf)
        wanted = [names.dns_name(each) for each in dns] + [names.ip_address(each) for each in ips]
    except PkiRefused as refused:
        raise ImportTrouble(file, str(refused), "This name cannot be kept; ask for the others anew.") from None
    except (ValueError, x509.DuplicateExtension):
        raise ImportTrouble(file, "The names in this certificate cannot be read.", f"{ANEW}.") from None
    if not wanted:
        raise ImportTrouble(
            file, "The certificate has no subject alternative names.", f"{ANEW} with the names it is for."
        )
    return tuple(dict.fromkeys(wanted))


def _problem(parts: Sequence[x509.Certificate], key: PublicKey, wanted: Sequence[str]) -> str | None:
    """As it was on its first day: what ended since, such as a cross-signature, does not matter for keeping it."""
    dns, ips = chain.subject_names(parts[0])
    return chain.problem_with(parts, key=key, names=dns, ips=ips, now=parts[0].not_valid_before_utc)


def _kind(key: PublicKey) -> tuple[str, tuple[str, ...]]:
    """The kind of its next key: the same, or the nearest that we make."""
    kind = keys.kind_of(key)
    if kind is not None:
        return kind.value, ()
    near = KeyKind.RSA_2048
    if isinstance(key, rsa.RSAPublicKey):
        near = KeyKind.RSA_3072 if key.key_size <= 3072 else KeyKind.RSA_4096
    return near.value, (f"its next key will be {near.value}: keys of the present kind are not made here",)
