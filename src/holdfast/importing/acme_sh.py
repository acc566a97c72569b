"""acme.sh's folder (~/.acme.sh): a folder for each certificate with its .conf, and ca/ with the accounts."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import urlsplit

from holdfast.importing import reading
from holdfast.importing.found import FoundAccount, FoundCertificate, FoundInFolder, ImportProblem, ImportTrouble
from holdfast.pki import keys
from holdfast.ports import Tree

_LINE: Final = re.compile(r"^\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)$")
_CODED: Final = re.compile(r"__ACME_BASE64__START_(.*)__ACME_BASE64__END_")
_NOT_CERTIFICATES: Final = frozenset({"ca", "deploy", "dnsapi", "notify", "backup"})
_AGAIN: Final = "See what acme.sh makes of it: acme.sh --list, or issue it again there."
# What acme.sh calls CAs by their short names; newer versions write the address.
_SHORT: Final[Mapping[str, str]] = {
    "letsencrypt": "https://acme-v02.api.letsencrypt.org/directory",
    "letsencrypt_test": "https://acme-staging-v02.api.letsencrypt.org/directory",
    "zerossl": "https://acme.zerossl.com/v2/DV90",
    "google": "https://dv.acme-v02.api.pki.goog/directory",
}


def read(tree: Tree, now: datetime) -> FoundInFolder:
    if not reading.has_folder(tree, "ca") and reading.content(tree, "account.conf") is None:
        step = "Give acme.sh's home, usually ~/.acme.sh of the user who runs it."
        raise ImportTrouble(tree.shown(""), "There is neither account.conf nor ca/ in this folder.", step)
    certificates: list[FoundCertificate] = []
    problems: list[ImportProblem] = []
    for folder in reading.file_names(tree, ""):
        domain = folder.removesuffix("_ecc")
        if folder in _NOT_CERTIFICATES or folder.startswith("."):
            continue
        try:
            conf = reading.text(tree, f"{folder}/{domain}.conf")
            if conf is not None:
                certificates.append(_certificate(tree, folder, domain, parse(conf), now))
        except ImportTrouble as trouble:
            problems.append(trouble.problem)
    elsewhere = parse(reading.text(tree, "account.conf") or "").get("CERT_HOME")
    notes = (f"acme.sh may keep more certificates in {elsewhere} (CERT_HOME): import that, too.",) if elsewhere else ()
    return FoundInFolder(certificates=_with_own_names(certificates), problems=tuple(problems), notes=notes)


def _with_own_names(found: list[FoundCertificate]) -> tuple[FoundCertificate, ...]:
    """acme.sh may keep an RSA and an EC certificate for one name; here each has a name of its own."""
    names = [each.name for each in found]
    return tuple(
        replace(each, name=f"{each.name}-{each.key_kind}") if names.count(each.name) > 1 else each for each in found
    )


def _certificate(tree: Tree, folder: str, domain: str, conf: Mapping[str, str], now: datetime) -> FoundCertificate:
    chain_path, key_path = f"{folder}/fullchain.cer", f"{folder}/{domain}.key"
    content = reading.content(tree, chain_path)
    if not content:
        chain_path = f"{folder}/{domain}.cer"
        content = reading.required(tree, chain_path, _AGAIN) + (reading.content(tree, f"{folder}/ca.cer") or b"")
    parts = reading.certificates(content, tree.shown(chain_path))
    key = reading.private_key(reading.required(tree, key_path, _AGAIN), tree.shown(key_path))
    directory = _SHORT.get(conf.get("Le_API", ""), conf.get("Le_API", ""))
    if not directory:
        problem = "It does not say which CA the certificate came from (Le_API)."
        raise ImportTrouble(tree.shown(f"{folder}/{domain}.conf"), problem, _AGAIN)
    account, life = _account(tree, directory), parts[0].not_valid_after_utc - parts[0].not_valid_before_utc
    return reading.found(
        parts,
        key,
        file=tree.shown(chain_path),
        key_file=tree.shown(key_path),
        name=domain,
        now=now,
        directory=directory,
        account=account,
        preferred_chain=conf.get("Le_Preferred_Chain") or None,
        profile=conf.get("Le_Certificate_Profile") or None,
        reuse_key=conf.get("Le_ForceNewDomainKey") != "1",  # without that setting, acme.sh keeps the key
        renew_before=_before(conf, life),
        proved_by=_proved_by(conf.get("Le_Webroot", "")),
        notes=(*_without(account), *_unread(conf, life), *_left(conf)),
    )


def _before(conf: Mapping[str, str], life: timedelta) -> timedelta | None:
    """acme.sh counts the days from when it was issued (--days); here they are counted to its end."""
    days = conf.get("Le_RenewalDays", "")
    left = life - timedelta(days=int(days)) if re.fullmatch(r"[0-9]{1,4}", days) else timedelta(0)
    return left if timedelta(0) < left < life else None


def _unread(conf: Mapping[str, str], life: timedelta) -> tuple[str, ...]:
    days = conf.get("Le_RenewalDays", "")
    if not days or _before(conf, life) is not None:
        return ()
    why = f"its Le_RenewalDays, {days[:40]!r}, is no day within its life of {life.days} days"
    return (f"{why}: set it here with holdfast change NAME --renew-before SPAN",)


def _without(account: FoundAccount | None) -> tuple[str, ...]:
    return () if account else ("its account was not found: a new one is made when it is renewed",)


_COMMANDS: Final = ("Le_PreHook", "Le_PostHook", "Le_RenewHook", "Le_ReloadCmd", "Le_DeployHook")
_PLACES: Final = ("Le_RealKeyPath", "Le_RealFullChainPath", "Le_RealCertPath", "Le_RealCACertPath")


def _left(conf: Mapping[str, str]) -> list[str]:
    """What acme.sh did with new files, and nothing here does yet; commands may hold secrets, and are not shown."""
    told = [f"its {each} is not taken over: what it did is for you to arrange" for each in _COMMANDS if conf.get(each)]
    places = {each: conf[each] for each in _PLACES if conf.get(each)}
    return told + [f"{each}: nothing writes new files to {place[:200]} yet" for each, place in places.items()]


def _proved_by(webroot: str) -> str:
    ways = {"no": "http-01 (standalone)", "": "", "alpn": "tls-alpn-01", "nginx": "http-01 (nginx)"}
    first = webroot.split(",")[0]
    return ways.get(first, f"dns-01 ({first})" if first.startswith("dns") else "http-01 (webroot)")


def _account(tree: Tree, directory: str) -> FoundAccount | None:
    parts = urlsplit(directory)
    host, path = parts.hostname or "", parts.path.strip("/")
    if ".." in path.split("/"):
        return None
    # Since version 3 there is a folder for each directory of a host; before, one for the host.
    for folder in (f"ca/{host}/{path}", f"ca/{host}"):
        file = f"{folder}/account.key"
        content = reading.content(tree, file)
        if content:
            conf = parse(reading.text(tree, f"{folder}/ca.conf") or "")
            mail = conf.get("CA_EMAIL")
            return FoundAccount(
                file=tree.shown(file),
                directory=directory,
                url=conf.get("ACCOUNT_URL") or None,
                key=keys.to_pem(reading.private_key(content, tree.shown(file))),
                contacts=(f"mailto:{mail}",) if mail else (),
            )
    return None


def parse(text: str) -> dict[str, str]:
    """Lines of NAME='value', as its shell writes them; nothing is run."""
    found = {}
    for line in text.splitlines():
        if match := _LINE.match(line):
            found[match[1]] = _decoded(_unquoted(match[2].strip()))
    return found


def _unquoted(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1].replace("'\\''", "'")
    return value


def _decoded(value: str) -> str:
    match = _CODED.fullmatch(value)
    if match is None:
        return value
    try:
        return base64.b64decode(match[1], validate=True).decode()
    except (binascii.Error, ValueError):
        return ""
