"""Real servers with TLS on ports of loopback, each with the certificates that a test gives it.

Servers that drop their privileges must be able to read the folder, so it is not one of pytest's. A server that is not
installed is installed where that is allowed; elsewhere its tests are skipped, and say how to install it.
"""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Final

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import AuthorityInformationAccessOID, NameOID

from tests.support.ports import free_port
from tests.support.reaper import PATIENCE, until

HOST: Final = "127.0.0.1"
NAME: Final = "served.example.org"
_PATH: Final = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/lib/postgresql/15/bin"
_DAY: Final = timedelta(days=1)
Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


# ── Certificates ──


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A certificate with its chain and its key, as files and as what a handshake shows of it."""

    certificate: Path  # the leaf alone
    fullchain: Path
    key: Path
    combined: Path
    leaf: str  # SHA-256
    chain: tuple[str, ...]  # of all certificates in fullchain


class Issuing:
    """A root and an intermediate, whose certificates say where their issuer is found, as those of public CAs do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._numbers = iter(range(1000))
        self._root_key, self._key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        self.root = _signed("Test Root", self._root_key, "Test Root", self._root_key, ca=True)
        self.intermediate = _signed("Test Intermediate", self._key, "Test Root", self._root_key, ca=True)
        self.roots = folder / "roots.pem"
        self.roots.write_bytes(self.root.public_bytes(Encoding.PEM))

    def pair(self, *names: str, kind: str = "ecdsa", days: float = 60) -> Pair:
        key: Key = ec.generate_private_key(ec.SECP256R1()) if kind == "ecdsa" else rsa.generate_private_key(65537, 2048)
        leaf = _signed((names or (NAME,))[0], key, "Test Intermediate", self._key, names=names or (NAME,), days=days)
        at = self.folder / f"pair-{next(self._numbers)}"
        at.mkdir()
        files = {name: at / f"{name}.pem" for name in ("certificate", "fullchain", "key", "combined")}
        pems = [each.public_bytes(Encoding.PEM) for each in (leaf, self.intermediate)]
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        files["certificate"].write_bytes(pems[0])
        files["fullchain"].write_bytes(b"".join(pems))
        files["key"].write_bytes(secret)
        files["combined"].write_bytes(b"".join([secret, *pems]))
        _give(at)
        shown = tuple(sha256(each.public_bytes(Encoding.DER)).hexdigest() for each in (leaf, self.intermediate))
        return Pair(**files, leaf=shown[0], chain=shown)


def _signed(
    subject: str,
    key: Key,
    issuer: str,
    signer: Key,
    *,
    ca: bool = False,
    names: tuple[str, ...] = (),
    days: float = 3650,
) -> x509.Certificate:
    now = datetime.now(UTC).replace(microsecond=0)
    builder = x509.CertificateBuilder().subject_name(_name(subject)).issuer_name(_name(issuer))
    builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - 90 * _DAY).not_valid_after(now + timedelta(days=days))
    builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    if names:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([x509.DNSName(each) for each in names]), critical=False
        )
        found = x509.UniformResourceIdentifier("http://ca.example.org/issuer.der")
        access = [x509.AccessDescription(AuthorityInformationAccessOID.CA_ISSUERS, found)]
        builder = builder.add_extension(x509.AuthorityInformationAccess(access), critical=False)
    return builder.sign(signer, hashes.SHA256())


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _give(folder: Path) -> None:
    """Readable for the servers, which run as somebody else: the keys of tests are no secrets."""
    for each in [folder, *folder.rglob("*")]:
        each.chmod(0o755 if each.is_dir() else 0o644)


@contextmanager
def open_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="served-") as made:
        folder = Path(made)
        folder.chmod(0o755)
        yield folder


# ── Programs ──


def program(name: str, package: str) -> str:
    """The path of a server; installed if that is allowed, else the test is skipped."""
    found = shutil.which(name, path=_PATH)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        install = ["apt-get", "install", "-y", "--no-install-recommends", package]
        quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        subprocess.run(install, env=quiet, capture_output=True, timeout=PATIENCE, check=False)
        found = shutil.which(name, path=_PATH)
    if found is None or os.geteuid() != 0:
        pytest.skip(f"{name} cannot be started here: as root, apt-get install --no-install-recommends {package}")
    return found


@contextmanager
def running(argv: list[str], port: int, folder: Path, *, user: str = "", host: str = HOST) -> Iterator[int]:
    """A server in the foreground, from when its port answers until the test is over."""
    log = folder / "server.log"
    with log.open("ab") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=out, cwd=folder, **_as_user(user))

    def answers() -> bool:
        if process.poll() is not None:
            raise AssertionError(f"{argv[0]} ended: {log.read_text(errors='replace')[-2000:]}")
        try:
            socket.create_connection((host, port), timeout=1).close()
        except OSError:
            return False
        return True

    try:
        until(answers, argv[0], every=0.05)
        yield port
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _as_user(user: str) -> dict[str, object]:
    if not user:
        return {}
    found = pwd.getpwnam(user)
    return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}


