"""certbot's folder (/etc/letsencrypt): renewal/*.conf, the files that live/ points to, and the accounts."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric import ec, rsa

from holdfast.importing import reading
from holdfast.importing.found import FoundAccount, FoundCertificate, FoundInFolder, ImportProblem, ImportTrouble
from holdfast.pki import keys
from holdfast.pki.keys import PrivateKey
from holdfast.ports import Tree

# ── Account keys ──
# Private keys written as JSON Web Keys (RFC 7517, 7518 §6), as certbot keeps those of its accounts.


_CURVES: Final[Mapping[str, ec.EllipticCurve]] = {"P-256": ec.SECP256R1(), "P-384": ec.SECP384R1()}
_MOST_OCTETS: Final = 1024  # of one number: an RSA key of 8192 bits


def account_key(jwk: Mapping[str, object]) -> PrivateKey:
    """ValueError, which never quotes the key, if it is not one or its parts do not fit together."""
    match jwk.get("kty"):
        case "RSA":
            return _rsa(jwk)
        case "EC":
            return _ec(jwk)
    raise ValueError("it is not an RSA or EC key")


def _rsa(jwk: Mapping[str, object]) -> PrivateKey:
    n, e, d = (_number(jwk, name) for name in ("n", "e", "d"))
    if "p" in jwk and "q" in jwk:
        p, q = _number(jwk, "p"), _number(jwk, "q")
    else:
        p, q = rsa.rsa_recover_prime_factors(n, e, d)
    if p < 3 or q < 3:
        raise ValueError("its primes cannot be right")
    numbers = rsa.RSAPrivateNumbers(
        p=p,
        q=q,
        d=d,
        dmp1=rsa.rsa_crt_dmp1(d, p),
        dmq1=rsa.rsa_crt_dmq1(d, q),
        iqmp=rsa.rsa_crt_iqmp(p, q),
        public_numbers=rsa.RSAPublicNumbers(e=e, n=n),
    )
    return numbers.private_key()


def _ec(jwk: Mapping[str, object]) -> PrivateKey:
    curve = _CURVES.get(str(jwk.get("crv")))
    if curve is None:
        raise ValueError("its curve is not P-256 or P-384")
    public = ec.EllipticCurvePublicNumbers(_number(jwk, "x"), _number(jwk, "y"), curve)
    return ec.EllipticCurvePrivateNumbers(_number(jwk, "d"), public).private_key()


def _number(jwk: Mapping[str, object], name: str) -> int:
    written = jwk.get(name)
    if not isinstance(written, str) or not 0 < len(written) <= _MOST_OCTETS * 4 // 3 + 4:
        raise ValueError(f"its member {name!r} is missing or too long")
    try:
        octets = base64.b64decode(
            written.rstrip("=") + "=" * (-len(written.rstrip("=")) % 4), altchars=b"-_", validate=True
        )
    except (binascii.Error, ValueError):
        raise ValueError(f"its member {name!r} is not base64url") from None
    return int.from_bytes(octets, "big")


# ── Certificates and accounts ──


_LINE: Final = re.compile(r"^\s*([A-Za-z0-9_.*-]+)\s*=\s*(.*?)\s*$")
_SECTION: Final = re.compile(r"^\s*\[+([^\[\]]+)\]+\s*$")
_AGAIN: Final = "Run 'certbot certificates' to see what certbot makes of it."
_HOOKS: Final = ("pre_hook", "post_hook", "renew_hook", "deploy_hook")
_PLUGIN: Final = {"standalone": "http-01 (standalone)", "webroot": "http-01 (webroot)", "nginx": "http-01 (nginx)"}


def read(tree: Tree, now: datetime) -> FoundInFolder:
    """Everything that certbot renews; nothing is changed there."""
    if not reading.has_folder(tree, "renewal"):
        step = "Give certbot's configuration folder, usually /etc/letsencrypt."
        raise ImportTrouble(tree.shown("renewal"), "There is no such folder.", step)
    certificates: list[FoundCertificate] = []
    problems: list[ImportProblem] = []
    accounts: dict[tuple[str, str], FoundAccount | None] = {}
    for file in reading.file_names(tree, "renewal"):
        if file.endswith(".conf"):
            try:
                certificates.append(_lineage(tree, file.removesuffix(".conf"), accounts, now))
            except ImportTrouble as trouble:
                problems.append(trouble.problem)
    return FoundInFolder(certificates=tuple(certificates), problems=tuple(problems))


def _lineage(
    tree: Tree, name: str, accounts: dict[tuple[str, str], FoundAccount | None], now: datetime
) -> FoundCertificate:
    conf = f"renewal/{name}.conf"
    sections = parse(reading.text(tree, conf) or "")
    top, params = sections.get("", {}), sections.get("renewalparams", {})
    chain_path, key_path = _place(top, "fullchain", name), _place(top, "privkey", name)
    parts = reading.certificates(reading.required(tree, chain_path, _AGAIN), tree.shown(chain_path))
    key = reading.private_key(reading.required(tree, key_path, _AGAIN), tree.shown(key_path))
    server = params.get("server")
    if not server:
        raise ImportTrouble(tree.shown(conf), "It does not say which CA the certificate came from ('server').", _AGAIN)
    account, notes = _account(tree, server, params.get("account", ""), accounts)
    paused, before = params.get("autorenew", "").lower() == "false", top.get("renew_before_expiry", "")
    notes += (*_hooks(params), *_paused(paused=paused), *_unread(before))
    return reading.found(
        parts,
        key,
        file=tree.shown(chain_path),
        key_file=tree.shown(key_path),
        name=name,
        now=now,
        directory=server,
        account=account,
        reuse_key=params.get("reuse_key", "").lower() == "true",
        preferred_chain=params.get("preferred_chain") or None,
        profile=params.get("required_profile") or params.get("preferred_profile") or None,
        paused=paused,
        renew_before=_span(before),
        proved_by=_proved_by(params),
        notes=notes,
    )


def _hooks(params: Mapping[str, str]) -> list[str]:
    """What ran around a renewal there runs no more; the commands themselves may hold secrets, and are not shown."""
    set_ones = [each for each in _HOOKS if params.get(each, "None") not in ("", "None")]
    told = [f"its {each} is not taken over: what it did after a renewal is for you to arrange" for each in set_ones]
    installer = params.get("installer", "None")
    if installer not in ("", "None"):
        told.append(f"certbot's plugin {installer} installed it and reloaded the server: nothing here does that yet")
    return told


def _paused(*, paused: bool) -> list[str]:
    return ["autorenew is off there: it is adopted paused (holdfast resume NAME)"] if paused else []


def _span(text: str) -> timedelta | None:
    """Such as "30 days"; certbot understands more."""
    found = re.fullmatch(r"(\d{1,4})\s*(hour|day|week)s?", text.strip().lower())
    span = timedelta(0) if found is None else timedelta(**{f"{found[2]}s": int(found[1])})
    return span or None


def _unread(text: str) -> list[str]:
    if not text or _span(text) is not None:
        return []
    return [
        f"its renew_before_expiry, {text[:40]!r}, is not understood: "
        "set it here with holdfast change NAME --renew-before SPAN"
    ]


def _place(top: Mapping[str, str], what: str, name: str) -> str:
    """Paths are written out in full; by their last parts the folder may have been moved, or be a copy."""
    written = top.get(what, "").split("/")[-3:]
    usual = len(written) == 3 and written[0] == "live" and not {"", ".", ".."} & {*written}
    return "/".join(written) if usual else f"live/{name}/{what}.pem"


def _proved_by(params: Mapping[str, str]) -> str:
    plugin = params.get("authenticator", "")
    return _PLUGIN.get(plugin, f"dns-01 ({plugin})" if plugin.startswith("dns-") else plugin)


# ── Accounts ──


def _account(
    tree: Tree, server: str, account: str, known: dict[tuple[str, str], FoundAccount | None]
) -> tuple[FoundAccount | None, tuple[str, ...]]:
    if (server, account) not in known:
        known[server, account] = _read_account(tree, server, account)
    found = known[server, account]
    return found, () if found else ("its account was not found: a new one is made when it is renewed",)


def _read_account(tree: Tree, server: str, account: str) -> FoundAccount | None:
    parts = urlsplit(server)
    folder = f"accounts/{parts.netloc}{parts.path}".rstrip("/")
    if ".." in folder.split("/") or not re.fullmatch(r"[0-9A-Za-z_-]*", account):
        return None
    if not account:
        every = [each for each in reading.file_names(tree, folder) if re.fullmatch(r"[0-9a-f]{32}", each)]
        account = every[0] if len(every) == 1 else ""
    path = f"{folder}/{account}/private_key.json"
    written = reading.json_object(tree, path) if account else None
    if written is None:
        return None
    try:
        key = keys.to_pem(account_key(written))
    except ValueError as error:
        raise ImportTrouble(tree.shown(path), f"The account's key cannot be used: {error}.", _AGAIN) from None
    registered = reading.json_object(tree, f"{folder}/{account}/regr.json") or {}
    url, body = registered.get("uri"), registered.get("body")
    contacts: object = body.get("contact") if isinstance(body, dict) else None
    return FoundAccount(
        file=tree.shown(path),
        directory=server,
        url=url if isinstance(url, str) and url else None,
        key=key,
        contacts=tuple(map(str, contacts)) if isinstance(contacts, list) else (),
    )


# ── Its configuration files (ConfigObj) ──


def parse(text: str) -> dict[str, dict[str, str]]:
    """Sections by name, however deep; the one before the first is ""."""
    sections: dict[str, dict[str, str]] = {"": {}}
    current = sections[""]
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            continue
        if match := _SECTION.match(line):
            current = sections.setdefault(match[1].strip(), {})
        elif match := _LINE.match(line):
            current[match[1]] = _unquoted(match[2])
    return sections


def _unquoted(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value.split(" #")[0].rstrip().rstrip(",")
