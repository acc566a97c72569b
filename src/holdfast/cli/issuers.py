"""`holdfast issuer`: where certificates come from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from holdfast.cli.calling import connected
from holdfast.cli.certificates.progress import once
from holdfast.cli.derived import named_secret
from holdfast.cli.everywhere import Displays, Row, chosen
from holdfast.cli.input_files import label as label_of
from holdfast.cli.terminal import (
    Column,
    emit,
    emit_one,
    exact,
    pairs,
    say,
)

app = typer.Typer(name="issuer", help="Add, test, change and pause the issuers that certificates come from.")
NameArgument = Annotated[str, typer.Argument(metavar="ISSUER", help="The name of the issuer.")]
DirectoryOption = Annotated[str | None, typer.Option("--directory", help="The address of the ACME directory.")]
SettingOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=JSON", help="A setting; may be repeated.")
]
EabOption = Annotated[str | None, typer.Option("--eab-kid", help="The key id of the external account binding.")]
CredentialOption = Annotated[
    list[str] | None,
    typer.Option(
        "--credential",
        metavar="NAME=FILE",
        help="A credential: a file, - for stdin, or env:VARIABLE; may be repeated.",
    ),
]
FAILED = 1  # exit code
UNCHANGED = "Nothing was changed: it was only tried."
MOST = 64 * 1024  # bytes of a credential
TERMS = {  # by the host of its directory; "issuer test" shows what the directory itself names
    "letsencrypt.org": "https://letsencrypt.org/repository/",
    "zerossl.com": "https://zerossl.com/terms/",
    "pki.goog": "https://pki.goog/GTS-SA.pdf",
    "digicert.com": "https://www.digicert.com/legal-repository",
}


@app.command("add")
def add(
    kind: Annotated[
        str, typer.Argument(help="Its kind, such as digicert, vault or acme; or a preset, such as letsencrypt.")
    ],
    name: NameArgument,
    directory: DirectoryOption = None,
    setting: SettingOption = None,
    eab_kid: EabOption = None,
    credential: CredentialOption = None,
) -> None:
    """Add an issuer. An error names each setting and credential that its kind needs and that is missing."""
    settings = _settings(setting, directory, eab_kid)
    asked = {"name": name, "kind": kind, "settings": settings, "credentials": dict(map(named_secret, credential or ()))}
    with connected() as client:
        made = client.post("/issuers", asked, headers=once(), dry_run=chosen().dry_run)
    _added(made)


def _settings(given: list[str] | None, directory: str | None, eab_kid: str | None) -> dict[str, object]:
    named = {key: value for key, value in (("directory", directory), ("eab_kid", eab_kid)) if value is not None}
    return dict(map(_setting, given or ())) | named


def _added(row: Row) -> None:
    emit_one(row, text=text)
    if (directory := row["settings"].get("directory")) and row["settings"].get("terms_agreed", True):
        say(_terms(str(directory)))
    say(UNCHANGED if chosen().dry_run else f"Added. See that it answers: holdfast issuer test {row['name']}")


def _terms(directory: str) -> str:
    """An account means agreement (RFC 8555 §7.3), so the user must know the terms and where to read them."""
    host = directory.partition("://")[2].partition("/")[0]
    where = next((address for known, address in TERMS.items() if known in host), None)
    where = where or f"those that its directory names as termsOfService ({directory})"
    return f"Using this issuer accepts the terms of its CA: {where}"


def _setting(text: str) -> tuple[str, object]:
    name, value = label_of(text)
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


# ── How issuers are shown ──


def issuers(rows: Sequence[Row]) -> None:
    columns = [
        Column("NAME", lambda row: str(row["name"])),
        Column("KIND", lambda row: str(row["kind"])),
        Column("STATE", lambda row: "down" if row["breaker_open"] else str(row["state"])),
        Column("DIRECTORY", lambda row: str(row["settings"].get("directory") or row["settings"].get("ca") or "-")),
        Column("ERROR", lambda row: row["breaker_error"] or "-", wide=True),
    ]
    empty = "There is no issuer. Add one: holdfast issuer add letsencrypt NAME"
    emit(rows, columns, empty=empty)


def issuer(row: Row) -> None:
    emit_one(row, text=text)


def text(row: Row) -> str:
    facts = [("name", row["name"]), ("kind", row["kind"]), ("state", row["state"])]
    if row["settings"].get("approval_required"):
        facts.append(("approval", "a second person must approve each issuance"))
    return pairs([*facts, *((name, json.dumps(value)) for name, value in row["settings"].items())])


def budgets(rows: Sequence[Row]) -> None:
    columns = [
        Column("BUDGET", lambda row: str(row["key"])),
        Column("LEFT", lambda row: f"{row['left']}/{row['burst']}"),
        Column("ONE MORE EVERY", lambda row: f"{row['every_s']:g} s"),
        Column("HELD UNTIL", lambda row: "-" if row["held_until"] is None else exact(row["held_until"])),
    ]
    empty = "Nothing was asked of this issuer yet, so no budget was used."
    emit(rows, columns, name="key", empty=empty)


def _silent(row: Row) -> None:
    """The sentence of the declaration says all."""


SHOWN: Final[Displays] = {
    "issuers.list": issuers,
    "issuers.get": issuer,
    "issuers.budget": budgets,
    "issuers.pause": _silent,
    "issuers.resume": _silent,
    "issuers.delete": _silent,
    "issuers.change": issuer,
    "issuers.replace-account": _silent,
}