def _owned(folder: Path, user: str) -> Path:
    folder.mkdir()
    shutil.chown(folder, user, pwd.getpwnam(user).pw_gid)
    return folder


# ── Servers, by the protocol that they speak ──


@contextmanager
def postfix(folder: Path, pair: Pair) -> Iterator[int]:
    found, port = program("postfix", "postfix"), free_port()
    config = folder / "postfix"
    config.mkdir()
    data = _owned(folder / "data", "postfix")
    (folder / "queue").mkdir()
    (config / "main.cf").write_text(
        f"""compatibility_level = 3.6
queue_directory = {folder}/queue
data_directory = {data}
command_directory = /usr/sbin
daemon_directory = /usr/lib/postfix/sbin
mail_owner = postfix
setgid_group = postdrop
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
mydestination =
myhostname = {NAME}
smtpd_tls_chain_files = {pair.combined}
smtpd_tls_security_level = may
smtpd_relay_restrictions = reject
maillog_file = {folder}/postfix.log
maillog_file_prefixes = {folder}
"""
    )
    (config / "master.cf").write_text(
        f"""127.0.0.1:{port} inet n - n - - smtpd
postlog unix-dgram n - n - 1 postlogd
rewrite unix - - n - - trivial-rewrite
proxymap unix - - n - - proxymap
anvil unix - - n - 1 anvil
tlsmgr unix - - n 1000? 1 tlsmgr
"""
    )
    with running([found, "-c", str(config), "start-fg"], port, folder):
        yield port


@contextmanager
def dovecot(folder: Path, pair: Pair, protocol: str) -> Iterator[int]:
    package = {"imap": "dovecot-imapd", "pop3": "dovecot-pop3d"}[protocol]
    found, port = program("dovecot", package), free_port()
    program(f"/usr/lib/dovecot/{protocol}-login", package)
    config = folder / "dovecot.conf"
    config.write_text(
        f"""protocols = {protocol}
base_dir = {folder}/run
log_path = {folder}/dovecot.log
ssl = yes
ssl_cert = <{pair.fullchain}
ssl_key = <{pair.key}
listen = 127.0.0.1
passdb {{
  driver = static
  args = nopassword=y
}}
userdb {{
  driver = static
  args = uid=nobody gid=nogroup home={folder}
}}
service {protocol}-login {{
  inet_listener {protocol} {{
    port = {port}
  }}
  inet_listener {protocol}s {{
    port = 0
  }}
}}
"""
    )
    with running([found, "-F", "-c", str(config)], port, folder):
        yield port


@contextmanager
def slapd(folder: Path, pair: Pair) -> Iterator[int]:
    found, port = program("slapd", "slapd"), free_port()
    _owned(folder / "db", "openldap")
    (folder / "slapd.conf").write_text(
        f"""include /etc/ldap/schema/core.schema
modulepath /usr/lib/ldap
moduleload back_mdb
TLSCertificateFile {pair.fullchain}
TLSCertificateKeyFile {pair.key}
TLSVerifyClient never
database mdb
suffix dc=example,dc=org
directory {folder}/db
maxsize 10485760
"""
    )
    argv = [found, "-d", "0", "-u", "openldap", "-g", "openldap", "-f", str(folder / "slapd.conf")]
    with running([*argv, "-h", f"ldap://{HOST}:{port}"], port, folder):
        yield port


@contextmanager
def postgres(folder: Path, pair: Pair) -> Iterator[int]:
    found, port = program("postgres", "postgresql-15"), free_port()
    initdb = program("initdb", "postgresql-15")
    data = _owned(folder / "cluster", "postgres")
    made = [initdb, "-D", str(data), "--no-sync", "-A", "trust"]
    subprocess.run(made, check=True, capture_output=True, cwd=folder, **_as_user("postgres"))  # type: ignore[call-overload]
    key = data / "server.key"
    shutil.copy(pair.key, key)
    shutil.chown(key, "postgres")
    key.chmod(0o600)
    settings = {
        "port": port, "listen_addresses": HOST, "unix_socket_directories": "", "ssl": "on",
        "ssl_cert_file": pair.fullchain, "ssl_key_file": key,
    }  # fmt: skip
    argv = [found, "-D", str(data), *(word for name, value in settings.items() for word in ("-c", f"{name}={value}"))]
    with running(argv, port, folder, user="postgres"):
        yield port


