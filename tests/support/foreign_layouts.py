"""Folders as certbot, acme.sh and lego leave them, written file by file in their formats, with certificates in them."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)
NOW = datetime.now(UTC).replace(microsecond=0)
DIRECTORY = "https://acme-v02.api.letsencrypt.org/directory"
HOST = "acme-v02.api.letsencrypt.org"
ACCOUNT_URL = f"https://{HOST}/acme/acct/123456"
ACCOUNT_ID = "581a190440e629d0d1edae32346524ff"


@dataclass(frozen=True)
class Pair:
    """A certificate with its key and the one above it, in PEM."""

    key: str
    leaf: str
    issuer: str
    serial: str

    @property
    def chain(self) -> str:
        return self.leaf + self.issuer


@dataclass
class SmallCa:
    """Signs whatever it is asked to; it is not signed by itself, as the intermediates of real CAs."""

    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    def __post_init__(self) -> None:
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Small CA")])
        above = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Small Root")])
        self.root_key = ec.generate_private_key(ec.SECP256R1())
        builder = x509.CertificateBuilder(above, self.name, self.key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(NOW - 1000 * DAY).not_valid_after(NOW + 1000 * DAY)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.certificate = builder.sign(self.root_key, hashes.SHA256())

    def issue(self, *names: str, begins: timedelta = -30 * DAY, life: timedelta = 90 * DAY, key: Any = None) -> Pair:
        key = key or ec.generate_private_key(ec.SECP256R1())
        builder = x509.CertificateBuilder(self.name, x509.Name([]), key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(NOW + begins).not_valid_after(NOW + begins + life)
        if names:
            listed = x509.SubjectAlternativeName([x509.DNSName(each) for each in names])
            builder = builder.add_extension(listed, critical=False)
        leaf = builder.sign(self.key, hashes.SHA256())
        return Pair(
            key=key_pem(key),
            leaf=leaf.public_bytes(Encoding.PEM).decode(),
            issuer=self.certificate.public_bytes(Encoding.PEM).decode(),
            serial=f"{leaf.serial_number:x}",
        )


def key_pem(key: Any, passphrase: bytes | None = None, form: PrivateFormat = PrivateFormat.PKCS8) -> str:
    hidden = BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
    return str(key.private_bytes(Encoding.PEM, form, hidden).decode())


def private_jwk(key: Any) -> dict[str, str]:
    """As certbot writes account keys."""

    def b64(number: int) -> str:
        return base64.urlsafe_b64encode(number.to_bytes((number.bit_length() + 7) // 8, "big")).rstrip(b"=").decode()

    numbers = key.private_numbers()
    if isinstance(key, rsa.RSAPrivateKey):
        return {
            "n": b64(numbers.public_numbers.n), "e": b64(numbers.public_numbers.e), "d": b64(numbers.d),
            "p": b64(numbers.p), "q": b64(numbers.q), "dp": b64(numbers.dmp1), "dq": b64(numbers.dmq1),
            "qi": b64(numbers.iqmp), "kty": "RSA",
        }  # fmt: skip
    public = numbers.public_numbers
    return {"x": b64(public.x), "y": b64(public.y), "d": b64(numbers.private_value), "crv": "P-256", "kty": "EC"}


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    return path


# ── certbot ──


def certbot(folder: Path, name: str, pair: Pair, *, account_key: Any = None, **wishes: str) -> None:
    """One lineage; live/ points into archive/, and paths are written out as if the folder were /etc/letsencrypt."""
    archive, live = folder / "archive" / name, folder / "live" / name
    live.mkdir(parents=True)
    for part, text in {"cert": pair.leaf, "chain": pair.issuer, "fullchain": pair.chain, "privkey": pair.key}.items():
        put(archive / f"{part}1.pem", text)
        (live / f"{part}.pem").symlink_to(f"../../archive/{name}/{part}1.pem")
    put(live / "README", "This directory contains your keys and certificates.\n")
    home = "/etc/letsencrypt"
    top = {"version": "5.8.0", "archive_dir": f"{home}/archive/{name}"}
    top |= {part: f"{home}/live/{name}/{part}.pem" for part in ("cert", "privkey", "chain", "fullchain")}
    params = {"account": ACCOUNT_ID, "key_type": "ecdsa", "server": DIRECTORY, "authenticator": "webroot"}
    params |= {"webroot_path": "/var/www/html,", **wishes}
    lines = ["# renew_before_expiry = 30 days", *(f"{key} = {value}" for key, value in top.items()), ""]
    lines += ["# Options used in the renewal process", "[renewalparams]", *(f"{k} = {v}" for k, v in params.items())]
    lines += ["[[webroot_map]]", f"{name} = /var/www/html", "server = not this one"]
    put(folder / "renewal" / f"{name}.conf", "\n".join(lines) + "\n")
    account = folder / "accounts" / HOST / "directory" / ACCOUNT_ID
    if account_key is not None:
        put(account / "private_key.json", json.dumps(private_jwk(account_key)))
        put(account / "regr.json", json.dumps({"body": {}, "uri": ACCOUNT_URL}))
        put(account / "meta.json", json.dumps({"creation_dt": "2026-11-16T03:35:14Z", "creation_host": "vm"}))


# ── acme.sh ──


def acme_sh(folder: Path, name: str, pair: Pair, *, ecc: bool = True, account_key: Any = None, **wishes: str) -> None:
    home = folder / (f"{name}_ecc" if ecc else name)
    put(home / f"{name}.cer", pair.leaf)
    put(home / "ca.cer", pair.issuer)
    put(home / "fullchain.cer", pair.chain)
    put(home / f"{name}.key", pair.key)
    put(home / f"{name}.csr.conf", "[ req_distinguished_name ]\n")
    conf = {
        "Le_Domain": name, "Le_Alt": "no", "Le_Webroot": "dns_cf", "Le_PreHook": "", "Le_API": DIRECTORY,
        "Le_Keylength": "ec-256", "Le_LinkCert": f"https://{HOST}/acme/cert/1", "Le_NextRenewTime": "1799897727",
        **wishes,
    }  # fmt: skip
    put(home / f"{name}.conf", "".join(f"{key}='{value}'\n" for key, value in conf.items()))
    put(folder / "account.conf", "ACCOUNT_EMAIL='ops@example.com'\nUSER_PATH='/usr/bin:/bin'\n")
    put(folder / "dnsapi" / "dns_cf.sh", "#!/usr/bin/env sh\n")
    if account_key is not None:
        place = folder / "ca" / HOST / "directory"
        put(place / "account.key", key_pem(account_key, form=PrivateFormat.TraditionalOpenSSL))
        put(place / "ca.conf", f"CA_EMAIL='ops@example.com'\nACCOUNT_URL='{ACCOUNT_URL}'\nCA_KEY_HASH='jDSp5VjA='\n")
        put(place / "account.json", '{"status":"valid"}')


# ── lego ──


def lego(folder: Path, name: str, pair: Pair, *, bundle: bool = True, account_key: Any = None) -> None:
    stem = name.replace("*", "_")
    home = folder / "certificates"
    url = f"https://{HOST}/acme/cert/1152088eda4eb7c5"
    put(home / f"{stem}.json", json.dumps({"domain": name, "certUrl": url, "certStableUrl": url}, indent="\t"))
    put(home / f"{stem}.crt", pair.chain if bundle else pair.leaf)
    put(home / f"{stem}.issuer.crt", pair.issuer)
    put(home / f"{stem}.key", pair.key)
    if account_key is not None:
        place = folder / "accounts" / HOST / "ops@example.com"
        body = {"status": "valid", "contact": ["mailto:ops@example.com"]}
        account = {"email": "ops@example.com", "registration": {"body": body, "uri": ACCOUNT_URL}}
        put(place / "account.json", json.dumps(account, indent="\t"))
        put(place / "keys" / "ops@example.com.key", key_pem(account_key, form=PrivateFormat.TraditionalOpenSSL))
