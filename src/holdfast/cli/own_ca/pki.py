"""`holdfast pki`: make a private CA's root and intermediates, and read certificates, CRLs and requests."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from holdfast.core.key_kind import KeyKind
from holdfast.core.revocation_reason import RevocationReason
from holdfast.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.pki.ceremony import CeremonyPlan, Passphrases
    from holdfast.ports import Files, Random
    from holdfast.secret import Secret

app = typer.Typer(name="pki", help="Make a private CA, or read a certificate.")

Role = Literal["root", "intermediate"]
CrlUrlOption = Annotated[
    str | None,
    typer.Option("--crl-url", help="The address of the root's CRL (http://…), for the intermediate."),
]


class PassphraseMissing(UserError):
    """No passphrase was given. `new`: one could be made, if there were a terminal on which to show it."""

    code = "pki-passphrase-missing"

    def __init__(self, role: Role, *, new: bool = False) -> None:
        unseen = ", and no terminal to show a new one on" if new else ""
        super().__init__(f"There is no passphrase for the {role}'s key{unseen}.")
        self.hint = f"Set {variable(role)}, or give --{role}-passphrase-file."


@app.command()
def init(
    name: Annotated[str, typer.Option("--name", help="The name of the CA, as it will appear in certificates.")],
    key: Annotated[KeyKind, typer.Option("--key", help="The kind of both keys.")] = KeyKind.EC_P256,
    permit: Annotated[
        list[str] | None, typer.Option("--permit", help="A domain or network it is confined to; may be repeated.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="The folder for the files.")] = Path("pki"),
    root_years: Annotated[int, typer.Option("--root-years", help="The life of the root.")] = 20,
    intermediate_years: Annotated[int, typer.Option("--intermediate-years", help="The life of the intermediate.")] = 5,
    root_passphrase_file: Annotated[
        Path | None, typer.Option("--root-passphrase-file", help="Its first line encrypts the root's key.")
    ] = None,
    intermediate_passphrase_file: Annotated[
        Path | None, typer.Option("--intermediate-passphrase-file", help="Its first line encrypts the other key.")
    ] = None,
    crl_url: CrlUrlOption = None,
) -> None:
    """Make a root and an intermediate, their keys encrypted, and a transcript that says what to do with them.

    Passphrases come from HOLDFAST_PKI_ROOT_PASSPHRASE and HOLDFAST_PKI_INTERMEDIATE_PASSPHRASE, or from files;
    on a terminal, missing ones are made up and shown once. No existing file is ever overwritten.
    """
    import asyncio

    from holdfast.pki.ceremony import CeremonyPlan
    from holdfast.world import LocalFiles, SystemRandom

    plan = CeremonyPlan(
        name=name,
        key_kind=key,
        permit=tuple(permit or ()),
        root_years=root_years,
        intermediate_years=intermediate_years,
        crl_url=crl_url,
    )
    given: dict[Role, Path | None] = {"root": root_passphrase_file, "intermediate": intermediate_passphrase_file}
    print(asyncio.run(_init(plan, given, out, LocalFiles(), SystemRandom())))


async def _init(plan: CeremonyPlan, given: dict[Role, Path | None], out: Path, files: Files, random: Random) -> str:
    from holdfast import __version__
    from holdfast.pki import ceremony
    from holdfast.pki.ceremony import transcript
    from holdfast.world import SystemClock

    ceremony.check_free(files, out)
    made: dict[Role, Secret[str]] = {}
    chosen = _passphrases(given, files, random, made)
    now = SystemClock().now()
    result = await ceremony.perform(plan, chosen, now=now, random=random)
    text = transcript(plan, result, out, now=now, version=__version__)
    ceremony.save(files, out, result, text)
    for role, passphrase in made.items():  # after the files exist: before that, they would open nothing
        print(f"Passphrase of the {role}'s key, shown only now: {passphrase.reveal()}", file=sys.stderr)
    return text


def _passphrases(
    given: dict[Role, Path | None], files: Files, random: Random, made: dict[Role, Secret[str]]
) -> Passphrases:
    from holdfast.pki.ceremony import Passphrases, new_passphrase

    found = {role: _given(role, file, files) for role, file in given.items()}
    for role, passphrase in found.items():
        if passphrase is None:
            if not sys.stderr.isatty():
                raise PassphraseMissing(role, new=True)  # it would end in a log
            found[role] = made[role] = new_passphrase(random)
    return Passphrases(root=found["root"], intermediate=found["intermediate"])  # type: ignore[arg-type]


def _given(role: Role, file: Path | None, files: Files) -> Secret[str] | None:
    from holdfast.secret import Secret

    if file is None:
        text = os.environ.get(variable(role), "")
        return Secret(text) if text else None
    try:
        content = files.read(file)
        lines = content.decode().splitlines() if content else []
    except (OSError, UnicodeDecodeError):
        lines = []
    if not lines or not lines[0]:
        raise UserError(f"There is no passphrase in {file}, or it cannot be read.")
    return Secret(lines[0])


def variable(role: Role) -> str:
    return f"HOLDFAST_PKI_{role.upper()}_PASSPHRASE"


# ── With a root that was put away ──

RootOption = Annotated[Path, typer.Option("--root", help="PEM: the root's certificate.")]
RootKeyOption = Annotated[Path, typer.Option("--root-key", help="PEM: the root's encrypted key.")]
RootWordsOption = Annotated[
    Path | None, typer.Option("--root-passphrase-file", help="Its first line opens the root's key.")
]


@app.command()
def intermediate(
    root: RootOption,
    root_key: RootKeyOption,
    name: Annotated[str, typer.Option("--name", help="The name of the CA; without it, the root's.")] = "",
    key: Annotated[KeyKind, typer.Option("--key", help="The kind of its key.")] = KeyKind.EC_P256,
    permit: Annotated[
        list[str] | None, typer.Option("--permit", help="A domain or network it is confined to; may be repeated.")
    ] = None,
    years: Annotated[int, typer.Option("--years", help="Its lifetime; it expires with the root at the latest.")] = 5,
    out: Annotated[Path, typer.Option("--out", help="The folder for the files.")] = Path("pki-next"),
    root_passphrase_file: RootWordsOption = None,
    intermediate_passphrase_file: Annotated[
        Path | None, typer.Option("--intermediate-passphrase-file", help="Its first line encrypts the new key.")
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option("--like", help="PEM: the intermediate before; its name, constraints and CRL address are used."),
    ] = None,
    crl_url: CrlUrlOption = None,
) -> None:
    """Make the next intermediate under an offline root. Its name ends with a mark of its key."""
    import asyncio

    given: dict[Role, Path | None] = {"root": root_passphrase_file, "intermediate": intermediate_passphrase_file}
    permitted = tuple(permit or ())
    wishes = {"key_kind": key, "permit": permitted, "intermediate_years": years, "crl_url": crl_url}
    print(asyncio.run(_intermediate((root, root_key), name, wishes, given, out, like)))


async def _intermediate(
    place: tuple[Path, Path],
    name: str,
    wishes: dict[str, Any],
    given: dict[Role, Path | None],
    out: Path,
    like: Path | None,
) -> str:
    from holdfast.pki.ceremony import (
        FILES,
        CeremonyPlan,
        check_free,
        crl_url_of,
        new_passphrase,
        organization_of,
        succession,
    )
    from holdfast.pki.chain import parse_bundle
    from holdfast.pki.root import next_intermediate, open_root, save
    from holdfast.world import LocalFiles, SystemClock, SystemRandom

    files, random, now = LocalFiles(), SystemRandom(), SystemClock().now()
    check_free(files, out, FILES[2:])
    root_words, words = _needed("root", given, files), _given("intermediate", given["intermediate"], files)
    if words == root_words:
        raise UserError("Root and intermediate need different passphrases.")
    opened = await open_root(_content(place[0]), _content(place[1]), root_words)
    if words is None and not sys.stderr.isatty():
        raise PassphraseMissing("intermediate", new=True)  # a new one would end in a log
    older = None if like is None else parse_bundle(_content(like))[0]
    if older is not None:
        name, wishes["crl_url"] = name or organization_of(older), wishes["crl_url"] or crl_url_of(older)
    plan = CeremonyPlan(name=name or opened.organization, **wishes)
    words_used = words or (fresh := new_passphrase(random))
    made = await next_intermediate(opened, plan, words_used, now=now, random=random, like=older)
    text = succession(plan, opened.certificate, made.certificate, out, now=now)
    save(files, out, made, text)
    if words is None:
        print(f"Passphrase of the intermediate's key, shown only now: {fresh.reveal()}", file=sys.stderr)
    return text


@app.command()
def recertify(
    root: RootOption,
    root_key: RootKeyOption,
    intermediate: Annotated[Path, typer.Option("--intermediate", help="PEM: the intermediate as it is now.")],
    out: Annotated[Path, typer.Option("--out", help="The file for the chain: the intermediate, and the root.")],
    years: Annotated[
        int, typer.Option("--years", min=1, help="Its lifetime; it expires with the root at the latest.")
    ] = 5,
    root_passphrase_file: RootWordsOption = None,
    crl_url: CrlUrlOption = None,
) -> None:
    """Renew an intermediate: same name, same key, later expiry. Install it with 'holdfast ca renew'."""
    import asyncio

    from holdfast.pki.ceremony import write_new
    from holdfast.pki.chain import certificates_pem
    from holdfast.pki.root import certified_again, open_root
    from holdfast.world import LocalFiles, SystemClock, SystemRandom

    files, now, older = LocalFiles(), SystemClock().now(), _content(intermediate)
    words = _needed("root", {"root": root_passphrase_file}, files)
    opened = asyncio.run(open_root(_content(root), _content(root_key), words))
    made = certified_again(opened, older, years=years, now=now, random=SystemRandom(), crl_url=crl_url)
    write_new(files, out.parent, {out.name: certificates_pem([made, opened.certificate])})
    print(f"The intermediate, good until {made.not_valid_after_utc:%F}, and its root: {out}")


@app.command()
def crl(
    root: RootOption,
    root_key: RootKeyOption,
    out: Annotated[Path, typer.Option("--out", help="The file for the CRL, in DER.")],
    revoked: Annotated[
        list[str] | None, typer.Option("--revoked", help="The serial of a revoked intermediate; may be repeated.")
    ] = None,
    reason: Annotated[
        RevocationReason, typer.Option("--reason", help="Why those were revoked.")
    ] = RevocationReason.CESSATION_OF_OPERATION,
    previous: Annotated[
        Path | None, typer.Option("--previous", help="The last CRL: its entries are kept, and its number grows.")
    ] = None,
    days: Annotated[int, typer.Option("--days", help="How long the CRL is good for.")] = 180,
    number: Annotated[
        int | None, typer.Option("--number", help="Its number, which must grow; without it, the seconds since 1970.")
    ] = None,
    root_passphrase_file: RootWordsOption = None,
) -> None:
    """Sign the CRL of a root: its revoked intermediates. Give the last CRL with --previous."""
    import asyncio
    from datetime import timedelta

    from holdfast.pki.crl import next_number
    from holdfast.pki.root import Listed, entry, open_root, read_list, revocation_list
    from holdfast.world import LocalFiles, SystemClock

    files, now = LocalFiles(), SystemClock().now()
    words = _needed("root", {"root": root_passphrase_file}, files)
    opened = asyncio.run(open_root(_content(root), _content(root_key), words))
    before = Listed(int(now.timestamp()) - 1, ())
    if previous is not None:
        before = read_list(_content(previous), opened.certificate)
    last = next_number(before.number, now) if number is None else number
    if previous is not None and last <= before.number:
        raise UserError(f"The last list has number {before.number}: the next one needs a higher number.")
    fresh = [entry(serial, now, reason) for serial in map(_serial, revoked or ()) if serial not in before]
    entries = [*before.entries, *fresh]
    content = revocation_list(opened, entries, number=last, now=now, life=timedelta(days=days))
    files.write_private(out, content, replace=True)
    print(f"List {last} with {len(entries)} revoked intermediates, good for {days} days: {out}")


def _needed(role: Role, given: Mapping[Role, Path | None], files: Files) -> Secret[str]:
    words = _given(role, given[role], files)
    if words is None:
        raise PassphraseMissing(role)
    return words


def _serial(text: str) -> int:
    try:
        return int(text.replace(":", ""), 16)
    except ValueError:
        raise UserError(f"{text!r} is no serial number; write it in hex.") from None


def _content(file: Path) -> bytes:
    from holdfast.world import LocalFiles

    try:
        content = LocalFiles().read(file)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}.") from error
    if content is None:
        raise UserError(f"There is no file {file}.")
    return content


@app.command()
def show(file: Annotated[Path, typer.Argument(help="A certificate, a chain, a CRL or a request; PEM or DER.")]) -> None:
    """Describe a certificate, a chain, a CRL or a signing request."""
    from holdfast.pki.describe import describe
    from holdfast.world import SystemClock

    print(describe(_content(file), now=SystemClock().now()))
