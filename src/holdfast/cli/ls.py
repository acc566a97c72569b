"""`holdfast ls`, `get`, `status`, `explain`: what there is, how it stands, and why."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import typer

from holdfast.cli import attention
from holdfast.cli import showing_certificates as shown
from holdfast.cli.calling import ServerOption, clock, connected
from holdfast.cli.config import ConfigOption
from holdfast.cli.given import filtered
from holdfast.cli.spans import moment, span
from holdfast.cli.terminal import ColumnsOption, FormatOption, emit, emit_one, exact, pairs, say
from holdfast.core.attention import needs_somebody

app = typer.Typer()
FINDINGS = 10  # exit code
LabelOption = Annotated[list[str] | None, typer.Option("--label", "-l", metavar="NAME=VALUE", help="With this label.")]
CertArgument = Annotated[str, typer.Argument(metavar="CERT", help="Its name, its id, or a unique prefix of the id.")]


@app.command("ls")
def ls(
    text: Annotated[str | None, typer.Argument(metavar="[TEXT]", help="Part of a name.")] = None,
    expiring: Annotated[
        str | None, typer.Option("--expiring", metavar="SPAN", help="Ends within, such as 14d.")
    ] = None,
    failing: Annotated[bool, typer.Option("--failing", help="Whose last attempt failed.")] = False,
    unowned: Annotated[bool, typer.Option("--unowned", help="Without an owner.")] = False,
    owner: Annotated[str | None, typer.Option("--owner", help="Of this owner.")] = None,
    ca: Annotated[str | None, typer.Option("--ca", help="Of this CA.")] = None,
    state: Annotated[Literal["active", "paused", "archived"] | None, typer.Option("--state")] = None,
    label: LabelOption = None,
    sort: Annotated[
        Literal["name", "expires"] | None, typer.Option("--sort", help="By name; by expiry with --expiring.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many.")] = None,
    columns: ColumnsOption = None,
    config: ConfigOption = None,
    server: ServerOption = None,
    output: FormatOption = "table",
) -> None:
    """List certificates."""
    now = clock().now()
    query = {
        "q": text, "failing": failing, "unowned": unowned, "owner": owner, "issuer": ca, "state": state,
        "label": [*map(filtered, label or ())], "sort": sort, "limit": min(limit or 500, 500),
        "expires_before": None if expiring is None else (now + span(expiring)).isoformat(),
    }  # fmt: skip
    with connected(config, server) as client:
        rows = client.pages("/certificates", most=limit, **query)
    nothing = "There are no such certificates. Ask for one: holdfast issue NAME"
    emit(rows, shown.columns(now), output, empty=nothing, only=columns)


@app.command("get")
def get(
    certificate: CertArgument, config: ConfigOption = None, server: ServerOption = None, output: FormatOption = "table"
) -> None:
    """Show one certificate in full."""
    with connected(config, server) as client:
        row = client.get(f"/certificates/{certificate}")
        row["versions"] = client.get(f"/certificates/{certificate}/versions")
    now = clock().now()
    emit_one(row, output, text=lambda each: shown.full(each, now))


@app.command("status")
def status(
    certificate: Annotated[str | None, typer.Argument(metavar="[CERT]", help="All of them, if left out.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit with 10 if something needs a person.")] = False,
    config: ConfigOption = None,
    server: ServerOption = None,
    output: FormatOption = "table",
) -> None:
    """Say how a certificate stands, or all of them: phase, reason, next attempt, and who acts next."""
    now = clock().now()
    with connected(config, server) as client:
        if certificate is not None:
            row = client.get(f"/certificates/{certificate}")
            left = client.maybe(f"/issuers/{row['issuers'][0]}/budget") if output in ("table", "wide") else None
            emit_one(row, output, text=lambda each: shown.block(each, now, left or ()))
            bad = needs_somebody(row)
        else:
            summary = client.get("/stats/summary")
            found = attention.of_all(client, now)
            bad = attention.anything(found)
            emit_one({**summary, **found}, output, text=lambda each: _fleet(each, now), name="at")
            if found["not_shown"]:
                say(f"Not for you to see, and not looked at: {', '.join(found['not_shown'])}.")
    if check and bad:
        raise typer.Exit(FINDINGS)


def _fleet(summary: Any, now: datetime) -> str:
    counts, ends = summary["certificates"], summary["expiring"]
    facts = [
        ("certificates", ", ".join(f"{number} {state}" for state, number in sorted(counts.items())) or "none yet"),
        ("under way", f"{summary['under_way']}, {summary['awaiting_approval']} wait for approval"),
        ("failing", str(summary["failing"])),
        ("expired", str(summary["expired"])),
        ("ending", ", ".join(f"{number} within {days} d" for days, number in ends.items())),
        *attention.facts(summary),
    ]
    blocks = [shown.block(row, now) for row in summary["attention"]]
    return "\n\n".join([pairs(facts), *blocks])


@app.command("explain")
def explain(
    certificate: CertArgument,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="Then instead of now; 14d: in 14 days, -3d: 3 days ago.")
    ] = None,
    config: ConfigOption = None,
    server: ServerOption = None,
    output: FormatOption = "table",
) -> None:
    """Say why it is, or is not, renewed: each rule in order, what it saw, which one blocks, what would change it."""
    with connected(config, server) as client:
        found = client.get(f"/certificates/{certificate}/explain", at=None if at is None else moment(at).isoformat())
    emit_one(found, output, text=_explained, name="verdict")


def _explained(found: Any) -> str:
    checks = pairs((each["rule"], _check(each)) for each in found["checks"])
    told = [f"{found['verdict']}   (at {exact(found['at'])})", checks, f"would change it: {found['would_change_it']}"]
    return "\n".join([*told, *(f"note: {each}" for each in found.get("of_today", ()))])


def _check(check: Any) -> str:
    return f"{check['saw']}: {check['verdict']}{'   <- this one blocks' if check['blocks'] else ''}"
