"""lego's folder (.lego): certificates/ with .json, .crt and .key of each, and accounts/ by the host of their CA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlsplit

from holdfast.importing import reading
from holdfast.importing.found import FoundAccount, FoundCertificate, FoundInFolder, ImportProblem, ImportTrouble
from holdfast.pki import keys
from holdfast.ports import Tree

_AGAIN: Final = "See what lego makes of it: lego list."


@dataclass(frozen=True, slots=True)
class _Known:
    """Where CAs are. lego writes down their hosts alone."""

    given: str | None
    by_host: Mapping[str, str]

    def directory(self, host: str) -> str | None:
        if self.given is not None and (not host or host == _host(self.given)):
            return self.given
        return self.by_host.get(host)


def read(tree: Tree, now: datetime, *, directory: str | None, known: Sequence[str]) -> FoundInFolder:
    """`directory` is that of a CA which is not among those that are `known`."""
    if not reading.has_folder(tree, "certificates"):
        step = "Give lego's folder, the one of its --path, usually .lego."
        raise ImportTrouble(tree.shown("certificates"), "There is no such folder.", step)
    places = _Known(directory, {_host(each): each for each in known})
    certificates: list[FoundCertificate] = []
    problems: list[ImportProblem] = []
    accounts = _accounts(tree, places, problems)
    for file in reading.file_names(tree, "certificates"):
        if file.endswith(".json") and not file.endswith(".issuer.json"):
            try:
                certificates.append(_certificate(tree, file.removesuffix(".json"), accounts, places, now))
            except ImportTrouble as trouble:
                problems.append(trouble.problem)
    return FoundInFolder(certificates=tuple(certificates), problems=tuple(problems))


def _certificate(
    tree: Tree, stem: str, accounts: Sequence[FoundAccount], places: _Known, now: datetime
) -> FoundCertificate:
    about = reading.json_object(tree, f"certificates/{stem}.json") or {}
    chain_path, key_path = f"certificates/{stem}.crt", f"certificates/{stem}.key"
    content = reading.required(tree, chain_path, _AGAIN)
    key = reading.private_key(
        reading.required(
            tree, key_path, "It was made for a CSR: the key is where the CSR came from. Import both as pem."
        ),
        tree.shown(key_path),
    )
    parts = reading.certificates(content, tree.shown(chain_path))
    if len(parts) == 1:  # --no-bundle
        above = reading.content(tree, f"certificates/{stem}.issuer.crt")
        parts += reading.certificates(above, tree.shown(f"certificates/{stem}.issuer.crt")) if above else ()
    host = _host(_text(about.get("certUrl")) or _text(about.get("certStableUrl")))
    mine = [each for each in accounts if not host or _host(each.url or each.directory) == host]
    host = host or (_host(mine[0].url or "") if len(mine) == 1 else "")
    found_directory = places.directory(host)
    if found_directory is None:
        step = "Say where its CA is: --directory https://…"
        raise ImportTrouble(
            tree.shown(f"certificates/{stem}.json"),
            f"It is not known where the CA {host or 'of this certificate'} has its directory.",
            step,
        )
    notes = () if mine else ("its account was not found: a new one is made when it is renewed",)
    if len(mine) > 1:
        notes = (f"lego does not say which of {len(mine)} accounts it belongs to: the first is taken",)
    return reading.found(
        parts,
        key,
        file=tree.shown(chain_path),
        key_file=tree.shown(key_path),
        name=_text(about.get("domain")) or None,
        now=now,
        directory=found_directory,
        account=replace(mine[0], directory=found_directory) if mine else None,
        notes=notes,
    )


def _accounts(tree: Tree, places: _Known, problems: list[ImportProblem]) -> list[FoundAccount]:
    found = []
    for path in reading.walk(tree, "accounts") if reading.has_folder(tree, "accounts") else ():
        if path.endswith("/account.json"):
            try:
                found += _account(tree, path, places)
            except ImportTrouble as trouble:
                problems.append(trouble.problem)
    return found


def _account(tree: Tree, path: str, places: _Known) -> list[FoundAccount]:
    about = reading.json_object(tree, path) or {}
    registration: Any = about.get("registration") or {}
    url = _text(registration.get("uri")) if isinstance(registration, dict) else ""
    folder = path.removesuffix("account.json")
    file = next((each for each in _key_files(tree, folder, _text(about.get("email")))), None)
    if file is None:
        raise ImportTrouble(tree.shown(path), "The key of this account is not there.", "Restore keys/ from a backup.")
    key = reading.private_key(reading.required(tree, file, _AGAIN), tree.shown(file))
    mail = _text(about.get("email"))
    return [
        FoundAccount(
            file=tree.shown(file),
            directory=places.directory(_host(url)) or "",
            url=url or None,
            key=keys.to_pem(key),
            contacts=(f"mailto:{mail}",) if "@" in mail else (),
        )
    ]


def _key_files(tree: Tree, folder: str, mail: str) -> list[str]:
    """In keys/, named after the mail address; elsewhere in newer versions."""
    places = [f"{folder}keys/{each}" for each in reading.file_names(tree, f"{folder}keys")]
    places += [f"{folder}{each}" for each in reading.file_names(tree, folder.rstrip("/"))]
    found = [each for each in places if each.endswith(".key")]
    return sorted(found, key=lambda each: not each.endswith(f"/{mail}.key"))


def _host(url: str) -> str:
    """With its port: two CAs may be on one machine."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2].lower()
    except ValueError:
        return ""


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
