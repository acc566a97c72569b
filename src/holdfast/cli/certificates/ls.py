"""`holdfast ls`, `get`, `status`, `explain`: certificates, their state, and the reasons for it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from holdfast.cli.calling import clock, connected
from holdfast.cli.certificates import display as shown
from holdfast.cli.durations import moment, span
from holdfast.cli.everywhere import FINDINGS, Row, chosen
from holdfast.cli.input_files import filtered
from holdfast.cli.terminal import emit, emit_one, exact, pairs, say
from holdfast.core.certificate import CertificateState
from holdfast.core.finding import SOON, all_drained, needs_a_person, troubled_issuers

if TYPE_CHECKING:
    from holdfast.cli.client import Client

app = typer.Typer()
LabelOption = Annotated[list[str] | None, typer.Option("--label", "-l", metavar="NAME=VALUE", help="With this label.")]
CertArgument = Annotated[str, typer.Argument(metavar="CERT", help="Its name, its id, or a unique prefix of the id.")]


@app.command("ls")
def ls(
    text: Annotated[str | None, typer.Argument(metavar="[TEXT]", help="Part of a name.")] = None,
    expiring: Annotated[
        str | None, typer.Option("--expiring", metavar="SPAN", help="Expires within this time, such as 14d.")
    ] = None,
    failing: Annotated[bool, typer.Option("--failing", help="The last issuance failed.")] = False,
    unowned: Annotated[bool, typer.Option("--unowned", help="Without an owner.")] = False,
    owner: Annotated[str | None, typer.Option("--owner", help="Of this owner.")] = None,
    issuer: Annotated[str | None, typer.Option("--issuer", help="Of this issuer.")] = None,
    state: Annotated[CertificateState | None, typer.Option("--state", help="In this state.")] = None,
    label: LabelOption = None,
    sort: Annotated[
        Literal["name", "expires"] | None, typer.Option("--sort", help="By name; by expiry with --expiring.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many.")] = None,
) -> None:
    """List certificates."""
    now = clock().now()
    query = {
        "q": text, "failing": failing, "unowned": unowned, "owner": owner, "issuer": issuer, "state": state,
        "label": [*map(filtered, label or ())], "sort": sort, "limit": min(limit or 500, 500),
        "expires_before": None if expiring is None else (now + span(expiring)).isoformat(),
    }  # fmt: skip
    with connected() as client:
        rows = client.pages("/certificates", most=limit, **query)
    nothing = "There are no such certificates. Ask for one: holdfast issue NAME"
    emit(rows, shown.columns(now), empty=nothing)


@app.command("get")
def get(
    certificate: CertArgument,
) -> None:
    """Show one certificate in full."""
    with connected() as client:
        row = client.get(f"/certificates/{certificate}")
        row["versions"] = client.get(f"/certificates/{certificate}/versions")
    now = clock().now()
    emit_one(row, text=lambda each: shown.full(each, now))


@app.command("status")
def status(
    certificate: Annotated[str | None, typer.Argument(metavar="[CERT]", help="All of them, if left out.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit with 10 if something needs a person.")] = False,
) -> None:
    """Show the state of one certificate, or of all: phase, reason, next attempt, and who acts next."""
    now = clock().now()
    with connected() as client:
        if certificate is not None:
            row = client.get(f"/certificates/{certificate}")
            left = (
                client.maybe(f"/issuers/{row['issuers'][0]}/budget") if chosen().output in ("table", "wide") else None
            )
            gaps = [each for each in client.maybe("/solvers/gaps") or () if each["certificate"] == row["name"]]
            told = "".join(f"\nsolver  {_gap(each)}" for each in gaps)
            emit_one(row, text=lambda each: shown.block(each, now, left or ()) + told)
            bad = bool(gaps) or needs_a_person(row)
        else:
            summary = client.get("/stats/summary")
            found = _look_at_all(client, now)
            bad = _anything(found)
            emit_one({**summary, **found}, text=lambda each: _fleet(each, now), name="at")
            if found["not_shown"]:
                say(f"Your role does not show these, so they were not checked: {', '.join(found['not_shown'])}.")
    if check and bad:
        raise typer.Exit(FINDINGS)


def _fleet(summary: Row, now: datetime) -> str:
    counts, ends = summary["certificates"], summary["expiring"]
    facts = [
        ("certificates", ", ".join(f"{number} {state}" for state, number in sorted(counts.items())) or "none yet"),
        ("under way", f"{summary['under_way']}, {summary['awaiting_approval']} wait for approval"),
        ("failing", str(summary["failing"])),
        ("expired", str(summary["expired"])),
        ("expiring", ", ".join(f"{number} within {days} d" for days, number in ends.items())),
        *_facts(summary),
    ]
    blocks = [shown.block(row, now) for row in summary["attention"]]
    return "\n\n".join([pairs(facts), *blocks])


# ── What needs a person, of everything: from the same sources as the first tool for assistants ──

SOURCES: Final = ("attention", "approvals", "dead_jobs", "dead_notifications", "cas", "endpoints", "drained", "gaps")


def _look_at_all(client: Client, now: datetime) -> dict[str, Any]:
    """Each source by its name; `not_shown`: those that this token may not see."""
    failing = client.pages("/certificates", failing=True, limit=500)
    ending = client.pages("/certificates", expires_before=(now + SOON).isoformat(), limit=500)
    stuck = client.pages("/certificates", for_a_person=True, limit=500)
    rows = {row["id"]: row for row in [*failing, *ending, *stuck] if needs_a_person(row)}
    found = {
        "attention": list(rows.values()),
        "approvals": _items(client.maybe("/approvals", limit=500)),
        "dead_jobs": _items(client.maybe("/jobs", state="dead", limit=100)),
        "dead_notifications": _items(client.maybe("/notifications", state="dead", limit=100)),
        "cas": troubled_issuers(_items(client.maybe("/issuers", limit=500))),
        "endpoints": _items(client.maybe("/endpoints", troubled=True, limit=500)),
        "drained": all_drained(client.maybe("/cluster")),
        "gaps": client.maybe("/solvers/gaps"),
    }
    return found | {"not_shown": [name for name, each in found.items() if each is None]}


def _items(page: Any) -> Any:
    return None if page is None else page["items"]


def _anything(found: Row) -> bool:
    return any(found[name] for name in SOURCES)


def _facts(found: Row) -> Iterator[tuple[str, str]]:
    """Facts that are not about one certificate, each with the command that shows more."""
    for name, words, command in (
        ("approvals", "wait for a second person", "holdfast approvals ls"),
        ("dead_jobs", "were given up", "holdfast jobs ls --state dead"),
        ("dead_notifications", "were never delivered", "holdfast notify ls --dead"),
    ):
        if found[name]:
            yield name.replace("_", " "), f"{len(found[name])} {words}: {command}"
    for row in found["gaps"] or ():
        yield "renewal", f"{row['certificate']}: {_gap(row)}"
    if found["drained"]:
        resume = f"holdfast cluster resume {found['drained'][0]['name']}"
        yield "replicas", f"all {len(found['drained'])} were drained, and nothing is renewed: {resume}"
    for row in found["endpoints"] or ():
        yield f"endpoint {row['name']}", f"{row['reason']} holdfast endpoint show {row['name']}"
    for row in found["cas"] or ():
        paused = row["state"] != "active"
        remedy = f"holdfast issuer resume {row['name']}" if paused else f"holdfast issuer test {row['name']}"
        yield f"CA {row['name']}", f"{row['state'] if paused else row['breaker_error'] or 'it is down'}: {remedy}"


def _gap(row: Row) -> str:
    by = "" if row["challenge"] == "any" else f" by {row['challenge']}"
    return f"its next renewal will fail: no solver can prove {', '.join(row['names'])}{by}: holdfast solver add --help"


# ── Why ──


@app.command("explain")
def explain(
    certificate: CertArgument,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME", help="At this time instead of now; 14d: in 14 days, -3d: 3 days ago."),
    ] = None,
) -> None:
    """Explain why a certificate is renewed or not: each rule in order, what it saw, and which rule blocks."""
    with connected() as client:
        found = client.get(f"/certificates/{certificate}/explain", at=None if at is None else moment(at).isoformat())
    emit_one(found, text=_explained, name="verdict")


def _explained(found: Any) -> str:
    checks = pairs((each["rule"], _check(each)) for each in found["checks"])
    told = [f"{found['verdict']}   (at {exact(found['at'])})", checks, f"what to do: {found['would_change_it']}"]
    return "\n".join([*told, *(f"note: {each}" for each in found.get("of_today", ()))])


def _check(check: Row) -> str:
    return f"{check['saw']}: {check['verdict']}{'   <- decides' if check['blocks'] else ''}"