@contextmanager
def mariadb(folder: Path, pair: Pair) -> Iterator[int]:
    found, port = program("mariadbd", "mariadb-server"), free_port()
    installer = program("mariadb-install-db", "mariadb-server")
    data = _owned(folder / "mariadb", "mysql")
    plain = ["--no-defaults", f"--datadir={data}", "--user=mysql"]
    subprocess.run([installer, *plain, "--skip-test-db"], check=True, capture_output=True, cwd=folder)
    argv = [found, *plain, f"--port={port}", f"--bind-address={HOST}", f"--socket={data}/s", f"--pid-file={data}/p"]
    argv += [f"--ssl-cert={pair.fullchain}", f"--ssl-key={pair.key}", "--innodb-buffer-pool-size=8M"]
    with running(argv, port, folder):
        yield port


@contextmanager
def vsftpd(folder: Path, pair: Pair) -> Iterator[int]:
    found, port = program("vsftpd", "vsftpd"), free_port()
    (folder / "empty").mkdir()
    config = folder / "vsftpd.conf"
    config.write_text(
        f"""listen=YES
background=NO
listen_address={HOST}
listen_port={port}
anonymous_enable=YES
ssl_enable=YES
ssl_tlsv1=YES
rsa_cert_file={pair.fullchain}
rsa_private_key_file={pair.key}
secure_chroot_dir={folder}/empty
seccomp_sandbox=NO
"""
    )
    with running([found, str(config)], port, folder):
        yield port


@contextmanager
def prosody(folder: Path, pair: Pair) -> Iterator[int]:
    found, port = program("prosody", "prosody"), free_port()
    data = _owned(folder / "prosody", "prosody")
    config = folder / "prosody.cfg.lua"
    config.write_text(
        f"""modules_enabled = {{ "tls"; "saslauth" }}
modules_disabled = {{ "s2s" }}
data_path = "{data}"
pidfile = "{data}/pid"
run_as_root = false
interfaces = {{ "{HOST}" }}
c2s_ports = {{ {port} }}
legacy_ssl_ports = {{ }}
c2s_direct_tls_ports = {{ }}
log = {{ error = "{data}/log" }}
ssl = {{ certificate = "{pair.fullchain}"; key = "{pair.key}" }}
VirtualHost "{NAME}"
"""
    )
    with running([found, "-F", "--config", str(config)], port, folder, user="prosody"):
        yield port


@contextmanager
def nginx(folder: Path, *pairs: Pair, listen: tuple[str, ...] = (HOST,), port: int = 0) -> Iterator[int]:
    """With one certificate, or with one for each kind of key."""
    found, port = program("nginx", "nginx-light"), port or free_port()
    shown = "".join(f"ssl_certificate {each.fullchain}; ssl_certificate_key {each.key};\n" for each in pairs)
    listens = "".join(f"listen {each}:{port} ssl;\n" for each in listen)
    config = folder / "nginx.conf"
    config.write_text(
        f"""daemon off;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log;
events {{ worker_connections 64; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{ {listens} server_name {NAME}; {shown} return 204; }}
}}
"""
    )
    with running([found, "-c", str(config), "-e", str(folder / "nginx.log")], port, folder, host=listen[0]):
        yield port


@contextmanager
def _imap(folder: Path, pair: Pair) -> Iterator[int]:
    with dovecot(folder, pair, "imap") as port:
        yield port


@contextmanager
def _pop3(folder: Path, pair: Pair) -> Iterator[int]:
    with dovecot(folder, pair, "pop3") as port:
        yield port


STARTTLS: Final = {
    "smtp": postfix,
    "imap": _imap,
    "pop3": _pop3,
    "ldap": slapd,
    "postgres": postgres,
    "mysql": mariadb,
    "ftp": vsftpd,
    "xmpp": prosody,
}


# ── openssl, the other opinion ──


def shown_to_openssl(port: int, protocol: str, *more: str, host: str = HOST) -> tuple[str, ...]:
    """SHA-256 of the certificates that `openssl s_client` is shown; none if its handshake fails."""
    upgrade = () if protocol == "tls" else ("-starttls", protocol)
    argv = ["openssl", "s_client", "-connect", f"{host}:{port}", "-servername", NAME, "-showcerts", *upgrade, *more]
    if protocol == "xmpp":
        argv += ["-xmpphost", NAME]
    done = subprocess.run(argv, input=b"", capture_output=True, timeout=PATIENCE, check=False)
    found = x509.load_pem_x509_certificates(done.stdout) if b"-----BEGIN CERT" in done.stdout else []
    return tuple(each.fingerprint(hashes.SHA256()).hex() for each in found)


def openssl_trusts(port: int, roots: Path, *, host: str = HOST, name: str = NAME) -> bool:
    """Whether `openssl s_client` accepts the chain and the name, with these roots."""
    argv = ["openssl", "s_client", "-connect", f"{host}:{port}", "-servername", name, "-CAfile", str(roots)]
    argv += ["-verify_hostname", name, "-verify_return_error"]
    done = subprocess.run(argv, input=b"", capture_output=True, timeout=PATIENCE, check=False)
    return done.returncode == 0 and b"Verification: OK" in done.stdout
