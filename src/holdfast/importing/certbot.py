"""certbot's folder (/etc/letsencrypt): renewal/*.conf, what live/ points to, and the accounts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import urlsplit

from holdfast.importing import jwk, pair, reading
from holdfast.importing.found import Found, FoundAccount, FoundCertificate, Problem, Trouble
from holdfast.pki import keys
from holdfast.ports import Tree

_LINE: Final = re.compile(r"^\s*([A-Za-z0-9_.*-]+)\s*=\s*(.*?)\s*$")
_SECTION: Final = re.compile(r"^\s*\[+([^\[\]]+)\]+\s*$")
_AGAIN: Final = "Run 'certbot certificates' to see what certbot makes of it."
_HOOKS: Final = ("pre_hook", "post_hook", "renew_hook", "deploy_hook")
_PLUGIN: Final = {"standalone": "http-01 (standalone)", "webroot": "http-01 (webroot)", "nginx": "http-01 (nginx)"}


def read(tree: Tree, now: datetime) -> Found:
    """Everything that certbot renews; nothing is changed there."""
    if not reading.has_folder(tree, "renewal"):
        step = "Give certbot's configuration folder, usually /etc/letsencrypt."
        raise Trouble(tree.shown("renewal"), "There is no such folder.", step)
    certificates: list[FoundCertificate] = []
    problems: list[Problem] = []
    accounts: dict[tuple[str, str], FoundAccount | None] = {}
    for file in reading.names(tree, "renewal"):
        if file.endswith(".conf"):
            try:
                certificates.append(_lineage(tree, file.removesuffix(".conf"), accounts, now))
            except Trouble as trouble:
                problems.append(trouble.problem)
    return Found(certificates=tuple(certificates), problems=tuple(problems))


def _lineage(
    tree: Tree, name: str, accounts: dict[tuple[str, str], FoundAccount | None], now: datetime
) -> FoundCertificate:
    conf = f"renewal/{name}.conf"
    sections = parse(reading.text(tree, conf) or "")
    top, wishes = sections.get("", {}), sections.get("renewalparams", {})
    chain_path, key_path = _place(top, "fullchain", name), _place(top, "privkey", name)
    parts = pair.certificates(reading.required(tree, chain_path, _AGAIN), tree.shown(chain_path))
    key = pair.private_key(reading.required(tree, key_path, _AGAIN), tree.shown(key_path))
    server = wishes.get("server")
    if not server:
        raise Trouble(tree.shown(conf), "It does not say which CA the certificate came from ('server').", _AGAIN)
    account, notes = _account(tree, server, wishes.get("account", ""), accounts)
    paused, before = wishes.get("autorenew", "").lower() == "false", top.get("renew_before_expiry", "")
    notes += (*_hooks(wishes), *_paused(paused=paused), *_unread(before))
    return pair.found(
        parts,
        key,
        file=tree.shown(chain_path),
        key_file=tree.shown(key_path),
        name=name,
        now=now,
        directory=server,
        account=account,
        reuse_key=wishes.get("reuse_key", "").lower() == "true",
        preferred_chain=wishes.get("preferred_chain") or None,
        profile=wishes.get("required_profile") or wishes.get("preferred_profile") or None,
        paused=paused,
        renew_before=_span(before),
        proved_by=_proved_by(wishes),
        notes=notes,
    )


def _hooks(wishes: Mapping[str, str]) -> list[str]:
    """What ran around a renewal there runs no more; the commands themselves may hold secrets, and are not shown."""
    set_ones = [each for each in _HOOKS if wishes.get(each, "None") not in ("", "None")]
    told = [f"its {each} is not taken over: what it did after a renewal is for you to arrange" for each in set_ones]
    installer = wishes.get("installer", "None")
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


def _proved_by(wishes: Mapping[str, str]) -> str:
    plugin = wishes.get("authenticator", "")
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
        every = [each for each in reading.names(tree, folder) if re.fullmatch(r"[0-9a-f]{32}", each)]
        account = every[0] if len(every) == 1 else ""
    path = f"{folder}/{account}/private_key.json"
    written = reading.json_object(tree, path) if account else None
    if written is None:
        return None
    try:
        key = keys.to_pem(jwk.private_key(written))
    except ValueError as error:
        raise Trouble(tree.shown(path), f"The account's key cannot be used: {error}.", _AGAIN) from None
    registered = reading.json_object(tree, f"{folder}/{account}/regr.json") or {}
    url, body = registered.get("uri"), registered.get("body")
    contacts: Any = body.get("contact") if isinstance(body, dict) else None
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
