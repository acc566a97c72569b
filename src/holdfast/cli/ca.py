"""`holdfast ca`: the CAs that certificates come from; our own, their clients, their work, revocation."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from holdfast.cli import issuer
from holdfast.cli.ca_given import options_of, seconds_of, text_of
from holdfast.cli.config import ConfigOption
from holdfast.cli.following import DryRunOption
from holdfast.cli.issue import YesOption
from holdfast.cli.issuer import UNCHANGED
from holdfast.cli.on_the_server import ask_here, only_on_the_server
from holdfast.cli.showing import OutputOption, show_one, show_rows
from holdfast.cli.terminal import asked_for, say

app = typer.Typer(name="ca", help="Add and test CAs elsewhere; make and change our own, let their clients in, revoke.")
eab = typer.Typer(name="eab", help="Keys for external account binding: each lets one account in.")
app.add_typer(eab)
issuer.put_into(app)

KeyKind = Literal["ec-p256", "ec-p384", "rsa-2048", "rsa-3072", "rsa-4096", "ed25519"]
Mode = Literal["validate", "trust"]
Reason = Literal[
    "unspecified", "key-compromise", "affiliation-changed", "superseded", "cessation-of-operation",
    "privilege-withdrawn",
]  # fmt: skip
CaArgument = Annotated[str, typer.Argument(help="The name of the CA.", metavar="CA")]
CaOption = Annotated[str | None, typer.Option("--ca", help="Only those of this CA.")]
AfterOption = Annotated[str, typer.Option("--after", help="Those after this id: the next page.")]
LimitOption = Annotated[int, typer.Option("--limit", min=1, max=1000, help="At most so many.")]
ModeOption = Annotated[Mode | None, typer.Option("--mode", help="Prove names by challenges, or trust EAB keys.")]
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
    key: Annotated[KeyKind, typer.Option("--key", help="The kind of both keys.")] = "ec-p256",
    confine: Annotated[
        list[str] | None, typer.Option("--confine", help="A domain or network its certificate is confined to.")
    ] = None,
    under: Annotated[
        str | None, typer.Option("--under", help="Under the root of this CA, which clients trust already.")
    ] = None,
    any_name: Annotated[
        bool, typer.Option("--any-name", help="With --under: not confined as the issuer of that CA is.")
    ] = False,
    mode: ModeOption = None,
    eab_required: EabOption = None,
    challenge: ChallengeOption = None,
    permit: PermitOption = None,
    shards: ShardsOption = None,
    crl_lifetime: CrlOption = None,
    profile: ProfileOption = None,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    output: OutputOption = "table",
) -> None:
    """Make a CA: a root, whose key is put away, and an intermediate that signs."""
    options = options_of(mode, eab_required, challenge, permit, shards, crl_lifetime, profile)
    subject = name or (f"Holdfast {ca}" if len(ca) < 32 else ca[:32])  # a certificate has room for 40 characters
    given = {"ca": ca, "name": subject, "key": key, "permit": confine or [], "under": under, "any_name": any_name}
    _done(config, output, "ca.create", {"options": options, **given}, dry_run=dry_run)


def _done(config: Path | None, output: Any, verb: str, args: dict[str, Any], *, dry_run: bool) -> None:
    """What cannot be mistaken is not asked back; what it would do can be seen all the same."""
    show_one(ask_here(config, verb, **args, **({"dry_run": True} if dry_run else {})), output)
    if dry_run:
        say(UNCHANGED)


@app.command()
def adopt(
    ca: CaArgument,
    chain: Annotated[list[Path], typer.Option("--chain", help="PEM: the issuer, what is above it, the root.")],
    key: Annotated[Path | None, typer.Option("--key", help="PEM: the issuer's key.")] = None,
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
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    output: OutputOption = "table",
) -> None:
    """Take over a CA that was made elsewhere, such as by 'holdfast pki init'."""
    options = options_of(mode, eab_required, challenge, permit, shards, crl_lifetime, profile)
    options |= {"dev": True} if dev else {}
    given = {
        "chain": "".join(map(text_of, chain)),
        "alternates": [text_of(each) for each in alternate or ()],
        "key": None if key is None else text_of(key),
        "passphrase": None if passphrase_file is None else text_of(passphrase_file).splitlines()[0],
        "device": device,
    }
    _done(config, output, "ca.adopt", {"ca": ca, "options": options, **given}, dry_run=dry_run)


@app.command("own")
@app.command("list")  # its first name
def list_cas(config: ConfigOption = None, output: OutputOption = "table") -> None:
    """List our own CAs, which this server runs; 'ca ls' lists those that certificates come from."""
    show_rows(ask_here(config, "ca.list"), output, empty="There is no CA; 'holdfast ca create' makes one.")


@app.command()
def show(ca: CaArgument, config: ConfigOption = None, output: OutputOption = "table") -> None:
    """Show all about one CA."""
    show_one(ask_here(config, "ca.show", ca=ca), output)


@app.command()
def chain(
    ca: CaArgument,
    root: Annotated[bool, typer.Option("--root", help="The root instead: what clients are to trust.")] = False,
    config: ConfigOption = None,
) -> None:
    """Print the chain of a CA in PEM: the issuer and what is above it, without the root."""
    sys.stdout.write(ask_here(config, "ca.chain", ca=ca, root=root))


@app.command()
def close(
    ca: CaArgument,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    output: OutputOption = "table",
) -> None:
    """Take no new accounts and orders; lists and revocations go on."""

    def question(row: Any) -> str:
        out = _many(row["good_certificates"])
        return f"CA {ca} will take no new accounts and orders: {out} of it can then be renewed by nobody."

    _confirmed(config, output, "ca.close", {"ca": ca}, question, word=ca, yes=yes, dry_run=dry_run)


def _many(number: int) -> str:
    return f"{number} good certificate{'' if number == 1 else 's'}"


def _confirmed(
    config: Path | None,
    output: Any,
    verb: str,
    args: dict[str, Any],
    question: Callable[[Any], str],
    *,
    word: str,
    yes: bool,
    dry_run: bool,
) -> None:
    """Look first; ask back with what was seen; then do it."""
    seen = ask_here(config, verb, **args, dry_run=True)
    if dry_run:
        show_one(seen, output)
        say(f"{question(seen)} {UNCHANGED}")
        return
    if not asked_for(question(seen), yes=yes, word=word):
        raise typer.Exit(1)
    show_one(ask_here(config, verb, **args), output)


@app.command("open")
def reopen(
    ca: CaArgument, dry_run: DryRunOption = False, config: ConfigOption = None, output: OutputOption = "table"
) -> None:
    """Open a closed CA again."""
    _done(config, output, "ca.open", {"ca": ca}, dry_run=dry_run)


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
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    output: OutputOption = "table",
) -> None:
    """Decide something else about a CA; what is not named stays."""
    changes = options_of(mode, eab_required, challenge, [] if any_name else permit, shards, crl_lifetime, profile)
    if without_profile:
        changes["without_profiles"] = without_profile
    _done(config, output, "ca.set", {"ca": ca, "changes": changes}, dry_run=dry_run)


@app.command("renew-issuer")
def renew_issuer(
    ca: CaArgument,
    years: Annotated[int, typer.Option("--years", min=1, help="Its life; it ends with the root, if not before.")] = 5,
    chain: Annotated[
        list[Path] | None,
        typer.Option("--chain", help="PEM, signed elsewhere: issuer, what is above it, root."),
    ] = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    output: OutputOption = "table",
) -> None:
    """Give the issuer of a CA a later end: same name, same key, so that clients notice nothing.

    The root signs it, if its key is kept here; else 'holdfast pki recertify' does where it is, and --chain brings it.
    """
    given = {"ca": ca, "years": years, "chain": "".join(map(text_of, chain)) if chain else None}

    def question(row: Any) -> str:
        return f"The issuer of CA {ca} will end {row['ends']} instead of {row['was']}."

    _confirmed(config, output, "ca.renew-issuer", given, question, word=ca, yes=yes, dry_run=dry_run)


@app.command("root-crl")
def root_crl(
    ca: CaArgument,
    revoke: Annotated[
        str | None, typer.Option("--revoke", help="The serial of an intermediate that is to be on it, in hex.")
    ] = None,
    reason: Annotated[Reason, typer.Option("--reason", help="Why.")] = "unspecified",
    days: Annotated[
        int | None, typer.Option("--days", help="How long the list is good for; as before, or 180.")
    ] = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    output: OutputOption = "table",
) -> None:
    """Sign the list of a root whose key is kept here: which of its intermediates are revoked, for good."""

    def question(row: Any) -> str:
        ends = f" It ends {', '.join(row['cut_off'])}." if row["cut_off"] else ""
        return f"List {row['number']} of the root of CA {ca} names {len(row['revoked'])} intermediates.{ends}"

    args = {"ca": ca, "revoke": revoke, "reason": reason, "days": days}
    yes = yes or revoke is None  # a list that says what the last one said harms nobody
    _confirmed(config, output, "ca.root-crl", args, question, word=ca, yes=yes, dry_run=dry_run)


# ── Keys that let accounts in ──


@eab.command("create")
def eab_create(
    ca: CaArgument,
    name: Annotated[
        list[str] | None, typer.Option("--name", help="A pattern of names its account may have; may be repeated.")
    ] = None,
    note: Annotated[str, typer.Option("--note", help="Whom it is for.")] = "",
    lifetime: Annotated[str | None, typer.Option("--lifetime", help="How long it may be used, such as 7d.")] = None,
    config: ConfigOption = None,
    output: OutputOption = "table",
) -> None:
    """Make a key; its MAC key is shown only now. Clients ask for both: kid, and HMAC key in base64url."""
    span = None if lifetime is None else seconds_of(lifetime)
    show_one(ask_here(config, "eab.create", ca=ca, names=name or [], note=note, lives_for_s=span), output)


@eab.command("list")
def eab_list(
    ca: CaOption = None,
    after: AfterOption = "",
    limit: LimitOption = 100,
    config: ConfigOption = None,
    output: OutputOption = "table",
) -> None:
    """List the keys, without their MAC keys."""
    show_rows(ask_here(config, "eab.list", ca=ca, after=after, limit=limit), output, empty="There are no EAB keys.")


@eab.command("revoke")
def eab_revoke(
    kid: Annotated[str, typer.Argument(help="Its id.")],
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    output: OutputOption = "table",
) -> None:
    """Let no account in with this key any more; one that is in stays."""
    _done(config, output, "eab.revoke", {"kid": kid}, dry_run=dry_run)


# ── Clients and their work ──


@app.command()
def accounts(
    ca: CaOption = None,
    after: AfterOption = "",
    limit: LimitOption = 100,
    config: ConfigOption = None,
    output: OutputOption = "table",
) -> None:
    """List accounts, the oldest first."""
    show_rows(ask_here(config, "account.list", ca=ca, after=after, limit=limit), output, empty="There are no accounts.")


@app.command("revoke-account")
def revoke_account(
    account: Annotated[str, typer.Argument(help="Its id.")],
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    output: OutputOption = "table",
) -> None:
    """End an account for good; its certificates stay as they are."""

    def question(row: Any) -> str:
        held = _many(row["good_certificates"])
        return f"This ends account {account} of CA {row['ca']} for good: it can renew none of its {held}."

    args = {"account": account}
    _confirmed(config, output, "account.revoke", args, question, word=account, yes=yes, dry_run=dry_run)


@app.command()
def orders(
    ca: CaOption = None,
    account: Annotated[str | None, typer.Option("--account", help="Only those of this account.")] = None,
    after: AfterOption = "",
    limit: LimitOption = 100,
    config: ConfigOption = None,
    output: OutputOption = "table",
) -> None:
    """List orders, the oldest first."""
    rows = ask_here(config, "order.list", ca=ca, account=account, after=after, limit=limit)
    show_rows(rows, output, empty="There are no orders.")


@app.command()
def certificates(
    ca: CaArgument,
    after: AfterOption = "",
    limit: LimitOption = 100,
    config: ConfigOption = None,
    output: OutputOption = "table",
) -> None:
    """List the certificates of a CA, the oldest first."""
    rows = ask_here(config, "certificate.list", ca=ca, after=after, limit=limit)
    show_rows(rows, output, empty="There are no certificates.")


@app.command()
def pauses(config: ConfigOption = None, output: OutputOption = "table") -> None:
    """List names that are paused: they failed too often in a row, or somebody paused them."""
    show_rows(ask_here(config, "pause.list"), output, empty="Nothing is paused.")


AccountArgument = Annotated[str, typer.Argument(help="The account.", metavar="ACCOUNT")]
NameArgument = Annotated[str, typer.Argument(help="The name.", metavar="NAME")]


@app.command("pause-name")
def pause_name(
    account: AccountArgument,
    name: NameArgument,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    output: OutputOption = "table",
) -> None:
    """Take no more orders of an account for a name, and for the wildcard of that name."""
    _done(config, output, "pause.add", {"account": account, "name": name}, dry_run=dry_run)


@app.command("unpause-name")
@app.command("unpause")  # its first name
def unpause(
    account: AccountArgument, name: NameArgument, config: ConfigOption = None, output: OutputOption = "table"
) -> None:
    """Let orders for a name through again, with its failures forgotten."""
    show_one(ask_here(config, "pause.remove", account=account, name=name), output)


@app.command()
def revoke(
    serial: Annotated[str, typer.Argument(help="The serial number, in hex.")],
    ca: Annotated[str, typer.Option("--ca", help="The CA that issued it.")],
    reason: Annotated[Reason, typer.Option("--reason", help="Why.")],
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    output: OutputOption = "table",
) -> None:
    """Revoke a certificate; it is on the CRL within a minute."""

    def question(row: Any) -> str:
        also = f" So it does {len(row['also'])} more of the same key." if row.get("also") else ""
        return f"This revokes the certificate of {', '.join(row['names'])}, serial {row['serial']}, for good.{also}"

    args = {"ca": ca, "serial": serial, "reason": reason}
    _confirmed(config, output, "certificate.revoke", args, question, word=serial, yes=yes, dry_run=dry_run)


@app.command("block-key")
def block_key(
    key: Annotated[str, typer.Argument(help="The SHA-256 of a public key in hex, or a file with it in PEM.")],
    why: Annotated[str, typer.Option("--why", help="For the audit.")],
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    output: OutputOption = "table",
) -> None:
    """Never issue for a public key again."""
    content = key if len(key) == 64 and all(c in "0123456789abcdefABCDEF" for c in key) else text_of(Path(key))
    _done(config, output, "key.block", {"key": content, "why": why}, dry_run=dry_run)


only_on_the_server(app, eab, module=__name__)
