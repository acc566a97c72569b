"""`holdfast ca`: our own CAs, their ACME clients, and what they issued."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.calling import connected
from holdfast.cli.certificates.progress import once
from holdfast.cli.durations import span
from holdfast.cli.everywhere import chosen
from holdfast.cli.issuers import UNCHANGED
from holdfast.cli.terminal import asked_for, exact, say, show_one
from holdfast.core.key_kind import KeyKind
from holdfast.core.own_ca.ca import CaMode
from holdfast.core.revocation_reason import RevocationReason
from holdfast.errors import UserError

if TYPE_CHECKING:
    from holdfast.cli.client import Client

app = typer.Typer(name="ca", help="Create and change our own CAs; manage their ACME clients and certificates.")

CaArgument = Annotated[str, typer.Argument(help="The name of the CA.", metavar="CA")]
ModeOption = Annotated[CaMode | None, typer.Option("--mode", help="Prove names by challenges, or trust EAB keys.")]
EabOption = Annotated[
    bool | None, typer.Option("--eab-required/--no-eab-required", help="Let only accounts with an EAB key in.")
]
ChallengeOption = Annotated[
    list[str] | None, typer.Option("--challenge", help="A challenge to offer; may be repeated.")
]  # fmt: skip
PermitOption = Annotated[
    list[str] | None, typer.Option("--permit", help="A pattern of names to issue for; may be repeated.")
]  # fmt: skip
ShardsOption = Annotated[int | None, typer.Option("--shards", help="Parts of the CRL; may only grow.")]
CrlOption = Annotated[str | None, typer.Option("--crl-lifetime", help="How long a CRL is good for, such as 7d.")]
ProfileOption = Annotated[
    list[Path] | None,
    typer.Option("--profile", help="A file (JSON or TOML) with the fields of a profile; may be repeated."),
]


# ── CAs ──


@app.command()
def create(
    ca: CaArgument,
    name: Annotated[
        str | None, typer.Option("--name", help="Its name in certificates; without it, Holdfast and that of the CA.")
    ] = None,
    key: Annotated[KeyKind, typer.Option("--key", help="The kind of both keys.")] = KeyKind.EC_P256,
    confine: Annotated[
        list[str] | None, typer.Option("--confine", help="A domain or network its certificate is confined to.")
    ] = None,
    under: Annotated[
        str | None, typer.Option("--under", help="Under the root of this CA, which clients trust already.")
    ] = None,
    any_name: Annotated[bool, typer.Option("--any-name", help="With --under: not confined as that CA is.")] = False,
    mode: ModeOption = None,
    eab_required: EabOption = None,
    challenge: ChallengeOption = None,
    permit: PermitOption = None,
    shards: ShardsOption = None,
    crl_lifetime: CrlOption = None,
    profile: ProfileOption = None,
) -> None:
    """Create a CA: a root, and an intermediate that signs."""
    options = _settings_of(mode, eab_required, challenge, permit, shards, crl_lifetime, profile)
    given = {"ca": ca, "name": name, "key_kind": key, "confine": confine or [], "under": under, "any_name": any_name}
    with connected(offline=True) as client:
        _show(client.post("/cas", {**options, **given}, headers=once(), dry_run=chosen().dry_run))


def _show(row: Any) -> None:
    show_one(row)
    if chosen().dry_run:
        say(UNCHANGED)


@app.command()
def adopt(
    ca: CaArgument,
    chain: Annotated[
        list[Path], typer.Option("--chain", help="PEM: the signing certificate, what is above it, the root.")
    ],
    key: Annotated[Path | None, typer.Option("--key", help="PEM: the key of the CA.")] = None,
    passphrase_file: Annotated[
        Path | None, typer.Option("--passphrase-file", help="Its first line opens the key.")
    ] = None,
    device: Annotated[str | None, typer.Option("--device", help="Instead of a key: its PKCS#11 address.")] = None,
    alternate: Annotated[list[Path] | None, typer.Option("--alternate", help="PEM: a chain to another root.")] = None,
    mode: ModeOption = None,
    eab_required: EabOption = None,
    challenge: ChallengeOption = None,
    permit: PermitOption = None,
    shards: ShardsOption = None,
    crl_lifetime: CrlOption = None,
    profile: ProfileOption = None,
    dev: Annotated[bool, typer.Option("--dev", help="Let a self-signed certificate sign.")] = False,
) -> None:
    """Take over a CA that was made elsewhere, such as by 'holdfast pki init'."""
    options = _settings_of(mode, eab_required, challenge, permit, shards, crl_lifetime, profile)
    given = {
        "chain": "".join(map(_text_of, chain)),
        "alternates": [_text_of(each) for each in alternate or ()],
        "key": None if key is None else _text_of(key),
        "passphrase": None if passphrase_file is None else _text_of(passphrase_file).splitlines()[0],
        "device": device,
        "dev": dev,
    }
    with connected(offline=True) as client:
        _show(client.post(f"/cas/{ca}/adopt", {**options, **given}, headers=once(), dry_run=chosen().dry_run))


@app.command()
def close(
    ca: CaArgument,
) -> None:
    """Close a CA: it takes no new accounts and orders. It goes on to revoke and to sign CRLs."""

    def question(row: Any) -> str:
        out = _many(row["good_certificates"])
        return f"CA {ca} will take no new accounts and orders: ACME clients cannot renew {out} of it then."

    with connected(offline=True) as client:
        _confirmed(client, f"/cas/{ca}/close", {}, question, word=ca)


def _many(number: int) -> str:
    return f"{number} good certificate{'' if number == 1 else 's'}"


def _confirmed(
    client: Client, path: str, body: dict[str, Any], question: Callable[[Any], str], *, word: str, asks: bool = True
) -> None:
    """Try it; ask back with what that showed; then do it."""
    seen = client.post(path, body or None, dry_run=True)
    if chosen().dry_run:
        show_one(seen)
        say(f"{question(seen)} {UNCHANGED}")
        return
    if asks and not asked_for(question(seen), word=word):
        raise typer.Exit(1)
    show_one(client.post(path, body or None, headers=once()))


@app.command("set")
def change(
    ca: CaArgument,
    mode: ModeOption = None,
    eab_required: EabOption = None,
    challenge: ChallengeOption = None,
    permit: PermitOption = None,
    any_name: Annotated[bool, typer.Option("--permit-any", help="Issue for every name again.")] = False,
    shards: ShardsOption = None,
    crl_lifetime: CrlOption = None,
    profile: ProfileOption = None,
    without_profile: Annotated[
        list[str] | None, typer.Option("--without-profile", help="A profile to offer no more.")
    ] = None,
) -> None:
    """Change settings of a CA. Options you leave out keep their values."""
    changes = _settings_of(mode, eab_required, challenge, [] if any_name else permit, shards, crl_lifetime, profile)
    if without_profile:
        changes["without_profiles"] = without_profile
    with connected(offline=True) as client:
        changed = client.patch(f"/cas/{ca}", changes, headers={"If-Match": "*", **once()}, dry_run=chosen().dry_run)
        _show(changed)


@app.command("renew")
def renew(
    ca: CaArgument,
    years: Annotated[
        int, typer.Option("--years", min=1, help="For how long; it expires with the root, if not before.")
    ] = 5,
    chain: Annotated[
        list[Path] | None,
        typer.Option("--chain", help="PEM, signed elsewhere: signing certificate, what is above it, root."),
    ] = None,
) -> None:
    """Renew the signing certificate of a CA: same name, same key, later expiry.

    The root signs it if its key is here. Else sign it with 'holdfast pki recertify', and give the result with --chain.
    """
    given = {"years": years, "chain": "".join(map(_text_of, chain)) if chain else None}

    def question(row: Any) -> str:
        expires, before = exact(row["expires_at"]), exact(row["expired_before"])
        return f"The signing certificate of CA {ca} will expire at {expires} instead of {before}."

    with connected(offline=True) as client:
        _confirmed(client, f"/cas/{ca}/renew", given, question, word=ca)


@app.command("root-crl")
def root_crl(
    ca: CaArgument,
    revoke: Annotated[
        str | None, typer.Option("--revoke", help="The serial of an intermediate that is to be on it, in hex.")
    ] = None,
    reason: Annotated[RevocationReason, typer.Option("--reason", help="Why.")] = RevocationReason.UNSPECIFIED,
    days: Annotated[int | None, typer.Option("--days", help="How long the CRL is good for; as before, or 180.")] = None,
) -> None:
    """Sign the CRL of a root whose key is kept here: its revoked intermediates."""

    def question(row: Any) -> str:
        cut_off = [f"CA {each['ca']} with {_many(each['good_certificates'])}" for each in row["cut_off"]]
        ends = f" Clients will not believe {', '.join(cut_off)} any more." if cut_off else ""
        return f"CRL {row['number']} of the root of CA {ca} names {len(row['revoked'])} intermediates.{ends}"

    given = {"revoke": revoke, "reason": reason, "days": days}
    with connected(offline=True) as client:
        _confirmed(client, f"/cas/{ca}/root-crl", given, question, word=ca, asks=revoke is not None)


# ── Clients and their work ──


@app.command("revoke-account")
def revoke_account(
    account: Annotated[str, typer.Argument(help="Its id.")],
) -> None:
    """Revoke an ACME account for good. Its certificates stay as they are."""

    def question(row: Any) -> str:
        held = _many(row["good_certificates"])
        return f"This revokes account {account} of CA {row['ca']} for good: it can renew none of its {held}."

    path = f"/acme/accounts/{account}/revoke"
    with connected(offline=True) as client:
        _confirmed(client, path, {}, question, word=account)


@app.command()
def revoke(
    serial: Annotated[str, typer.Argument(help="The serial number, in hex.")],
    ca: Annotated[str, typer.Option("--ca", help="The CA that issued it.")],
    reason: Annotated[RevocationReason, typer.Option("--reason", help="Why.")],
) -> None:
    """Revoke a certificate that a CA of ours has issued. It is on the CRL within a minute."""

    def question(row: Any) -> str:
        also = f" So it does {len(row['also'])} more of the same key." if row["also"] else ""
        return f"This revokes the certificate of {', '.join(row['names'])}, serial {row['serial']}, for good.{also}"

    path, given = f"/cas/{ca}/certificates/{serial}/revoke", {"reason": reason}
    with connected(offline=True) as client:
        _confirmed(client, path, given, question, word=serial)


# ── Files and settings that are given ──


def _settings_of(
    mode: str | None,
    eab_required: bool | None,
    challenges: list[str] | None,
    permitted: list[str] | None,
    shards: int | None,
    crl_lifetime: str | None,
    profiles: list[Path] | None,
) -> dict[str, Any]:
    given = {
        "mode": mode,
        "eab_required": eab_required,
        "challenges": challenges,
        "permitted": permitted,
        "shards": shards,
        "crl_lifetime_s": None if crl_lifetime is None else int(span(crl_lifetime).total_seconds()),
        "profiles": None if profiles is None else [_profile(each) for each in profiles],
    }
    return {name: value for name, value in given.items() if value is not None}


def _profile(file: Path) -> Any:
    import json
    import tomllib

    text = _text_of(file)
    try:
        return json.loads(text) if text.lstrip().startswith("{") else tomllib.loads(text)
    except ValueError as error:
        raise UserError(f"{file} is neither JSON nor TOML: {error}.") from None


def _text_of(file: Path) -> str:
    from holdfast.world import LocalFiles

    try:
        content = LocalFiles().read(file)
        text = None if content is None else content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read: {error}.") from None
    if not text:
        raise UserError(f"There is no file {file}, or nothing in it.")
    return text
