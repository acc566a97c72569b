"""The places where programs of this machine look for roots: the system, NSS (Firefox, Chrome), Java.

Each is changed by its own tool, without a shell. What is added carries a name made of the root's fingerprint, so that
exactly that is removed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from holdfast.errors import TryLater, UserError
from holdfast.ports import Files, Unreadable
from holdfast.world import LocalTree

Kind = Literal["system", "nss", "java"]


class NotARoot(UserError):
    code, hint = "not-a-root", "Give the root of a CA in PEM, such as: holdfast ca chain CA --root > root.pem"


class StoreRefusedRoot(UserError):
    code = "trust-store-failed"

    def __init__(self, where: str, why: str, hint: str) -> None:
        super().__init__(f"{where} was not changed: {why}")
        self.hint = hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """A root certificate, by whose fingerprint stores know it."""

    pem: bytes
    subject: str
    sha256: str

    @property
    def alias(self) -> str:
        return f"holdfast-{self.sha256[:16]}"

    @classmethod
    def read(cls, content: bytes) -> Root:
        try:
            [found] = x509.load_pem_x509_certificates(content)
            is_ca = found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
            found.verify_directly_issued_by(found)
        except Exception:  # no PEM, several, no extension, signed by another: none of them is a root
            raise NotARoot("This is not one self-signed CA certificate.") from None
        if not is_ca:
            raise NotARoot(f"{found.subject.rfc4514_string()} is no CA.")
        sha256 = found.fingerprint(hashes.SHA256()).hex()
        return cls(pem=found.public_bytes(Encoding.PEM), subject=found.subject.rfc4514_string(), sha256=sha256)


class TrustStore(Protocol):
    """One place. `plan` says what a change does, as a person would type it."""

    @property
    def kind(self) -> Kind: ...
    @property
    def where(self) -> str: ...

    def plan(self, root: Root, *, install: bool) -> str: ...
    async def has(self, root: Root) -> bool: ...
    async def change(self, root: Root, *, install: bool) -> None: ...


# ── The system ──


class _Layout(NamedTuple):
    """How a family of distributions keeps roots: where ours go, the program that takes them in, what it writes."""

    folder: Path
    program: tuple[str, ...]
    bundle: Path
    suffix: str = ".crt"


_BUNDLE: Final = Path("/etc/ssl/certs/ca-certificates.crt")
LAYOUTS: Final = (
    # Debian, Ubuntu, Alpine
    _Layout(Path("/usr/local/share/ca-certificates"), ("update-ca-certificates",), _BUNDLE),
    # Fedora, Red Hat
    _Layout(Path("/etc/pki/ca-trust/source/anchors"), ("update-ca-trust",), Path("/etc/pki/tls/certs/ca-bundle.crt")),
    # SUSE
    _Layout(Path("/etc/pki/trust/anchors"), ("update-ca-certificates",), Path("/etc/ssl/ca-bundle.pem"), ".pem"),
    # Arch
    _Layout(Path("/etc/ca-certificates/trust-source/anchors"), ("update-ca-trust",), _BUNDLE),
)


@dataclass(frozen=True, slots=True)
class SystemStore:
    """What OpenSSL, curl, Python and most others read."""

    files: Files
    layout: _Layout
    kind: Kind = "system"

    @property
    def where(self) -> str:
        return str(self.layout.bundle)

    def plan(self, root: Root, *, install: bool) -> str:
        verb = "write" if install else "remove"
        return f"{verb} {self.layout.folder / self._name(root)}, then run {' '.join(self.layout.program)}"

    def _name(self, root: Root) -> str:
        return f"{root.alias}{self.layout.suffix}"

    async def has(self, root: Root) -> bool:
        return _body(root.pem) in _body(self.files.read(self.layout.bundle) or b"")

    async def change(self, root: Root, *, install: bool) -> None:
        try:
            if install:
                self.files.put_within(self.layout.folder, self._name(root), root.pem)
            else:
                self.files.remove_within(self.layout.folder, self._name(root))
        except OSError as why:
            raise StoreRefusedRoot(self.where, f"{why.strerror}.", AS_ROOT) from None
        await _run(self.files, self.where, *self.layout.program, hint=AS_ROOT)


AS_ROOT: Final = (
    "The system's store needs root. Save the root of the CA: holdfast ca chain CA --root > root.pem. "
    "Then run this command as root, with: --root root.pem --store system"
)


def _body(pem: bytes) -> bytes:
    """Base64 without line ends, which bundles break as they like."""
    return b"".join(line.strip() for line in pem.splitlines() if not line.startswith(b"-"))


# ── NSS ──


@dataclass(frozen=True, slots=True)
class NssStore:
    """A database of Firefox, Chrome or Thunderbird."""

    files: Files
    folder: Path
    kind: Kind = "nss"

    @property
    def where(self) -> str:
        return str(self.folder)

    def plan(self, root: Root, *, install: bool) -> str:
        change = f"-A -t C,, -n {root.alias}" if install else f"-D -n {root.alias}"
        return f"run certutil {change} -d sql:{self.folder}"

    async def has(self, root: Root) -> bool:
        words = ("certutil", "-L", "-d", f"sql:{self.folder}", "-n", root.alias, "-a")
        code, said = await self.files.run(words, env=_QUIET)
        return code == 0 and _body(root.pem) in _body(said)

    async def change(self, root: Root, *, install: bool) -> None:
        about = ("-d", f"sql:{self.folder}", "-n", root.alias)
        words = ("-A", "-a", "-t", "C,,") if install else ("-D",)
        stdin = root.pem if install else b""
        hint = "Close the program that uses it, and try again."
        await _run(self.files, self.where, "certutil", *words, *about, stdin=stdin, hint=hint)


PROFILES: Final = (  # below the home folder: where programs with NSS keep a folder for each profile
    ".mozilla/firefox", "snap/firefox/common/.mozilla/firefox", ".var/app/org.mozilla.firefox/.mozilla/firefox",
    ".thunderbird",
)  # fmt: skip


def _nss_folders(home: Path) -> Iterator[Path]:
    if _names(home / ".pki/nssdb", "cert9.db"):
        yield home / ".pki/nssdb"
    for place in PROFILES:
        yield from (home / place / name for name in _names(home / place) if _names(home / place / name, "cert9.db"))


def _names(folder: Path, only: str = "") -> list[str]:
    try:
        found = LocalTree(folder).names("") or []
    except (Unreadable, OSError):
        return []
    return [name for name in found if only in ("", name)]


def _is_folder(path: Path) -> bool:
    try:
        return LocalTree(path).names("") is not None
    except (Unreadable, OSError):
        return False


# ── Java ──


@dataclass(frozen=True, slots=True)
class JavaStore:
    """The keystore of a Java; its password is public knowledge and protects nothing."""

    files: Files
    keystore: Path
    kind: Kind = "java"

    @property
    def where(self) -> str:
        return str(self.keystore)

    def plan(self, root: Root, *, install: bool) -> str:
        return f"run keytool {'-importcert' if install else '-delete'} -alias {root.alias} -keystore {self.keystore}"

    def _about(self, root: Root) -> tuple[str, ...]:
        return ("-alias", root.alias, "-keystore", str(self.keystore), "-storepass", "changeit")

    async def has(self, root: Root) -> bool:
        code, said = await self.files.run(("keytool", "-list", "-rfc", *self._about(root)), env=_QUIET)
        return code == 0 and _body(root.pem) in _body(said)

    async def change(self, root: Root, *, install: bool) -> None:
        words = ("-importcert", "-noprompt") if install else ("-delete",)
        stdin = root.pem if install else b""
        hint = "Keystores of the system need root: run the same with sudo and --root FILE --store java."
        await _run(self.files, self.where, "keytool", *words, *self._about(root), stdin=stdin, hint=hint)


KEYSTORES: Final = (
    Path("/etc/ssl/certs/java/cacerts"), Path("/etc/pki/java/cacerts"),
    Path("/usr/lib/jvm/default-java/lib/security/cacerts"), Path("/usr/lib/jvm/default/lib/security/cacerts"),
)  # fmt: skip


# ── All of them ──


def found(files: Files, home: Path, environment: Mapping[str, str]) -> list[TrustStore]:
    """The stores of this machine and this user."""
    layout = next((each for each in LAYOUTS if _is_folder(each.folder) and files.read(each.bundle) is not None), None)
    system: list[TrustStore] = [] if layout is None else [SystemStore(files, layout)]
    java_home = environment.get("JAVA_HOME")
    keystores = (Path(java_home) / "lib/security/cacerts",) if java_home else KEYSTORES
    java = [JavaStore(files, each) for each in keystores if files.read(each) is not None][:1]
    return [*system, *(NssStore(files, each) for each in _nss_folders(home)), *java]


_QUIET: Final = {"LC_ALL": "C.UTF-8"}
PACKAGES: Final = {"certutil": "libnss3-tools", "keytool": "default-jre-headless"}


async def _run(files: Files, where: str, *argv: str, stdin: bytes = b"", hint: str) -> None:
    try:
        code, said = await files.run(argv, stdin=stdin, env=_QUIET)
    except FileNotFoundError:
        package = PACKAGES.get(argv[0])
        get = f"Install it, on Debian: apt-get install {package}" if package else "Install it."
        raise StoreRefusedRoot(where, f"there is no program {argv[0]} here.", get) from None
    except TryLater as why:
        raise StoreRefusedRoot(where, f"{why}.", hint) from None
    if code != 0:
        last = (said.decode(errors="replace").strip().splitlines() or [f"exit code {code}"])[-1]
        raise StoreRefusedRoot(where, f"{argv[0]} says: {last}", hint)
